"""Which examples a split holds, so that two people can tell whether theirs are the same.

    split,pixels,label            a line for each example of train, val and test
    train,3f9c0a51e2b7d604,17     pixels: the first 16 digits of SHA-256 over "H W\\n" and the RGB bytes, row by row

Pixels, not files: a picture that is stored losslessly in another format has the same line. VTAB's own examples are
those at given positions in the order of TFDS, and no list of them is published: a manifest is what stands in for it.
"""

from __future__ import annotations

import csv
import hashlib
import os
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from io import StringIO
from pathlib import Path

from vitrail.data.decode import decode
from vitrail.data.foreign_files import read_text
from vitrail.data.sources import Source
from vitrail.errors import DataError
from vitrail.runtime.files import atomic_file
from vitrail.runtime.progress import progress

HEADER = ["split", "pixels", "label"]
MAX_BYTES = 256 << 20  # of a manifest that is read
Manifest = list[tuple[str, str, int]]  # (split, pixels, label)


def manifest_of(sources: dict[str, Source]) -> Manifest:
    """Of a task's train, val and test; every image is decoded."""
    made: Manifest = []
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for split, source in sources.items():
            hashes = pool.map(partial(pixel_hash, source), range(len(source)))
            shown = progress(hashes, len(source), f"manifest of {source.name}")
            made += [(split, h, int(label)) for h, label in zip(shown, source.labels, strict=True)]
    return made


def pixel_hash(source: Source, index: int) -> str:
    example = source.read(index)
    image = example.image
    pixels = decode(image, name=example.key) if isinstance(image, bytes) else image  # (H, W, 3)
    state = hashlib.sha256(b"%d %d\n" % pixels.shape[:2])
    state.update(pixels.tobytes())
    return state.hexdigest()[:16]


def write(manifest: Manifest, path: Path) -> None:
    with atomic_file(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([HEADER, *manifest])


def read(path: Path) -> Manifest:
    text = read_text(path, "a manifest", MAX_BYTES)
    try:
        rows = list(csv.reader(StringIO(text, newline="")))
        if rows[0] != HEADER:
            raise ValueError(f"it begins with {str(rows[0])[:60]}")
        return [(split, pixels, int(label)) for split, pixels, label in rows[1:]]
    except (csv.Error, ValueError, IndexError) as error:
        raise DataError(
            f"{path}: not a manifest ({error}): lines of {', '.join(HEADER)} are expected"
        ) from error


def check_same(ours: Manifest, theirs: Manifest, path: Path) -> None:
    """That both hold the same examples, in any order; DataError says how many differ."""
    for split in dict.fromkeys(row[0] for row in [*theirs, *ours]):
        here = Counter(row[1:] for row in ours if row[0] == split)
        there = Counter(row[1:] for row in theirs if row[0] == split)
        if here == there:
            continue
        images = (Counter(h for h, _ in rows.elements()) for rows in (here, there))
        others = (next(images) - next(images)).total()
        n = here.total()
        what = f"{others} of {n} images are not there" if others else "the same images have other labels"
        if not others and n != there.total():
            what = f"{there.total() - n} of its {there.total()} images are missing here"
        raise DataError(f"{split} is not that of {path}: {what}")


def digest(manifest: Manifest) -> str:
    """Of the examples, whatever their order."""
    lines = sorted(f"{split},{pixels},{label}" for split, pixels, label in manifest)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
