"""A worker: takes pieces of a plan that are ready and that nobody else is doing, until all are finished.

    for each piece:   wait for what it needs ──► claim it ──► train ──► score ──► results in runs/NAME/run.json

Any number of workers share a folder: several processes here, those of a Ray cluster, or the same command on another
machine. A claim is a lock of the operating system, which ends with its process; a run that was killed is resumed by
whoever takes it next, and ends with the same weights. The training run is runs/NAME/run; its checkpoints are removed
when its scores are written, and its model unless another piece begins with it.
"""

from __future__ import annotations

import gc
import os
import re
import shutil
import signal
import statistics
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, TypedDict, cast

import numpy as np
import torch
from torch import nn

from vitrail.checkpoints.formats import load, save
from vitrail.checkpoints.json_files import Count
from vitrail.checkpoints.run import Run
from vitrail.checkpoints.run.folder import CHECKPOINTS, START
from vitrail.data.sources import DataSet, Source
from vitrail.errors import ConfigError, Interrupted, TrainingError, VitrailError
from vitrail.evaluators.fewshot import FewShot
from vitrail.evaluators.linear import LinearProbe
from vitrail.evaluators.score import Score
from vitrail.inference.features import Extraction
from vitrail.models.cost import cost
from vitrail.models.names import Model
from vitrail.models.positions import Learned1D
from vitrail.models.vit import ViT
from vitrail.runtime.device import Device, pick
from vitrail.runtime.log import note
from vitrail.studies.plan import RUNS, Piece, Plan
from vitrail.train.assemble import Inputs, plain_name, read_start
from vitrail.train.keywords import override
from vitrail.train.run import MODEL, run
from vitrail.transfer.tables import claim_piece, read_piece

PAUSE = 0.5  # seconds between looks at what others are doing
PROBED = 50  # images of each class, at most, that probes learn from
TRAINED = "run"  # folder of the training run in that of a piece


class PieceResults(TypedDict):
    """Results in run.json of a piece."""

    scores: dict[str, float]  # of the test split, and of probes
    val: dict[str, float | None]
    lr: float
    steps: Count
    train_examples: Count
    flops: float  # of the whole run
    gflops: float  # of a forward pass of one image
    seconds: float
    computed: str
    failed: str  # why it could not be finished; "": it was


def work(folder: Path, device: Device = "auto") -> None:
    """Do what is left of the plan, until everything is finished."""
    plan, data = Plan.read(folder), dict[str, DataSet]()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # so that results do not depend on how many runs there are at once
    try:
        while left := [piece for piece in plan.pieces if piece_results(folder, piece.name) is None]:
            taken = [take_piece(piece, plan, folder, device, data) for piece in left]
            if not any(taken):
                time.sleep(PAUSE)
    finally:
        torch.set_num_threads(threads)


def take_piece(piece: Piece, plan: Plan, folder: Path, device: Device, data: dict[str, DataSet]) -> bool:
    """Do a piece; return False if it has to wait for others, or another worker is at it."""
    if any(piece_results(folder, name) is None for name in piece.needs()):
        return False
    with claim_piece(folder / RUNS / piece.name, piece.config(plan)) as claimed:
        if claimed is None:
            return False
        if claimed.results() is None:
            note(f"{piece.name}: begins")
            claimed.finish(cast(Any, do_piece(piece, plan, folder, claimed, device, data)))
            clean_up(piece, plan, claimed.path)
            free_memory()
    return True


def piece_results(folder: Path, name: str) -> PieceResults | None:
    """Return the results of a piece; None until it is finished."""
    return cast(PieceResults | None, read_piece(folder / RUNS / name, PieceResults))


def do_piece(
    piece: Piece, plan: Plan, folder: Path, claimed: Run, device: Device, data: dict[str, DataSet]
) -> PieceResults:
    """Train and score; what cannot be trained, such as a run whose loss is not finite, is a result too."""
    begin = time.perf_counter()
    lr = piece.experiment().optimizer.lr
    try:
        lr = best_lr(piece, folder) if piece.trials else lr
        weights = str(start_weights(piece, folder, claimed.path)) if piece.start else ""
        experiment = override(piece.experiment(weights), {"lr": lr})
        opened = data.setdefault(experiment.data.data, DataSet(experiment.data.data))
        inputs = Inputs(opened, read_start(experiment.model))
        trained = run(experiment, claimed.path / TRAINED, device=device, inputs=inputs)
        model = trained.model().to(pick(device))
        num_workers = experiment.data.num_workers or 0
        scores = score_model(model, piece.scores, trained.results, plan.transfer, data, num_workers)
    except Interrupted:
        raise
    except TrainingError as error:
        note(f"{piece.name}: {error}")
        return failure(str(error), lr, time.perf_counter() - begin)
    except VitrailError as error:
        error.add_note(f"in {piece.name}")
        raise
    results, c = trained.results, cost(model.config)
    seconds = max(time.perf_counter() - begin, results["seconds"])
    flops = float(c.training_flops) * experiment.data.batch_size * results["steps"]
    return {
        "scores": scores,
        "val": results["val"],
        "lr": lr,
        "steps": results["steps"],
        "train_examples": results["train_examples"],
        "flops": flops,
        "gflops": c.flops / 1e9,
        "seconds": seconds,
        "computed": results["computed"],
        "failed": "",
    }


def failure(why: str, lr: float, seconds: float) -> PieceResults:
    nothing: Any = {"steps": 0, "train_examples": 0, "flops": 0.0, "gflops": 0.0, "computed": ""}
    return cast(
        PieceResults, {"scores": {}, "val": {}, "lr": lr, "seconds": seconds, "failed": why, **nothing}
    )


def best_lr(piece: Piece, folder: Path) -> float:
    """Return the learning rate of the trial that is best on held-out train; of equals, the lowest."""
    trials = [piece_results(folder, name) for name in piece.trials]
    worth = {t["lr"]: t["val"].get("val_top1") for t in trials if t is not None and not t["failed"]}
    good = {lr: top1 for lr, top1 in worth.items() if top1 is not None}
    if not good:
        raise TrainingError(f"none of its trials gave a learning rate: {', '.join(piece.trials)}")
    return min(good, key=lambda lr: (-good[lr], lr))


def start_weights(piece: Piece, folder: Path, place: Path) -> Path:
    """Return the model that a piece begins with, its positions drawn anew where that is asked for."""
    model = folder / RUNS / piece.start / TRAINED / MODEL
    if not piece.fresh_positions:
        return model
    if not (place / START).exists():
        loaded = load(model, image_size=piece.settings.get("image_size"))
        if not isinstance(loaded, ViT) or not isinstance(loaded.positions, Learned1D):
            raise ConfigError(f"{piece.name}: only the learned 1-D positions of a ViT can be drawn anew")
        torch.manual_seed(piece.seed)
        nn.init.normal_(loaded.positions.table, std=0.02)
        save(loaded, place / START)
    return place / START


def score_model(
    model: Model,
    names: tuple[str, ...],
    results: dict[str, Any],
    transfer: tuple[str, ...],
    data: dict[str, DataSet],
    num_workers: int,
) -> dict[str, float]:
    """Return the scores by name: of the run's own test split, evaluated once, and of frozen features on other data,
    the mean over the data sets and each of them."""
    scores = {name: results["test"][name] for name in names if name in (results["test"] or {})}
    probes = [name for name in names if name not in scores]
    each: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="vitrail-study-") as cache:
        extraction = Extraction(cache=cache, batch_size=256, num_workers=num_workers)
        for where in transfer if probes else ():
            opened = data.setdefault(where, DataSet(where))
            split = opened.unseen_split("train")
            if split is None:
                raise ConfigError(f"{where} has no split to test on")
            train, test = few_of_each(opened), opened.part(split)
            for name in probes:
                score = next(iter(probe(name, train, test, extraction)(model)))
                assert isinstance(score, Score)
                each.setdefault(name, []).append(score.value)
                if len(transfer) > 1:
                    scores[f"{name} {plain_name(where)}"] = score.value
    return {name: statistics.fmean(values) for name, values in each.items()} | scores


def few_of_each(data: DataSet) -> Source:
    """Return the training split, or a part of it: PROBED images of each class."""
    train = data.whole("train")
    least = int(np.bincount(train.labels, minlength=len(train.class_names)).min())
    return data.part(f"train[:{PROBED} per class]") if least > PROBED else train


def probe(name: str, train: Source, test: Source, extraction: Extraction) -> FewShot | LinearProbe:
    if match := re.fullmatch(r"(\d+)-shot", name):
        return FewShot(train, test, shots=(int(match[1]),), extraction=extraction)
    if name != "linear":
        raise ConfigError(f"score {name!r} is not top1, linear or N-shot")
    return LinearProbe(train, test, extraction=extraction)


def clean_up(piece: Piece, plan: Plan, place: Path) -> None:
    """Remove what is not needed any more."""
    shutil.rmtree(place / TRAINED / CHECKPOINTS, ignore_errors=True)
    shutil.rmtree(place / START, ignore_errors=True)
    if piece.name not in plan.starts() and not plan.keep_models:
        shutil.rmtree(place / TRAINED / MODEL, ignore_errors=True)


def free_memory() -> None:
    """Free what a run has left on the GPU; forget what was compiled, of which the compiler keeps only a few."""
    gc.collect()
    if torch.cuda.is_available():
        torch.compiler.reset()
        torch.cuda.empty_cache()


def stop_with_parent() -> None:
    """Stop, saving, when the process that started this one ends, however it ends: its end of the pipe closes."""

    def watch() -> None:
        with suppress(OSError):
            while os.read(0, 1):
                pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


def main(arguments: list[str]) -> int:
    """Work on a folder as a process of local.py."""
    stop_with_parent()
    try:
        work(Path(arguments[0]), cast(Device, arguments[1]))
    except (VitrailError, OSError) as error:
        print("error:", ". ".join([str(error), *getattr(error, "__notes__", ())]), file=sys.stderr)
        return 3 if isinstance(error, Interrupted) else 2
    return 0
