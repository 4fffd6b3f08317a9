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
from dataclasses import MISSING, Field, dataclass, fields
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from vitrail.data.augment import FlipLR, InceptionCrop, RandomCrop, RandomErasing
from vitrail.data.decode import decode_rows, usual_jpeg
from vitrail.data.ops.pixel_ops import (
    CentralCrop,
    Crop,
    PixelOp,
    Resize,
    ResizeSmall,
    Uint8,
    cut,
    resized_and_cropped,
)
from vitrail.data.ops.randaugment import RandAugment
from vitrail.data.ops.resize import Pixels
from vitrail.data.ops.value_ops import Normalize, ToRange, ValueOp
from vitrail.errors import ConfigError, ImageError

Op: TypeAlias = PixelOp | ValueOp

OPS: dict[str, type[Op]] = {
    "resize": Resize,
    "resize_small": ResizeSmall,
    "central_crop": CentralCrop,
    "crop": Crop,
    "uint8": Uint8,
    "inception_crop": InceptionCrop,
    "random_crop": RandomCrop,
    "flip_lr": FlipLR,
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


def default_line(image_size: tuple[int, int]) -> str:
    """Return the line of our own models: square, the middle 7/8 of the short side; otherwise, the image squashed."""
    height, width = image_size
    if height == width:
        return f"resize_small({round(height * 8 / 7)})|central_crop({height})|uint8|to_range(-1, 1)"
    return f"resize({height}, {width}, area)|uint8|to_range(-1, 1)"


@dataclass(frozen=True)
class Pipeline:
    """The ops of a line. str() is the line in its canonical form, and parses to an equal pipeline."""

    pixel_ops: tuple[PixelOp, ...]
    value_op: ValueOp | None = None

    def __post_init__(self) -> None:
        kind = "bytes"
        for op in self.pixel_ops:
            kind = op.kind(kind)
        _check_crops_fit(self.pixel_ops)

    def __str__(self) -> str:
        texts = [op_text(op) for op in self.pixel_ops]
        return "|".join([*texts, op_text(self.value_op)] if self.value_op else texts)

    def __call__(self, image: Pixels, rng: np.random.Generator | None = None) -> Tensor:
        """Run the whole line on one image, uint8 (H, W, 3): float32 (3, h, w)."""
        return self.device(self.host(image, rng)[None])[0]  # (3, h, w)

    def host(self, image: Pixels, rng: np.random.Generator | None = None) -> Tensor:
        """Run the part before the device, uint8 (3, h, w), if the pixel ops end in `uint8`; else all, float32."""
        return self._host(self.pixel_ops, image, rng)

    def load(self, data: bytes, rng: np.random.Generator | None = None, *, name: str = "<bytes>") -> Tensor:
        """Return host(decode(data)), the same bits, without decoding rows below a first random crop.

        Errors begin with `name`.
        """
        jpeg, ops, box = usual_jpeg(data), self.pixel_ops, None
        if jpeg is not None and rng is not None and ops and isinstance(ops[0], InceptionCrop):
            box = ops[0].box(jpeg.height, jpeg.width, rng)
            ops = (ops[0].squash, *ops[1:])
        image = decode_rows(data, jpeg, None if box is None else box[0] + box[2], name=name)
        try:
            return self._host(ops, image if box is None else cut(image, *box), rng)
        except ImageError as error:
            raise ImageError(f"{name}: {error}") from error

    def _host(self, ops: tuple[PixelOp, ...], image: Pixels, rng: np.random.Generator | None) -> Tensor:
        if self.random and rng is None:
            raise ConfigError(f"'{self}' has random ops: it needs a numpy Generator, rng=...")
        image = _applied(ops, image, rng)
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
        old = self.image_size
        first = next((i for i, op in enumerate(self.pixel_ops) if op.resizes), None)
        if old is None or first is None:
            raise ConfigError(f"'{self}' has no resize that sets its output size: it cannot be scaled")
        by = image_size[0] / old[0], image_size[1] / old[1]
        scaled = tuple(op.scaled(by) for op in self.pixel_ops[first:])
        return Pipeline(self.pixel_ops[:first] + scaled, self.value_op)


def evaluation_line(text: str, image_size: tuple[int, int]) -> str:
    """Return a preset's line at that size, or the line `text`; it must make images of that size, without chance."""
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
                raise ConfigError(f"{op.name} sets the range of values, and must come last")
        value_op = ops[-1] if isinstance(ops[-1], ValueOp) else None
        return Pipeline(tuple(op for op in ops if isinstance(op, PixelOp)), value_op)
    except ConfigError as error:
        raise ConfigError(f"{error}; in the preprocessing line '{line}'") from None


def _applied(ops: tuple[PixelOp, ...], image: Pixels, rng: np.random.Generator | None) -> Pixels:
    match ops:
        case (Resize() | ResizeSmall() as first, CentralCrop() as then, *rest):
            return _applied(tuple(rest), resized_and_cropped(image, first, then), rng)
        case (op, *rest):
            return _applied(tuple(rest), op(image, rng), rng)
        case _:
            return image


def _check_crops_fit(ops: tuple[PixelOp, ...]) -> None:
    """Reject a crop that fits into no image that reaches it, once, instead of for each image."""
    size: tuple[int, int] | None = None
    for before, op in pairwise(ops):
        size = before.size(size)
        if isinstance(op, CentralCrop | RandomCrop):
            height, width = op.output
            too_large = size is not None and (height > size[0] or width > size[1])
            if too_large or (isinstance(before, ResizeSmall) and min(height, width) > before.short):
                raise ConfigError(f"{op_text(op)} is larger than what {op_text(before)} makes")


def parse_op(text: str) -> Op:
    """Return the op of a piece of a line. ConfigError names the op, its arguments, and the ops there are."""
    name, positional, arguments = _parse_call(text)
    if name not in OPS:
        raise ConfigError(f"there is no op '{name}'; the ops are {', '.join(OPS)}")
    op = OPS[name]
    usage = f"{name} takes ({', '.join(_parameter(field) for field in fields(op))})"
    words = iter([field.name for field in fields(op) if _is_word(field)])
    numbers = iter([field.name for field in fields(op) if not _is_word(field)])
    for value in positional:
        place = next(words if isinstance(value, str) else numbers, None)
        if place is None or place in arguments:
            raise ConfigError(f"'{text}': {value} is one argument too many; {usage}")
        arguments[place] = value
    unknown = arguments.keys() - {field.name for field in fields(op)}
    missing = [field.name for field in fields(op) if field.default is MISSING and field.name not in arguments]
    if unknown or missing:
        wrong = f"unknown argument {min(unknown)}" if unknown else f"missing argument {missing[0]}"
        raise ConfigError(f"'{text}': {wrong}; {usage}")
    return op(**arguments)


def op_text(op: Op) -> str:
    """Write an op as in a line; arguments that have their default value are left out."""
    arguments: list[str] = []
    skipped = {True: False, False: False}  # a word, or a number, before this one was left out
    for field in fields(op):
        value = vars(op)[field.name]
        if value == field.default:
            skipped[_is_word(field)] = True
        elif skipped[_is_word(field)]:
            arguments.append(f"{field.name}={_value_text(value)}")
        else:
            arguments.append(_value_text(value))
    return f"{op.name}({', '.join(arguments)})" if arguments else op.name


def _parse_call(text: str) -> tuple[str, list[object], dict[str, object]]:
    """Return the name, the arguments by position, and those by keyword."""
    try:
        call = ast.parse(text, mode="eval").body
        if isinstance(call, ast.Name):
            return call.id, [], {}
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            raise SyntaxError
        positional = [_literal(argument) for argument in call.args]
        if any(keyword.arg is None for keyword in call.keywords):  # **arguments
            raise SyntaxError
        return call.func.id, positional, {str(k.arg): _literal(k.value) for k in call.keywords}
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        raise ConfigError(f"'{text}' is not an op; write name, or name(1, word, key=(0.5, 2))") from None


def _literal(node: ast.expr) -> object:
    value = node.id if isinstance(node, ast.Name) else ast.literal_eval(node)
    return tuple(value) if isinstance(value, list) else value


def _is_word(field: Field[Any]) -> bool:
    return field.type == "str"  # annotations are text in the modules of the ops


def _parameter(field: Field[Any]) -> str:
    return field.name if field.default is MISSING else f"{field.name}={_value_text(field.default)}"


def _value_text(value: object) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(_value_text(item) for item in value)})"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)
