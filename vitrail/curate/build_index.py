"""Make an index of a data set: one pass over its images, resumed after an interruption or a kill.

    Source ──engine──► features ──► appended to the arrays of INDEX/, saved every few seconds ──► index.json

Until index.json is there, building.json says how far the arrays are complete; what is behind that is cut off when
the same call resumes. A process that builds holds a lock. An index is never changed: a folder that is one of other
data, of another model or of other settings is refused.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import torch

from vitrail.checkpoints.json_files import Count, check_kind, read_object, save_json
from vitrail.checkpoints.run.folder import lock
from vitrail.curate.index import (
    FORMAT,
    MAX_CARD,
    NAME,
    VERSION,
    Index,
    IndexPrecision,
    fingerprint,
    open_index,
    to_codes,
)
from vitrail.curate.npy_files import GrowingArray
from vitrail.curate.thumbnails import thumbnail
from vitrail.data.readers.fingerprint import digest_files
from vitrail.data.readers.folder import FolderSource
from vitrail.data.sources import DataSet, Source
from vitrail.data.splits import Subset, pieces
from vitrail.errors import CheckpointError, ConfigError, DataError, Interrupted
from vitrail.inference.engine import evaluation_loader, evaluation_pipeline, outputs
from vitrail.inference.exported import Runnable
from vitrail.inference.features import EXTRACTION, Extraction, representation
from vitrail.inference.images import Pictures, find_images
from vitrail.runtime.files import atomic_file, check_writable, remove_unfinished
from vitrail.runtime.interrupts import Interrupts
from vitrail.runtime.log import note

BUILDING, LOCK = "building.json", ".lock"
SAVE_SECONDS = 10.0  # between two saves: what a kill may cost
MAX_THUMBNAIL = 512  # pixels
MOST_THREADS = 16  # that make them


class Reached(TypedDict):
    """The contents of building.json, beside what is built."""

    examples: Count  # of the source that are done
    rows: Count  # of them that could be read
    key_bytes: Count
    thumbnail_bytes: Count


def open_images(data: str, split: str | None, *, labelled: bool = True) -> tuple[Source, str]:
    """Return a split of a data set, or all images of a folder, and a fingerprint.

    A split that is unset is train, or the only one.
    """
    if not labelled:
        if split is not None:
            raise ConfigError(f"split {split!r}: images without labels have no splits")
        files = find_images([data])
        return Pictures(files), digest_files((str(file), file) for file in files)
    data_set = DataSet(data)
    splits = data_set.splits
    if split is None and len(splits) > 1 and "train" not in splits:
        raise ConfigError(f"{data} has the splits {', '.join(splits)}: name one with --split")
    source = data_set.part(split or ("train" if "train" in splits else splits[0]))
    return source, source.fingerprint()


def build_index(
    model: Runnable,
    data: str,
    out: str | Path,
    *,
    split: str | None = None,
    labelled: bool = True,
    name: str = "",
    precision: IndexPrecision = "float16",
    thumbnails: int = 96,
    extraction: Extraction = EXTRACTION,
) -> Index:
    """Write the index of a data set, or resume it; one that is complete is opened.

    `name`: of the model, for people. `thumbnails`: pixels of the longer side; 0: none are kept.
    """
    if precision not in ("float16", "int8"):
        raise ConfigError(f"precision is one of float16, int8, not {precision!r}")
    if not 0 <= thumbnails <= MAX_THUMBNAIL:
        raise ConfigError(f"thumbnails have 0 to {MAX_THUMBNAIL} pixels, not {thumbnails}")
    folder = Path(out)
    check_writable(folder)
    source, data_fingerprint = open_images(data, split, labelled=labelled)
    about: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "model": name,
        "fingerprint": fingerprint(model),
        "preprocess": model.preprocess,
        "which": extraction.which,
        "precision": precision,
        "data": data,
        "split": source.name if labelled else "",
        "data_fingerprint": data_fingerprint,
        "folder": files_folder(source),
        "thumbnails": thumbnails,
        "class_names": list(source.class_names) if labelled else [],
    }
    check_folder(folder)
    folder.mkdir(parents=True, exist_ok=True)
    held = lock(folder / LOCK)
    try:
        if (folder / NAME).exists():
            index = open_index(folder)
            check_same(index.card, about, f"{folder} is complete, and was made")
            return index
        remove_unfinished(folder, r"(index|building)\.json")
        reached = begin(folder, about)
        with Interrupts() as interrupts:
            extend(folder, model, source, about, reached, extraction, interrupts)
        with atomic_file(folder / NAME) as temporary:
            broken = len(source) - reached["rows"]
            width = about.pop("width")
            save_json(about | {"images": reached["rows"], "broken": broken, "width": width}, temporary)
        (folder / BUILDING).unlink()
    finally:
        os.close(held)
    return open_index(folder)


def check_folder(folder: Path) -> None:
    """Raise ConfigError unless the folder is new, empty, or an index, complete or not."""
    names = sorted(path.name for path in folder.iterdir() if path.name != LOCK) if folder.is_dir() else []
    if names and not {NAME, BUILDING} & set(names):
        raise ConfigError(f"{folder} has {', '.join(names[:3])} and no index: choose a new folder")


def files_folder(source: Source) -> str | None:
    """Return the folder that the keys of a source are paths below; None where they are none."""
    if isinstance(source, Pictures):
        return ""
    roots = {part.root if isinstance(part, FolderSource) else None for part, _ in pieces(source)}
    root = roots.pop()
    return None if roots or root is None else str(root.absolute())


def check_same(old: Any, new: dict[str, Any], problem: str) -> None:
    """Raise ConfigError that names what differs between two indexes; names alone do not count."""
    names = {"model", "data", "folder", "width"}
    if differs := [name for name, value in new.items() if name not in names and old.get(name) != value]:
        raise ConfigError(f"{problem} with other values of: {', '.join(differs)}. Choose another --out")


def begin(folder: Path, about: dict[str, Any]) -> Reached:
    """Return how far an index is; 0 of everything for a new one."""
    if not (folder / BUILDING).exists():
        return {"examples": Count(0), "rows": Count(0), "key_bytes": Count(0), "thumbnail_bytes": Count(0)}
    try:
        old = read_object(folder / BUILDING, most=MAX_CARD)
        reached: Any = old.pop("reached", {})
        check_kind({"reached": reached}, dict[str, Reached], str(folder / BUILDING))
    except CheckpointError as error:
        raise DataError(f"{error}: remove {folder} to begin again") from error
    check_same(old, about, f"{folder} was begun")
    note(f"Resuming: {reached['examples']:,} images are done")
    resumed: Reached = reached
    return resumed


# --- the pass ---


def extend(
    folder: Path,
    model: Runnable,
    source: Source,
    about: dict[str, Any],
    reached: Reached,
    extraction: Extraction,
    interrupts: Interrupts,
) -> None:
    """Append the rest of the images; Interrupted once what is there is saved."""
    e, pipeline, begin = extraction, evaluation_pipeline(model), reached["examples"]
    part = Subset(source, np.arange(begin, len(source)))
    about["width"] = width = feature_width(model, e)
    with arrays_of(folder, about["precision"], about["thumbnails"], width, reached) as arrays:
        if not len(part):
            return
        loader = evaluation_loader(part, pipeline, e.batch_size, e.num_workers, e.max_bad, shared=False)
        call, since = representation(model, e.which), time.monotonic()
        for y, batch in outputs(model, loader, call, task=f"index of {source.name}"):
            x = y.to(torch.float16).cpu().numpy()  # (b, D)
            if not np.isfinite(x).all():
                raise DataError(f"features {e.which!r} of {source.name} are not finite in float16")
            places = batch["index"].cpu().numpy() + begin  # (b,)
            append(arrays, x, places, source, about)
            reached["examples"] = Count(int(places[-1]) + 1) if len(places) else reached["examples"]
            if interrupts.name or time.monotonic() - since > SAVE_SECONDS:
                save(folder, arrays, about, reached)
                since = time.monotonic()
            if interrupts.name:
                done = f"{reached['examples']:,} of {len(source):,} images"
                raise Interrupted(interrupts.name, done, str(folder))
        reached["examples"] = Count(len(source))
        save(folder, arrays, about, reached)
    if not reached["rows"]:
        raise DataError(f"{source.name}: none of its {len(source):,} images can be read")


def feature_width(model: Runnable, extraction: Extraction) -> int:
    """Return D, by running the model on one empty image."""
    device = next(model.parameters()).device
    H, W = model.config.image_size
    with torch.no_grad():
        if getattr(model, "takes_pixels", False):
            x = torch.zeros(1, H, W, 3, dtype=torch.uint8)
        else:
            x = torch.zeros(1, 3, H, W, device=device)
        return int(representation(model, extraction.which)(x).shape[1])


Arrays = dict[str, GrowingArray]


@contextmanager
def arrays_of(
    folder: Path, precision: str, thumbnails: int, width: int, reached: Reached
) -> Iterator[Arrays]:
    """Open the files of an index to append to them."""
    rows = reached["rows"]
    kinds: dict[str, tuple[str, tuple[int, ...], int]] = {
        "features": ("<f2", (width,), rows),
        "lengths": ("<f4", (), rows),
        "labels": ("<i8", (), rows),
        "key_ends": ("<i8", (), rows),
        "keys": ("|u1", (), reached["key_bytes"]),
    }
    if precision == "int8":
        kinds |= {"codes": ("|i1", (width,), rows), "scales": ("<f4", (), rows)}
    if thumbnails:
        kinds |= {"thumbnail_ends": ("<i8", (), rows), "thumbnails": ("|u1", (), reached["thumbnail_bytes"])}
    arrays: Arrays = {}
    try:
        for name, kind in kinds.items():
            arrays[name] = GrowingArray(folder / f"{name}.npy", *kind)
        yield arrays
    finally:
        for array in arrays.values():
            array.close()


def append(arrays: Arrays, x: np.ndarray, places: np.ndarray, source: Source, about: dict[str, Any]) -> None:
    """Append features (b, D) of the examples at some places (b,)."""
    arrays["features"].append(x)
    arrays["lengths"].append(np.linalg.norm(x.astype(np.float64), axis=1))
    arrays["labels"].append(source.labels[places] if about["class_names"] else np.full(len(x), -1))
    append_texts(arrays, "key", [os.fsencode(source.key(i)) for i in places.tolist()])
    if "codes" in arrays:
        codes, scales = to_codes(x)
        arrays["codes"].append(codes)
        arrays["scales"].append(scales)
    if "thumbnails" in arrays:
        picture = partial(thumbnail, source, side=about["thumbnails"])
        with ThreadPoolExecutor(min(MOST_THREADS, torch.get_num_threads())) as pool:
            append_texts(arrays, "thumbnail", list(pool.map(picture, places.tolist())))


def append_texts(arrays: Arrays, name: str, texts: list[bytes]) -> None:
    texts_of, ends = arrays[f"{name}s"], arrays[f"{name}_ends"]
    ends.append(texts_of.rows + np.cumsum([len(text) for text in texts], dtype=np.int64))
    texts_of.append(np.frombuffer(b"".join(texts), np.uint8))


def save(folder: Path, arrays: Arrays, about: dict[str, Any], reached: Reached) -> None:
    """Save the arrays, then how far they are complete."""
    for array in arrays.values():
        array.save()
    reached["rows"] = Count(arrays["features"].rows)
    reached["key_bytes"] = Count(arrays["keys"].rows)
    reached["thumbnail_bytes"] = Count(arrays["thumbnails"].rows if "thumbnails" in arrays else 0)
    with atomic_file(folder / BUILDING) as temporary:
        save_json(about | {"reached": reached}, temporary)
