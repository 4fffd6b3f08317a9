"""VTAB-1k: fine-tune one model on 19 tasks of 1,000 examples each; the score is the mean of 19 accuracies.

    for each task:  [train on 800, evaluate on 200, for each lr] ──►  train on all 1,000 ──► the full test set, once

The paper's protocol: 384 px, 2,500 steps of 512 images, SGD, lr 0.01 with cosine decay. Its warm-up on VTAB is not
stated: here it is a fifth, the 500 steps of its other runs. Images are resized to a square; crops and mirror images
are used where they keep the label true, as BiT does (`crop` and `flip` in vtab_tasks.py). Pixel values are scaled as
the model's own preprocessing line says, and the result records how.

OUT/ holds data/ (labels that had to be computed), manifests/ (the examples used), tasks/TASK/ (a run each) and
results.md, .csv, .json. The same call continues; several at once share the tasks (claim.py). A task that is absent
or unfinished enters no mean; a group with such a task has no mean.
"""

from __future__ import annotations

import dataclasses
import shutil
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from vitrail.checkpoints.formats import create, has_weights, load
from vitrail.checkpoints.json_files import Count
from vitrail.data import preprocess as pp
from vitrail.data.readers.fingerprint import digest_files
from vitrail.data.settings import DataSettings
from vitrail.errors import CheckpointError, DataError
from vitrail.inference.feature_cache import model_digest
from vitrail.models.vit import ViTConfig
from vitrail.runtime.device import Device
from vitrail.runtime.log import note
from vitrail.train.optim import OptimizerSettings
from vitrail.train.results import MODEL, lacks_model
from vitrail.train.run import run
from vitrail.train.settings import Experiment, ModelSettings, TrainingSettings
from vitrail.transfer.claim import alone, check_own, claimed, results_in
from vitrail.transfer.protocols import round_to
from vitrail.transfer.settings import VTAB, VTABSettings
from vitrail.transfer.tables import accuracy_cell, std_cell, write_tables
from vitrail.transfer.vtab_data import (
    TaskData,
    check_manifest,
    check_task,
    digest_manifest,
    find_folder,
    list_examples,
    needs_labels,
    open_task,
    read_manifest,
    write_cut,
    write_manifest,
)
from vitrail.transfer.vtab_tasks import GROUPS, TASKS, paper_accuracies, select_tasks

Splits = tuple[str, str, str]  # train, val, test


class TaskResults(TypedDict):
    """Results of a finished task in run.json; chosen settings are recorded besides."""

    accuracy: float
    std: float | None
    values: list[float]
    test_examples: Count
    manifest: str


def vtab(
    model: str,
    data: str | Path,
    out: str | Path,
    *,
    tasks: tuple[str, ...] = (),
    settings: VTABSettings = VTAB,
    manifests: str | Path | None = None,
    paper: str | None = None,
    device: Device = "auto",
) -> dict[str, Any]:
    """Run the tasks whose data is there and return the content of results.json.

    `tasks`: names of tasks and groups; all 19 where none is named. `manifests`: a folder of TASK.csv; other examples
    are refused. `paper`: a model of Table 9 to compare with.
    """
    root, folder, names = Path(data).expanduser(), Path(out).expanduser(), select_tasks(tasks)
    check_own(folder, ("data", "manifests", "tasks"))
    paper_scores = {} if paper is None else paper_accuracies(paper)
    folders = {name: place for name in names if (place := find_folder(root, name)) is not None}
    if not folders:
        known = ", ".join(dict.fromkeys(f for name in names for f in (name, TASKS[name].folder)))
        raise DataError(f"{root} holds the data of none of the tasks; their folders are called: {known}")
    expected = {} if manifests is None else {n: Path(manifests).expanduser() / f"{n}.csv" for n in folders}
    for path in expected.values():
        if not path.exists():
            raise DataError(f"{path}: no such manifest")
    for name, source in folders.items():
        check_task(source, name, settings)
    start = Start.read(model, settings)
    for number, (name, source) in enumerate(folders.items(), 1):
        with claimed(folder / "tasks" / name, identity(start, settings, source)) as task_run:
            if task_run is None:
                continue  # another process is at it
            if task_run.results(TaskResults) is None:
                note(f"{name}: task {number} of {len(folders)}")
                examples = prepare_examples(source, name, settings, folder, expected.get(name))
                task_run.finish(run_task(name, examples, start, settings, task_run.path, device))
            else:
                check_finished(folder, name, settings, expected.get(name))
        remove_checkpoints(folder / "tasks" / name, keep_models=settings.keep_models)
    with alone(folder):
        result = {
            "model": model,
            "paper": paper,
            "normalisation": start.value_op,
            "image_size": start.image_size,
            "evaluate_preprocess": f"resize({start.image_size})|{start.value_op}",
            "settings": dataclasses.asdict(settings),
            **collect(names, list(folders), folder, paper_scores),
        }
        write_tables(folder, *table(result), result, remarks(result))
    return result


@dataclass(frozen=True)
class Start:
    """The model that every task starts from, and the images it takes."""

    model: str
    image_size: int
    value_op: str  # the end of its preprocessing line, such as to_range(-1, 1)
    weights: str  # digest; "fresh" for the name of an architecture
    dropout: float | None  # 0, whatever it was trained with; None: a ResNet has none

    @classmethod
    def read(cls, model: str, settings: VTABSettings) -> Start:
        loaded = load(model) if has_weights(model) else create(model, classes=1)
        stride, dropout = (loaded.config.stride, 0.0) if isinstance(loaded.config, ViTConfig) else (1, None)
        value_op = str(pp.Pipeline((), pp.parse(loaded.preprocess).value_op))
        weights = model_digest(loaded) if has_weights(model) else "fresh"
        return cls(model, settings.image_size or round_to(384, stride), value_op, weights, dropout)


def identity(start: Start, settings: VTABSettings, source: Path) -> dict[str, Any]:
    """Return what must be equal for a task to be continued."""
    files = sorted(path for path in source.rglob("*") if path.is_file() and path.name != "manifest.csv")
    config = dataclasses.asdict(settings) | dataclasses.asdict(start)
    for incidental in ("num_workers", "keep_models", "dropout"):
        del config[incidental]
    fingerprint = digest_files((str(path.relative_to(source)), path) for path in files)
    return {**config, "data": str(source), "fingerprint": fingerprint}


def prepare_examples(
    source: Path, name: str, settings: VTABSettings, folder: Path, expected: Path | None
) -> tuple[TaskData, str]:
    """Return a task's examples, labels computed, and the digest of the manifest that is written."""
    own_manifest = source / "manifest.csv"
    if needs_labels(source, name, settings):
        write_cut(source, name, settings, folder / "data" / name)
        source = folder / "data" / name
    data = open_task(source, name, settings)
    manifest = list_examples(data.sources())
    for path in (own_manifest, expected):
        if path is not None and path.exists():
            check_manifest(manifest, path)
    write_manifest(manifest, manifest_path(folder, name))
    return data, digest_manifest(manifest)


def manifest_path(folder: Path, name: str) -> Path:
    return folder / "manifests" / f"{name}.csv"


def run_task(
    name: str,
    examples: tuple[TaskData, str],
    start: Start,
    settings: VTABSettings,
    folder: Path,
    device: Device,
) -> dict[str, Any]:
    """Choose the lr on val, train on all examples with each seed, test."""
    (data, manifest), task, size = examples, TASKS[name], start.image_size
    augment = settings.augment == "by-task"
    ops = [f"resize({size})"]
    if augment and task.crop:
        ops = [f"resize({round(size * 7 / 6)})", f"random_crop({size})"]
    if augment and task.flip:
        ops.append("flip_lr")
    line = "|".join([*ops, start.value_op])
    held_out = data.train, data.val, "none"
    everything = f"{data.train}+{data.val}", "none", data.test

    def train(splits: Splits, lr: float, seed: int, place: Path) -> dict[str, Any]:
        chosen = experiment(data.where, splits, line, start, settings, lr, seed)
        return run(chosen, place, device=device).results

    val: dict[float, float] = {}
    for lr in sorted(settings.lrs) if len(settings.lrs) > 1 else ():
        place = folder / "choices" / f"{lr:g}"
        val[lr] = read_score(train(held_out, lr, 0, place), "val", "val_top1", place)
    best = max(val, key=lambda lr: val[lr]) if val else settings.lrs[0]  # of equals, the lowest
    places = [folder / "final" / str(seed) for seed in range(settings.seeds)]
    runs = [train(everything, best, seed, place) for seed, place in enumerate(places)]
    values = [read_score(results, "test", "top1", place) for results, place in zip(runs, places, strict=True)]
    return {
        "accuracy": statistics.fmean(values),
        "std": statistics.stdev(values) if len(values) > 1 else None,
        "values": values,
        "lr": best,
        "val": {f"{lr:g}": accuracy for lr, accuracy in val.items()},
        "test_examples": runs[0].get("test_examples", 0),
        "preprocess": line,
        "manifest": manifest,
    }


def experiment(
    where: str, splits: Splits, line: str, start: Start, settings: VTABSettings, lr: float, seed: int
) -> Experiment:
    """Return one training run of a task."""
    return Experiment(
        model=ModelSettings(start.model, start.image_size, dropout=start.dropout, drop_path=start.dropout),
        data=DataSettings(
            where,
            *splits,
            preprocess=line,
            evaluate_preprocess=f"resize({start.image_size})|{start.value_op}",
            batch_size=settings.batch_size,
            max_bad=0.0,
            num_workers=settings.num_workers,
        ),
        optimizer=OptimizerSettings("sgd", lr=lr, schedule="cosine", warmup="20%", grad_clip=1.0),
        training=TrainingSettings(steps=settings.steps, evaluate_every="100%", save_every="10%", keep=1),
        seed=seed,
    )


def read_score(results: dict[str, Any], split: str, name: str, folder: Path) -> float:
    """Return a score of a finished run, whose run.json may have been edited."""
    value: float | None = (results[split] or {}).get(name)
    if value is None:
        raise CheckpointError(
            f"{folder / 'run.json'} has no {name} on {split}; remove {folder} to train again"
        )
    return value


def check_finished(folder: Path, name: str, settings: VTABSettings, expected: Path | None) -> None:
    """Check a finished task's examples, and note kept models that are not as written: no checkpoint is left."""
    task_folder = folder / "tasks" / name
    if expected is not None:
        check_manifest(read_manifest(manifest_path(folder, name)), expected)
    for place in sorted(task_folder.glob("final/*")) if settings.keep_models else ():
        if lacks_model(place):
            note(f"{place / MODEL} is missing or damaged; to train it again, remove {task_folder}")


def remove_checkpoints(folder: Path, *, keep_models: bool) -> None:
    """Remove the checkpoints of a finished task: 19 times those of a large model fill a disk."""
    for place in [*folder.glob("choices/*"), *folder.glob("final/*")]:
        shutil.rmtree(place / "checkpoints", ignore_errors=True)
        if not keep_models:
            shutil.rmtree(place / MODEL, ignore_errors=True)


def collect(
    names: list[str], present: list[str], folder: Path, paper_scores: dict[str, float]
) -> dict[str, Any]:
    """Return a row for each task, and the means of groups and of all 19."""
    rows: list[dict[str, Any]] = []
    for name in names:
        results = results_in(folder / "tasks" / name, TaskResults) if name in present else None
        status = "done" if results else "unfinished" if name in present else "absent"
        row = {"task": name, "group": TASKS[name].group, "classes": TASKS[name].classes, "status": status}
        rows.append({**row, **(results or {"accuracy": None}), **row, "paper": paper_scores.get(name)})
    accuracies = {row["task"]: row["accuracy"] for row in rows if row["accuracy"] is not None}

    def mean(tasks: list[str]) -> dict[str, Any]:
        done = [accuracies[name] for name in tasks if name in accuracies]
        complete = len(done) == len(tasks)
        return {"mean": statistics.fmean(done) if complete else None, "done": len(done), "of": len(tasks)}

    return {
        "rows": rows,
        "groups": {group: mean([name for name in TASKS if TASKS[name].group == group]) for group in GROUPS},
        "vtab": mean(list(TASKS)),
        "paper_vtab": statistics.fmean(paper_scores.values()) if paper_scores else None,
    }


def table(result: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return the headings and rows of the table that people read."""
    rows = []
    for row in result["rows"]:
        cells = [row["status"], "-", "-"]
        if row["status"] == "done":
            accuracy = accuracy_cell(row["accuracy"], row["test_examples"])
            cells = [accuracy, std_cell(row["std"]), str(len(row["values"]))]
        rows.append([row["task"], row["group"], *cells, accuracy_cell(row["paper"])])
    means = {f"mean of {group}": (mean, "") for group, mean in result["groups"].items()}
    means["mean of 19"] = (result["vtab"], accuracy_cell(result["paper_vtab"]))
    for name, (mean, paper) in means.items():
        text = f"- ({mean['done']} of {mean['of']})" if mean["mean"] is None else accuracy_cell(mean["mean"])
        rows.append([name, "", text, "", "", paper])
    return ["task", "group", "accuracy", "std", "runs", "paper"], rows


def remarks(result: dict[str, Any]) -> list[str]:
    """Return the lines below the table."""
    settings = result["settings"]
    sizes = settings["train_examples"], settings["val_examples"]
    lines = [
        f"{result['image_size']} px, {settings['steps']:,} steps of {settings['batch_size']} images, normalisation "
        f"{result['normalisation']}, augmentation {settings['augment']}; {sizes[0]} + {sizes[1]} training examples"
    ]
    if sizes != (800, 200):
        lines.append("Not VTAB-1k, which has 800 + 200 training examples for each task")
    return lines
