"""The shards of a checkpoint, by torch.distributed.checkpoint (DCP): each process writes its own.

DCP's table of contents (`.metadata`) is a pickle. It is read here as data: only the kinds of values that such a table
is made of are made, and whatever else it names is refused, so that a run of somebody else's cannot run code.
"""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path, PurePath
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from vitrail.errors import CheckpointError

State = dict[str, Tensor]  # flat names -> tensors, plain or DTensor
SHARDS = ".metadata"  # DCP's table of contents
# What a table is made of, besides torch's dtypes: module, names.
KINDS = {
    "torch.distributed.checkpoint.metadata": {
        "BytesStorageMetadata", "ChunkStorageMetadata", "Metadata", "MetadataIndex", "StorageMeta",
        "TensorProperties", "TensorStorageMetadata", "_MEM_FORMAT_ENCODING",
    },
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch": {"Size"},
    "torch.serialization": {"_get_layout"},
    "pathlib": {"Path", "PosixPath", "WindowsPath"},
    "pathlib._local": {"Path", "PosixPath", "WindowsPath"},
}  # fmt: skip
DAMAGE = (pickle.UnpicklingError, EOFError, AttributeError, IndexError, KeyError, TypeError, ValueError)


def write_shards(state: State, folder: Path) -> None:
    save({name: t.detach() for name, t in state.items()}, storage_writer=FileSystemWriter(folder))


def read_shards(tensors: State, place: Path) -> None:
    reader = Reader(place, table_of(place))
    with warnings.catch_warnings():
        # One process that never joined others may read what several wrote: that is what we want here.
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
        load(dict(tensors), storage_reader=reader, no_dist=not dist.is_initialized())


class Reader(FileSystemReader):
    """With a table that was read before."""

    def __init__(self, place: Path, table: Metadata) -> None:
        super().__init__(place)
        self.table = table

    def read_metadata(self, *given: Any, **named: Any) -> Metadata:
        if self.table.storage_meta is None:
            self.table.storage_meta = StorageMeta()
        self.table.storage_meta.load_id = self.load_id
        return self.table


def table_of(place: Path) -> Metadata:
    try:
        with (place / SHARDS).open("rb") as file:
            table = Table(file).load()
        files = {info.relative_path for info in table.storage_data.values()}
    except DAMAGE as error:
        raise CheckpointError(f"{place / SHARDS} is not a table of shards: {error}") from error
    if outside := sorted(str(name) for name in files if PurePath(name).name != str(name)):
        raise CheckpointError(f"{place / SHARDS} names {outside[0]!r}, which is not a file beside it")
    return table


class Table(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if name in KINDS.get(module, ()):
            return super().find_class(module, name)
        if module == "torch" and isinstance(kind := getattr(torch, name, None), torch.dtype):
            return kind
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no such table holds")
