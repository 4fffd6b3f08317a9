"""Loading photographs for training: ours against torchvision's two ways and timm's, in one run.

    python -m benchmarks.loader [FOLDER]

FOLDER holds photographs (JPEG); without it those of the shared data beside the checkout are taken. Each epoch reads
every file, decodes it, takes a random inception crop to 224 and flips it by a fair coin; nothing decoded is kept, and
what comes out is a batch of bytes, to be normalised on the device. The loaders run by turns for `rounds` rounds, of a
few seconds each, and only one of them at a time: what the machine does besides meets all of them, and a ratio is that
of one round, the median over all. torchvision and timm draw rectangles their way, within the same areas and aspects;
"our crops" is torchvision's pipeline with rectangles drawn as ours are.

Same crops, same pixels: before the timing, what we load is compared with a full decode, the same crop and Pillow's
antialiased resize; the mean difference must be at most 1/255.
"""

from __future__ import annotations

import argparse
import io
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader

from benchmarks.peers import import_torchvision
from vitrail.data.augment import inception_box
from vitrail.data.decode import JPEG_DECODER
from vitrail.data.loader import Loader
from vitrail.data.preprocess import parse
from vitrail.data.settings import DataSettings
from vitrail.data.sources import open_source

SIZE, BATCH_SIZE = 224, 32
QUEUED = 8  # batches that may have been made ahead
REST = 0.6  # seconds in which the workers of a loader fill their queue
AREA, ASPECT = (0.05, 1.0), (0.75, 1.33)
LINE = f"inception_crop({SIZE}, torch_bilinear)|flip_lr|uint8|to_range(-1, 1)"
torchvision = import_torchvision()


def ours(folder: Path, num_workers: int) -> Iterator[torch.Tensor]:
    settings = DataSettings(batch_size=BATCH_SIZE, num_workers=num_workers)
    loader = Loader(open_source(folder, "train"), parse(LINE), settings)
    for batch in loader.on_host():
        yield batch["image"]


def torchvision_pil(folder: Path, num_workers: int) -> Iterator[torch.Tensor]:
    from torchvision.datasets import ImageFolder
    from torchvision.transforms import v2

    steps = [v2.RandomResizedCrop(SIZE, AREA, ASPECT), v2.RandomHorizontalFlip(), v2.PILToTensor()]
    yield from endless(ImageFolder(folder / "train", v2.Compose(steps)), num_workers)


def torchvision_pil_same(folder: Path, num_workers: int) -> Iterator[torch.Tensor]:
    from torchvision.datasets import ImageFolder
    from torchvision.transforms import v2

    steps = [SameCrop(), v2.RandomHorizontalFlip(), v2.PILToTensor()]
    yield from endless(ImageFolder(folder / "train", v2.Compose(steps)), num_workers)


def torchvision_tensors(folder: Path, num_workers: int) -> Iterator[torch.Tensor]:
    from torchvision.datasets import ImageFolder
    from torchvision.io import ImageReadMode, decode_jpeg, read_file
    from torchvision.transforms import v2

    def read(path: str) -> torch.Tensor:
        return decode_jpeg(read_file(path), mode=ImageReadMode.RGB)

    steps = [v2.RandomResizedCrop(SIZE, AREA, ASPECT, antialias=True), v2.RandomHorizontalFlip()]
    yield from endless(ImageFolder(folder / "train", v2.Compose(steps), loader=read), num_workers)


class SameCrop:
    """torchvision's crop and antialiased resize, with rectangles drawn as ours are."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)

    def __call__(self, image: Any) -> Any:
        from torchvision.transforms.v2 import functional

        height, width = functional.get_size(image)
        box = inception_box(height, width, self.rng, area=AREA, aspect=ASPECT)
        return functional.resized_crop(image, *box, [SIZE, SIZE], antialias=True)


def timms(folder: Path, num_workers: int) -> Iterator[torch.Tensor]:
    from timm.data import create_dataset, create_loader

    dataset = create_dataset("", str(folder), split="train", is_training=True)
    loader = create_loader(
        dataset,
        (3, SIZE, SIZE),
        BATCH_SIZE,
        is_training=True,
        use_prefetcher=True,
        device=torch.device("cpu"),
        num_workers=num_workers,
        scale=AREA,
        ratio=ASPECT,
        hflip=0.5,
        color_jitter=None,
        interpolation="bilinear",
    )
    while True:
        for x, _ in loader.loader:  # what its prefetcher takes to the device: bytes
            yield x


def endless(dataset: torch.utils.data.Dataset[object], num_workers: int) -> Iterator[torch.Tensor]:
    loader = DataLoader(
        dataset,
        BATCH_SIZE,
        shuffle=True,
        num_workers=num_workers,
        drop_last=True,
        persistent_workers=num_workers > 0,
    )
    while True:
        for x, _ in loader:
            yield x


LOADERS: dict[str, Callable[[Path, int], Iterator[torch.Tensor]]] = {
    "vitrail": ours,
    "torchvision, PIL": torchvision_pil,
    "the same, our crops": torchvision_pil_same,
    "torchvision, tensors": torchvision_tensors,
    "timm": timms,
}


def prepared(photos: Path, folder: Path, repeat: int) -> Path:
    """train/CLASS/file, as everyone reads it: links to the photographs, `repeat` times each."""
    for copy in range(repeat):
        (folder / "train" / f"class{copy}").mkdir(parents=True)
        for photo in sorted(photos.glob("*.JP*G")) + sorted(photos.glob("*.jp*g")):
            (folder / "train" / f"class{copy}" / photo.name).symlink_to(photo.resolve())
    return folder


def compare_pixels(folder: Path, count: int = 200) -> float:
    """Mean |difference| in units of 1/255 between what we load and the plain way, over some examples."""
    source, pipeline = open_source(folder, "train"), parse(LINE)
    total = 0.0
    for i in range(min(count, len(source))):
        example = source.read(i)
        assert isinstance(example.image, bytes)
        loaded = (
            pipeline.load(example.image, np.random.default_rng(i)).permute(1, 2, 0).float().numpy()
        )  # (h, w, 3)
        with Image.open(io.BytesIO(example.image)) as opened:
            image = opened.convert("RGB")
        rng = np.random.default_rng(i)
        top, left, height, width = inception_box(image.height, image.width, rng, area=AREA, aspect=ASPECT)
        cut = image.crop((left, top, left + width, top + height))
        plain = np.asarray(cut.resize((SIZE, SIZE), Image.Resampling.BILINEAR), np.float32)
        ways = (plain, plain[:, ::-1])  # as it is, or flipped
        total += min(float(np.abs(loaded - way).mean()) for way in ways)
    return total / min(count, len(source))


def started(folder: Path, num_workers: int) -> dict[str, Iterator[torch.Tensor]]:
    """Those of the loaders that run on this machine."""
    running = {}
    for name, make in LOADERS.items():
        batches = make(folder, num_workers)
        try:
            next(batches)
        except (RuntimeError, OSError, AttributeError) as error:
            print(f"{name}: not on this machine ({str(error).splitlines()[0][:100]})")
            continue
        running[name] = batches
        time.sleep(REST)
    return running


def images_per_second(batches: Iterator[torch.Tensor], count: int) -> float:
    """Images a second; then its workers are left to fill their queue, and rest while others run."""
    for _ in range(QUEUED):
        next(batches)
    start = time.perf_counter()
    images = sum(len(next(batches)) for _ in range(count))
    seconds = time.perf_counter() - start
    time.sleep(REST)
    return images / seconds


def main(photos: Path, num_workers: int, rounds: int, count: int) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = prepared(photos, Path(temporary), repeat=10)
        difference = compare_pixels(folder)
        assert difference <= 1.0, f"mean |difference| is {difference:.2f}/255"
        print(f"mean |difference| from full decode, crop, antialiased resize: {difference:.3f}/255")
        running = started(folder, num_workers)
        speeds: dict[str, list[float]] = {name: [] for name in running}
        for _ in range(rounds):
            for name, batches in running.items():
                speeds[name].append(images_per_second(batches, count))
    print(f"JPEG decoder: {JPEG_DECODER}; torch {torch.__version__}; load average {os.getloadavg()[0]:.1f}")
    print(f"{num_workers} workers, batches of {BATCH_SIZE}, {rounds} rounds of {count * BATCH_SIZE} images")
    for name, values in speeds.items():
        ratios = [ours / theirs for ours, theirs in zip(speeds["vitrail"], values, strict=True)]
        print(f"  {name:22} images/s {spread(values, 0):24} ours / this {spread(ratios, 2)}")


def spread(values: list[float], digits: int) -> str:
    """The median, and in brackets the lowest and the highest."""
    median, low, high = statistics.median(values), min(values), max(values)
    return f"{median:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("photos", type=Path, nargs="?", default=Path("../shared/data/photos"))
    parser.add_argument("--num-workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--count", type=int, default=30, help="batches that are timed in a round")
    main(**vars(parser.parse_args()))
