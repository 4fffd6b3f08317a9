"""Recall of the search for copies by kind of copy, its precision and time.

    python -m benchmarks.dedup --data FOLDER [--n 10000] [--part measured|set] [--sheet FILE.png]

FOLDER holds Tiny-ImageNet (any source with a train and a validation split will do). The training set is the
first `n` images of a part of its train split. The test set, of the same size, holds 100 copies of them for each
way of copying, and images of another part. So n x n pairs are compared, of which 600 are planted.

    part `set`        train[:25%] and train[25%:50%]: the thresholds in vitrail/data were chosen on these
    part `measured`   train[85%:] and validation: the results in docs/results/dedup.md

A reported pair that was not planted is either a copy that the data set already held or a mistake; such pairs are
listed, and `--sheet` draws them for a person to decide.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Literal

import numpy as np
import tyro
from PIL import Image, ImageEnhance, ImageOps
from rich.console import Console
from rich.table import Table

from vitrail.data.contact_sheet import pair_sheet
from vitrail.data.copies import THRESHOLD, Pair, find_pairs, scan
from vitrail.data.decode import decode
from vitrail.data.sources import Example, Source, open_source
from vitrail.data.splits import Subset
from vitrail.errors import ConfigError

COPIES = 100  # of each kind
PARTS = {
    "set": ("train[:25%]", "train[25%:50%]"),
    "measured": ("train[85%:]", "validation"),
}
Change = Callable[[Image.Image, np.random.Generator], Image.Image]


def main(
    data: Path,
    n: int = 10_000,
    part: Literal["set", "measured"] = "measured",
    sheet: Path | None = None,
    seed: int = 0,
) -> None:
    """Print the table. `data`: folder with Tiny-ImageNet; `sheet`: where to draw the pairs to look at."""
    if n < COPIES * len(KINDS):
        raise ConfigError(f"--n is {n}; it must be at least {COPIES * len(KINDS)}, one image for each copy")
    rng = np.random.default_rng(seed)
    train, others = (first(open_source(data, split), n) for split in PARTS[part])
    originals = rng.permutation(n)[: COPIES * len(KINDS)]
    copies = [
        CHANGES_OF[kind](pixels(train, int(original)), rng)
        for kind, chosen in zip(KINDS, np.split(originals, len(KINDS)), strict=True)
        for original in chosen
    ]
    test = Planted([encode(copy) for copy in copies], first(others, n - len(copies)))
    began = time.perf_counter()
    pairs = find_pairs(scan(train), scan(test), threshold=THRESHOLD - 0.25)
    seconds = time.perf_counter() - began
    report(pairs, originals, train, test, seconds, sheet)


def jpeg(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    file = BytesIO()
    image.save(file, "JPEG", quality=60)
    return Image.open(BytesIO(file.getvalue()))


def resize(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    return image.resize((round(image.width * 0.8), round(image.height * 0.8)), Image.Resampling.BICUBIC)


def crop(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    x, y = round(image.width * 0.05), round(image.height * 0.05)
    return image.crop((x, y, image.width - x, image.height - y))


def brightness(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    return ImageEnhance.Brightness(image).enhance(rng.choice([0.9, 1.1]))


def flip(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    return ImageOps.mirror(image)


CHANGES: dict[str, Change] = {
    "JPEG quality 60": jpeg,
    "resize to 80%": resize,
    "crop of 5% a side": crop,
    "brightness ±10%": brightness,
    "horizontal flip": flip,
}


def two(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    first, second = rng.choice(list(CHANGES), 2, replace=False)
    return CHANGES[second](CHANGES[first](image, rng), rng)


CHANGES_OF: dict[str, Change] = {**CHANGES, "two of these": two}
KINDS = list(CHANGES_OF)


def report(
    pairs: list[Pair], originals: np.ndarray, train: Source, test: Source, seconds: float, sheet: Path | None
) -> None:
    console = Console()
    copies = {(int(original), number) for number, original in enumerate(originals)}
    reported = [pair for pair in pairs if pair.score >= THRESHOLD]
    planted = [pair for pair in reported if pair[:2] in copies]
    other = [pair for pair in reported if pair[:2] not in copies]
    below = [pair.score for pair in pairs if pair.score < THRESHOLD and pair[:2] not in copies]
    table = Table("copy", "planted", "found", "recall", "lowest score")
    for number, kind in enumerate(KINDS):
        scores = [pair.score for pair in planted if pair.j // COPIES == number]
        recall = f"{len(scores) / COPIES:.0%}"
        table.add_row(kind, str(COPIES), str(len(scores)), recall, f"{min(scores, default=0):.3f}")
    console.print(table)
    console.print(
        f"{len(train):,} x {len(test):,} images in {seconds:.1f} s; {len(reported)} pairs reported,"
        f" {len(planted)} planted, {len(other)} not: precision {len(planted) / max(len(reported), 1):.1%}"
        f" if all of these were mistakes; threshold {THRESHOLD}, the next pair that was not planted at"
        f" {max(below, default=0):.3f}"
    )
    for i, j, score, how in other:
        console.print(f"  {score:.3f} {how:8} {train.key(i)}  {test.key(j)}", soft_wrap=True)
    if sheet:
        weakest = sorted(planted, key=lambda pair: pair.score)[:24]
        drawn = [
            (f"{label} {pair.score:.3f}", train, pair.i, test, pair.j)
            for label, some in (("not planted", other), ("planted", weakest))
            for pair in some
        ]
        console.print(f"drawn: {pair_sheet('pairs not planted, then the weakest planted', drawn, sheet)}")


@dataclass(frozen=True)
class Planted:
    """Copies, then other images."""

    copies: list[bytes]
    others: Source
    name: str = "copies and others"

    @property
    def class_names(self) -> list[str]:
        return self.others.class_names

    @property
    def labels(self) -> np.ndarray:
        return np.concatenate((np.zeros(len(self.copies), np.int64), self.others.labels))

    def __len__(self) -> int:
        return len(self.copies) + len(self.others)

    def key(self, index: int) -> str:
        if index < len(self.copies):
            return f"copy {index % COPIES} by {KINDS[index // COPIES]}"
        return self.others.key(index - len(self.copies))

    def read(self, index: int) -> Example:
        if index < len(self.copies):
            return Example(self.copies[index], 0, self.key(index))
        return self.others.read(index - len(self.copies))

    def fingerprint(self) -> str:
        return self.others.fingerprint()


def first(source: Source, n: int) -> Subset:
    """Return the first `n` examples of a source."""
    return Subset(source, np.arange(n))


def pixels(source: Source, index: int) -> Image.Image:
    return Image.fromarray(decode(source.read(index).image))


def encode(image: Image.Image) -> bytes:
    file = BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


if __name__ == "__main__":
    tyro.cli(main)
