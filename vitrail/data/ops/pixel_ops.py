"""The deterministic pixel ops of a preprocessing line: resizes, crops, and conversion to bytes.

A pixel op takes and returns one image, an (H, W, 3) array of bytes or of float32 in 0..255. It is a frozen
dataclass: its fields are its arguments in a line, in order, with their defaults; it checks them when it is made. The
random pixel ops, in augment.py, have the same form; preprocess.py reads and writes them all.

Published code rounds in two ways, so the ops that round have an argument for it: `down` to the integer below, or to
the `nearest`, halves to even.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from vitrail.data.ops import on_device
from vitrail.data.ops.resize import METHODS, OF_BYTES, Box, Pixels, resize
from vitrail.errors import ConfigError, ImageError

ROUNDINGS = ("nearest", "down")
MAX_SIDE = 16_384  # pixels; a line can come from a downloaded model, and must not ask for all memory


@dataclass(frozen=True)
class PixelOp:
    """One image to one image."""

    name: ClassVar[str]
    random: ClassVar[bool] = False  # draws from the generator that it is called with
    resizes: ClassVar[bool] = False  # what follows no longer counts in the pixels of the source

    def __call__(self, image: Pixels, rng: np.random.Generator | None) -> Pixels:
        raise NotImplementedError

    def kind(self, before: str) -> str:
        """Return the kind of image that it makes, "bytes" or "float", of images of the kind `before`.

        ConfigError where it cannot take them.
        """
        return before

    def size(self, before: tuple[int, int] | None) -> tuple[int, int] | None:
        """Return the (height, width) that it makes of images of size `before`; None: not the same for all."""
        return before

    def scaled(self, by: tuple[float, float]) -> Self:
        """Return the op for a line whose output is `by` times as high and as wide."""
        return self

    @property
    def batchable(self) -> bool:
        """Tell whether `draw` and `batched` can replace a call: for images that lie on a device."""
        return False

    def draw(self, height: int, width: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """Draw what a call on an image of this size draws, by the same generator in the same order: (k,)."""
        return np.zeros(0)

    def batched(self, x: Tensor, drawn: Tensor) -> Tensor:
        """Apply the op to a batch (B, 3, H, W), on its device, with each image's `drawn` (B, k)."""
        raise NotImplementedError


@dataclass(frozen=True)
class Sized(PixelOp):
    """An op whose first arguments are the size of its output; one number: square."""

    height: int
    width: int | None = None

    def __post_init__(self) -> None:
        check_whole(self.name, height=self.height, width=self.height if self.width is None else self.width)
        if self.width == self.height:
            object.__setattr__(self, "width", None)  # one way to say it, so that equal ops are equal

    @property
    def output(self) -> tuple[int, int]:
        return self.height, self.height if self.width is None else self.width

    def size(self, before: tuple[int, int] | None) -> tuple[int, int]:
        return self.output

    def scaled(self, by: tuple[float, float]) -> Self:
        height, width = (round(side * factor) for side, factor in zip(self.output, by, strict=True))
        return replace(self, height=height, width=width)


@dataclass(frozen=True)
class Resize(Sized):
    """Resize to height x width, whatever the aspect ratio."""

    name = "resize"
    resizes = True
    method: str = "bilinear"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_word(self.name, METHODS, method=self.method)

    def __call__(self, image: Pixels, rng: np.random.Generator | None) -> Pixels:
        return resize(image, self.output, self.method)

    def target(self, height: int, width: int) -> tuple[int, int]:
        return self.output

    def kind(self, before: str) -> str:
        return resized_kind(self.name, self.method, before)


@dataclass(frozen=True)
class ResizeSmall(PixelOp):
    """Resize the short side to `short`, keeping the aspect ratio.

    The long side is rounded: to the `nearest` in big_vision (in float32), `down` in torchvision and timm.
    """

    name = "resize_small"
    resizes = True
    short: int
    method: str = "area"
    rounding: str = "nearest"

    def __post_init__(self) -> None:
        check_whole(self.name, short=self.short)
        check_word(self.name, METHODS, method=self.method)
        check_word(self.name, ROUNDINGS, rounding=self.rounding)

    def __call__(self, image: Pixels, rng: np.random.Generator | None) -> Pixels:
        return resize(image, self.target(image.shape[0], image.shape[1]), self.method)

    def target(self, height: int, width: int) -> tuple[int, int]:
        """Return the size that an image of this size gets."""
        if self.rounding == "nearest":
            factor = np.float32(self.short) / np.float32(min(height, width))
            return int(np.rint(np.float32(height) * factor)), int(np.rint(np.float32(width) * factor))
        long = int(self.short * max(height, width) / min(height, width))
        return (self.short, long) if height <= width else (long, self.short)

    def kind(self, before: str) -> str:
        return resized_kind(self.name, self.method, before)

    def size(self, before: tuple[int, int] | None) -> tuple[int, int] | None:
        return None if before is None else self.target(*before)

    def scaled(self, by: tuple[float, float]) -> Self:
        return replace(self, short=round(self.short * max(by)))


@dataclass(frozen=True)
class CentralCrop(Sized):
    """Cut the centre. The offset (H - height) / 2 is rounded `down` in big_vision, to `nearest` in torchvision."""

    name = "central_crop"
    rounding: str = "down"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_word(self.name, ROUNDINGS, rounding=self.rounding)

    def __call__(self, image: Pixels, rng: np.random.Generator | None) -> Pixels:
        return cut(image, *self.box(image.shape[0], image.shape[1]))

    def box(self, height: int, width: int) -> Box:
        """Return the rectangle that it cuts from an image of this size."""
        spare = height - self.output[0], width - self.output[1]
        top, left = (n // 2 if self.rounding == "down" else round(n / 2) for n in spare)
        return checked((height, width), (top, left, *self.output))


@dataclass(frozen=True)
class Crop(PixelOp):
    """A fixed rectangle."""

    name = "crop"
    top: int
    left: int
    height: int
    width: int

    def __post_init__(self) -> None:
        check_whole(self.name, least=0, top=self.top, left=self.left)
        check_whole(self.name, height=self.height, width=self.width)

    def __call__(self, image: Pixels, rng: np.random.Generator | None) -> Pixels:
        return cut(image, self.top, self.left, self.height, self.width)

    def size(self, before: tuple[int, int] | None) -> tuple[int, int]:
        return self.height, self.width

    def scaled(self, by: tuple[float, float]) -> Self:
        raise ConfigError(f"{self.name}: a fixed rectangle after a resize has no counterpart at another size")


@dataclass(frozen=True)
class Uint8(PixelOp):
    """Convert to bytes, clipped to 0..255. As the last pixel op, it makes bytes cross to the device.

    big_vision cuts the fraction off, `down`, after each resize.
    """

    name = "uint8"
    rounding: str = "nearest"

    def __post_init__(self) -> None:
        check_word(self.name, ROUNDINGS, rounding=self.rounding)

    def __call__(self, image: Pixels, rng: np.random.Generator | None) -> Pixels:
        if image.dtype == np.uint8:
            return image
        whole = np.rint(image) if self.rounding == "nearest" else np.floor(image)
        return whole.clip(0, 255).astype(np.uint8)

    @property
    def batchable(self) -> bool:
        return True

    def batched(self, x: Tensor, drawn: Tensor) -> Tensor:
        return on_device.to_bytes(x, self.rounding)

    def kind(self, before: str) -> str:
        return "bytes"


def resized_and_cropped(image: Pixels, first: Resize | ResizeSmall, then: CentralCrop) -> Pixels:
    """Return then(first(image)), the same bits, without computing the pixels that would be cut off."""
    size = first.target(image.shape[0], image.shape[1])
    return resize(image, size, first.method, window=then.box(*size))


def cut(image: Pixels, top: int, left: int, height: int, width: int) -> Pixels:
    checked((image.shape[0], image.shape[1]), (top, left, height, width))
    return image[top : top + height, left : left + width]  # (height, width, 3)


def checked(size: tuple[int, int], box: Box) -> Box:
    """Return the box, if an image of this size has it; otherwise raise ImageError."""
    top, left, height, width = box
    if min(top, left) < 0 or top + height > size[0] or left + width > size[1]:
        image = f"an image of {size[0]} x {size[1]}"
        raise ImageError(f"{image} has no rectangle of {height} x {width} at ({top}, {left})")
    return box


def resized_kind(name: str, method: str, before: str) -> str:
    """Return the kind of image that a resizing op of this method makes of the kind `before`."""
    return bytes_only(f"{name}: {method}", before) if method in OF_BYTES else "float"


def bytes_only(who: str, before: str) -> str:
    if before != "bytes":
        raise ConfigError(f"{who} takes bytes, and an op before it makes fractions; put uint8 in between")
    return "bytes"


def check_whole(op: str, least: int = 1, most: int = MAX_SIDE, **numbers: object) -> None:
    for field, number in numbers.items():
        if not isinstance(number, int) or isinstance(number, bool) or not least <= number <= most:
            raise ConfigError(f"{op}: {field} is {number!r}; allowed: a whole number from {least} to {most}")


def check_numbers(op: str, least: float = -1e9, most: float = 1e9, **numbers: object) -> None:
    for field, number in numbers.items():
        if not isinstance(number, int | float) or isinstance(number, bool) or not least <= number <= most:
            raise ConfigError(f"{op}: {field} is {number!r}; allowed: a number from {least:g} to {most:g}")


def check_interval(op: str, most: float = 1e9, **intervals: object) -> None:
    for field, interval in intervals.items():
        if not isinstance(interval, tuple) or len(interval) != 2:
            raise ConfigError(f"{op}: {field} is {interval!r}; allowed: (low, high)")
        low, high = interval
        check_numbers(op, most=most, **{f"the high end of {field}": high})
        check_numbers(op, math.ulp(0.0), high, **{f"the low end of {field}": low})


def check_word(op: str, allowed: tuple[str, ...], **words: object) -> None:
    for field, word in words.items():
        if word not in allowed:
            raise ConfigError(f"{op}: {field} is {word!r}; allowed: {', '.join(allowed)}")
