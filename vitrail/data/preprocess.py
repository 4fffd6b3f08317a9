"""Preprocessing as one line of text: 'resize_small(256)|central_crop(224)|uint8|to_range(-1, 1)'.

The line is stored with every model; training, evaluation, prediction and export all run it, through the
`Pipeline` that `parse` makes of it. Data flow: file bytes -> decode.py -> `Pipeline.host`, an image at a time, in
the workers of the loader -> bytes across the bus -> `Pipeline.device`, the whole batch.

A line is ops separated by `|`: pixel ops (ops/pixel_ops.py, augment.py), then at most one value op
(ops/value_ops.py). An op is a name, and arguments in brackets as in Python: numbers, tuples of numbers, and words,
which need no quotes. By position, numbers fill the number fields of an op in order, and words its word fields.
Nothing is evaluated: arguments are literals. PRESETS are the lines of published code.
"""

from __future__ import annotations

import ast
from dataclasses import MISSING, dataclass, fields
from typing import Any, get_type_hints

import numpy as np
import torch
from torch import Tensor

from vitrail.data.augment import FlipLR, InceptionCrop, RandomCrop, RandomErasing
from vitrail.data.decode import Stored, decode, usual_jpeg
from vitrail.data.ops.fit_patches import FitPatches
from vitrail.data.ops.pixel_ops import (
    CentralCrop,
    Crop,
    Drawn,
    Op,
    PixelOp,
    Resize,
    ResizeSmall,
    Uint8,
    check_inside,
)
from vitrail.data.ops.randaugment import RandAugment
from vitrail.data.ops.resize import OF_BYTES, OF_FRACTIONS, Pixels, resize
from vitrail.data.ops.value_ops import Normalize, ToRange, ValueOp
from vitrail.errors import ConfigError, ImageError

OPS: dict[str, type[PixelOp] | type[ValueOp]] = {
    "resize": Resize,
    "resize_small": ResizeSmall,
    "central_crop": CentralCrop,
    "crop": Crop,
    "uint8": Uint8,
    "inception_crop": InceptionCrop,
    "random_crop": RandomCrop,
    "flip_lr": FlipLR,
    "fit_patches": FitPatches,
    "randaugment": RandAugment,
    "random_erasing": RandomErasing,
    "to_range": ToRange,
    "normalize": Normalize,
}
MAX_LINE = 2_000  # characters; a line can come from a downloaded model

_IMAGENET = "normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))"
_BIG_VISION = "inception_crop(224)|flip_lr|uint8(down)"

PRESETS: dict[str, str] = {
    # google-research/vision_transformer: fractions throughout, no antialiasing, evaluation without a centre crop
    "official_train": "inception_crop(384)|flip_lr|to_range(-1, 1)",
    "official_eval": "resize(384)|to_range(-1, 1)",
    # google-research/big_transfer, BiT-HyperRule: for images under 96 x 96, and for all others
    "bit_small_train": "resize(160)|random_crop(128)|flip_lr|to_range(-1, 1)",
    "bit_small_eval": "resize(128)|to_range(-1, 1)",
    "bit_large_train": "resize(512)|random_crop(480)|flip_lr|to_range(-1, 1)",
    "bit_large_eval": "resize(480)|to_range(-1, 1)",
    # google-research/big_vision: bytes after each resize, the fraction cut off. AugReg adds RandAugment
    "big_vision_pretrain": f"{_BIG_VISION}|to_range(-1, 1)",
    "big_vision_pretrain_light1": f"{_BIG_VISION}|randaugment(2, 0)|uint8|to_range(-1, 1)",
    "big_vision_pretrain_light2": f"{_BIG_VISION}|randaugment(2, 10)|uint8|to_range(-1, 1)",
    "big_vision_pretrain_medium": f"{_BIG_VISION}|randaugment(2, 15)|uint8|to_range(-1, 1)",
    "big_vision_pretrain_strong": f"{_BIG_VISION}|randaugment(2, 20)|uint8|to_range(-1, 1)",
    "big_vision_eval": "resize_small(256)|central_crop(224)|uint8(down)|to_range(-1, 1)",
    "big_vision_transfer_train": "resize_small(448)|random_crop(384)|flip_lr|uint8(down)|to_range(-1, 1)",
    "big_vision_transfer_eval": "resize_small(448)|central_crop(384)|uint8(down)|to_range(-1, 1)",
    "big_vision_fewshot": "resize(256)|central_crop(224)|uint8(down)|to_range(-1, 1)",
    # PyTorch libraries on PIL images, bit for bit; `timm` its general default, `timm_vit` that of its AugReg ViTs
    "torchvision_eval": f"resize_small(256, pillow_bilinear, down)|central_crop(224, nearest)|uint8|{_IMAGENET}",
    "timm_eval": f"resize_small(256, pillow_bicubic, down)|central_crop(224, nearest)|uint8|{_IMAGENET}",
    "timm_vit_eval": "resize_small(248, pillow_bicubic, down)|central_crop(224, nearest)|uint8|normalize(0.5, 0.5)",
    "transformers_eval": "resize(224, pillow_bilinear)|uint8|normalize(0.5, 0.5)",
}


# Training lines by strength, at a size; what comes before the range of values. RandAugment as big_vision's.
AUGMENTS: dict[str, str] = {
    "light": "inception_crop({size}, area=(0.25, 1))|flip_lr|uint8",
    "medium": "inception_crop({size}, area=(0.08, 1))|flip_lr|uint8|randaugment(2, 10)|uint8",
    "strong": "inception_crop({size}, area=(0.08, 1))|flip_lr|uint8|randaugment(2, 15)|"
    "random_erasing(0.25, fill=grey)|uint8",
}


def augmented_line(augment: str, evaluation: str, image_size: tuple[int, int]) -> str:
    """Return the training line of a strength, for a model with this evaluation line; `none` is that line itself.

    Images of any shape are flipped, and distorted, but not cropped.
    """
    own = parse(evaluation)
    if augment == "none":
        return str(own)
    height, width = image_size
    size = f"{height}" if height == width else f"{height}, {width}"
    ops = parse(AUGMENTS[augment].format(size=size)).pixel_ops
    if own.strip is not None:
        kept = [op for op in ops if isinstance(op, FlipLR | RandAugment)]
        return str(Pipeline((*kept, *own.pixel_ops), own.value_op))
    return str(Pipeline(ops, own.value_op))


def default_line(image_size: tuple[int, int]) -> str:
    """Return the line of our own models: the middle 7/8 of the short side if square, else the image squashed."""
    height, width = image_size
    if height == width:
        return f"resize_small({round(height * 8 / 7)})|central_crop({height})|uint8|to_range(-1, 1)"
    return f"resize({height}, {width}, area)|uint8|to_range(-1, 1)"


def any_shape_line(max_tokens: int, patch: int, value_op: ValueOp | None) -> str:
    """Return the line of images that keep their aspect, at most so many patches of so many pixels."""
    return str(Pipeline((FitPatches(max_tokens, patch), Uint8()), value_op))


@dataclass(frozen=True)
class Pipeline:
    """The ops of a line. str() is the line in its canonical form, and parses to an equal pipeline."""

    pixel_ops: tuple[PixelOp, ...]
    value_op: ValueOp | None = None

    def __post_init__(self) -> None:
        """Reject an op that cannot take the output of the ops before it: once, and not for each image."""
        fractions, before = False, None
        size: tuple[int, int] | None = None
        for op in self.pixel_ops:
            method = getattr(op, "method", None)
            if fractions and (method in OF_BYTES or isinstance(op, RandAugment)):
                raise ConfigError(
                    f"{op_text(op)} takes bytes, and an op before it makes fractions; put uint8 in between"
                )
            fractions = (fractions or method in OF_FRACTIONS) and not isinstance(op, Uint8)
            if before is not None and isinstance(op, CentralCrop | RandomCrop):
                height, width = op.output
                too_large = size is not None and (height > size[0] or width > size[1])
                if too_large or (isinstance(before, ResizeSmall) and min(height, width) > before.short):
                    raise ConfigError(f"{op_text(op)} is larger than the output of {op_text(before)}")
            if isinstance(before, FitPatches) and not isinstance(op, FlipLR | RandAugment | Uint8):
                raise ConfigError(f"{op_text(op)} after {op_text(before)} would change the patches")
            before, size = op, op.size(size)

    def __str__(self) -> str:
        ops: tuple[Op, ...] = (*self.pixel_ops, self.value_op) if self.value_op else self.pixel_ops
        return "|".join(map(op_text, ops))

    def __call__(self, image: Pixels, rng: np.random.Generator | None = None) -> Tensor:
        """Run the whole line on one image, uint8 (H, W, 3): float32 (3, h, w)."""
        return self.device(self.host(image, rng)[None])[0]  # (3, h, w)

    def load(self, data: Stored, rng: np.random.Generator | None = None, *, name: str = "<bytes>") -> Tensor:
        """Return host(decode(data)), the same bits, without decoding rows below a first random crop.

        Errors begin with `name`.
        """
        jpeg, drawn, rows = usual_jpeg(data), None, None
        if jpeg is not None and rng is not None and self.pixel_ops:
            crop = self.pixel_ops[0]
            if isinstance(crop, InceptionCrop):
                drawn = crop.draw(jpeg.height, jpeg.width, rng)
                rows = drawn[0] + drawn[2]
        image = decode(data, name=name, jpeg=jpeg, rows=rows)
        try:
            return self.host(image, rng, drawn)
        except ImageError as error:
            raise ImageError(f"{name}: {error}") from error

    def host(
        self, image: Pixels, rng: np.random.Generator | None = None, drawn: Drawn | None = None
    ) -> Tensor:
        """Run the part before the device, uint8 (3, h, w), if the pixel ops end in `uint8`; else all, float32.

        `drawn` is what the first op drew, where that was before the image was decoded.
        """
        if self.random and rng is None:
            raise ConfigError(f"'{self}' has random ops: it needs a numpy Generator, rng=...")
        ops = list(self.pixel_ops)
        while ops:
            op = ops.pop(0)
            if drawn is not None:
                image, drawn = op.apply(image, drawn), None
            elif isinstance(op, Resize | ResizeSmall) and ops and isinstance(ops[0], CentralCrop):
                # The bits of one op after the other, without the pixels that would be cut off.
                size, crop = op.size((image.shape[0], image.shape[1])), ops.pop(0)
                assert size is not None and isinstance(crop, CentralCrop)
                window = crop.box(*size)
                check_inside(window, *size)
                image = resize(image, size, op.method, window)
            else:
                image = op(image, rng)
        x = torch.from_numpy(np.array(image.transpose(2, 0, 1), order="C"))  # (3, h, w), a copy
        return x if self.crosses_as_bytes else self._values(x)

    def device(self, batch: Tensor) -> Tensor:
        """Run what host() left to be done on a batch (B, 3, h, w), on its device: float32 (B, 3, h, w)."""
        return self._values(batch) if self.crosses_as_bytes else batch

    def _values(self, x: Tensor) -> Tensor:
        x = x.to(torch.float32, copy=True)
        return self.value_op(x) if self.value_op else x

    @property
    def crosses_as_bytes(self) -> bool:
        return bool(self.pixel_ops) and isinstance(self.pixel_ops[-1], Uint8)

    @property
    def random(self) -> bool:
        return any(op.random for op in self.pixel_ops)

    @property
    def strip(self) -> FitPatches | None:
        """Return the op by which a line makes images of any shape, which a batch holds as strips of patches."""
        return next((op for op in self.pixel_ops if isinstance(op, FitPatches)), None)

    @property
    def image_size(self) -> tuple[int, int] | None:
        """Return the (height, width) of every output; None where it depends on the input."""
        size: tuple[int, int] | None = None
        for op in self.pixel_ops:
            size = op.size(size)
        return size

    def at(self, image_size: tuple[int, int]) -> Pipeline:
        """Return the line for another output size, in its proportions: 256 then 224 becomes 439 then 384.

        Ops before the first resize count in the pixels of the source, and stay.
        """
        if self.strip is not None:
            return Pipeline(parse(default_line(image_size)).pixel_ops, self.value_op)
        old = self.image_size
        first = next((i for i, op in enumerate(self.pixel_ops) if op.resizes), None)
        if old is None or first is None:
            raise ConfigError(f"'{self}' has no resize that sets its output size: it cannot be scaled")
        by = image_size[0] / old[0], image_size[1] / old[1]
        scaled = tuple(op.scaled(by) for op in self.pixel_ops[first:])
        return Pipeline(self.pixel_ops[:first] + scaled, self.value_op)


def evaluation_line(text: str, image_size: tuple[int, int]) -> str:
    """Return a preset's line at that size, or the line `text`, which must have that size and no random ops."""
    line = parse(PRESETS[text]).at(image_size) if text in PRESETS else parse(text)
    wrong = []
    if line.random:
        wrong.append("is random")
    if line.value_op is None:
        wrong.append("sets no range of values, as to_range(-1, 1) does")
    if line.image_size != image_size:
        wrong.append(f"makes images of size {line.image_size}, and the model takes {image_size}")
    if wrong:
        presets = ", ".join(name for name in PRESETS if not parse(PRESETS[name]).random)
        raise ConfigError(
            f"'{line}' {' and '.join(wrong)}; choose another line, or one of the presets: {presets}"
        )
    return str(line)


def parse(line: str) -> Pipeline:
    """Parse a line. ConfigError names the op, its arguments, the ops there are, and the line."""
    if len(line) > MAX_LINE:
        raise ConfigError(f"a preprocessing line of {len(line):,} characters; allowed: {MAX_LINE:,}")
    try:
        ops = [parse_op(text.strip()) for text in line.split("|")]
        for op in ops[:-1]:
            if isinstance(op, ValueOp):
                raise ConfigError(f"{op.name} sets the range of values: it must come last")
        value_op = ops[-1] if isinstance(ops[-1], ValueOp) else None
        return Pipeline(tuple(op for op in ops if isinstance(op, PixelOp)), value_op)
    except ConfigError as error:
        raise ConfigError(f"{error}; in the preprocessing line '{line}'") from None


def parse_op(text: str) -> PixelOp | ValueOp:
    """Return the op of a piece of a line. ConfigError names the op, its arguments, and the ops there are."""
    try:
        call = ast.parse(text, mode="eval").body
        if isinstance(call, ast.Name):
            call = ast.Call(call, [], [])
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            raise SyntaxError
        name, positional = call.func.id, [_literal(argument) for argument in call.args]
        arguments = {str(keyword.arg or "**"): _literal(keyword.value) for keyword in call.keywords}
        if "**" in arguments:
            raise SyntaxError
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        raise ConfigError(f"'{text}' is not an op; write name, or name(1, word, key=(0.5, 2))") from None
    if name not in OPS:
        raise ConfigError(f"there is no op '{name}'; the ops are {', '.join(OPS)}")
    defaults = {field.name: field.default for field in fields(OPS[name])}
    takes = [key if value is MISSING else f"{key}={_value_text(value)}" for key, value in defaults.items()]
    usage = f"{name} takes ({', '.join(takes)})"
    types = get_type_hints(OPS[name])
    words = iter([key for key in defaults if types[key] is str])
    numbers = iter([key for key in defaults if types[key] is not str])
    for value in positional:
        place = next(words if isinstance(value, str) else numbers, None)
        if place is None or place in arguments:
            raise ConfigError(f"'{text}': {value} is one argument too many; {usage}")
        arguments[place] = value
    for key in sorted(arguments.keys() - defaults.keys()):
        raise ConfigError(f"'{text}': unknown argument {key}; {usage}")
    for key in defaults:
        if defaults[key] is MISSING and key not in arguments:
            raise ConfigError(f"'{text}': missing argument {key}; {usage}")
    return OPS[name](**arguments)


def _literal(node: ast.expr) -> Any:
    value = node.id if isinstance(node, ast.Name) else ast.literal_eval(node)
    return tuple(value) if isinstance(value, list) else value


def op_text(op: Op) -> str:
    """Write an op as in a line; arguments that have their default value are left out."""
    arguments: list[str] = []
    skipped = {True: False, False: False}  # a word, or a number, before this one was left out
    for field in fields(op):
        value = vars(op)[field.name]
        word = isinstance(value, str)
        if value == field.default:
            skipped[word] = True
        else:
            arguments.append(f"{field.name}={_value_text(value)}" if skipped[word] else _value_text(value))
    return f"{op.name}({', '.join(arguments)})" if arguments else op.name


def _value_text(value: object) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(_value_text(item) for item in value)})"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)
