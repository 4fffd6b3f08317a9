"""Predictions on disk, begun or complete: what is to be computed, which rows are there, who writes.

    OUT                what prediction_files.py writes, complete or not there; several files for very many rows
    OUT.json           what was computed, and by which model: written last
    OUT.unfinished/    until then
      run.json           the same; a call with another model, other images or other columns is refused
      images.npz         the paths, so that a resumed run has the same rows even if files were added since
      rows-000000000000-000000002048.parquet      a piece: rows 0 to 2,047

A piece is written completely or not at all, and its name says which rows it holds. Those in no piece remain to be
computed. The process that opened the job holds a lock, which the system releases when it ends, however it ends.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.checkpoints.checkpoint import model_digest
from vitrail.checkpoints.json_files import read_object, save_json
from vitrail.checkpoints.license import complete_license
from vitrail.checkpoints.run.folder import lock
from vitrail.checkpoints.run.state import fail_together
from vitrail.data.readers.fingerprint import digest
from vitrail.data.sources import Source
from vitrail.errors import ConfigError
from vitrail.inference.exported import Exported, Runnable
from vitrail.inference.listing import Listing, Named, Paths, list_files, list_images, name_images
from vitrail.inference.precision import Precision
from vitrail.inference.prediction_files import Columns, Piece, as_utf8, rows_of
from vitrail.models.calibration import Calibration
from vitrail.runtime.distributed import gather, rank
from vitrail.runtime.files import atomic_file, remove_unfinished
from vitrail.runtime.log import note

VERSION = 1  # of the files
PIECE = re.compile(r"rows-(\d{12,18})-(\d{12,18})\.parquet")
RUN_JSON, IMAGES, LOCK = "run.json", "images.npz", ".lock"
MAX_ABOUT = 64 << 20  # bytes of OUT.json, which names all classes


@dataclass(frozen=True)
class Written:
    """Result of predict_to."""

    files: list[Path]
    rows: int
    unreadable: int  # rows that have an error instead of a class
    classes: dict[str, int]  # rows of each class, "unsure" included, the most frequent first
    done_before: int  # rows that were there when it was called


@dataclass(frozen=True)
class Work:
    """Settings of the rows, for every process."""

    columns: Columns
    precision: Precision
    calibration: Calibration
    min_confidence: float
    batch_size: int
    num_workers: int | None


@dataclass
class Job:
    """Predictions that were begun, or are complete."""

    out: Path
    listing: Listing
    card: dict[str, Any]  # what run.json, or OUT.json, says
    written: Written | None  # None: not complete
    remaining: np.ndarray  # int64: rows that are in no piece, in order
    lock: int | None = None  # held by the first process

    def close(self) -> None:
        if self.lock is not None:
            os.close(self.lock)
            self.lock = None

    @property
    def folder(self) -> Path:
        return unfinished(self.out)

    @property
    def mark(self) -> str:
        """Return a digest of what is computed."""
        return digest(json.dumps([self.card["identity"], self.card["digest"]], sort_keys=True))

    @property
    def done(self) -> int:
        """Rows that were there when the job was opened."""
        return len(self.listing.source) - len(self.remaining)


def describe(model: Runnable, images: Named, split: str | None, work: Work) -> dict[str, Any]:
    """Return what is to be computed; the same `identity` gives the same rows."""
    columns = work.columns
    names = name_images(images)
    if not isinstance(images, Source):
        # Relative paths mean files of this folder.
        names = [f"{name} ({Path(name).absolute()})" for name in names]
    return {
        "format": "vitrail predictions",
        "version": VERSION,
        "provenance": model.provenance,
        "license": complete_license(model.license),
        "class_names": list(map(as_utf8, columns.class_names)),
        "identity": {
            "model": model.config.digest if isinstance(model, Exported) else model_digest(model),
            "class names": digest(*columns.class_names),
            "preprocess": model.preprocess,
            "precision": work.precision,
            "images": list(map(as_utf8, names)),
            "split": split,
            "top": columns.top,
            "probabilities": columns.probabilities,
            "features": columns.features,
            "calibration": digest(json.dumps(work.calibration.as_json(), sort_keys=True)),
            "min_confidence": work.min_confidence,
        },
    }


def open_job(out: Path, card: dict[str, Any], images: Named, split: str | None) -> Job:
    """Begin a job, resume it, or find it complete. The first process writes, the others follow."""
    folder, job = unfinished(out), None
    with fail_together(f"{folder} cannot be written"):
        if rank() == 0:
            job = find_complete(out, card, images, split) or begin(out, card, images, split)
    card, complete, ranges = gather(job and (job.card, job.written is not None, runs(job.remaining)))[0]
    if job is not None:
        return job
    if complete:
        return Job(out, list_files(Paths.of([])), card, Written([], 0, 0, {}, 0), rows_in([]))
    return Job(out, restore_listing(folder, card, images, split), card, None, rows_in(ranges))


def find_complete(out: Path, card: dict[str, Any], images: Named, split: str | None) -> Job | None:
    """Return a job that is complete; ConfigError if it is of something else, or if OUT is not of a job."""
    place = finished_card(out)
    if not place.is_file():
        if not unfinished(out).exists() and (strangers := outputs_of(out)):
            raise ConfigError(f"{strangers[0]} exists, and nothing is overwritten: choose another --out")
        return None
    old = read_object(place, most=MAX_ABOUT)
    check_same(old, card, f"{out} is complete, and was made")
    listing = list_images(images, split)
    if old["digest"] != listing.digest:
        raise ConfigError(f"{out} is complete, and was made from other images: choose another --out")
    shutil.rmtree(unfinished(out), ignore_errors=True)  # where a kill left it
    files = [out.with_name(name) for name in old["files"]]
    written = Written(files, old["rows"], old["unreadable"], old["classes"], old["rows"])
    return Job(out, listing, old, written, np.zeros(0, np.int64))


def begin(out: Path, card: dict[str, Any], images: Named, split: str | None) -> Job:
    """Begin a job, or open one that was begun."""
    folder = unfinished(out)
    folder.mkdir(parents=True, exist_ok=True)
    held = lock(folder / LOCK)
    try:
        if (folder / RUN_JSON).is_file():
            old = read_object(folder / RUN_JSON, most=MAX_ABOUT)
            check_same(old, card, f"{folder} was begun")
            listing = restore_listing(folder, old, images, split)
            job = Job(out, listing, old, None, find_remaining(folder, old["rows"]), held)
            note(f"Resuming: {job.done:,} of {old['rows']:,} rows are there")
            return job
        listing = list_images(images, split)
        card = card | {"digest": listing.digest, "rows": len(listing.source)}
        if listing.files is not None:
            listing.files.save(folder / IMAGES)
        with atomic_file(folder / RUN_JSON) as temporary:
            save_json(card, temporary)
        return Job(out, listing, card, None, np.arange(card["rows"]), held)
    except BaseException:
        os.close(held)
        raise


def restore_listing(folder: Path, card: dict[str, Any], images: Named, split: str | None) -> Listing:
    """Return the images that a job began with; the data set, if they are in one, must still be the same."""
    stored = folder / IMAGES
    listing = list_files(Paths.restore(stored)) if stored.is_file() else list_images(images, split)
    if listing.digest != card["digest"] or len(listing.source) != card["rows"]:
        raise ConfigError(
            f"{folder} was begun with other images: remove it to begin again, or choose another --out"
        )
    return listing


def check_same(old: dict[str, Any], new: dict[str, Any], problem: str) -> None:
    """Raise ConfigError that names what two jobs do not have in common."""
    if old.get("format") != new["format"] or old.get("version") != new["version"]:
        raise ConfigError(f"{problem} by something else: choose another --out")
    before, now = old.get("identity", {}), new["identity"]
    if differs := [name for name, value in now.items() if before.get(name) != value]:
        raise ConfigError(f"{problem} with other values of: {', '.join(differs)}. Choose another --out")


def find_remaining(folder: Path, n: int) -> np.ndarray:
    """Return the rows of n that no piece has, int64, in order; damaged pieces, and unfinished ones, are removed."""
    remove_unfinished(folder, PIECE.pattern)
    left = np.ones(n, bool)  # (n,)
    for piece in list_pieces(folder):
        if rows_of(piece.path) == piece.stop - piece.start:
            left[piece.start : piece.stop] = False
        else:
            piece.path.unlink()
    return np.flatnonzero(left)


def list_pieces(folder: Path) -> list[Piece]:
    """Return the pieces by their first rows."""
    matches = [(PIECE.fullmatch(path.name), path) for path in folder.iterdir()]
    return sorted(Piece(int(match[1]), int(match[2]), path) for match, path in matches if match)


def rows_before_gap(pieces: Sequence[Piece]) -> int:
    """Return how many of the first rows are all there."""
    there = 0
    for piece in pieces:
        if piece.start > there:
            break
        there = max(there, piece.stop)
    return there


def runs(rows: np.ndarray) -> list[tuple[int, int]]:
    """Return ascending rows (m,) as ranges of consecutive ones, start and stop."""
    if not len(rows):
        return []
    cuts = np.flatnonzero(np.diff(rows) != 1) + 1
    return [(int(part[0]), int(part[-1]) + 1) for part in np.split(rows, cuts)]


def rows_in(ranges: Sequence[tuple[int, int]]) -> np.ndarray:
    return np.concatenate([np.zeros(0, np.int64), *(np.arange(*one) for one in ranges)])


def unfinished(out: Path) -> Path:
    return out.with_name(f"{out.name}.unfinished")


def finished_card(out: Path) -> Path:
    return out.with_name(f"{out.name}.json")


def outputs_of(out: Path) -> list[Path]:
    """Return the files that stand where a job with this name writes."""
    several = re.compile(re.escape(out.stem) + r"-\d{5}-of-\d{5}" + re.escape(out.suffix))
    beside = out.parent.iterdir() if out.parent.is_dir() else ()
    return sorted(path for path in beside if path.name == out.name or several.fullmatch(path.name))
