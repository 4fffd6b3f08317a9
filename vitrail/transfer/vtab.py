"""VTAB-1k: one model fine-tuned on 19 tasks of 1,000 examples each; the score is the mean of 19 accuracies.

    for each task:  [train on 800, look at 200, for each rate]  ──►  train on all 1,000  ──►  the full test set, once

The paper's protocol: 384 px, 2,500 steps of 512 images, SGD, rate 0.01 with cosine decay. Its warm-up on VTAB is not
stated: here it is a fifth, the 500 steps of its other runs. Images are resized to a square; where crops and mirror
images keep the label true they are used, as BiT does (vtab_tasks.py says where). Pixels are scaled as the model's
own preprocessing line has it, and the result says how.

OUT/ holds data/ (labels that had to be computed), manifests/ (which examples were used), tasks/TASK/ (a run each) and
results.md, .csv, .json. The same call continues; several at once share the tasks (claim.py).
"""

from __future__ import annotations

import dataclasses
import shutil
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from vitrail.checkpoints.formats import create, has_weights, load
from vitrail.checkpoints.json_files import Count, check_kind
from vitrail.data import preprocess as pp
from vitrail.data.readers.fingerprint import digest_files
from vitrail.errors import DataError
from vitrail.inference.feature_cache import model_digest
from vitrail.models.names import Model
from vitrail.models.vit import ViTConfig
from vitrail.runtime.device import Device
from vitrail.runtime.log import note
from vitrail.train.experiment import DataChoice, Experiment, ModelChoice, ObjectiveChoice, Training
from vitrail.train.optim import Optimization
from vitrail.train.results import MODEL, lacks_model
from vitrail.train.run import run
from vitrail.transfer import vtab_data, vtab_manifest
from vitrail.transfer.claim import alone, check_own, claimed
from vitrail.transfer.protocols import multiple
from vitrail.transfer.settings import PROTOCOL, Protocol, Sizes
from vitrail.transfer.tables import write_tables
from vitrail.transfer.vtab_data import TaskData
from vitrail.transfer.vtab_table import Found, below, collected, table
from vitrail.transfer.vtab_tasks import TASKS, chosen_tasks, paper_scores


def vtab(
    model: str,
    data: str | Path,
    out: str | Path,
    *,
    tasks: tuple[str, ...] = (),
    protocol: Protocol = PROTOCOL,
    manifests: str | Path | None = None,
    paper: str | None = None,
    device: Device = "auto",
) -> dict[str, Any]:
    """Run the tasks (all 19 where none is named) whose data is there. Returns what results.json holds.

    `manifests`: a folder of TASK.csv; examples other than theirs are refused. `paper`: a model of Table 9 to
    compare with.
    """
    root, folder, names = Path(data).expanduser(), Path(out).expanduser(), chosen_tasks(tasks)
    check_own(folder, ("data", "manifests", "tasks"))
    beside = {} if paper is None else paper_scores(paper)
    places = {name: vtab_data.find(root, name) for name in names}
    there = {name: place for name, place in places.items() if place is not None}
    if not there:
        looked = ", ".join(dict.fromkeys(f for name in names for f in (name, TASKS[name].folder)))
        raise DataError(f"{root} holds the data of none of the tasks; their folders are called: {looked}")
    for name, place in there.items():
        check(place, name, protocol.sizes)
    wanted = {} if manifests is None else {name: manifest_in(Path(manifests), name) for name in there}
    lines = Lines.of(model, protocol)
    for name, place in there.items():
        config = identity(model, lines, protocol, place)
        with claimed(folder / "tasks" / name, config) as piece:
            if piece is None:
                continue
            if piece.results(Found) is not None:
                if protocol.keep_models:
                    note_models(piece.path)
                if name in wanted:
                    check_manifest(vtab_manifest.read(used_manifest(folder, name)), wanted[name])
                continue
            note(f"{name}: task {list(there).index(name) + 1} of {len(there)}")
            given = examples(place, name, protocol.sizes, folder, wanted.get(name))
            piece.finish(scored(name, given, model, lines, protocol, piece.path, device))
        tidy(folder / "tasks" / name, keep_models=protocol.keep_models)
    with alone(folder):
        result = {
            "model": model,
            "paper": paper,
            "normalisation": lines.value_op,
            "image_size": lines.image_size,
            "evaluate_preprocess": lines.evaluation,
            "protocol": dataclasses.asdict(protocol),
            **collected(names, list(there), folder, beside),
        }
        write_tables(folder, *table(result), result, below(result))
    return result


def check(place: Path, name: str, sizes: Sizes) -> None:
    """What can be found wrong before anything is computed."""
    if vtab_data.needs_labels(place, name, sizes):
        vtab_data.check_columns(place, name)
    else:
        vtab_data.opened(place, name, sizes)


@dataclass(frozen=True)
class Lines:
    """What a model asks of its images."""

    image_size: int
    value_op: str  # the end of its preprocessing line, as to_range(-1, 1)
    weights: str  # digest; "fresh" for an architecture's name
    dropout: float | None  # none, whatever it was trained with; None: a ResNet has no such thing

    @classmethod
    def of(cls, model: str, protocol: Protocol) -> Lines:
        loaded = loaded_or_fresh(model)
        config = loaded.config
        stride, dropout = (config.stride, 0.0) if isinstance(config, ViTConfig) else (1, None)
        value = str(pp.Pipeline((), pp.parse(loaded.preprocess).value_op))
        weights = model_digest(loaded) if has_weights(model) else "fresh"
        return cls(protocol.image_size or multiple(384, stride), value, weights, dropout)

    def training(self, crop: bool, flip: bool) -> str:
        size = self.image_size
        ops = [f"resize({round(size * 7 / 6)})", f"random_crop({size})"] if crop else [f"resize({size})"]
        return "|".join([*ops, *(["flip_lr"] if flip else []), self.value_op])

    @property
    def evaluation(self) -> str:
        return f"resize({self.image_size})|{self.value_op}"


def loaded_or_fresh(model: str) -> Model:
    return load(model) if has_weights(model) else create(model, classes=1)


def identity(model: str, lines: Lines, protocol: Protocol, place: Path) -> dict[str, Any]:
    """What has to be the same for a task to be continued."""
    incidental = {"workers", "keep_models", "image_size"}
    settings = {k: v for k, v in dataclasses.asdict(protocol).items() if k not in incidental}
    files = sorted(path for path in place.rglob("*") if path.is_file() and path.name != "manifest.csv")
    fingerprint = digest_files((str(path.relative_to(place)), path) for path in files)
    data = {"data": str(place), "fingerprint": fingerprint}
    asked = {k: v for k, v in dataclasses.asdict(lines).items() if k != "dropout"}  # which the weights decide
    return {"model": model, **asked, **settings, **data}


def examples(place: Path, name: str, sizes: Sizes, folder: Path, wanted: Path | None) -> tuple[TaskData, str]:
    """A task's examples, and the digest of their manifest."""
    if vtab_data.needs_labels(place, name, sizes):
        place = vtab_data.labelled(place, name, sizes, folder / "data" / name)
    given = vtab_data.opened(place, name, sizes)
    manifest = vtab_manifest.manifest_of(given.sources())
    for path in (place / "manifest.csv", wanted):
        if path is not None and path.exists():
            check_manifest(manifest, path)
    vtab_manifest.write(manifest, used_manifest(folder, name))
    return given, vtab_manifest.digest(manifest)


def used_manifest(folder: Path, name: str) -> Path:
    """Which examples a task was done with."""
    return folder / "manifests" / f"{name}.csv"


def manifest_in(folder: Path, name: str) -> Path:
    """Which examples a task has to be done with."""
    path = folder.expanduser() / f"{name}.csv"
    if not path.exists():
        raise DataError(f"{path}: no such manifest")
    return path


def check_manifest(ours: vtab_manifest.Manifest, wanted: Path) -> None:
    vtab_manifest.check_same(ours, vtab_manifest.read(wanted), wanted)


def scored(
    name: str,
    given: tuple[TaskData, str],
    model: str,
    lines: Lines,
    protocol: Protocol,
    folder: Path,
    device: Device,
) -> dict[str, Any]:
    """One task: the rate chosen on val, then all examples, then the test set."""
    (data, manifest), task = given, TASKS[name]
    augment = protocol.augment == "by-task"
    line = lines.training(augment and task.crop, augment and task.flip)
    choice = DataChoice(
        data.where, preprocess=line, evaluate_preprocess=lines.evaluation, batch=protocol.batch, max_bad=0.0,
        workers=protocol.workers,
    )  # fmt: skip
    alone_800 = dataclasses.replace(choice, train=data.train, val=data.val, test="none")
    all_1000 = dataclasses.replace(choice, train=f"{data.train}+{data.val}", val="none", test=data.test)

    def trained(examples: DataChoice, rate: float, seed: int, where: str, kind: Any) -> dict[str, Any]:
        made = experiment(model, lines, examples, protocol, rate, seed)
        results = run(made, folder / where, device=device).results
        check_kind(results, kind, f"{folder / where}: results")
        return results

    swept = {}
    if len(protocol.rates) > 1:
        for rate in sorted(protocol.rates):
            swept[rate] = trained(alone_800, rate, 0, f"choices/{rate:g}", Chosen)["val"]["val_top1"]
    rate = max(swept, key=lambda r: swept[r]) if swept else protocol.rates[0]  # of equals, the lowest
    runs = [trained(all_1000, rate, seed, f"final/{seed}", Final) for seed in range(protocol.seeds)]
    values = [results["test"]["top1"] for results in runs]
    return {
        "accuracy": statistics.fmean(values),
        "std": statistics.stdev(values) if len(values) > 1 else None,
        "values": values,
        "rate": rate,
        "val": {f"{r:g}": v for r, v in swept.items()},
        "test_examples": runs[0]["test_examples"],
        "preprocess": line,
        "manifest": manifest,
    }


def experiment(
    model: str, lines: Lines, examples: DataChoice, protocol: Protocol, rate: float, seed: int
) -> Experiment:
    training = Training(
        steps=protocol.steps,
        rate=rate,
        decay="cosine",
        warmup="20%",
        optimization=Optimization("sgd"),
        clip=1.0,
        evaluate_every="100%",
        save_every="10%",
        keep=1,
    )
    choice = ModelChoice(model, lines.image_size, dropout=lines.dropout, drop_path=lines.dropout)
    return Experiment(choice, examples, ObjectiveChoice(), training, seed)


class ValTop1(TypedDict):
    val_top1: float


class Chosen(TypedDict):
    """Of a run that looks at val."""

    val: ValTop1


class Top1(TypedDict):
    top1: float


class Final(TypedDict):
    """Of a run that is tested."""

    test: Top1
    test_examples: Count


def note_models(folder: Path) -> None:
    """Say which models of a finished task are not what was written: without its checkpoints they stay so."""
    for each in sorted(folder.glob("final/*")):
        if lacks_model(each):
            note(
                f"{each / MODEL} is missing or damaged: to have it, remove {folder}, and the task is done anew"
            )


def tidy(folder: Path, *, keep_models: bool) -> None:
    """A finished task needs no checkpoints: 19 times those of a large model fill a disk."""
    for each in [*folder.glob("choices/*"), *folder.glob("final/*")]:
        shutil.rmtree(each / "checkpoints", ignore_errors=True)
        if not keep_models:
            shutil.rmtree(each / "model", ignore_errors=True)
