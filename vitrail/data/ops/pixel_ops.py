"""The deterministic pixel ops of a preprocessing line: resizes, crops, and conversion to bytes.

A pixel op takes and returns one image, an (H, W, 3) array of bytes or of float32 in 0..255. It is a frozen
dataclass: its fields are its arguments in a line, in order, with their types and defaults; they are checked when it
is made. The random pixel ops, in augment.py, have the same form; preprocess.py reads and writes them all.

Published code rounds in two ways, so ops that round have an argument for it: `down` to the integer below, or
`nearest`, halves to even.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, ClassVar, Self, TypeAlias, get_type_hints

import numpy as np

from vitrail.data.ops.resize import METHODS, Box, Pixels, resize
from vitrail.errors import ConfigError, ImageError

Drawn: TypeAlias = tuple[Any, ...]  # the numbers that an op drew for an image

# Arguments with what is allowed: words; or the least and the most of a number, of the two ends of an interval, or of
# one number or three. A line can come from a downloaded model, and must not ask for all memory.
Side: TypeAlias = Annotated[int, 1, 16_384]
Place: TypeAlias = Annotated[int, 0, 16_384]
Method: TypeAlias = Annotated[str, *METHODS]
Rounding: TypeAlias = Annotated[str, "nearest", "down"]
Probability: TypeAlias = Annotated[float, 0.0, 1.0]
Shares: TypeAlias = Annotated[tuple[float, float], 0.0, 1.0]
Ratios: TypeAlias = Annotated[tuple[float, float], 0.0, 1e9]


@dataclass(frozen=True)
class Op:
    """One step of a line."""

    name: ClassVar[str]

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self), include_extras=True)
        for field in fields(self):
            value, hint = getattr(self, field.name), hints[field.name]
            if value is None and field.default is None:
                continue  # left out
            kind, allowed = hint.__origin__, hint.__metadata__
            if kind is str:
                right, wanted = value in allowed, ", ".join(allowed)
            else:
                least, most = allowed
                numbers = value if isinstance(value, tuple) else (value,)
                right = all(isinstance(n, int | float) and not isinstance(n, bool) for n in numbers)
                right = right and all(least <= n <= most for n in numbers)
                if kind == tuple[float, float]:
                    right = right and len(numbers) == 2 and 0 < numbers[0] <= numbers[1]
                    wanted = f"(low, high) with 0 < low <= high <= {most:g}"
                elif kind == float | tuple[float, ...]:
                    right = right and len(numbers) in (1, 3)
                    wanted = f"one number, or three, {least:g} to {most:g}"
                else:
                    whole = isinstance(least, int)
                    right = right and isinstance(value, int if whole else int | float)
                    wanted = f"a {'whole ' if whole else ''}number from {least:g} to {most:g}"
            if not right:
                raise ConfigError(f"{self.name}: {field.name} is {value!r}; allowed: {wanted}")


@dataclass(frozen=True)
class PixelOp(Op):
    """An op from one image to one image: it draws its random numbers, given the size, and applies them."""

    random: ClassVar[bool] = False  # draws from the generator that it is called with
    resizes: ClassVar[bool] = False  # what follows no longer counts in the pixels of the source

    def __call__(self, image: Pixels, rng: np.random.Generator | None) -> Pixels:
        return self.apply(image, () if rng is None else self.draw(image.shape[0], image.shape[1], rng))

    def draw(self, height: int, width: int, rng: np.random.Generator) -> Drawn:
        """Draw all that is random about an image of this size."""
        return ()

    def apply(self, image: Pixels, drawn: Drawn) -> Pixels:
        raise NotImplementedError

    def size(self, before: tuple[int, int] | None) -> tuple[int, int] | None:
        """Return the (height, width) that it makes of images of size `before`; None: not the same for all."""
        return before

    def scaled(self, by: tuple[float, float]) -> Self:
        """Return the op for a line whose output is `by` times as high and as wide."""
        return self


@dataclass(frozen=True)
class Sized(PixelOp):
    """An op whose first arguments are the size of its output; one number: square."""

    height: Side
    width: Annotated[int | None, 1, 16_384] = None

    def __post_init__(self) -> None:
        super().__post_init__()
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
    method: Method = "bilinear"

    def apply(self, image: Pixels, drawn: Drawn) -> Pixels:
        return resize(image, self.output, self.method)


@dataclass(frozen=True)
class ResizeSmall(PixelOp):
    """Resize the short side to `short`, keeping the aspect ratio.

    The long side is rounded: to the `nearest` in big_vision (in float32), `down` in torchvision and timm.
    """

    name = "resize_small"
    resizes = True
    short: Side
    method: Method = "area"
    rounding: Rounding = "nearest"

    def apply(self, image: Pixels, drawn: Drawn) -> Pixels:
        size = self.size((image.shape[0], image.shape[1]))
        assert size is not None
        return resize(image, size, self.method)

    def size(self, before: tuple[int, int] | None) -> tuple[int, int] | None:
        if before is None:
            return None
        height, width = before
        if self.rounding == "nearest":
            factor = np.float32(self.short) / np.float32(min(height, width))
            return int(np.rint(np.float32(height) * factor)), int(np.rint(np.float32(width) * factor))
        long = int(self.short * max(height, width) / min(height, width))
        return (self.short, long) if height <= width else (long, self.short)

    def scaled(self, by: tuple[float, float]) -> Self:
        return replace(self, short=round(self.short * max(by)))


@dataclass(frozen=True)
class CentralCrop(Sized):
    """Cut the centre. The offset (H - height) / 2 is rounded `down` in big_vision, to `nearest` in torchvision."""

    name = "central_crop"
    rounding: Rounding = "down"

    def apply(self, image: Pixels, drawn: Drawn) -> Pixels:
        return cut(image, self.box(image.shape[0], image.shape[1]))

    def box(self, height: int, width: int) -> Box:
        """Return the rectangle that it cuts from an image of this size."""
        spare = height - self.output[0], width - self.output[1]
        top, left = (n // 2 if self.rounding == "down" else round(n / 2) for n in spare)
        return top, left, *self.output


@dataclass(frozen=True)
class Crop(PixelOp):
    """A fixed rectangle."""

    name = "crop"
    top: Place
    left: Place
    height: Side
    width: Side

    def apply(self, image: Pixels, drawn: Drawn) -> Pixels:
        return cut(image, (self.top, self.left, self.height, self.width))

    def size(self, before: tuple[int, int] | None) -> tuple[int, int]:
        return self.height, self.width

    def scaled(self, by: tuple[float, float]) -> Self:
        if self.top == self.left == 0:
            return replace(self, height=round(self.height * by[0]), width=round(self.width * by[1]))
        raise ConfigError(f"{self.name}: a fixed rectangle after a resize has no counterpart at another size")


@dataclass(frozen=True)
class Uint8(PixelOp):
    """Convert to bytes, clipped to 0..255. As the last pixel op, it makes bytes cross to the device.

    big_vision cuts the fraction off, `down`, after each resize.
    """

    name = "uint8"
    rounding: Rounding = "nearest"

    def apply(self, image: Pixels, drawn: Drawn) -> Pixels:
        if image.dtype == np.uint8:
            return image
        whole = np.rint(image) if self.rounding == "nearest" else np.floor(image)
        return whole.clip(0, 255).astype(np.uint8)


def cut(image: Pixels, box: Box) -> Pixels:
    check_inside(box, image.shape[0], image.shape[1])
    top, left, height, width = box
    return image[top : top + height, left : left + width]  # (height, width, 3)


def check_inside(box: Box, height: int, width: int) -> None:
    """Raise ImageError where an image of this size does not have the rectangle."""
    top, left, h, w = box
    if min(top, left) < 0 or top + h > height or left + w > width:
        raise ImageError(f"an image of {height} x {width} has no rectangle of {h} x {w} at ({top}, {left})")
