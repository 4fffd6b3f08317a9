"""A small data set kept whole on the device: for each batch only what is random crosses to it.

    worker   (seed, epoch, index) -> a row of numbers: which image, where it is cut, how it is distorted
    device   images[index], rows  -> the pixel ops of the line, the whole batch at once -> finish, as loader.py

The numbers come from the generators of loader.py in the same order, so a batch shows the same crops of the same
images as the Loader's, to the last bit of a float32 sum before it is rounded to a byte. A worker decodes and resizes
nothing, and a GPU that trains a small model no longer waits for pixels.

All images are decoded once, when batches are first asked for, and padded to the largest. Where their sizes differ,
the line has to begin with the crop that makes them one. Every process of a job holds all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.data.augment import InceptionCrop
from vitrail.data.bad_files import BadExample, BadFiles
from vitrail.data.decode import decode
from vitrail.data.loader import EXAMPLE, Batch, Loader, Loading, Stream, ahead, generator, present
from vitrail.data.ops.grammar import op_text
from vitrail.data.ops.pixel_ops import PixelOp
from vitrail.data.preprocess import Pipeline
from vitrail.data.sources import Source
from vitrail.errors import ConfigError, DataError
from vitrail.runtime.progress import progress

LARGEST_PART = 0.5  # of a GPU's free memory that images may take
AT_ONCE = 1024  # images that are decoded, or cross, together


class ResidentLoader(Loader):
    """A Loader of training batches whose images lie on the device."""

    def __init__(
        self,
        source: Source,
        pipeline: Pipeline,
        loading: Loading,
        *,
        bad_files: BadFiles | None = None,
        compile: bool = False,  # the pixel ops
    ) -> None:
        super().__init__(source, pipeline, loading, bad_files=bad_files)
        if not pipeline.crosses_as_bytes:
            raise ConfigError(
                f"images on the device are bytes: '{pipeline}' must end its pixel ops with uint8"
            )
        self.stream: Draws = Draws(source, pipeline, loading)
        self.augmented = torch.compile(augmented, fullgraph=True, dynamic=False) if compile else augmented
        self.images: Tensor | None = None  # uint8 (n, 3, H, W)

    def batches(
        self,
        start: int = 0,
        stop: int | None = None,
        device: torch.device | str = "cpu",
        *,
        workers: int | None = None,
    ) -> Iterator[Batch]:
        device = present(device)
        if self.images is None or self.images.device != device:
            self.images = self.on(device)
        on_host = self.on_host(start, stop, pinned=device.type == "cuda", workers=workers)
        ops, numbers = self.stream.pipeline.pixel_ops, self.stream.numbers
        for batch in ahead(on_host, device):
            batch["image"] = self.augmented(self.images, batch["image"], ops, numbers)
            yield self.stream.finish(batch)

    def on(self, device: torch.device) -> Tensor:
        """All images, padded with zeros to the largest; broken ones are zeros, and the stream knows of them."""
        parts = -(-len(self.stream.source) // AT_ONCE)
        decoded = [image for part in progress(self.decoded(), parts, "decoding") for image in part]
        sizes = np.array([(0, 0) if image is None else image.shape[:2] for image in decoded])  # (n, 2)
        self.stream.of_sizes(sizes)
        height, width = (int(side) for side in sizes.max(0))
        check_room(len(decoded) * 3 * height * width, device)
        images = torch.empty(len(decoded), 3, height, width, dtype=torch.uint8, device=device)
        for start in range(0, len(decoded), AT_ONCE):
            part = np.zeros((len(decoded[start : start + AT_ONCE]), height, width, 3), np.uint8)
            for slot, image in enumerate(decoded[start : start + AT_ONCE]):
                if image is not None:
                    part[slot, : image.shape[0], : image.shape[1]] = image
            images[start : start + AT_ONCE] = (
                torch.from_numpy(part).to(device).permute(0, 3, 1, 2)
            )  # (_, 3, H, W)
        return images

    def decoded(self) -> Iterator[list[NDArray[np.uint8] | None]]:
        """The images, (h, w, 3), in parts; None for one that is broken. Read by this thread, decoded by several."""
        source = self.stream.source

        def broken(index: int, error: DataError) -> BadExample:
            return BadExample(index, source.key(index), str(error))

        def read(index: int) -> bytes | NDArray[np.uint8] | BadExample:
            try:
                return source.read(index).image
            except DataError as error:
                return broken(index, error)

        def pixels(
            index: int, image: bytes | NDArray[np.uint8] | BadExample
        ) -> NDArray[np.uint8] | BadExample:
            try:
                return decode(image, name=source.key(index)) if isinstance(image, bytes) else image
            except DataError as error:
                return broken(index, error)

        def several(indices: range, images: list[Any]) -> list[NDArray[np.uint8] | BadExample]:
            return [pixels(*each) for each in zip(indices, images, strict=True)]

        threads = max(1, self.stream.loading.workers)
        share = -(-AT_ONCE // threads)
        with ThreadPoolExecutor(threads) as pool:
            for start in range(0, len(source), AT_ONCE):
                indices = range(start, min(start + AT_ONCE, len(source)))
                shares = [indices[k : k + share] for k in range(0, len(indices), share)]
                done = pool.map(several, shares, [[read(index) for index in part] for part in shares])
                made = [image for part in done for image in part]
                self.bad_files.add(image for image in made if isinstance(image, BadExample))
                yield [None if isinstance(image, BadExample) else image for image in made]


class Draws(Stream):
    """step -> the rows of this process's part of the batch; (b, 1 + k) where the Stream has images."""

    def __init__(self, source: Source, pipeline: Pipeline, loading: Loading) -> None:
        super().__init__(source, pipeline, loading, evaluation=False)
        self.sizes = np.zeros((len(source), 2), np.int64)  # (H, W) of each image; 0 for a broken one
        for op in pipeline.pixel_ops:
            if not op.batchable:
                raise ConfigError(
                    f"{op_text(op)} cannot be done for images that lie on the device; in '{pipeline}'"
                )

    def of_sizes(self, sizes: NDArray[np.int64]) -> None:
        good = sizes[sizes[:, 0] > 0]
        if not len(good):
            raise DataError(f"{self.source.name}: no image can be read")
        if (good != good[0]).any() and not isinstance(self.pipeline.pixel_ops[0], InceptionCrop):
            first, last = (f"{h} x {w}" for h, w in (good.min(0), good.max(0)))
            raise ConfigError(
                f"images of {first} to {last} on the device: the line has to begin with inception_crop, "
                f"not '{self.pipeline}'"
            )
        self.sizes = sizes

    @property
    def numbers(self) -> tuple[int, ...]:
        """How many numbers each op draws."""
        return tuple(len(its) for its in self.drawn(self.sizes.max(0), generator(0, 0, 0, EXAMPLE)))

    def drawn(self, size: NDArray[np.int64], rng: np.random.Generator) -> list[NDArray[np.float64]]:
        """What each op draws for an image of this size."""
        height, width = int(size[0]), int(size[1])
        drawn = []
        for op in self.pipeline.pixel_ops:
            drawn.append(op.draw(height, width, rng))
            height, width = op.size((height, width)) or (height, width)
        return drawn

    def blank(self) -> Tensor:
        return torch.zeros(1 + sum(self.numbers), dtype=torch.float64)

    def pixels(self, epoch: int, index: int) -> Tensor:
        if not self.sizes[index, 0]:
            raise DataError(f"{self.source.key(index)} could not be decoded")
        rng = generator(self.loading.seed, epoch, index, EXAMPLE)
        return torch.from_numpy(np.concatenate([[index], *self.drawn(self.sizes[index], rng)]))  # (1 + k,)


def augmented(images: Tensor, rows: Tensor, ops: tuple[PixelOp, ...], numbers: tuple[int, ...]) -> Tensor:
    """images (n, 3, H, W), rows (b, 1 + k) -> the batch (b, 3, h, w), bytes; op i drew numbers[i] of the k."""
    index, *drawn = rows.split((1, *numbers), 1)
    x = images[index[:, 0].to(torch.int64)]  # (b, 3, H, W)
    for op, its in zip(ops, drawn, strict=True):
        x = op.batched(x, its)
    return x


def check_room(needed: int, device: torch.device) -> None:
    if device.type != "cuda":
        return
    free, _ = torch.cuda.mem_get_info(device)
    if needed > LARGEST_PART * free:
        raise ConfigError(
            f"the images are {needed / 1e9:.1f} GB and {free / 1e9:.1f} GB are free on {device}, of which "
            "half may be filled with them"
        )
