"""The examples of a VTAB task: found in a folder of data sets, cut, labelled.

    ROOT/TASK or ROOT/DATASET ──find──► folder ──cut──► TaskData: where, and three split strings ──► the one loop

A folder holds Parquet files in one of two forms.
- Whole: the data set's own splits (train, validation, test), its rows in the order of TFDS. The task is a slice of
  them: `train[:800]`, the first 200 of what vtab_tasks.py says, and a test split.
- Cut: train800, val200 and test, with the labels of the task.

Where a label is computed from an annotation (Clevr, dSprites, KITTI), the cut form is written once, below the folder
of results; it can be given as data again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from vitrail.data.decode import decode
from vitrail.data.readers.class_names import check_labels
from vitrail.data.readers.fingerprint import digest, digest_files
from vitrail.data.readers.parquet import ParquetRows
from vitrail.data.readers.shard_files import find_shards, has_shards, shards_of
from vitrail.data.shard import shard
from vitrail.data.sources import Example, Source, open_source
from vitrail.data.splits import Subset, parse_split
from vitrail.errors import DataError
from vitrail.runtime.progress import progress
from vitrail.transfer.settings import Sizes
from vitrail.transfer.vtab_tasks import TASKS, Task

ROWS = 1000  # annotations that are looked at together


@dataclass(frozen=True)
class TaskData:
    """A task's examples: what `open_source` is given."""

    where: str
    train: str  # 800 examples
    val: str  # 200
    test: str

    def sources(self) -> dict[str, Source]:
        parts = {"train": self.train, "val": self.val, "test": self.test}
        return {name: open_source(self.where, split) for name, split in parts.items()}


def find(root: Path, name: str) -> Path | None:
    """The folder of a task: of its own name, or of its data set's; None: there is neither."""
    if not root.is_dir():
        raise DataError(f"{root}: no such folder; VTAB's data is a folder with a folder for each task")
    places = [root / name, root / TASKS[name].folder]
    return next((place for place in places if place.is_dir()), None)


def needs_labels(folder: Path, name: str, sizes: Sizes) -> bool:
    """Whether the labels have to be computed; otherwise `opened` can be called at once."""
    return TASKS[name].rule is not None and not is_cut(folder, sizes)


def is_cut(folder: Path, sizes: Sizes) -> bool:
    if not has_shards(folder, ".parquet"):
        raise DataError(f"{folder}: no Parquet files; a task's folder holds train, validation and test, or "
                        f"{', '.join(sizes.cut)}")  # fmt: skip
    stems = {shards.stem for shards in find_shards(folder, ".parquet").values()}
    return set(sizes.cut) <= stems


def opened(folder: Path, name: str, sizes: Sizes) -> TaskData:
    """The examples of a task whose labels are there, checked."""
    task = TASKS[name]
    if is_cut(folder, sizes):
        data = TaskData(str(folder), *sizes.cut)
    else:
        column = "" if task.column is None else f"?label={task.column}"
        where = f"{folder}{column}"
        lengths = {split: len(open_source(where, split)) for split in splits_of_task(task)}
        data = TaskData(where, *(f"{split}[{a}:{b}]" for split, a, b in ranges(task, lengths, folder, sizes)))
    for part, source in data.sources().items():
        asked = {"train": sizes.train, "val": sizes.val}.get(part, len(source))
        if len(source) != asked:
            raise DataError(f"{source.name} of {folder} has {len(source)} examples; {name} takes {asked}")
        if len(source.class_names) != task.classes:
            raise DataError(
                f"{folder}: {len(source.class_names)} classes; {name} has {task.classes}. Class names stand in the "
                "Parquet files (ClassLabel), or in a classes.txt beside them"
            )
    return data


def labelled(folder: Path, name: str, sizes: Sizes, to: Path) -> Path:
    """Write the cut form of a task whose labels are computed; what is there already is kept."""
    task = TASKS[name]
    whole = {split: Labelled.open(folder, split, task) for split in splits_of_task(task)}
    lengths = {split: len(source) for split, source in whole.items()}
    for part, (split, a, b) in zip(sizes.cut, ranges(task, lengths, folder, sizes), strict=True):
        written = shard(Subset(whole[split], np.arange(a, b)), to, split=part, check=False, progress=True)
        if written.broken:
            raise DataError(
                f"{folder}: {written.broken} of its examples cannot be read: {to / 'bad_files.jsonl'}"
            )
    return to


def check_columns(folder: Path, name: str) -> None:
    """Of a task whose labels are to be computed; before anything is."""
    for split in splits_of_task(TASKS[name]):
        _, shards = shards_of(folder, ".parquet", split)
        image_leaf(shards.files[0], str(TASKS[name].column))


def splits_of_task(task: Task) -> list[str]:
    """The data set's own splits that a task takes its examples from."""
    return list(dict.fromkeys(parse_split(text)[0].name for text in ("train", task.val, task.test)))


def ranges(task: Task, lengths: dict[str, int], folder: Path, sizes: Sizes) -> list[tuple[str, int, int]]:
    """Split, first and last position of train, val and test."""
    made = []
    for text, asked in (("train", sizes.train), (task.val, sizes.val), (task.test, None)):
        (part,) = parse_split(text)
        start, stop = part.bounds(lengths[part.name])
        if asked is not None and start + asked > stop:
            raise DataError(f"{folder}: {text} has {stop - start} examples; the task takes {asked} of them")
        made.append((part.name, start, stop if asked is None else start + asked))
    return made


class Labelled:
    """A split of a data set, each example with the label that a rule makes of its annotation."""

    def __init__(self, name: str, root: Path, files: tuple[Path, ...], task: Task) -> None:
        assert task.column is not None
        self.name, self.root, self.files, self.column = name, root, files, task.column
        self.binary = task.binary
        self.class_names = [str(k) for k in range(task.classes)]
        self.rows = ParquetRows(files, image_leaf(files[0], task.column))
        footers = [pq.read_metadata(file) for file in files]
        self.places = [
            (f, group, row)
            for f, footer in enumerate(footers)
            for group in range(footer.num_row_groups)
            for row in range(footer.row_group(group).num_rows)
        ]
        self.labels = labels_by(task, files, len(self.places), name)
        check_labels(self.labels, self.class_names, name)

    @classmethod
    def open(cls, folder: Path, split: str, task: Task) -> Labelled:
        name, shards = shards_of(folder, ".parquet", split)
        return cls(f"{folder.name}:{name}", folder, shards.files, task)

    def __len__(self) -> int:
        return len(self.places)

    def key(self, index: int) -> str:
        return f"{self.name.rpartition(':')[2]}:{index}"

    def read(self, index: int) -> Example:
        key, data = self.key(index), self.rows.read(*self.places[index])
        if data is None:
            raise DataError(f"{key}: the row has no image bytes")
        image: bytes | np.ndarray = data
        if self.binary:
            pixels = decode(data, name=key)  # (H, W, 3)
            image = pixels * np.uint8(255) if pixels.max() <= 1 else data
        return Example(image, int(self.labels[index]), key)

    def fingerprint(self) -> str:
        files = digest_files((file.relative_to(self.root).as_posix(), file) for file in self.files)
        return digest(files, self.column, self.labels)


def image_leaf(file: Path, column: str) -> str:
    """The column of the image's bytes; DataError where it or the annotation is not there."""
    try:
        schema = pq.read_schema(file)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{file}: not a whole Parquet file: {error}") from error
    if missing := [name for name in ("image", column) if name not in schema.names]:
        raise DataError(f"{file}: no column {', '.join(missing)}; columns: {', '.join(schema.names)}")
    kind = schema.field("image").type
    return "image.bytes" if pa.types.is_struct(kind) else "image"


def labels_by(task: Task, files: tuple[Path, ...], n: int, name: str) -> np.ndarray:
    """int64 (n,)."""
    assert task.rule is not None and task.column is not None
    labels: list[int] = []
    values = (value for file in files for value in annotated(file, task.column))
    for value in progress(values, n, f"labels of {name}"):
        try:
            labels.append(task.rule(value))
        except (DataError, TypeError, ValueError, IndexError) as error:
            raise DataError(f"{name}: row {len(labels)}, column {task.column!r}: {error}") from error
    return np.array(labels, dtype=np.int64)


def annotated(file: Path, column: str) -> Iterator[Any]:
    for batch in pq.ParquetFile(file).iter_batches(ROWS, columns=[column], use_threads=False):
        yield from batch.column(0).to_pylist()
