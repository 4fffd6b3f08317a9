"""A preprocessing line as part of the graph: uint8 (B, H, W, 3) of any size -> float32 (B, 3, h, w).

Every resize is a matrix for the rows and one for the columns, computed from the input's sizes when the graph runs:

    x' = R x C^T        R (h, H) and C (w, W): how much of each pixel goes into each new one

A crop after it takes rows of R and of C, so that nothing is computed that is cut off. The numbers are those of
data/ops/resize.py, up to the order of sums; where that rounds to bytes between the two directions, so does this.

Sizes of the input are tensors here, of one whole number: only those of the output are known when the graph is made.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vitrail.data.ops.pixel_ops import CentralCrop, Crop, PixelOp, Resize, ResizeSmall, Uint8
from vitrail.data.ops.resize import OF_BYTES
from vitrail.data.ops.value_ops import Normalize, ToRange
from vitrail.data.preprocess import Pipeline
from vitrail.errors import ConfigError

MOST_SIDE = 16_384  # of an image


@dataclass(frozen=True)
class Window:
    """One direction of a resize: `new` pixels of which those from `start` on are needed, `count` of them."""

    new: Tensor  # int64 ()
    start: Tensor  # int64 ()
    count: int


class Prepare(nn.Module):
    """uint8 (B, H, W, 3) -> float32 (B, 3, h, w), by the ops of a line."""

    def __init__(self, pipeline: Pipeline) -> None:
        super().__init__()
        self.steps, self.value_op = steps(pipeline), pipeline.value_op
        value = pipeline.value_op
        if isinstance(value, ToRange):
            # low + (high - low) x / 255
            self.scale, self.shift = tensor((value.high - value.low) / 255), tensor(value.low)
        elif isinstance(value, Normalize):
            mean, std = tensor(value.mean), tensor(value.std)  # (3, 1, 1) or (1, 1, 1)
            self.scale, self.shift = 1 / (255 * std), -mean / std
        else:
            raise ConfigError(f"'{pipeline}' sets no range of values, as to_range(-1, 1) does")

    def forward(self, x: Tensor) -> Tensor:
        x = x.to(torch.float32).permute(0, 3, 1, 2)  # (B, 3, H, W)
        size = whole(x.shape[2]), whole(x.shape[3])
        for op, crop in self.steps:
            x, size = apply(op, crop, x, size)
        return x * self.scale.to(x.device) + self.shift.to(x.device)


def tensor(value: float | tuple[float, ...]) -> Tensor:
    """Return one number, or one for each channel: (1, 1, 1) or (3, 1, 1)."""
    return torch.tensor(value, dtype=torch.float32).reshape(-1, 1, 1)


def steps(pipeline: Pipeline) -> list[tuple[PixelOp, CentralCrop | None]]:
    """Return the pixel ops, each resize with the crop after it; ConfigError for a line that cannot be in a graph."""
    if pipeline.random or pipeline.image_size is None:
        raise ConfigError(
            f"'{pipeline}' cannot be part of a file: it must make images of one size, and draw nothing"
        )
    result: list[tuple[PixelOp, CentralCrop | None]] = []
    ops = list(pipeline.pixel_ops)
    while ops:
        op = ops.pop(0)
        crop = None
        if isinstance(op, Resize | ResizeSmall) and ops and isinstance(ops[0], CentralCrop):
            first = ops.pop(0)
            assert isinstance(first, CentralCrop)
            crop = first
        if isinstance(op, ResizeSmall) and crop is None:
            raise ConfigError(
                f"'{pipeline}' cannot be part of a file: resize_small needs a central_crop after it"
            )
        result.append((op, crop))
    return result


Size = tuple[Tensor, Tensor]


def apply(op: PixelOp, crop: CentralCrop | None, x: Tensor, size: Size) -> tuple[Tensor, Size]:
    """Return x (B, 3, h, w) after an op, float32 in 0..255, and its size."""
    if isinstance(op, Uint8):
        return (x.round() if op.rounding == "nearest" else x.floor()).clamp(0, 255), size
    if isinstance(op, Resize | ResizeSmall):
        new = (whole(op.output[0]), whole(op.output[1])) if isinstance(op, Resize) else small_size(op, size)
        if crop is None:
            assert isinstance(op, Resize)
            windows = [Window(n, whole(0), side) for n, side in zip(new, op.output, strict=True)]
        else:
            windows = [
                Window(n, middle(n, side, crop), side) for n, side in zip(new, crop.output, strict=True)
            ]
        return resized(x, size, windows, op.method), (whole(windows[0].count), whole(windows[1].count))
    if isinstance(op, CentralCrop):
        starts = [middle(n, side, op) for n, side in zip(size, op.output, strict=True)]
        height, width = op.output
    else:
        assert isinstance(op, Crop)
        starts, (height, width) = [whole(op.top), whole(op.left)], (op.height, op.width)
    x = x.index_select(2, starts[0] + torch.arange(height)).index_select(3, starts[1] + torch.arange(width))
    return x, (whole(height), whole(width))


def whole(n: int) -> Tensor:
    """Return a size as a tensor; it may be known only when the graph runs."""
    return torch.scalar_tensor(n, dtype=torch.int64)


def small_size(op: ResizeSmall, size: Size) -> Size:
    """Return what ResizeSmall.size returns."""
    height, width = size
    least, most = torch.minimum(height, width), torch.maximum(height, width)
    if op.rounding == "nearest":
        factor = quotient(whole(op.short), least, op.short)
        return (
            (height.to(torch.float32) * factor).round().to(torch.int64),
            (width.to(torch.float32) * factor).round().to(torch.int64),
        )
    short, long = whole(op.short), torch.div(most * op.short, least, rounding_mode="floor")
    tall = height > width
    return torch.where(tall, long, short), torch.where(tall, short, long)


def quotient(a: Tensor, b: Tensor, most: int = MOST_SIDE) -> Tensor:
    """Return a / b of two sizes, a at most `most`, rounded as in numpy.

    OpenVINO multiplies by 1 / b, and kernels generated for CUDA divide about as roughly: with another last digit, a
    side of 109.5 pixels is rounded to the other side. So the rest, a - q b, is computed in two parts that need no
    rounding, and divided too.
    """
    a, b = a.to(torch.float32), b.to(torch.float32)
    unit = 2.0 ** (most.bit_length() - 24)
    q = a / b
    high = (q / unit).floor() * unit
    return q + ((a - high * b) - (q - high) * b) / b


def middle(new: Tensor, side: int, crop: CentralCrop) -> Tensor:
    """Return where a central crop begins: (n - side) / 2, rounded as the crop says."""
    spare = new - side
    if crop.rounding == "down":
        return torch.div(spare, 2, rounding_mode="floor")
    return (spare.to(torch.float32) / 2).round().to(torch.int64)


def resized(x: Tensor, size: Size, windows: list[Window], method: str) -> Tensor:
    """Return the windows of a resize of x (B, 3, H, W), float32 (B, 3, h, w)."""
    taps = METHODS[method]
    rows, columns = (taps(n, x.shape[2 + i], windows[i]) for i, n in enumerate(size))  # (h, H), (w, W)
    bytes_between = method in OF_BYTES
    x = x @ columns.T  # (B, 3, H, w)
    x = as_bytes(x) if bytes_between else x
    x = rows @ x  # (B, 3, h, w)
    return as_bytes(x) if bytes_between else x


def as_bytes(x: Tensor) -> Tensor:
    return (x + 0.5).floor().clamp(0, 255)


# Weights (count, length) of a direction, from its length: as a tensor, and as the size of a tensor.
def bilinear(length: Tensor, n: int, window: Window) -> Tensor:
    """Two neighbours, as TensorFlow without antialiasing."""
    scale = quotient(length, window.new)
    centre = (places(window) + 0.5) * scale - 0.5  # (count,)
    centre = torch.minimum(centre.clamp(min=0), (length - 1).to(torch.float32))
    return (1 - (centre[:, None] - torch.arange(n, dtype=torch.float32)).abs()).clamp(min=0)


def area(length: Tensor, n: int, window: Window) -> Tensor:
    """The share of each pixel in the interval that a new one covers."""
    scale = quotient(length, window.new)
    i, j = places(window)[:, None], torch.arange(n, dtype=torch.float32)
    share = torch.minimum(j + 1, (i + 1) * scale) - torch.maximum(j, i * scale)  # (count, n)
    return share.clamp(min=0) / scale


def antialiased(
    support: float, filter: Callable[[Tensor], Tensor], digits: int | None = None
) -> Callable[[Tensor, int, Window], Tensor]:
    """Pillow's and torch's: a filter that is as much wider as the image gets smaller.

    `digits`: binary digits of the largest weight that torch keeps for bytes.
    """

    def taps(length: Tensor, n: int, window: Window) -> Tensor:
        scale = quotient(length, window.new)
        wider = scale.clamp(min=1)
        centre = (places(window) + 0.5)[:, None] * scale  # (count, 1)
        j = torch.arange(n, dtype=torch.float32)
        low, high = (centre - support * wider + 0.5).floor(), (centre + support * wider + 0.5).floor()
        weight = filter((j + 0.5 - centre) / wider)
        weight = torch.where((j >= low) & (j < high), weight, 0.0)  # (count, n)
        weight = weight / weight.sum(dim=1, keepdim=True)
        if digits is None:
            return weight
        unit = 2.0 ** (1 - ((2**digits - 0.5) / weight.amax()).log2().ceil().clamp(max=23))
        return (weight / unit).round() * unit

    return taps


def places(window: Window) -> Tensor:
    return window.start.to(torch.float32) + torch.arange(window.count, dtype=torch.float32)


def triangle(t: Tensor) -> Tensor:
    return (1 - t.abs()).clamp(min=0)


def cubic(t: Tensor) -> Tensor:
    """The cubic with a = -0.5."""
    t = t.abs()
    near, far = (1.5 * t - 2.5) * t * t + 1, ((-0.5 * t + 2.5) * t - 4) * t + 2
    return torch.where(t < 1, near, torch.where(t < 2, far, 0.0))


def lanczos(t: Tensor) -> Tensor:
    return torch.where(t.abs() < 3, sinc(t) * sinc(t / 3), 0.0)


def sinc(t: Tensor) -> Tensor:
    x = torch.where(t == 0, 1.0, t * math.pi)
    return torch.where(t == 0, 1.0, x.sin() / x)


METHODS: dict[str, Callable[[Tensor, int, Window], Tensor]] = {
    "bilinear": bilinear,
    "area": area,
    "antialiased": antialiased(1, triangle),
    "pillow_bilinear": antialiased(1, triangle),
    "pillow_bicubic": antialiased(2, cubic),
    "pillow_lanczos": antialiased(3, lanczos),
    "torch_bilinear": antialiased(1, triangle, digits=15),
    "torch_bicubic": antialiased(2, cubic, digits=15),
}
