"""Preprocessing as PyTorch libraries describe it <-> our line of text.

    Transform: resize with Pillow (the short side, or both sides), cut the middle out, normalise

timm's pretrained_cfg, transformers' preprocessor_config.json and torchvision's presets all describe this much.
`Transform.line` is exact: bit for bit what the library computes. `line_to_transform` goes back, and returns in
words what a line does that a Transform cannot describe.
"""

from __future__ import annotations

from dataclasses import dataclass

from vitrail.data import preprocess as pp
from vitrail.data.ops.pixel_ops import CentralCrop, Crop, PixelOp, Resize, ResizeSmall, Uint8
from vitrail.data.ops.value_ops import Normalize, ToRange, ValueOp
from vitrail.errors import ConfigError

METHODS = ("bilinear", "bicubic", "lanczos")  # Pillow's, antialiased
Triple = tuple[float, float, float]
HALF: Triple = (0.5, 0.5, 0.5)
IMAGENET: dict[str, Triple] = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}


@dataclass(frozen=True)
class Transform:
    resize: int | tuple[int, int]  # the short side, the aspect ratio kept; or (height, width), squashed
    crop: tuple[int, int] | None  # (height, width) of the middle; None: all of it
    method: str = "bilinear"
    mean: Triple = HALF  # of values in [0, 1]
    std: Triple = HALF
    crop_rounding: str = "nearest"  # of the offset: torchvision and timm nearest, transformers down
    fractions: bool = False  # pixels are not rounded to bytes after resizing by "bilinear"

    def line(self) -> str:
        """Return the line that does exactly this; raise ConfigError if a number is out of bounds."""
        if self.method not in METHODS:
            raise ConfigError(f"resizing by {self.method!r} has no counterpart here: {', '.join(METHODS)}")
        fractions = self.fractions and self.method == "bilinear"
        method = "antialiased" if fractions else f"pillow_{self.method}"
        ops: list[PixelOp] = []
        if isinstance(self.resize, int):
            ops.append(ResizeSmall(self.resize, method, "down"))
        else:
            ops.append(Resize(*self.resize, method))
        if self.crop is not None and self.crop != self.resize:
            ops.append(CentralCrop(*self.crop, self.crop_rounding))
        mean, std = (value[0] if len(set(value)) == 1 else value for value in (self.mean, self.std))
        last = () if fractions else (Uint8(),)
        return str(pp.Pipeline((*ops, *last), Normalize(mean, std)))


def cut_rest(line: str, size: tuple[int, int]) -> str:
    """Return a line for images that patches do not divide: convolutions leave out what is right and below of them."""
    pipeline = pp.parse(line) if line else None
    if pipeline is None or pipeline.image_size in (None, size):
        return line
    ops = [op for op in pipeline.pixel_ops if not isinstance(op, Uint8)]
    last = () if len(ops) == len(pipeline.pixel_ops) else (Uint8(),)
    return str(pp.Pipeline((*ops, Crop(0, 0, *size), *last), pipeline.value_op))


def line_to_transform(
    line: str, crop_rounding: str, *, fractions: bool = False
) -> tuple[Transform | None, list[str]]:
    """Return the nearest Transform to a line, or None; and where the two differ, in words.

    `fractions`: its reader can leave pixels unrounded.
    """
    if not line:
        return None, ["the model has no preprocessing line: its reader must know how to prepare images"]
    pipeline = pp.parse(line)
    steps = [op for op in pipeline.pixel_ops if not isinstance(op, Uint8)]
    rest = steps[-1] if len(steps) > 1 else None
    steps = steps[:-1] if isinstance(rest, Crop) else steps
    first, crop = (steps[0], steps[1] if len(steps) == 2 else None) if 1 <= len(steps) <= 2 else (None, None)
    if not isinstance(first, Resize | ResizeSmall) or not isinstance(crop, CentralCrop | None):
        return None, [f"the reader must prepare images as '{line}': more than a resize and a middle crop"]
    method, differs = first.method.removeprefix("pillow_"), []
    if isinstance(rest, Crop):
        crop = CentralCrop(rest.height, rest.width, crop_rounding)
        differs.append("cuts the middle out, not the top left")
    fractions = fractions and method == "antialiased" and len(steps) == len(pipeline.pixel_ops)
    if fractions:
        method = "bilinear"
    elif method == first.method:
        method = "bilinear"
        differs.append("resizes with antialiasing (Pillow's bilinear)")
    elif (crop and crop.rounding != crop_rounding) or (
        isinstance(first, ResizeSmall) and first.rounding != "down"
    ):
        differs.append("rounds sizes and offsets differently, by up to a pixel")
    notes = [f"the reader {what}; prepare images as '{line}' for the same numbers" for what in differs]
    mean, std = equivalent_normalisation(pipeline.value_op)
    resize = first.short if isinstance(first, ResizeSmall) else first.output
    kept = crop.output if crop else None
    return Transform(resize, kept, method, mean, std, crop_rounding, fractions), notes


def equivalent_normalisation(op: ValueOp | None) -> tuple[Triple, Triple]:
    """Return the normalisation of values in [0, 1] that is equivalent to an op on bytes."""
    if isinstance(op, Normalize):
        return triple(op.mean), triple(op.std)
    # low + (high - low) x = (x - m) / s; without an op, bytes stay 0..255.
    low, high = (op.low, op.high) if isinstance(op, ToRange) else (0.0, 255.0)
    s = 1 / (high - low)
    return triple(-low * s), triple(s)


def triple(value: float | tuple[float, ...]) -> Triple:
    numbers = value if isinstance(value, tuple) else (value,)
    if len(numbers) not in (1, 3):
        raise ConfigError(f"{numbers} for 3 channels: one number or three")
    r, g, b = numbers * 3 if len(numbers) == 1 else numbers
    return r, g, b
