"""A model and millions of images -> files of predictions, with one row for every image.

    images ──► Listing, (n,) rows ──► those not computed yet ──► a share for each process ──► pieces ──► joined: OUT

Pieces (prediction_job.py) are written every few seconds. Whatever is killed, and with however many processes it is
resumed: a row is computed until it is in a piece, and joined once. The processes of torchrun need a common folder;
nothing but the start is done together, so none waits for another.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from vitrail.checkpoints.json_files import save_json
from vitrail.data.bad_files import BadFiles
from vitrail.data.sources import Source
from vitrail.data.splits import Subset
from vitrail.errors import ConfigError, Interrupted
from vitrail.inference.engine import (
    BATCH_SIZE,
    RunnableLike,
    evaluation_loader,
    evaluation_pipeline,
    outputs,
)
from vitrail.inference.exported import Exported, Runnable, as_runnable, check_precision
from vitrail.inference.listing import Named, name_images
from vitrail.inference.precision import Precision, choose_precision
from vitrail.inference.predict import class_names
from vitrail.inference.prediction_files import (
    Columns,
    check_format,
    file_names,
    join_pieces,
    read_classes,
    to_table,
    write_piece,
)
from vitrail.inference.prediction_job import (
    Job,
    Work,
    Written,
    describe,
    finished_card,
    list_pieces,
    open_job,
    rows_before_gap,
    runs,
)
from vitrail.inference.sort_images import check_folder, sort_images
from vitrail.models.calibration import UNSURE
from vitrail.models.vit import ViT
from vitrail.runtime.device import pick
from vitrail.runtime.distributed import group, rank, world
from vitrail.runtime.files import atomic_file, check_writable
from vitrail.runtime.interrupts import Interrupts

SAVE_SECONDS = 10.0  # between two pieces: what a kill may cost
SAVE_BYTES = 64 << 20  # of numbers, after which a piece is written sooner
LOOK_SECONDS = 0.5  # between two looks at the pieces of other processes


def predict_to(
    model: RunnableLike,
    images: Named,
    out: str | Path,
    *,
    top: int = 5,
    split: str | None = None,
    probabilities: bool = False,
    features: bool = False,
    min_confidence: float = 0.0,
    sort_into: str | Path | None = None,
    sort_by: Literal["link", "copy"] = "link",
    rows_per_file: int = 1_000_000,
    batch_size: int = BATCH_SIZE,
    num_workers: int | None = None,
    precision: Precision = "float32",
    on: Literal["here", "ray"] = "here",
) -> Written:
    """Write the predictions of images to a file that ends in .parquet, .csv or .jsonl, a row for each.

    `images`: files, folders, glob patterns, or a data set and its `split`. The same call again resumes what was
    interrupted or killed; under torchrun the processes share the work, with `on="ray"` the workers of a Ray cluster.
    An image that cannot be read has a row with the reason. Below `min_confidence`, or the
    threshold that the model has for it, the class is "unsure".
    `probabilities` of all classes and `features` (the input of the classifier) are further columns.
    `sort_into`: a new folder for a link to, or a copy of, each image, in a folder for its class.
    """
    out, images = Path(out), images if isinstance(images, Source) else name_images(images)
    check_format(out)
    check_writable(out.parent)
    if rows_per_file < 1:
        raise ConfigError(f"rows_per_file must be at least 1, not {rows_per_file}")
    if on not in ("here", "ray"):
        raise ConfigError(f"on is one of here, ray, not {on!r}")
    if sort_by not in ("link", "copy"):
        raise ConfigError(f"sort_by is one of link, copy, not {sort_by!r}")
    with group(pick() if isinstance(model, str | Path) else next(model.parameters()).device) as device:
        loaded = as_runnable(model).to(device)
        columns = choose_columns(loaded, top, min_confidence, probabilities=probabilities, features=features)
        numbers = precision_of(loaded, precision, on)
        work = Work(columns, numbers, loaded.calibration, min_confidence, batch_size, num_workers)
        job = open_job(out, describe(loaded, images, split, work), images, split)
        try:
            if sort_into is not None:
                check_sorting(job, Path(sort_into), columns)
            if job.written is None and on == "ray":
                from vitrail.inference.on_ray import write_pieces_on_ray

                assert not isinstance(loaded, Exported)
                write_pieces_on_ray(job, loaded, work)
            elif job.written is None:
                compute(job, loaded, work)
            if rank():
                return Written([], 0, 0, {}, 0)  # the first process does the rest
            written = job.written or finish(job, columns, rows_per_file)
        finally:
            job.close()
    if sort_into is not None:
        assert job.listing.files is not None
        classes = (name for file in written.files for name in read_classes(file))
        sort_images(
            job.listing.files, classes, Path(sort_into), columns.class_names, by=sort_by, mark=job.mark
        )
    return written


def precision_of(model: Runnable, precision: Precision, on: str) -> Precision:
    """Return the precision to compute in; ConfigError for an exported file where it cannot be computed so."""
    if not isinstance(model, Exported):
        return choose_precision(precision, next(model.parameters()).device)
    check_precision(model, precision)
    if on == "ray":
        raise ConfigError("on ray is for models, which travel to its workers; an exported file is run here")
    return "float32"


def choose_columns(
    model: Runnable, top: int, min_confidence: float, *, probabilities: bool, features: bool
) -> Columns:
    """Return the columns for a model; ConfigError for those that it cannot have."""
    if top < 1:
        raise ConfigError(f"top must be at least 1, not {top}")
    if not 0 <= min_confidence <= 1:
        raise ConfigError(f"min_confidence is a probability from 0 to 1, not {min_confidence}")
    names = class_names(model) if model.config.classes else []
    if not names and (probabilities or min_confidence or not features):
        raise ConfigError(
            "this model has no classifier: it gives features only, without probabilities and min_confidence"
        )
    if (min_confidence or model.calibration.may_be_unsure) and UNSURE in names:
        raise ConfigError(
            f"a class of the model is named {UNSURE!r}, which min_confidence and thresholds need"
        )
    hidden = model.config.pre_logits if isinstance(model, ViT) else 0
    width = (hidden or model.config.width) if features else 0
    multi_label = model.calibration.multi_label
    return Columns(names, min(top, len(names)), probabilities, width, multi_label)


# --- the work of one process ---


def compute(job: Job, model: Runnable, work: Work) -> None:
    """Compute the share of this process; Interrupted once it is saved, if a signal asks to stop."""
    share = np.array_split(job.remaining, world())[rank()]
    with Interrupts() as interrupts:
        if len(share):
            write_pieces(model, job.listing.source, share, work, job.folder, lambda: bool(interrupts.name))
        if interrupts.name:
            n, pieces = job.card["rows"], list_pieces(job.folder)
            saved = sum(piece.stop - piece.start for piece in pieces)
            raise Interrupted(interrupts.name, f"{saved:,} of {n:,} rows", str(job.folder))


def write_pieces(
    model: Runnable, source: Source, rows: np.ndarray, work: Work, folder: Path, stop: Callable[[], bool]
) -> None:
    """Compute the rows (m,) of a source, and write them as pieces; end early, with those saved, on `stop`."""
    part = Subset(source, rows)
    pipeline = evaluation_pipeline(model)
    loader = evaluation_loader(part, pipeline, work.batch_size, work.num_workers, 1.0, shared=False)
    call = logits_and_features(model) if work.columns.features else None
    begin, end, size, since = 0, 0, 0, time.monotonic()
    waiting: list[dict[str, np.ndarray]] = []
    for y, batch in outputs(model, loader, call, precision=work.precision, task="predict"):
        waiting.append({"place": batch["index"].cpu().numpy(), **choose(y, work)})
        size += sum(array.nbytes for array in waiting[-1].values())
        end = int(waiting[-1]["place"][-1]) + 1 if len(y) else end
        if size > SAVE_BYTES or time.monotonic() - since > SAVE_SECONDS or stop():
            save(part, begin, end, waiting, loader.bad_files, work, folder)
            begin, size, since = end, 0, time.monotonic()
            waiting.clear()
        if stop():
            return
    save(part, begin, len(rows), waiting, loader.bad_files, work, folder)


def save(
    part: Subset,
    begin: int,
    end: int,
    waiting: list[dict[str, np.ndarray]],
    bad_files: BadFiles,
    work: Work,
    folder: Path,
) -> None:
    """Write the rows at the places begin to end of a part, a piece for each run of consecutive rows."""
    if begin == end:
        return
    width = len(work.columns.class_names) + work.columns.features
    none = {"place": np.zeros(0, np.int64), **choose(torch.zeros(0, width), work)}
    arrays = {
        name: np.concatenate([none[name], *(one[name] for one in waiting)]) for name in none
    }  # (m, ...)
    for first, last in runs(part.indices[begin:end]):
        stop = begin + last - first
        inside = (arrays["place"] >= begin) & (arrays["place"] < stop)  # (m,)
        keys = [part.key(i) for i in range(begin, stop)]
        errors = set(range(begin, stop)) - set(arrays["place"][inside].tolist())
        table = to_table(
            work.columns,
            keys,
            {i - begin: bad_files.examples[part.key(i)].reason for i in errors},
            {name: array[inside] for name, array in arrays.items()},
        )
        write_piece(table, folder / f"rows-{first:012}-{last:012}.parquet")
        begin = stop


def choose(y: Tensor, work: Work) -> dict[str, np.ndarray]:
    """Return the numbers of the columns for logits and features (b, K + D)."""
    columns, calibration = work.columns, work.calibration
    chosen: dict[str, Tensor] = {}
    if columns.class_names:
        logits = y[:, : len(columns.class_names)]  # (b, K)
        p, sure = calibration.decide(logits, work.min_confidence)  # (b, K) each
        k = logits.argsort(dim=1, descending=True, stable=True)[:, : columns.top]  # (b, top)
        chosen["top_probabilities"], chosen["top"] = p.gather(1, k), k
        chosen["sure"] = sure if calibration.multi_label else sure.any(dim=1, keepdim=True)
        if columns.probabilities:
            chosen["probabilities"] = p
    if columns.features:
        chosen["features"] = y[:, len(columns.class_names) :]  # (b, D)
    return {name: t.cpu().numpy() for name, t in chosen.items()}


def logits_and_features(model: Runnable) -> Callable[[Tensor], Tensor]:
    """Return images (B, C, H, W) -> (B, K + D): the logits, then the input of the classifier."""

    def both(x: Tensor) -> Tensor:
        if isinstance(model, Exported):
            given = model.run(x)
            return torch.cat([given[name] for name in ("logits", "features") if name in given], dim=1)
        y = model.head.representation(model.features(x))  # (B, D)
        classifier = model.head.classifier
        return y if classifier is None else torch.cat([classifier(y), y], dim=1)

    return both


# --- the end ---


def finish(job: Job, columns: Columns, rows_per_file: int) -> Written:
    """Join the pieces once all rows are there; those of other processes may still be coming."""
    n = job.card["rows"]
    while rows_before_gap(pieces := list_pieces(job.folder)) < n:
        time.sleep(LOOK_SECONDS)
    files = file_names(job.out, n, rows_per_file)
    classes, unreadable = join_pieces(pieces, files, rows_per_file, columns, job.card)
    written = Written(files, n, unreadable, dict(classes.most_common()), job.done)
    results = {"files": [file.name for file in files], "unreadable": unreadable, "classes": written.classes}
    with atomic_file(finished_card(job.out)) as temporary:
        save_json(job.card | results, temporary)
    shutil.rmtree(job.folder)
    return written


def check_sorting(job: Job, folder: Path, columns: Columns) -> None:
    """Raise ConfigError, before anything is computed, if images cannot be sorted into a folder."""
    if job.listing.files is None and rank() == 0:
        raise ConfigError("sort_into is for images in files of their own, not for a data set")
    if not columns.class_names:
        raise ConfigError("sort_into needs a model with a classifier")
    if columns.multi_label:
        raise ConfigError("sort_into needs a model that gives an image one class, not several labels")
    if rank() == 0:
        check_folder(folder, job.mark)
