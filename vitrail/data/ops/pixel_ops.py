"""The deterministic pixel ops of a preprocessing line: resizes, crops, and the crossing to bytes.

A pixel op takes and gives one image, an (H, W, 3) array of bytes or of float32 in 0..255. It is a frozen
dataclass: its fields are its arguments in a line, in order, with their defaults. The random pixel ops, in
augment.py, have the same form; grammar.py reads and writes them all.

Published code rounds in two ways, so the ops that round say which: `down` to the integer below, or to the
`nearest`, halves to even.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from vitrail.data.ops import batched
from vitrail.data.ops.arguments import check_whole, check_word
from vitrail.data.ops.resize import METHODS, OF_BYTES, Box, Pixels, resize
from vitrail.errors import ConfigError, ImageError

ROUNDINGS = ("nearest", "down")


@dataclass(frozen=True)
class PixelOp:
    """One image to one image."""

    name: ClassVar[str]
    random: ClassVar[bool] = False  # draws from the generator that it is called with
    resizes: ClassVar[bool] = False  # what follows no longer counts in the pixels of the source

    def __call__(self, image: Pixels, rng: np.random.Generator | None) -> Pixels:
        raise NotImplementedError

    def kind(self, given: str) -> str:
        """What it makes of images that are `given`, "bytes" or "float"; ConfigError where it cannot take them."""
        return given

    def size(self, given: tuple[int, int] | None) -> tuple[int, int] | None:
        """The (height, width) that it makes of images of size `given`; None: not the same for all."""
        return given

    def scaled(self, by: tuple[float, float]) -> Self:
        """The same op in a line whose output is `by` times as high and as wide."""
        return self

    @property
    def batchable(self) -> bool:
        """Whether `draw` and `batched` can take the place of a call: for images that lie on a device."""
        return False

    def draw(self, height: int, width: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """What a call on an image of this size draws, by the same generator in the same order, as numbers (k,)."""
        return np.zeros(0)

    def batched(self, x: Tensor, drawn: Tensor) -> Tensor:
        """The call on a batch (B, 3, H, W), wherever it lies, with each image's `drawn` (B, k)."""
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

    def size(self, given: tuple[int, int] | None) -> tuple[int, int]:
        return self.output

    def scaled(self, by: tuple[float, float]) -> Self:
        height, width = (round(side * factor) for side, factor in zip(self.output, by, strict=True))
        return replace(self, height=height, width=width)


@dataclass(frozen=True)
class Resize(Sized):
    """Squashed to height x width, whatever the aspect ratio."""

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

    def kind(self, given: str) -> str:
        return resized_kind(self.name, self.method, given)


@dataclass(frozen=True)
class ResizeSmall(PixelOp):
    """The short side to `short`, the aspect ratio kept.

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
        """The size that an image of this size gets."""
        if self.rounding == "nearest":
            factor = np.float32(self.short) / np.float32(min(height, width))
            return int(np.rint(np.float32(height) * factor)), int(np.rint(np.float32(width) * factor))
        long = int(self.short * max(height, width) / min(height, width))
        return (self.short, long) if height <= width else (long, self.short)

    def kind(self, given: str) -> str:
        return resized_kind(self.name, self.method, given)

    def size(self, given: tuple[int, int] | None) -> tuple[int, int] | None:
        return None if given is None else self.target(*given)

    def scaled(self, by: tuple[float, float]) -> Self:
        return replace(self, short=round(self.short * max(by)))


@dataclass(frozen=True)
class CentralCrop(Sized):
    """The middle. The offset (H - height) / 2 is rounded `down` in big_vision, to the `nearest` in torchvision."""

    name = "central_crop"
    rounding: str = "down"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_word(self.name, ROUNDINGS, rounding=self.rounding)

    def __call__(self, image: Pixels, rng: np.random.Generator | None) -> Pixels:
        return cut(image, *self.box(image.shape[0], image.shape[1]))

    def box(self, height: int, width: int) -> Box:
        """The rectangle that it cuts from an image of this size."""
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

    def size(self, given: tuple[int, int] | None) -> tuple[int, int]:
        return self.height, self.width

    def scaled(self, by: tuple[float, float]) -> Self:
        raise ConfigError(f"{self.name}: a fixed rectangle after a resize has no counterpart at another size")


@dataclass(frozen=True)
class Uint8(PixelOp):
    """To bytes, clipped to 0..255. Where it is the last pixel op, bytes are what crosses to the device.

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
        return batched.to_bytes(x, self.rounding)

    def kind(self, given: str) -> str:
        return "bytes"


def resized_and_cropped(image: Pixels, first: Resize | ResizeSmall, then: CentralCrop) -> Pixels:
    """then(first(image)), the same bits, without the pixels that would be cut off."""
    size = first.target(image.shape[0], image.shape[1])
    return resize(image, size, first.method, window=then.box(*size))


def cut(image: Pixels, top: int, left: int, height: int, width: int) -> Pixels:
    checked((image.shape[0], image.shape[1]), (top, left, height, width))
    return image[top : top + height, left : left + width]  # (height, width, 3)


def checked(size: tuple[int, int], box: Box) -> Box:
    """The box, if an image of this size has it; otherwise an ImageError."""
    top, left, height, width = box
    if min(top, left) < 0 or top + height > size[0] or left + width > size[1]:
        given = f"an image of {size[0]} x {size[1]}"
        raise ImageError(f"{given} has no rectangle of {height} x {width} at ({top}, {left})")
    return box


def resized_kind(name: str, method: str, given: str) -> str:
    """The kind of image that a resizing op of this method makes of a `given` kind."""
    if method not in OF_BYTES:
        return "float"
    return bytes_only(f"{name}: {method}", given)


def bytes_only(who: str, given: str) -> str:
    if given != "bytes":
        raise ConfigError(f"{who} takes bytes, and an op before makes fractions; put uint8 in between")
    return "bytes"
