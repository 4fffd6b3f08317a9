"""Features of a data set on the disk, and the search for those nearest to others.

    DATA, model ──build_index.py──► INDEX/ ──open_index──► Index ──search(features, top)──► Neighbours of each query

    index.json                             what it is made of; written last: without it the index is not complete
    features.npy, lengths.npy              x float16 (N, D), as the model gives them, and |x| float32 (N,)
    codes.npy, scales.npy                  int8 (N, D) and float32 (N,): x / |x| = scale * code, rounded     int8 only
    labels.npy                             int64 (N,); -1 without a label
    keys.npy, key_ends.npy                 names of the images, one after the other
    thumbnails.npy, thumbnail_ends.npy     and JPEG files of them

Arrays are mapped, not read: a search reads features, or with int8 the codes and few features. The search is that of
evaluators/knn.py: neighbours by the cosine in float64 of the float16 features. Scores of float16 have a rounding that
is bounded, so the neighbours are exact. Scores of int8 have one that is bounded by six standard deviations: uniform
in each of D terms, its sum is all but normal.

n queries, N images, D width.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypedDict

import numpy as np
import torch
from torch import Tensor

from vitrail.checkpoints.checkpoint import weights_digest
from vitrail.checkpoints.json_files import Count, read_object
from vitrail.curate.npy_files import map_array
from vitrail.errors import CheckpointError, ConfigError, DataError
from vitrail.evaluators.knn import (
    KEYS,
    SLICE,
    Product,
    QuickScores,
    neighbours,
    packed_product,
    score_type,
    unit,
)
from vitrail.inference.exported import Runnable
from vitrail.runtime.threads import in_order

NAME, FORMAT, VERSION = "index.json", "vitrail index", 1
MAX_CARD = 64 << 20  # bytes of index.json, which names all classes
MAX_WIDTH = 1 << 16
SIGMAS = 6.0  # of the rounding of int8 that are allowed for
SPARE = 64  # candidates beyond `top` in 8 bits, whose bound is wider
PACKED = 64  # queries from which on packing the keys for them is worth the time
FEW = 1024  # keys that are converted at a time for fewer queries: they stay in the cache
CPU = torch.device("cpu")
IndexPrecision = Literal["float16", "int8"]


class Card(TypedDict):
    """The contents of index.json."""

    format: str
    version: int
    model: str  # as it was named
    fingerprint: str  # of its weights
    preprocess: str
    which: str  # features
    precision: str
    data: str  # as it was named
    split: str
    data_fingerprint: str
    folder: str | None  # that has the files, for people; never opened
    images: Count
    broken: Count  # images that could not be read, and are left out
    width: Count
    thumbnails: Count  # pixels of the longer side; 0: none
    class_names: list[str]


class Neighbour(NamedTuple):
    """An image of the index that is near to a query."""

    key: str  # as its data set has it
    label_name: str | None
    similarity: float  # cosine of the features
    path: str | None  # where its file was; None for images inside other files
    row: int  # in the index


@dataclass(frozen=True)
class Index:
    """An index that is open."""

    folder: Path
    card: Card
    features: np.ndarray
    lengths: np.ndarray
    codes: np.ndarray | None
    scales: np.ndarray | None
    labels: np.ndarray
    keys: tuple[
        np.ndarray, np.ndarray
    ]  # bytes, and where each of the names begins and the last ends (N + 1,)
    thumbnails: tuple[np.ndarray, np.ndarray] | None

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def class_names(self) -> list[str]:
        return self.card["class_names"]

    def search(self, features: np.ndarray, top: int = 10) -> list[list[Neighbour]]:
        """Return the `top` nearest images of each query (n, D), the nearest first; fewer if there are fewer."""
        s, rows = self.nearest(features, top)
        return [
            [self.neighbour(int(row), float(one)) for row, one in zip(*pair, strict=True)]
            for pair in zip(rows, s, strict=True)
        ]

    def nearest(self, features: np.ndarray, top: int = 10) -> tuple[np.ndarray, np.ndarray]:
        """Return their cosines, float64 (n, top), and rows, int64 (n, top)."""
        D = self.card["width"]
        if top < 1:
            raise ConfigError(f"top must be at least 1, not {top}")
        if features.ndim != 2 or features.shape[1] != D:
            raise ConfigError(f"features to search for must be (n, {D}), not {features.shape}")
        if not np.isfinite(features).all():
            raise ConfigError("features to search for are not all finite")
        if not len(features):
            return np.zeros((0, top)), np.zeros((0, top), np.int64)
        k = min(top, len(self))
        if self.codes is None:
            s, rows = neighbours(self.features, features, k, quick=self.half_scores)
        else:
            s, rows = neighbours(self.features, features, k, quick=self.code_scores, spare=SPARE)
        if not np.isfinite(s).all():
            raise DataError(f"{self.folder}: features that are not finite: damaged")
        return s, rows

    def half_scores(self, queries: np.ndarray) -> QuickScores:
        """Return cosines by products in float32."""
        dtype = score_type(CPU)
        lengths = torch.from_numpy(np.where(self.lengths > 0, self.lengths, 1)).to(dtype)

        def product(rows: slice) -> Product:
            block = torch.from_numpy(self.features[rows])  # (N, D)
            if len(queries) < PACKED:
                return lambda q: converted_product(q, block) / lengths[rows]  # (b, N)
            return packed_product(block.to(dtype).div_(lengths[rows, None]))

        bound = (queries.shape[1] + 12) * torch.finfo(dtype).eps / 2  # lengths are rounded too
        block = KEYS if len(queries) >= PACKED else 16 * KEYS
        return QuickScores(unit(queries, CPU, dtype), product, bound, block)

    def code_scores(self, queries: np.ndarray) -> QuickScores:
        """Return cosines by products of 8-bit numbers, each divided by the scale of its query."""
        assert self.codes is not None and self.scales is not None
        q, scale = to_codes(queries)  # (n, D), (n,)
        codes, scales = torch.from_numpy(self.codes), torch.from_numpy(self.scales)

        def product(rows: slice) -> Product:
            return lambda q: code_product(q, codes[rows]) * scales[rows]  # (b, N)

        # Each factor is rounded by up to half of its scale, and the other is of length 1.
        largest = max(float(self.scales.max()), 1e-12)
        bound = SIGMAS * np.sqrt((scale**2 + largest**2) / 12) / np.maximum(scale, 1e-12)  # (n,)
        block = KEYS * min(16, max(1, SLICE // len(q)))
        return QuickScores(torch.from_numpy(q), product, torch.from_numpy(bound)[:, None].float(), block)

    def neighbour(self, row: int, similarity: float) -> Neighbour:
        label, key, folder = int(self.labels[row]), self.key(row), self.card["folder"]
        name = self.class_names[label] if label >= 0 else None
        return Neighbour(key, name, similarity, None if folder is None else str(Path(folder, key)), row)

    def key(self, row: int) -> str:
        """Return the name of an image, as its data set has it."""
        return cut(self.keys, row).decode("utf-8", "backslashreplace")

    def thumbnail(self, row: int) -> bytes | None:
        """Return a small JPEG file of an image; None in an index without them."""
        return None if self.thumbnails is None else cut(self.thumbnails, row)

    def check_model(self, model: Runnable) -> None:
        """Raise ConfigError unless features of this model may be searched for."""
        card = self.card
        if fingerprint(model) != card["fingerprint"]:
            raise ConfigError(f"{self.folder} was made with another model: {card['model']}")
        if model.preprocess != card["preprocess"]:
            raise ConfigError(
                f"{self.folder} was made with images prepared by {card['preprocess']!r}, not {model.preprocess!r}"
            )


def fingerprint(model: Runnable) -> str:
    """Return a digest of everything but the preprocessing that features depend on; adapters count."""
    return weights_digest(model.state_dict(), repr(model.config))


def open_index(path: str | Path) -> Index:
    """Open an index that `vitrail index` has completed; nothing but its card and the ends of names is read."""
    folder = Path(path)
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder; an index is one that `vitrail index` wrote")
    card = read_card(folder)
    N, D = card["images"], card["width"]
    if not N or not 1 <= D <= MAX_WIDTH:
        raise DataError(f"{folder / NAME}: {N:,} images with features of {D:,}: damaged")
    codes = scales = thumbnails = None
    if card["precision"] == "int8":
        codes = map_array(folder / "codes.npy", "int8", (N, D))
        scales = map_array(folder / "scales.npy", "float32", (N,))
    if card["thumbnails"]:
        thumbnails = map_texts(folder, "thumbnail", N)
    index = Index(
        folder=folder,
        card=card,
        features=map_array(folder / "features.npy", "float16", (N, D)),
        lengths=map_array(folder / "lengths.npy", "float32", (N,)),
        codes=codes,
        scales=scales,
        labels=map_array(folder / "labels.npy", "int64", (N,)),
        keys=map_texts(folder, "key", N),
        thumbnails=thumbnails,
    )
    if index.labels.min() < -1 or index.labels.max() >= len(card["class_names"]):
        raise DataError(f"{folder}: labels of classes that it has not: damaged")
    for one in (index.lengths, *([] if scales is None else [scales])):
        if not (np.isfinite(one).all() and one.min() >= 0):
            raise DataError(f"{folder}: lengths of features that are no lengths: damaged")
    return index


def read_card(folder: Path) -> Card:
    """Read index.json and check it."""
    try:
        if not (folder / NAME).exists():
            raise DataError(
                f"{folder} has no {NAME}: it is no index, or `vitrail index` has not completed it"
            )
        card: Any = read_object(folder / NAME, Card, MAX_CARD)
    except CheckpointError as error:
        raise DataError(str(error)) from error
    if card["format"] != FORMAT or card["version"] != VERSION:
        raise DataError(
            f"{folder / NAME} is of {card['format']!r:.40}, version {card['version']}; "
            f"this vitrail reads {FORMAT!r}, version {VERSION}"
        )
    if card["precision"] not in ("float16", "int8"):
        raise DataError(f"{folder / NAME}: precision {card['precision']!r:.40} is neither float16 nor int8")
    checked: Card = card
    return checked


def map_texts(folder: Path, name: str, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Map n strings of bytes, which stand one after the other in one file, and the places where they end."""
    texts = map_array(folder / f"{name}s.npy", "uint8", (None,))
    ends = np.concatenate([[0], map_array(folder / f"{name}_ends.npy", "int64", (n,))])  # (n + 1,)
    if (np.diff(ends) < 0).any() or ends[-1] != len(texts):
        raise DataError(f"{folder / name}_ends.npy does not fit {name}s.npy: damaged")
    return texts, ends


def cut(texts: tuple[np.ndarray, np.ndarray], row: int) -> bytes:
    data, ends = texts
    return data[ends[row] : ends[row + 1]].tobytes()


# --- 8 bits ---


def to_codes(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return codes int8 (n, D) and scales float32 (n,) such that x / |x| = scale * code, but for rounding."""
    x = x.astype(np.float32)
    step = np.abs(x).max(axis=1) / 127  # (n,)
    codes = np.rint(x / np.where(step > 0, step, 1)[:, None]).astype(np.int8)  # (n, D)
    lengths = np.linalg.norm(x.astype(np.float64), axis=1)  # (n,)
    return codes, (step / np.where(lengths > 0, lengths, 1)).astype(np.float32)


def code_product(q: Tensor, codes: Tensor) -> Tensor:
    """Return q codes^T (b, N) of int8 (b, D) and (N, D)."""
    if codes.shape[1] > 1 and whole_products_work():  # torch 2.13 is wrong for one column
        return torch._int_mm(q, codes.T)
    return converted_product(q.float(), codes)  # exact too, up to D = 1,040


def converted_product(q: Tensor, keys: Tensor) -> Tensor:
    """Return q keys^T (b, N) of (b, D) and keys (N, D) of a smaller type, which are converted little by little.

    Each thread has keys of its own: threads that share every small product wait for each other.
    """
    y, threads = q.new_empty(len(q), len(keys)), torch.get_num_threads()

    def fill(begin: int) -> None:
        end = min(begin + size, len(keys))
        for i in range(begin, end, FEW):
            rows = slice(i, min(i + FEW, end))
            torch.mm(q, keys[rows].to(q.dtype).T, out=y[:, rows])

    size = -(-len(keys) // (threads * FEW)) * FEW
    for _ in in_order(fill, range(0, len(keys), size), threads):
        pass
    return y


@cache
def whole_products_work() -> bool:
    """Try the product of int8 on a CPU: where it has no instruction for it, sums may overflow, or be slow."""
    if platform.machine() not in ("x86_64", "AMD64") or not torch.backends.mkldnn.is_available():
        return False
    extremes = torch.tensor([-127, 127], dtype=torch.int8).repeat(32)  # (64,)
    q = torch.stack([extremes, extremes.abs(), -extremes.abs()])  # (3, 64)
    codes = torch.cat([q, -q]).repeat(4, 1)  # (24, 64)
    try:
        return bool(torch.equal(torch._int_mm(q, codes.T).double(), q.double() @ codes.double().T))
    except (AttributeError, RuntimeError):
        return False
