"""Frozen features of a whole split, computed once: what few-shot, kNN and the linear probe work on.

    source ──► Loader(evaluation) ──► representation(model, which) ──► Features: x (n, D), labels (n,)

Features are float16, whether they come from the model or from a cache, so that both give the same scores.
With a cache folder, an entry is a folder named by a digest of everything the features depend on:

    features.npy    float16 (n, D), written batch by batch and mapped into memory: it may be larger than that
    index.npy       int64 (n,), which examples of the source they are: broken ones are left out
    about.json      what the name is a digest of, and a checksum of both

Another model, preprocessing line or state of the data has another name. An entry is written whole or not at all; one
that is damaged is computed again. The device is not in the name: it moves a feature by less than the rounding.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from torch import nn

from vitrail.data.loader import Loader, Loading
from vitrail.data.readers.fingerprint import digest
from vitrail.data.readers.stratify import stratified
from vitrail.data.sources import Source
from vitrail.errors import DataError
from vitrail.evaluators.features import evaluation_mode, pipeline_of, representation
from vitrail.models.names import Model
from vitrail.runtime import distributed
from vitrail.runtime.files import HOUR, atomic_folder, remove_unfinished
from vitrail.runtime.log import note
from vitrail.runtime.progress import progress

VERSION = 1  # of what an entry holds and how features are made
HELD_OUT = 0.2  # part of a training set that settings are chosen on
MAX_HELD_OUT = 10_000  # examples: more do not make the choice better
Rows = tuple[np.ndarray, np.ndarray]  # x float16 (b, D), index int64 (b,)


@dataclass(frozen=True)
class Extraction:
    """How features are made, and where they are kept."""

    which: str = "pre_logits"  # features.representation says what there is
    cache: str | Path | None = None  # a folder; None: nothing is kept, as in a training loop
    batch: int = 64
    workers: int = 0  # processes that decode
    max_bad: float = 0.01  # part of the examples that may be broken


EXTRACTION = Extraction()


@dataclass(frozen=True)
class Features:
    """Of a split, or of a part of one."""

    x: np.ndarray  # float16 (n, D); from a cache, mapped from the disk
    labels: np.ndarray  # int64 (n,)
    class_names: list[str]
    name: str  # of the source

    def __len__(self) -> int:
        return len(self.labels)

    def part(self, index: np.ndarray) -> Features:
        return replace(self, x=self.x[index], labels=self.labels[index])

    def held_out(self) -> tuple[Features, Features]:
        """(the rest, a part of each class): settings are chosen on the part, never on a test set."""
        keys = [str(i).encode() for i in range(len(self))]
        size = min(HELD_OUT, MAX_HELD_OUT / len(self))
        parts = stratified(keys, self.labels, seed=0, validation=size, test=0.0)
        if not len(parts["validation"]):
            raise DataError(
                f"{self.name}: {len(self)} examples of {len(self.class_names)} classes are too few to hold "
                f"{size:.0%} of each class out for choosing; give one value instead of several"
            )
        return self.part(parts["train"]), self.part(parts["validation"])


def train_and_test(
    model: nn.Module, train: Source, test: Source, extraction: Extraction
) -> tuple[Features, Features]:
    """The features of two splits that have the same classes."""
    if train.class_names != test.class_names:
        raise DataError(f"{train.name} and {test.name} do not have the same classes in the same order")
    return features_of(model, train, extraction), features_of(model, test, extraction)


def features_of(model: nn.Module, source: Source, extraction: Extraction = EXTRACTION) -> Features:
    """Every readable example of the source; broken ones are left out and said."""
    assert isinstance(model, Model)
    if extraction.cache is None:
        x, index = shared_rows(model, source, extraction)  # (n, D), (n,)
    else:
        about = {
            "version": str(VERSION),
            "model": model_digest(model),
            "preprocess": model.preprocess,
            "data": source.fingerprint(),
            "which": extraction.which,
        }
        folder = Path(extraction.cache).expanduser() / f"features-{digest(*about.values())}"
        found = read_entry(folder, about)
        if found is None:
            remove_unfinished(folder.parent, r"features-[0-9a-f]+", HOUR)
            try:
                write_entry(folder, about, rows_of(model, source, extraction))
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise  # else another process was quicker: what it wrote is as good
            found = read_entry(folder, about)
            assert found is not None, folder
        x, index = found
    if not len(index):
        raise DataError(f"{source.name}: none of its {len(source):,} examples can be read")
    if broken := len(source) - len(index):
        said = f"{source.name}: {broken:,} of {len(source):,} examples are broken"
        if broken > max(1, extraction.max_bad * len(source)):  # found when others were allowed, and cached
            raise DataError(f"{said}, more than the {extraction.max_bad:.1%} that --max-bad allows")
        note(f"{said}, and left out")
    return Features(x, source.labels[index], source.class_names, source.name)


def shared_rows(model: Model, source: Source, extraction: Extraction) -> Rows:
    """In memory. Processes that train together each make a part, and each gets all."""
    own = list(rows_of(model, source, extraction, distributed.rank(), distributed.world()))
    rows = [row for part in distributed.gather(own) for row in part]
    x, index = (np.concatenate(parts) for parts in zip(*rows, strict=True))  # (n, D), (n,)
    order = np.argsort(index)
    return x[order], index[order]


def rows_of(
    model: Model, source: Source, extraction: Extraction, rank: int = 0, world: int = 1
) -> Iterator[Rows]:
    """The features batch by batch, as the model makes them: those of one process of several."""
    call = representation(model, extraction.which)
    loading = Loading(
        batch=extraction.batch * world,
        workers=extraction.workers,
        rank=rank,
        world=world,
        max_bad=extraction.max_bad,
    )
    loader = Loader(source, pipeline_of(model), loading, evaluation=True)
    parameter = next(model.parameters())
    batches = loader.batches(device=parameter.device)
    with evaluation_mode(model):
        for batch in progress(batches, loader.steps, f"features of {source.name}"):
            with torch.inference_mode():
                y = call(batch["image"].to(parameter.dtype))  # (B, D)
            used = (batch["weight"] > 0).cpu()
            x = y.cpu()[used].to(torch.float16).numpy()  # (b, D)
            if not np.isfinite(x).all():
                raise DataError(
                    f"features {extraction.which!r} of {source.name} are not finite in float16 (at most 65,504)"
                )
            yield x, batch["index"].cpu()[used].numpy()  # (b, D), (b,)


def model_digest(model: Model) -> str:
    """Of the architecture and of every weight, bit by bit."""
    state = hashlib.blake2b(repr(model.config).encode(), digest_size=16)
    for name, w in model.state_dict().items():
        state.update(f"{name} {w.dtype} {tuple(w.shape)};".encode())
        state.update(w.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return state.hexdigest()


def read_entry(folder: Path, about: dict[str, str]) -> Rows | None:
    """What an entry holds; None where there is none, or it is damaged."""
    if not folder.exists():
        return None
    try:
        with (folder / "about.json").open(encoding="utf-8") as file:
            card = json.loads(file.read(1 << 20))
        if any(card[name] != value for name, value in about.items()):
            differs = ", ".join(name for name, value in about.items() if card[name] != value)
            raise DataError(f"{folder} holds features of another {differs}: remove it, or use another cache")
        if checksum(folder) != card["checksum"]:
            raise ValueError("they are not what was written")
        x = np.load(folder / "features.npy", mmap_mode="r", allow_pickle=False)  # (n, D)
        index = np.load(folder / "index.npy", allow_pickle=False)  # (n,)
        if x.dtype != np.float16 or x.ndim != 2 or index.dtype != np.int64 or index.shape != x.shape[:1]:
            raise ValueError(f"{x.dtype} {x.shape} with an index of {index.dtype} {index.shape}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        note(f"the cached features in {folder} are damaged ({error}): they are computed again")
        return None
    return x, index


def write_entry(folder: Path, about: dict[str, str], rows: Iterator[Rows]) -> None:
    index, width, begins = [np.zeros(0, np.int64)], 0, 0
    with atomic_folder(folder) as temporary:
        with (temporary / "features.npy").open("wb") as file:
            for x, at in rows:
                if not begins:
                    width = x.shape[1]
                    begins = write_header(file, 0, width)
                file.write(x.tobytes())
                index.append(at)
            # The number of rows is known now; numpy leaves room for it to grow.
            file.seek(0)
            assert begins == write_header(file, sum(map(len, index)), width)
        np.save(temporary / "index.npy", np.concatenate(index))
        card = {**about, "checksum": checksum(temporary)}
        (temporary / "about.json").write_text(json.dumps(card, indent=1), encoding="utf-8")


def write_header(file: BinaryIO, n: int, width: int) -> int:
    """Of a .npy file of float16 (n, width); returns its length."""
    header = {"descr": "<f2", "fortran_order": False, "shape": (n, width)}
    np.lib.format.write_array_header_1_0(file, header)
    return file.tell()


def checksum(folder: Path) -> str:
    made = []
    for name in ("features.npy", "index.npy"):
        with (folder / name).open("rb") as file:
            made.append(hashlib.file_digest(file, "blake2b").hexdigest())
    return digest(*made)


def cache_folder(given: str | Path | None = None) -> Path:
    """Where people's features are kept: what is given, else VITRAIL_CACHE, else ~/.cache/vitrail."""
    return Path(given or os.environ.get("VITRAIL_CACHE") or Path.home() / ".cache" / "vitrail")
