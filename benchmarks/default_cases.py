"""The ten cases that the defaults of fine-tuning are judged on (docs/results/defaults.md), made from real images.

    make_cases(data, folder)    folder/CASE/train.tar, test.tar, classes.txt for each case; those there are kept

DATA holds tiny-imagenet and transfer/{cifar10,cifar100,pets,flowers102,dtd10}. Images keep their bytes, except for
the frames of a series. Everything is drawn by seeds, a case by its own, so the same data make the same cases (frames:
with the same release of Pillow). Tar shards are read without pyarrow; the one package that training imports besides
torch, numpy, Pillow and safetensors is copied beside them.
"""

from __future__ import annotations

import io
import shutil
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import rich
from PIL import Image, ImageEnhance

from vitrail.data.decode import decode
from vitrail.data.sources import DataSet, Source
from vitrail.data.splits import class_members
from vitrail.runtime.files import atomic_folder

FRAMES, ORIGINALS = 6, 3  # of a series; series of a class
CUT, TURN, LIGHT = 0.08, 5.0, 0.15  # how frames differ at most: share of a side, degrees, brightness
ERRORS = 0.1  # share of the training labels
TINY_TRAIN, TINY_TEST = 40, 10  # of the 50 validation images of a class

Bytes = tuple[bytes, int]  # an encoded image and its label
Part = list[tuple[Source, int, int]]  # source, place in it, label


@dataclass(frozen=True)
class Case:
    """A data set with a training and a test split."""

    name: str
    make: Callable[[Path, np.random.Generator], tuple[Part, Part, list[str]]]
    errors: str = ""  # in the labels: uniform, or next: those of the following class
    series: bool = False  # each training image becomes frames
    judging: bool = False


def make_cases(data: Path, folder: Path, only: list[str] | None = None) -> None:
    if not (packages := folder / "packages").exists():
        shutil.copytree(Path(rich.__file__).parent, packages / "rich", ignore=shutil.ignore_patterns("*.pyc"))
    for seed, case in enumerate(CASES):
        if (folder / case.name).exists() or (only and case.name not in only):
            continue
        rng = np.random.default_rng(seed)
        train, test, names = case.make(data, rng)
        labels = np.array([label for *_, label in train])
        if case.errors:
            labels = with_errors(labels, len(names), case.errors, rng)
        images = [(read(source, i), int(label)) for (source, i, _), label in zip(train, labels, strict=True)]
        if case.series:
            images = [(frame, label) for image, label in images for frame in frames(image, rng)]
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_folder(folder / case.name) as place:
            write_shard(place / "train.tar", images)
            write_shard(place / "test.tar", [(read(source, i), label) for source, i, label in test])
            (place / "classes.txt").write_text("".join(f"{name}\n" for name in names), encoding="utf-8")
        counts = np.bincount([label for _, label in images])
        print(
            f"{case.name:20} {len(images):5} train, {counts.min()} to {counts.max()} a class; {len(test):5} test"
        )


def with_errors(labels: np.ndarray, classes: int, kind: str, rng: np.random.Generator) -> np.ndarray:
    """Return the labels (n,), of which a share is wrong."""
    wrong = rng.permutation(len(labels))[: round(ERRORS * len(labels))]
    by = rng.integers(1, classes, len(wrong)) if kind == "uniform" else 1
    changed = labels.copy()
    changed[wrong] = (labels[wrong] + by) % classes
    return changed


def frames(image: bytes, rng: np.random.Generator) -> Iterator[bytes]:
    """Yield near-duplicates of an image, as a camera takes them one after the other."""
    whole = Image.fromarray(decode(image))
    for _ in range(FRAMES):
        turned = whole.rotate(rng.uniform(-TURN, TURN), Image.Resampling.BICUBIC)
        left, top, right, bottom = rng.uniform(0, CUT, 4)
        w, h = whole.size
        cut = turned.crop((round(left * w), round(top * h), round((1 - right) * w), round((1 - bottom) * h)))
        file = io.BytesIO()
        ImageEnhance.Brightness(cut).enhance(rng.uniform(1 - LIGHT, 1 + LIGHT)).save(file, "WEBP", quality=80)
        yield file.getvalue()


def read(source: Source, index: int) -> bytes:
    image = source.read(index).image
    assert isinstance(image, bytes)
    return image


def write_shard(path: Path, images: list[Bytes]) -> None:
    with tarfile.open(path, "w") as shard:
        for number, (image, label) in enumerate(images):
            for suffix, content in (("webp", image), ("cls", str(label).encode())):
                member = tarfile.TarInfo(f"{number:05}.{suffix}")
                member.size = len(content)
                shard.addfile(member, io.BytesIO(content))


def take(source: Source, classes: list[int], counts: list[int], rng: np.random.Generator) -> Part:
    """Draw `counts` images of each of some classes, which are numbered anew."""
    members, part = class_members(source.labels, len(source.class_names)), []
    for label, (c, count) in enumerate(zip(classes, counts, strict=True)):
        chosen = rng.permutation(members[c])[:count]
        part += [(source, int(i), label) for i in np.sort(chosen)]
    return part


def whole(source: Source, classes: list[int]) -> Part:
    new = {c: label for label, c in enumerate(classes)}
    return [(source, i, new[c]) for i, c in enumerate(source.labels.tolist()) if c in new]


def tail(most: int, least: int, classes: int, rng: np.random.Generator) -> list[int]:
    """Return geometric counts of classes, in a drawn order."""
    return rng.permutation(np.rint(np.geomspace(most, least, classes)).astype(int)).tolist()


def sample(name: str, half: int | None, train: int | None = None, *, all_used: bool = False):
    """Return the maker of a case from a sample of 1,000: classes of a half, `train` images of each at most."""

    def make(data: Path, rng: np.random.Generator) -> tuple[Part, Part, list[str]]:
        opened = DataSet(data / "transfer" / name)
        names = opened.whole("train").class_names
        classes = list(range(len(names)))[half::2] if half is not None else list(range(len(names)))
        counts = [len(opened.whole("train")) if train is None else train] * len(classes)
        part = take(opened.whole("train"), classes, counts, rng)
        part += whole(opened.whole("validation"), classes) if all_used else []
        return part, whole(opened.whole("test"), classes), [names[c] for c in classes]

    return make


def tiny(half: int, least: int = TINY_TRAIN):
    """Return the maker of a case from Tiny-ImageNet's validation images, down to `least` a class."""

    def make(data: Path, rng: np.random.Generator) -> tuple[Part, Part, list[str]]:
        source = DataSet(data / "tiny-imagenet").whole("validation")
        classes = list(range(len(source.class_names)))[half::2]
        drawn = take(source, classes, [TINY_TRAIN + TINY_TEST] * len(classes), rng)
        each = [drawn[i : i + TINY_TRAIN + TINY_TEST] for i in range(0, len(drawn), TINY_TRAIN + TINY_TEST)]
        counts = tail(TINY_TRAIN, least, len(classes), rng)
        shuffled = [[some[i] for i in rng.permutation(len(some))] for some in each]
        train = [
            one for some, count in zip(shuffled, counts, strict=True) for one in some[TINY_TEST:][:count]
        ]
        test = [one for some in shuffled for one in some[:TINY_TEST]]
        return train, test, [source.class_names[c] for c in classes]

    return make


def dtd_tail(data: Path, rng: np.random.Generator) -> tuple[Part, Part, list[str]]:
    opened = DataSet(data / "transfer" / "dtd10")
    classes = list(range(10))
    train = take(opened.whole("train"), classes, tail(70, 4, 10, rng), rng)
    test = whole(opened.whole("validation"), classes) + whole(opened.whole("test"), classes)
    return train, test, opened.whole("train").class_names


CASES = (
    Case("cifar10-errors", sample("cifar10", None), errors="uniform"),
    Case("pets-few", sample("pets", 0, 5)),
    Case("tiny-many", tiny(0)),
    Case("dtd10-tail", dtd_tail),
    Case("flowers-series", sample("flowers102", 0, ORIGINALS), series=True),
    Case("cifar100-few", sample("cifar100", None), judging=True),
    Case("pets-plain", sample("pets", 1, all_used=True), judging=True),
    Case("tiny-many-errors", tiny(1), errors="next", judging=True),
    Case("tiny-tail", tiny(1, 2), judging=True),
    Case("flowers-series-odd", sample("flowers102", 1, ORIGINALS), series=True, judging=True),
)
