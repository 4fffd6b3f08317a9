"""A small data set kept on the device: for each batch, only its random numbers are copied there.

    worker   (seed, epoch, index) -> a row of numbers: which image, where it is cut, how it is distorted
    device   images[index], rows  -> the pixel ops of the line, the whole batch at once -> finish, as loader.py

The numbers come from the generators of loader.py in the same order, so a batch shows the same crops of the same
images as the Loader's: the same bytes, except where a compiler fuses a product into a sum and that changes a rounding
(one level in a few pixels, which RandAugment may amplify). A worker decodes and resizes nothing, and a GPU that
trains a small model no longer waits for pixels.

All images are decoded once, when batches are first requested, and padded to the largest. If their sizes differ,
the line has to begin with the crop that makes them equal. Every process of a job holds all of them.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.data.augment import FlipLR, InceptionCrop, RandomErasing
from vitrail.data.bad_files import BadExample, BadFiles
from vitrail.data.decode import decode
from vitrail.data.loader import EXAMPLE, Batch, Loader, Stream, View, generator
from vitrail.data.map_images import map_images
from vitrail.data.ops.on_device import GREY, distorted, inside, squashed
from vitrail.data.ops.pixel_ops import PixelOp, Uint8
from vitrail.data.ops.randaugment import RandAugment
from vitrail.data.preprocess import Pipeline, op_text
from vitrail.data.settings import DataSettings
from vitrail.data.sources import Source
from vitrail.errors import ConfigError, DataError
from vitrail.runtime.progress import progress

LARGEST_PART = 0.5  # of a GPU's free memory that images may take
AT_ONCE = 1024  # images that are decoded, or cross, together

Image: TypeAlias = NDArray[np.uint8]  # (h, w, 3)


class ResidentLoader(Loader):
    """A Loader of training batches whose images are on the device."""

    def __init__(
        self,
        source: Source,
        views: dict[str, View] | Pipeline,
        settings: DataSettings,
        *,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
        bad_files: BadFiles | None = None,
        compile: bool = False,  # what is done on the device
    ) -> None:
        super().__init__(source, views, settings, seed=seed, rank=rank, world=world, bad_files=bad_files)
        views = self.stream.views
        self.stream: Draws = Draws(source, views, settings, seed, rank, world)
        self.finished = torch.compile(self.finish_rows, dynamic=False) if compile else self.finish_rows
        self.images: Tensor | None = None  # uint8 (n, 3, H, W)
        self.place: torch.device | None = None  # where they are, as it was asked for
        if list(views) != ["image"] or views["image"].count > 1:
            raise ConfigError(
                f"resident: one view named image is drawn on the device, not {', '.join(views)}"
            )
        pipeline = self.stream.pipeline
        cannot = [op_text(op) for op in pipeline.pixel_ops if not is_batchable(op)]
        if cannot or not pipeline.crosses_as_bytes:
            raise ConfigError(
                f"resident: '{pipeline}' cannot run on the device: it must end with uint8 before the range, and "
                f"may have inception_crop (bilinear), flip_lr, randaugment and random_erasing (grey), not "
                f"{', '.join(cannot) or 'fractions'}"
            )

    def prepare(self, device: torch.device) -> None:
        """Copy all images to the device, padded with zeros to the largest; broken ones are zeros."""
        if device.type == "mps":
            raise ConfigError("resident images need float64, which mps does not have; leave out resident")
        if self.images is not None and self.place == device:
            return
        self.images = None  # its memory is free before more is taken
        source, threads = self.stream.source, max(1, self.stream.settings.num_workers or 0)
        n, height, width = len(source), 0, 0
        images: list[Image] = []
        bad: list[BadExample] = []
        decoded = map_images(
            source, lambda image, key: decode(image, name=key), threads=threads, at_once=AT_ONCE
        )
        for image in progress(decoded, n, "decoding"):
            if isinstance(image, BadExample):
                bad.append(image)
                images.append(np.zeros((0, 0, 3), np.uint8))
                continue
            images.append(image)
            if image.shape[0] > height or image.shape[1] > width:
                height, width = max(height, image.shape[0]), max(width, image.shape[1])
                needed = n * 3 * height * width
                free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else math.inf
                if needed > LARGEST_PART * free:  # said before the host's memory is full
                    raise ConfigError(
                        f"resident: the images take {needed / 1e9:.1f} GB or more, {free / 1e9:.1f} GB are free on "
                        f"{device}, and at most {LARGEST_PART:.0%} of that may be used for them"
                    )
        self.bad_files.add(bad)
        sizes = np.array([image.shape[:2] for image in images], np.int64)  # (n, 2); 0 for a broken one
        good = sizes[sizes[:, 0] > 0]
        if not len(good):
            raise DataError(f"{source.name}: no image can be read")
        pipeline = self.stream.pipeline
        if (good != good[0]).any() and not isinstance(pipeline.pixel_ops[0], InceptionCrop):
            first, last = (f"{h} x {w}" for h, w in (good.min(0), good.max(0)))
            raise ConfigError(
                f"resident: for images of {first} to {last} the line must begin with inception_crop, "
                f"not as in '{pipeline}'"
            )
        self.stream.sizes = sizes
        on_device = torch.empty(n, 3, height, width, dtype=torch.uint8, device=device)
        for start in range(0, n, AT_ONCE):
            part = images[start : start + AT_ONCE]
            padded = np.zeros((len(part), height, width, 3), np.uint8)
            for slot, image in enumerate(part):
                padded[slot, : image.shape[0], : image.shape[1]] = image
            crossed = torch.from_numpy(padded).to(device)
            on_device[start : start + len(part)] = crossed.permute(0, 3, 1, 2)  # (b, 3, H, W)
        self.images, self.place = on_device, device

    def finish(self, batch: Batch) -> Batch:
        """Make images of the rows of numbers, then what any loader does on the device."""
        assert self.images is not None
        return self.finished(self.images, batch, self.stream.numbers)

    def finish_rows(self, images: Tensor, batch: Batch, numbers: tuple[int, ...]) -> Batch:
        image = augmented(images, batch["image"], self.stream.pipeline.pixel_ops, numbers)
        return self.stream.finish(batch | {"image": image})


class Draws(Stream):
    """step -> the rows of this process's part of the batch; (b, 1 + k) where the Stream has images."""

    sizes: NDArray[np.int64]  # (n, 2): height and width of each image; 0 for a broken one

    @cached_property
    def numbers(self) -> tuple[int, ...]:
        """Count the numbers that each op draws, whatever the size of the image."""
        assert self.pipeline.image_size is not None
        return tuple(map(len, self.drawn(*self.pipeline.image_size, generator(0, 0, 0, EXAMPLE))))

    def drawn(self, height: int, width: int, rng: np.random.Generator) -> list[tuple[float, ...]]:
        """Draw the numbers of each op for an image of this size."""
        drawn = []
        for op in self.pipeline.pixel_ops:
            drawn.append(op.draw(height, width, rng))
            height, width = op.size((height, width)) or (height, width)
        return drawn

    def blanks(self) -> dict[str, Tensor]:
        return {"image": torch.zeros(1 + sum(self.numbers), dtype=torch.float64)}

    def draws(self, epoch: int, index: int) -> dict[str, Tensor]:
        """Draw the row of an example; its image is not read."""
        height, width = self.sizes[index].tolist()
        if not height:
            raise DataError(f"{self.source.key(index)} could not be decoded")
        drawn = self.drawn(height, width, generator(self.seed, epoch, index, EXAMPLE))
        row = [index, *(number for numbers in drawn for number in numbers)]
        return {"image": torch.tensor(row, dtype=torch.float64)}  # (1 + k,)


def is_batchable(op: PixelOp) -> bool:
    if isinstance(op, InceptionCrop):
        return op.method == "bilinear"
    return isinstance(op, FlipLR | RandAugment | Uint8) or (
        isinstance(op, RandomErasing) and op.fill == "grey"
    )


def augmented(images: Tensor, rows: Tensor, ops: tuple[PixelOp, ...], numbers: tuple[int, ...]) -> Tensor:
    """Map images (n, 3, H, W) and rows (b, 1 + k) to the batch (b, 3, h, w), bytes; op i drew numbers[i] of the k."""
    index, *drawn = rows.split((1, *numbers), 1)
    x = images[index[:, 0].to(torch.int64)]  # (b, 3, H, W)
    for op, draw in zip(ops, drawn, strict=True):
        if isinstance(op, InceptionCrop):
            x = squashed(x, draw, op.output)
        elif isinstance(op, FlipLR):
            x = torch.where(draw.bool()[:, :, None, None], x.flip(3), x)
        elif isinstance(op, RandAugment):
            x = distorted(x, draw, op.reach)
        elif isinstance(op, RandomErasing):
            x = torch.where(inside(draw, x), GREY, x)
        elif x.dtype != torch.uint8:
            assert isinstance(op, Uint8)
            x = (x.round() if op.rounding == "nearest" else x.floor()).clamp(0, 255).to(torch.uint8)
    return x
