"""Images -> features: the input of the classifier, or the tokens of any layer; for whole splits kept on disk.

    images ──► features ──► float32 (n, D)
    source ──► extract_features ──► Features: x float16 (n, D), labels (n,)        what probes work on

Features of a split are float16, whether they come from the model or from a cache, so that both give the same scores.
In a cache, an entry is a folder named by a digest of everything that the features depend on:

    features.npy    float16 (n, D), written batch by batch and mapped into memory: it may be larger than that
    index.npy       int64 (n,), which examples of the source they are: broken ones are left out
    about.json      what the name is a digest of, and a checksum of both files

Another model, preprocessing line or state of the data has another name. Entries are written completely or not at all;
a damaged one is computed again. The device is not in the name: it changes a feature by less than the rounding.

B images, T tokens, D width, z_l (B, T, D) the tokens after layer l.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from torch import Tensor, nn

from vitrail.checkpoints.checkpoint import model_digest
from vitrail.data.readers.fingerprint import digest
from vitrail.data.sources import Source
from vitrail.data.splits import shuffled_classes, stratified
from vitrail.errors import ConfigError, DataError
from vitrail.inference.engine import (
    BATCH_SIZE,
    Call,
    RunnableLike,
    evaluation_loader,
    evaluation_pipeline,
    image_outputs,
    outputs,
)
from vitrail.inference.exported import Exported, Runnable, as_runnable
from vitrail.inference.images import Images
from vitrail.models.vit import ViT
from vitrail.runtime.distributed import gather
from vitrail.runtime.files import HOUR, atomic_folder, remove_unfinished
from vitrail.runtime.log import note

POOLED = "pre_logits"  # the features that images of any shape have too
WHICH = "pre_logits, token, mean, layer3 (any layer), layer3.token, layer3.mean"
VERSION = 1  # of an entry's contents, and of how features are made
HELD_OUT = 0.2  # share of a training set that settings are chosen on
MAX_HELD_OUT = 10_000  # examples: more do not make the choice better
FOLDS, FOLDED = 5, 5_000  # parts of a set of at most so many examples, each of which is held out once
Rows = tuple[np.ndarray, np.ndarray]  # x float16 (b, D), index int64 (b,)


def features(
    model: RunnableLike,
    images_or_source: Images,
    *,
    which: str = "pre_logits",
    batch_size: int = BATCH_SIZE,
    num_workers: int = 0,
) -> np.ndarray:
    """Return the features of each image, float32 (n, D); ImageError if one cannot be read.

    `which`: the input of the classifier, or tokens: see `representation`.
    """
    model = as_runnable(model)
    call = representation(model, which)
    each = image_outputs(model, images_or_source, call, batch_size, num_workers, takes_strips=which == POOLED)
    rows = [y.numpy() for y in each]
    hidden = model.config.pre_logits if isinstance(model, ViT) else 0
    D = model.config.width
    if which == "pre_logits" and not isinstance(model, Exported):
        D = hidden or model.config.pooled_width
    return np.concatenate(rows) if rows else np.zeros((0, D), np.float32)  # (n, D)


def representation(model: Runnable, which: str = "pre_logits") -> Call:
    """Return the function images (B, C, H, W) -> features (B, D), by the model's methods.

    pre_logits      the input of the classifier
    token, mean     of the encoder's output: the class token, the mean of the patch tokens
    layer3          of z_3, not normalised: the class token where there is one, else the mean; layer0 is z_0
    layer3.token, layer3.mean
    """
    match = re.fullmatch(r"pre_logits|token|mean|layer(\d{1,4})(?:\.(token|mean))?", which)
    if match is None:
        raise ConfigError(f"features {which!r} are not one of: {WHICH}")
    if isinstance(model, Exported):
        if which != "pre_logits":
            raise ConfigError(f"features {which!r}: an exported file gives pre_logits, and no tokens")
        return model.features
    if which == POOLED:
        return lambda x, *grids: model.head.representation(model.features(x, *grids))  # (B, pre_logits or D)
    if not isinstance(model, ViT):
        raise ConfigError(f"features {which!r}: a ResNet has no tokens; it has pre_logits")
    vit, has_token = model, bool(model.config.class_token)
    layer = None if match[1] is None else int(match[1])
    pool = (which if layer is None else match[2]) or ("token" if has_token else "mean")
    if layer is not None and layer > vit.config.depth:
        raise ConfigError(f"features {which!r}: this model has the layers 0 to {vit.config.depth}")
    if pool == "token" and not has_token:
        raise ConfigError(f"features {which!r}: this model has no class token; use 'mean'")

    def pooled(x: Tensor) -> Tensor:
        z = vit.tokens(vit.patches(x))  # (B, T, D)
        if layer is None:
            z = vit.encode(z)  # (B, T, D)
        elif layer:
            record = OneEntry(f"block{layer - 1}.z")
            vit.encode(z, record=record)
            z = record[record.name]  # (B, T, D)
        return z[:, 0] if pool == "token" else z[:, vit.config.prefix :].mean(dim=1)  # (B, D)

    return pooled


class OneEntry(dict[str, Tensor]):
    """A record that keeps one entry: the attention weights of all layers would fill the memory."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def __setitem__(self, name: str, t: Tensor) -> None:
        if name == self.name:
            super().__setitem__(name, t)


@dataclass(frozen=True)
class Extraction:
    """Settings of a pass over a split for its features."""

    which: str = "pre_logits"  # see `representation`
    cache: str | Path | None = None  # folder to keep features in; None: keep nothing, as in a training loop
    batch_size: int = 64
    num_workers: int = 0  # processes that decode
    max_bad: float = 0.01  # share of the examples that may be broken


EXTRACTION = Extraction()


@dataclass(frozen=True)
class Features:
    """Features of a split, or of a part of one."""

    x: np.ndarray  # float16 (n, D); from a cache, mapped from the disk
    labels: np.ndarray  # int64 (n,)
    class_names: list[str]
    name: str  # of the source

    def __len__(self) -> int:
        return len(self.labels)

    def part(self, index: np.ndarray) -> Features:
        return replace(self, x=self.x[index], labels=self.labels[index])

    def held_out(self) -> tuple[Features, Features]:
        """Return (the rest, a part of each class): settings are chosen on the part, never on a test set."""
        keys = [str(i).encode() for i in range(len(self))]
        size = min(HELD_OUT, MAX_HELD_OUT / len(self))
        split = stratified(keys, self.labels, seed=0, validation=size, test=0.0)
        if not len(split["validation"]):
            raise DataError(
                f"{self.name}: {len(self)} examples of {len(self.class_names)} classes are too few to hold "
                f"out {size:.0%} of each class for choosing among values; pass a single value"
            )
        return self.part(split["train"]), self.part(split["validation"])

    def held_out_parts(self) -> list[tuple[Features, Features]]:
        """Return pairs (the rest, a part) to choose settings on: of a small set five, so that each example is in one
        part, and each class in as many as it can be; else one."""
        if len(self) > FOLDED:
            return [self.held_out()]
        members = shuffled_classes(self.labels, len(self.class_names), seed=0)
        if max(map(len, members)) < 2:
            raise DataError(
                f"{self.name}: {len(self)} examples of {len(self.class_names)} classes are too few to hold out "
                "a part for choosing among values; pass a single value"
            )
        folds = min(FOLDS, len(self))
        fold = np.empty(len(self), np.int64)
        fold[np.concatenate(members)] = np.arange(len(self)) % folds  # (n,)
        return [
            (self.part(np.flatnonzero(fold != k)), self.part(np.flatnonzero(fold == k))) for k in range(folds)
        ]


def train_and_test(
    model: nn.Module, train: Source, test: Source, extraction: Extraction
) -> tuple[Features, Features, torch.device]:
    """Return the features of two splits that have the same classes, and the device to solve on in float64: the
    model's GPU, or the CPU (MPS has no float64)."""
    if train.class_names != test.class_names:
        raise DataError(f"{train.name} and {test.name} do not have the same classes in the same order")
    assert isinstance(model, Runnable)
    device = next(model.parameters()).device
    device = device if device.type == "cuda" else torch.device("cpu")
    return extract_features(model, train, extraction), extract_features(model, test, extraction), device


def extract_features(model: Runnable, source: Source, extraction: Extraction = EXTRACTION) -> Features:
    """Return the features of every readable example of a source; a note counts those left out."""
    if extraction.cache is None:
        rows = gather(list(extract_rows(model, source, extraction, shared=True)))
        x, index = (np.concatenate(a) for a in zip(*(row for own in rows for row in own), strict=True))
        order = np.argsort(index)
        x, index = x[order], index[order]  # (n, D), (n,)
    else:
        x, index = cached_rows(model, source, extraction, Path(extraction.cache).expanduser())
    if not len(index):
        raise DataError(f"{source.name}: none of its {len(source):,} examples can be read")
    if broken := len(source) - len(index):
        count = f"{source.name}: {broken:,} of {len(source):,} examples are broken"
        if broken > max(1, extraction.max_bad * len(source)):  # cached when more were allowed
            raise DataError(f"{count}, more than the {extraction.max_bad:.1%} that --max-bad allows")
        note(f"{count}, and left out")
    return Features(x, source.labels[index], source.class_names, source.name)


def cached_rows(model: Runnable, source: Source, extraction: Extraction, cache: Path) -> Rows:
    """Return an entry of the cache; compute it first if there is none."""
    about = {
        "version": str(VERSION),
        "model": model_digest(model),
        "preprocess": model.preprocess,
        "data": source.fingerprint(),
        "which": extraction.which,
    }
    folder = cache / f"features-{digest(*about.values())}"
    if (rows := read_entry(folder, about)) is not None:
        return rows
    remove_unfinished(cache, r"features-[0-9a-f]+", HOUR)
    try:
        write_entry(folder, about, extract_rows(model, source, extraction))
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise  # else another process was quicker: its entry is as good
    rows = read_entry(folder, about)
    assert rows is not None, folder
    return rows


def extract_rows(
    model: Runnable, source: Source, extraction: Extraction, *, shared: bool = False
) -> Iterator[Rows]:
    """Yield the features batch by batch; `shared`: processes that train together each make a part."""
    e, pooled = extraction, extraction.which == POOLED
    pipeline = evaluation_pipeline(model, any_shape=pooled)
    loader = evaluation_loader(source, pipeline, e.batch_size, e.num_workers, e.max_bad, shared=shared)
    call = representation(model, extraction.which)
    for y, batch in outputs(model, loader, call, takes_strips=pooled, task=f"features of {source.name}"):
        x = y.to(torch.float16).cpu().numpy()  # (b, D)
        if not np.isfinite(x).all():
            raise DataError(
                f"features {extraction.which!r} of {source.name} are not finite in float16 (at most 65,504)"
            )
        yield x, batch["index"].cpu().numpy()  # (b, D), (b,)


def as_float64(x: np.ndarray, device: torch.device | str) -> Tensor:
    """Return a copy in float64."""
    return torch.from_numpy(np.array(x)).to(device).to(torch.float64)


def read_entry(folder: Path, about: dict[str, str]) -> Rows | None:
    """Return the contents of an entry; None where there is none, or it is damaged."""
    if not folder.exists():
        return None
    try:
        with (folder / "about.json").open(encoding="utf-8") as file:
            card = json.loads(file.read(1 << 20))
        if any(card[name] != value for name, value in about.items()):
            differs = ", ".join(name for name, value in about.items() if card[name] != value)
            raise DataError(f"{folder} has features of another {differs}: remove it, or use another cache")
        if checksum(folder) != card["checksum"]:
            raise ValueError("the checksum differs")
        x = np.load(folder / "features.npy", mmap_mode="r", allow_pickle=False)  # (n, D)
        index = np.load(folder / "index.npy", allow_pickle=False)  # (n,)
        if x.dtype != np.float16 or x.ndim != 2 or index.dtype != np.int64 or index.shape != x.shape[:1]:
            raise ValueError(f"{x.dtype} {x.shape} with an index of {index.dtype} {index.shape}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        note(f"the cached features in {folder} are damaged ({error}): computing them again")
        return None
    return x, index


def write_entry(folder: Path, about: dict[str, str], rows: Iterator[Rows]) -> None:
    index, width, begins = [np.zeros(0, np.int64)], 0, 0

    def write_header(file: BinaryIO) -> int:
        header = {"descr": "<f2", "fortran_order": False, "shape": (sum(map(len, index)), width)}
        np.lib.format.write_array_header_1_0(file, header)
        return file.tell()

    with atomic_folder(folder) as temporary:
        with (temporary / "features.npy").open("wb") as file:
            for x, at in rows:
                if not begins:
                    width = x.shape[1]
                    begins = write_header(file)
                file.write(x.tobytes())
                index.append(at)
            # The number of rows is known now; numpy leaves room for it to grow.
            file.seek(0)
            assert begins == write_header(file)
        np.save(temporary / "index.npy", np.concatenate(index))
        card = {**about, "checksum": checksum(temporary)}
        (temporary / "about.json").write_text(json.dumps(card, indent=1), encoding="utf-8")


def checksum(folder: Path) -> str:
    digests = []
    for name in ("features.npy", "index.npy"):
        with (folder / name).open("rb") as file:
            digests.append(hashlib.file_digest(file, "blake2b").hexdigest())
    return digest(*digests)


def cache_folder(folder: str | Path | None = None) -> Path:
    """Return where features are kept: `folder`, else the variable VITRAIL_CACHE, else ~/.cache/vitrail."""
    return Path(folder or os.environ.get("VITRAIL_CACHE") or Path.home() / ".cache" / "vitrail")
