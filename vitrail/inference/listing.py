"""Images to predict, as people name them -> rows in a fixed order, each with a path.

files, folders, glob patterns ──► images.find_images ──► Paths, in two flat arrays: millions fit into memory
a data set and its split      ──► sources.open_source
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.data.catalog import CATALOG
from vitrail.data.readers.file_names import Names, has_shards
from vitrail.data.readers.fingerprint import digest
from vitrail.data.sources import DataSet, Source, split_options
from vitrail.errors import ConfigError, DataError
from vitrail.inference.images import Pictures, find_images
from vitrail.runtime.files import atomic_file
from vitrail.runtime.npz_members import DAMAGE, read_member

Named = str | Path | Iterable[str | Path] | Source  # not pixels: each row needs a path


class Paths(Sequence[str]):
    """Read-only list of paths that costs no Python object for each."""

    def __init__(self, names: Names) -> None:
        self.names = names

    @classmethod
    def of(cls, paths: Iterable[str | Path]) -> Paths:
        return cls(Names([os.fsencode(path) for path in paths]))

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: Any) -> Any:
        return os.fsdecode(self.names[index])

    def digest(self) -> str:
        return digest(self.names.bytes, self.names.ends)

    def save(self, file: Path) -> None:
        with atomic_file(file) as temporary, temporary.open("wb") as stream:
            np.savez(stream, bytes=self.names.bytes, ends=self.names.ends)

    @classmethod
    def restore(cls, file: Path) -> Paths:
        try:
            with zipfile.ZipFile(file) as archive:
                data, ends = (
                    read_member(archive, archive.getinfo(f"{name}.npy")) for name in ("bytes", "ends")
                )
            return cls(Names.from_arrays(data, ends))
        except DAMAGE as error:
            raise DataError(f"{file} is damaged ({error}): remove {file.parent} to begin again") from error


@dataclass(frozen=True)
class Listing:
    """Images in a fixed order."""

    source: Source
    files: Paths | None  # None: the images are inside other files
    digest: str  # changes with the names of files, or with the data set


def list_files(paths: Paths) -> Listing:
    return Listing(Pictures(paths), paths, paths.digest())


def list_images(images: Named, split: str | None) -> Listing:
    """Return the images of files, folders and patterns, or of a data set."""
    if isinstance(images, Source):
        return Listing(images, None, images.fingerprint())
    names = name_images(images)
    if len(names) == 1 and is_data_set(names[0]):
        data = DataSet(names[0])
        if split is None and len(data.splits) > 1:
            raise ConfigError(f"{names[0]} has the splits {', '.join(data.splits)}: name one with --split")
        source = data.part(split or data.splits[0])
        return Listing(source, None, source.fingerprint())
    if split is not None:
        raise ConfigError(f"split {split!r} is for a data set; {names[0]} names files")
    return list_files(Paths.of(find_images(names)))


def name_images(images: Named) -> list[str]:
    """Return the names that say which images are meant; of a source its own."""
    if isinstance(images, Source):
        return [images.name]
    if isinstance(images, str | Path):
        return [str(images)]
    names = []
    for name in images:
        if not isinstance(name, str | Path):
            kind = type(name).__name__
            raise ConfigError(f"images are files, folders, patterns or a data set, not of type {kind}")
        names.append(str(name))
    return names


def is_data_set(name: str) -> bool:
    """Return whether a name is of shards, arrays, the hub or the catalog; files and folders of images are not."""
    path = Path(name).expanduser()
    if path.is_file():
        return path.suffix.lower() in (".parquet", ".tar", ".npz")
    if path.is_dir():
        return any(has_shards(path, kind) for kind in (".parquet", ".tar"))
    base, options = split_options(name)
    return bool(options) or base in CATALOG or base.split(":")[0] in ("hf", "shapes")
