"""Examples of a VTAB task: find its folder, cut its splits, compute its labels, list its examples.

    ROOT/TASK or ROOT/DATASET ──find_task_folder──► folder ──open_task──► TaskData: a source and three split strings

A folder holds Parquet files in one of two forms.
- Whole: the splits of the data set (train, validation, test), rows in the order of TFDS. The task is a slice of
  them: `train[:800]`, the first 200 of `Task.val`, and `Task.test`.
- Cut: train800, val200 and test, with the labels of the task. Where a label is computed from an annotation (Clevr,
  dSprites, KITTI), `write_cut` makes this form once.

A manifest lists the examples of a task, so that splits can be compared:

    split,pixels,label            a line for each example of train, val and test
    train,3f9c0a51e2b7d604,17     pixels: the first 16 digits of SHA-256 over "H W\\n" and the RGB bytes, row by row

Pixels, not files: an image stored losslessly in another format has the same line. VTAB's own examples are positions
in the order of TFDS, and no list of them is published.
"""

from __future__ import annotations

import csv
import hashlib
import os
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from io import StringIO
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from vitrail.data.bounded_files import read_text
from vitrail.data.decode import decode
from vitrail.data.readers.class_names import check_labels
from vitrail.data.readers.file_names import find_shards, find_split_shards, has_shards
from vitrail.data.readers.parquet import Columns, ParquetSource
from vitrail.data.shard import shard
from vitrail.data.sources import Example, Source, open_source
from vitrail.data.splits import Subset, parse_split
from vitrail.errors import DataError
from vitrail.inference.images import decode_example
from vitrail.runtime.files import atomic_file
from vitrail.runtime.progress import progress
from vitrail.transfer.vtab_tasks import TASKS, Task

ANNOTATIONS = 1000  # rows read at a time
HEADER = ["split", "pixels", "label"]
MAX_MANIFEST_BYTES = 256 << 20
Sizes = tuple[int, int]  # examples to train on and to choose by: 800 and 200
Manifest = list[tuple[str, str, int]]  # (split, pixels, label)


@dataclass(frozen=True)
class TaskData:
    """Arguments of `open_source` for the examples of a task."""

    where: str
    train: str  # 800 examples
    val: str  # 200 examples
    test: str

    def sources(self) -> dict[str, Source]:
        return {name: open_source(self.where, getattr(self, name)) for name in ("train", "val", "test")}


def find_task_folder(root: Path, name: str) -> Path | None:
    """Return the folder of a task, called like the task or its data set; None without one."""
    if not root.is_dir():
        raise DataError(f"{root}: no such folder; --data must be a folder with a folder for each task")
    folders = [root / name, root / TASKS[name].folder]
    return next((folder for folder in folders if folder.is_dir()), None)


def cut_splits(sizes: Sizes) -> tuple[str, str, str]:
    """Return the names of the splits of the cut form."""
    return f"train{sizes[0]}", f"val{sizes[1]}", "test"


def open_task(folder: Path, name: str, sizes: Sizes, labelled: Path | None = None) -> TaskData | None:
    """Open and check the examples of a task. Labels that have to be computed are written to `labelled`, in the cut
    form; without it, only check what can be checked, and return None."""
    task, cut = TASKS[name], cut_splits(sizes)
    if not has_shards(folder, ".parquet"):
        raise DataError(
            f"{folder}: no Parquet files; expected those of train, validation and test, or of {', '.join(cut)}"
        )
    is_cut = set(cut) <= {shards.stem for shards in find_shards(folder, ".parquet").values()}
    if task.rule is not None and not is_cut:
        if labelled is None:
            for split in whole_splits(task):
                find_image_column(find_split_shards(folder, ".parquet", split)[1].files[0], task)
            return None
        write_cut(folder, name, sizes, labelled)
        folder, is_cut = labelled, True
    if is_cut:
        data = TaskData(str(folder), *cut)
    else:
        where = str(folder) if task.column is None else f"{folder}?label={task.column}"
        lengths = {split: len(open_source(where, split)) for split in whole_splits(task)}
        slices = slice_splits(task, lengths, folder, sizes)
        data = TaskData(where, *(f"{split}[{start}:{stop}]" for split, start, stop in slices))
    sources = data.sources()
    for split, n in zip(("train", "val"), sizes, strict=True):
        if len(sources[split]) != n:
            raise DataError(f"{folder}: {split} has {len(sources[split])} examples; {name} takes {n}")
    for source in sources.values():
        if len(source.class_names) != task.classes:
            raise DataError(
                f"{folder}: {len(source.class_names)} classes; {name} has {task.classes}. Name the classes in the "
                "Parquet files (ClassLabel) or in a classes.txt beside them"
            )
    return data


def whole_splits(task: Task) -> list[str]:
    """Return the splits of the whole data set that a task takes examples from."""
    return list(dict.fromkeys(parse_split(text)[0].name for text in ("train", task.val, task.test)))


def slice_splits(
    task: Task, lengths: dict[str, int], folder: Path, sizes: Sizes
) -> list[tuple[str, int, int]]:
    """Return split, start and stop of train, val and test."""
    slices = []
    for text, n in zip(("train", task.val, task.test), (*sizes, None), strict=True):
        (part,) = parse_split(text)
        start, stop = part.bounds(lengths[part.name])
        if n is not None and start + n > stop:
            raise DataError(f"{folder}: {text} has {stop - start} examples; the task takes {n} of them")
        slices.append((part.name, start, stop if n is None else start + n))
    return slices


def write_cut(folder: Path, name: str, sizes: Sizes, out: Path) -> None:
    """Write the cut form of a task whose labels are computed; keep existing files."""
    whole = {split: open_labelled(folder, split, TASKS[name]) for split in whole_splits(TASKS[name])}
    slices = slice_splits(TASKS[name], {split: len(whole[split]) for split in whole}, folder, sizes)
    for cut, (split, start, stop) in zip(cut_splits(sizes), slices, strict=True):
        report = shard(Subset(whole[split], np.arange(start, stop)), out, split=cut, check=False)
        if report.broken:
            raise DataError(
                f"{folder}: {report.broken} examples cannot be read; see {out / 'bad_files.jsonl'}"
            )


def open_labelled(folder: Path, split: str, task: Task) -> ParquetSource:
    """Open a split of a whole data set, with labels computed from annotations."""
    assert task.column is not None and task.rule is not None
    split, shards = find_split_shards(folder, ".parquet", split)
    name, class_names = f"{folder.name}:{split}", [str(k) for k in range(task.classes)]
    columns = Columns("image", find_image_column(shards.files[0], task), task.column, False, None)
    annotations = (
        value
        for file in shards.files
        for batch in pq.ParquetFile(file).iter_batches(ANNOTATIONS, columns=[task.column], use_threads=False)
        for value in batch.column(0).to_pylist()
    )
    n = sum(pq.read_metadata(file).num_rows for file in shards.files)
    numbers: list[int] = []
    for annotation in progress(annotations, n, f"labels of {name}"):
        try:
            numbers.append(task.rule(annotation))
        except (TypeError, ValueError, LookupError) as error:
            raise DataError(
                f"{name}: row {len(numbers)}, column {task.column!r}: {type(error).__name__}: {error}; expected "
                f"annotations as in TFDS's {task.tfds}"
            ) from error
    labels = np.array(numbers, dtype=np.int64)  # (n,)
    check_labels(labels, class_names, name)
    kind = BinaryPixels if task.binary else ParquetSource
    return kind(name, folder, shards.files, columns, class_names, labels)


class BinaryPixels(ParquetSource):
    """A source whose pixels are stored as 0 and 1, made black and white."""

    def read(self, index: int) -> Example:
        example = super().read(index)
        assert isinstance(example.image, bytes)
        pixels = decode(example.image, name=example.key)  # (H, W, 3)
        return replace(example, image=pixels * np.uint8(255)) if pixels.max() <= 1 else example


def find_image_column(file: Path, task: Task) -> str:
    """Return the column of the image's bytes; DataError where it or the annotation is missing."""
    try:
        schema = pq.read_schema(file)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{file}: not a whole Parquet file: {error}") from error
    if missing := [name for name in ("image", str(task.column)) if name not in schema.names]:
        raise DataError(f"{file}: no column {', '.join(missing)}; columns: {', '.join(schema.names)}")
    return "image.bytes" if pa.types.is_struct(schema.field("image").type) else "image"


def prepare_task(
    folder: Path, name: str, sizes: Sizes, out: Path, expected: Path | None
) -> tuple[TaskData, str]:
    """Return the examples of a task, labels computed, and the digest of their manifest, which is written.

    DataError unless they are those of `expected` and of a manifest.csv beside the data, where there are such files.
    """
    data = open_task(folder, name, sizes, labelled=out / "data" / name)
    assert data is not None
    manifest = list_examples(data.sources())
    for path in (folder / "manifest.csv", expected):
        if path is not None and path.exists():
            check_manifest(manifest, path)
    write_manifest(manifest, manifest_path(out, name))
    return data, digest_manifest(manifest)


def manifest_path(out: Path, name: str) -> Path:
    return out / "manifests" / f"{name}.csv"


def list_examples(sources: dict[str, Source]) -> Manifest:
    """Return the manifest of a task; every image is decoded."""
    manifest: Manifest = []
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for split, source in sources.items():
            hashes = pool.map(partial(hash_pixels, source), range(len(source)))
            hashes = progress(hashes, len(source), f"manifest of {source.name}")
            manifest += [(split, h, int(label)) for h, label in zip(hashes, source.labels, strict=True)]
    return manifest


def hash_pixels(source: Source, index: int) -> str:
    pixels = decode_example(source, index)  # (H, W, 3)
    return hashlib.sha256(b"%d %d\n" % pixels.shape[:2] + pixels.tobytes()).hexdigest()[:16]


def write_manifest(manifest: Manifest, path: Path) -> None:
    with atomic_file(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([HEADER, *manifest])


def read_manifest(path: Path) -> Manifest:
    text = read_text(path, "a manifest", MAX_MANIFEST_BYTES)
    try:
        rows = list(csv.reader(StringIO(text, newline="")))
        if not rows or rows[0] != HEADER:
            raise ValueError(f"it begins with {str(rows[:1])[:60]}")
        return [(split, pixels, int(label)) for split, pixels, label in rows[1:]]
    except (csv.Error, ValueError) as error:
        raise DataError(f"{path}: not a manifest ({error}); expected lines of {', '.join(HEADER)}") from error


def check_manifest(manifest: Manifest, path: Path) -> None:
    """Raise DataError unless a file lists the same examples, in any order."""
    other = read_manifest(path)
    for split in dict.fromkeys(row[0] for row in [*other, *manifest]):
        ours, theirs = (Counter(row[1:] for row in rows if row[0] == split) for rows in (manifest, other))
        if ours != theirs:
            raise DataError(
                f"{split} differs from {path} in images or labels: {(ours - theirs).total()} of "
                f"{ours.total()} examples are not listed there, {(theirs - ours).total()} of its "
                f"{theirs.total()} are not here"
            )


def digest_manifest(manifest: Manifest) -> str:
    """Return a digest of the examples, whatever their order."""
    lines = sorted(f"{split},{pixels},{label}" for split, pixels, label in manifest)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
