"""Data sets: the interface that all of them have, and the function that opens them.

    where ──► open_source(where, split) ──► Source ──► read(i) ──► Example(image, label, key) ──► decode.py

A `where` is, in this order: `shapes...` (shapes.py), `hf:owner/name` (hub.py), a path that exists, a name of
the catalog (catalog.py). A path is, by its contents: a `.npz` file (arrays.py), Parquet shards (parquet.py),
tar shards (tar.py), a folder of images (folder.py). Options follow a question mark, as in
`photos?seed=1&test=0.2`. Each reader is imported when it is needed: a folder of images never loads pyarrow.

Sources give random access, are picklable, and open their files in the process that reads. They never replace
one example by another: a broken one raises DataError from `read`, or ImageError from `decode`, and the reader
of the source decides.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable
from urllib.parse import parse_qsl

import numpy as np

from vitrail.data.bounded_files import TooLargeError, read_file
from vitrail.data.splits import SPLITS, parse_split, select_source
from vitrail.errors import ConfigError, DataError, ImageError

COMPRESSED = (".tar.gz", ".tgz", ".tar.xz", ".tar.bz2", ".tar.zst")
TEST_SPLITS = ("test", "validation")
MAX_FILE_BYTES = 512 << 20  # an encoded image larger than this is refused before it is read


@dataclass(frozen=True)
class Example:
    """One image, still encoded where it is stored so, with its label."""

    image: bytes | np.ndarray  # an encoded file, or uint8 (H, W, 3) RGB pixels
    label: int
    key: str  # as the source has it


@runtime_checkable
class Source(Protocol):
    """A split of a data set, with random access. `labels` are known without decoding any image."""

    name: str
    class_names: list[str]
    labels: np.ndarray  # int64 (n,)

    def __len__(self) -> int:
        return len(self.labels)

    def key(self, index: int) -> str:
        """Stable, human-readable id of an example: here its split and place; or relative path, shard:row, ..."""
        if not 0 <= index < len(self):
            raise IndexError(f"{index} in a source of {len(self)}")
        return f"{self.name.rpartition(':')[2]}:{index}"

    def read(self, index: int) -> Example: ...

    def fingerprint(self) -> str:
        """Changes when the data changes (names, sizes, modification times); reads no image."""
        ...


def open_source(
    where: str | Path,
    split: str = "train",
    *,
    root: str | Path | None = None,
    download: bool = False,
    empty_classes: bool = False,
) -> Source:
    """Open the part `split` (see splits.py) of the data set `where`. Keywords as for `DataSet`."""
    return DataSet(where, root=root, download=download, empty_classes=empty_classes).part(split)


def list_splits(where: str | Path, *, root: str | Path | None = None, download: bool = False) -> list[str]:
    """Return the names of the splits that `where` has, train first."""
    return DataSet(where, root=root, download=download).splits


@dataclass(eq=False)
class DataSet:
    """A data set of which each split is opened once, however many parts of it are taken.

    A class folder without an image is an error unless `empty_classes` is set; ignored files are noted once. Options
    after the path are those of its reader, and those of SPLIT_OPTIONS.
    """

    where: str | Path
    _: KW_ONLY
    root: str | Path | None = None  # where catalog names are looked up; None: see catalog.py
    download: bool = False  # may fetch from the network
    empty_classes: bool = False

    def __post_init__(self) -> None:
        self.base, self.options = split_options(str(self.where))
        names = [name for name in SPLIT_OPTIONS if name in self.options]
        self.changes = {name: self.options.pop(name) for name in names}

    @cached_property
    def reader(self) -> Reader:
        return find_reader(self.base, self.options, root=self.root, download=self.download)

    @property
    def splits(self) -> list[str]:
        """Names of its splits, train first."""
        return self.reader.splits

    def part(self, split: str) -> Source:
        """Return the part that a split string names."""
        return select_source([(self.whole(term.name), term) for term in parse_split(split)])

    def whole(self, name: str) -> Source:
        """Return a whole split."""
        return self._open_split(name)

    @cached_property
    def _open_split(self) -> Opener:
        open_split: Opener = cache(self._open_unchanged)
        for option, value in self.changes.items():
            open_split = cache(SPLIT_OPTIONS[option](open_split, value))
        return open_split

    def _open_unchanged(self, name: str) -> Source:
        source = self.reader.open(name)
        if not self.empty_classes:
            from vitrail.data.readers.folder import FolderSource, check_files

            if isinstance(source, FolderSource):
                check_files(source)
        return source

    def unseen_split(self, *seen: str) -> str | None:
        """Return the first of TEST_SPLITS that exists and of which the split strings `seen` use nothing."""
        left = set(self.splits) - {part.name for text in seen for part in parse_split(text)}
        return next((name for name in TEST_SPLITS if name in left), None)


Opener = Callable[[str], Source]  # opens a whole split by its name


def exclude_listed(open_split: Opener, path: str) -> Opener:
    """Leave out the examples that a file of exclusions names."""
    from vitrail.data.dedup import exclude

    return lambda split: exclude(open_split(split), split, path)


def follow_decisions(open_split: Opener, paths: str) -> Opener:
    """Leave out and relabel examples as a file of decisions says; of several, each is about what the others left."""
    from vitrail.data.decisions import DecidedSplits

    for path in [paths] if Path(paths).is_file() else paths.split(","):
        open_split = cache(DecidedSplits(open_split, path).open)
    return open_split


# Options of every kind of data set, in this order: what each makes of splits as they are without it, and its value.
SPLIT_OPTIONS: dict[str, Callable[[Opener, str], Opener]] = {
    "exclude": exclude_listed,
    "decisions": follow_decisions,
}


def find_test_split(where: str | Path, *seen: str) -> str:
    """Return the split to evaluate on if none is named; ConfigError if there is none."""
    data = DataSet(where)
    split = data.unseen_split(*seen)
    if split is None:
        beside = f" beside {', '.join(seen)}" if set(data.splits) & set(TEST_SPLITS) else ""
        raise ConfigError(
            f"{where} has no split {' or '.join(TEST_SPLITS)}{beside}; name one of {', '.join(data.splits)}"
        )
    return split


class Reader(NamedTuple):
    """Access to one data set: the names of its splits, train first; `open(name)` opens one."""

    splits: list[str]
    open: Callable[[str], Source]
    layout: str = ""  # how a folder of images is read, for people
    cut: bool = False  # it has no splits of its own: vitrail splits it
    ignored: Callable[[], Counter[str]] = (
        Counter  # counts files that are not used as images: reason -> how many
    )


def find_reader(
    base: str, options: dict[str, str], *, root: str | Path | None = None, download: bool = False
) -> Reader:
    """Return the reader of a data set, a `where` without its options."""
    if base == "shapes" or base.startswith("shapes:"):
        from vitrail.data.readers.shapes import open_shapes

        return Reader(list(SPLITS), lambda split: open_shapes(base, split, options))
    if base.startswith("hf:"):
        from vitrail.data.readers.hub import find_on_hub

        return find_on_hub(base, options, download=download)
    path = Path(base).expanduser()
    if path.is_dir() and {"labels", "pattern"} & set(options):
        from vitrail.data.readers.folder import find_folder

        return find_folder(path, options)
    if not path.exists():
        from vitrail.data.catalog import CATALOG, find_in_catalog

        if base in CATALOG:
            return find_in_catalog(base, options, root=root, download=download)
        near = difflib.get_close_matches(base, CATALOG, n=1)
        raise DataError(
            f"no data set {base!r}: there is no such path, and no such name"
            + (f" (did you mean {near[0]!r}?)" if near else "")
            + f". Names: shapes, {', '.join(CATALOG)}; hf:owner/name for the Hugging Face hub"
        )
    kind = find_kind(path)
    if kind == "folder":
        from vitrail.data.readers.folder import find_folder

        return find_folder(path, options)
    take_options(base, options, ("image", "label") if kind == "parquet" else ())
    if kind == "arrays":
        from vitrail.data.readers.arrays import find_array_pairs, open_arrays

        return Reader(list(find_array_pairs(path)[0]), lambda split: open_arrays(path, split))
    from vitrail.data.readers.file_names import find_shards

    splits = list(find_shards(path, f".{kind}"))
    if kind == "parquet":
        from vitrail.data.readers.parquet import open_parquet

        return Reader(splits, lambda split: open_parquet(path, split, **options))
    from vitrail.data.readers.tar import open_tar

    return Reader(splits, lambda split: open_tar(path, split))


def find_kind(path: Path) -> str:
    """Return the kind of data set: arrays, parquet, tar or folder; by file names alone."""
    if path.is_file():
        kinds = {".npz": "arrays", ".parquet": "parquet", ".tar": "tar"}
        if path.suffix.lower() not in kinds:
            raise DataError(
                f"{path}: not a data set; a data set is a folder, or a file that ends in {', '.join(kinds)}"
            )
        return kinds[path.suffix.lower()]
    from vitrail.data.readers.file_names import has_shards, scan_folder

    if not path.is_dir():
        raise DataError(f"{path}: neither a file nor a folder")
    parquet, tar = has_shards(path, ".parquet"), has_shards(path, ".tar")
    if parquet and (path / "metadata.parquet").is_file():  # labels of a folder of images, as of Hugging Face
        parquet = sum(entry.name.endswith(".parquet") for entry in scan_folder(path)) > 1
    if parquet and tar:
        raise DataError(f"{path}: contains both Parquet and tar shards; put them into two folders")
    if not parquet and not tar and any(entry.name.endswith(COMPRESSED) for entry in scan_folder(path)):
        raise DataError(f"{path}: compressed tar shards have no random access; unpack them to .tar first")
    return "parquet" if parquet else "tar" if tar else "folder"


def split_options(where: str) -> tuple[str, dict[str, str]]:
    """Split `photos?seed=1&test=0.2` into (`photos`, {seed: 1, test: 0.2}); a path that exists is taken as it is."""
    marks = [at for at, letter in enumerate(where) if letter == "?"]
    paths = (
        where[:at] for at in (len(where), *reversed(marks))
    )  # a folder may have a question mark in its name
    base = next((path for path in paths if Path(path).expanduser().exists()), where.partition("?")[0])
    query = where[len(base) + 1 :]
    if base == where:
        return where, {}
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=True)
    except ValueError as error:
        raise ConfigError(
            f"options {query!r} in {where!r} cannot be read: write them as ?name=value&name=value"
        ) from error
    options = dict(pairs)
    if len(options) != len(pairs):
        raise ConfigError(f"options {query!r} in {where!r} set the same name twice")
    return base, options


def take_options(where: str, options: dict[str, str], allowed: tuple[str, ...]) -> None:
    """Refuse an option that the kind of data set at `where` does not have."""
    unknown = sorted(set(options) - set(allowed))
    if unknown:
        has = f"its options are: {', '.join(allowed)}" if allowed else "it takes no options"
        raise ConfigError(f"{where!r} has no option {', '.join(unknown)}: {has}")


def read_image_file(path: str, key: str) -> bytes:
    """Read the bytes of one encoded image; DataError or ImageError name `key` and the reason."""
    try:
        data = read_file(path, MAX_FILE_BYTES)
    except TooLargeError as error:
        raise ImageError(f"{key}: {error.strerror} as one image") from error
    except OSError as error:
        raise DataError(f"{key}: cannot be read: {error.strerror or error}") from error
    if not data:
        raise ImageError(f"{key}: the file is empty")
    return data
