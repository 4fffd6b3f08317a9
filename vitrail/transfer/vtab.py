"""VTAB-1k: fine-tune one model on 19 tasks of 1,000 examples each; the score is the mean of 19 accuracies.

    for each task:  [train on 800, evaluate on 200, for each lr] ──►  train on all 1,000 ──► the full test set, once

The paper's protocol: 384 px, 2,500 steps of 512 images, SGD, lr 0.01 with a cosine schedule. Its warmup on VTAB is
not stated: here it is a fifth, the 500 steps of its other runs. Images are resized to a square; crops and flips
are used where they keep the label true, as BiT does (see `run_task`). Pixel values are scaled as
the model's own preprocessing line says, and the result records how.

OUT/ holds data/ (labels that had to be computed), manifests/ (the examples used), tasks/TASK/ (a run each) and
results.md, .csv, .json. The same call continues; several at once share the tasks (tables.py). A task that is absent
or unfinished is in no mean; a group with such a task has no mean.
"""

from __future__ import annotations

import shutil
import statistics
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypedDict

from vitrail.checkpoints.checkpoint import Checkpoint, model_digest, to_model
from vitrail.checkpoints.formats import create
from vitrail.checkpoints.json_files import Count
from vitrail.data import preprocess as pp
from vitrail.data.readers.fingerprint import digest_files
from vitrail.data.settings import DataSettings
from vitrail.errors import CheckpointError, ConfigError, DataError
from vitrail.evaluators.score import format_accuracy, mean_and_std
from vitrail.inference.engine import ModelLike
from vitrail.models.vit import ViTConfig
from vitrail.runtime.device import Device
from vitrail.runtime.log import note
from vitrail.train.assemble import Inputs, read_start
from vitrail.train.data_splits import open_data
from vitrail.train.keywords import override
from vitrail.train.run import MODEL, Figures, lacks_model, run
from vitrail.train.settings import Experiment, OptimizerSettings, TrainingSettings
from vitrail.transfer import tables, vtab_data
from vitrail.transfer.plans import round_to
from vitrail.transfer.vtab_tasks import GROUPS, TASKS, paper_accuracies, select_tasks


class TaskResults(TypedDict):
    """Results of a finished task in run.json, together with the chosen settings."""

    accuracy: float
    std: float | None
    values: list[float]
    test_examples: Count
    manifest: str


@dataclass(frozen=True)
class VTABProtocol:
    """Choice of lr, and number of runs of the tasks."""

    # learning rates to choose from on val200, after training on train800; if unset, --lr
    lrs: tuple[float, ...] = ()
    seeds: int = 1  # number of runs of each task; the first has --seed
    train_examples: int = 800  # examples to train on; other numbers than 800 and 200 are for trials
    val_examples: int = 200  # examples to choose lr by
    keep_models: bool = False  # keep the weights of each task

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise ConfigError(f"seeds {self.seeds}: must be at least 1")


# The paper's run of a task. What depends on the task or the model is left open: data and splits, image size (384, or
# the nearest that the patches divide), preprocessing lines, dropout (0).
EXPERIMENT = Experiment(
    data=DataSettings(batch_size=512, max_bad=0.0),
    optimizer=OptimizerSettings("sgd", lr=0.01, schedule="cosine", warmup="20%", grad_clip=1.0),
    training=TrainingSettings(steps=2500, evaluate_every="100%", save_every="10%", keep=1),
)


@dataclass(frozen=True)
class VTABSettings:
    """Settings of every training run of a task, and of the benchmark itself."""

    experiment: Experiment = EXPERIMENT
    protocol: VTABProtocol = VTABProtocol()

    @property
    def sizes(self) -> vtab_data.Sizes:
        return self.protocol.train_examples, self.protocol.val_examples


VTAB = VTABSettings()


def vtab(
    model: ModelLike,
    data: str | Path,
    out: str | Path,
    *,
    tasks: tuple[str, ...] = (),
    manifests: str | Path | None = None,
    paper: str | None = None,
    device: Device = "auto",
    figures: Figures | None = None,
    settings: VTABSettings = VTAB,
    **keywords: Any,
) -> dict[str, Any]:
    """Run the tasks whose data is there and return the content of results.json.

    `tasks`: names of tasks and groups; all 19 if none is named. `manifests`: a folder of TASK.csv; other examples
    are refused. `paper`: a model of Table 9 to compare with. `settings`: fields of it can be replaced by keyword.
    """
    settings = override(settings, keywords)
    root, folder, names = Path(data).expanduser(), Path(out).expanduser(), select_tasks(tasks)
    tables.check_results_folder(folder, ("data", "manifests", "tasks", tables.START))
    paper_scores = {} if paper is None else paper_accuracies(paper)
    folders = {name: place for name in names if (place := vtab_data.find_task_folder(root, name)) is not None}
    if not folders:
        known = ", ".join(dict.fromkeys(f for name in names for f in (name, TASKS[name].folder)))
        raise DataError(f"{root} has the data of none of the tasks; their folders are called: {known}")
    expected = {} if manifests is None else {n: Path(manifests).expanduser() / f"{n}.csv" for n in folders}
    for path in expected.values():
        if not path.exists():
            raise DataError(f"{path}: no such manifest")
    for name, source in folders.items():
        vtab_data.open_task(source, name, settings.sizes)
    start = Start.read(tables.model_path(model, folder), settings.experiment)
    for number, (name, source) in enumerate(folders.items(), 1):
        with tables.claim_piece(
            folder / "tasks" / name, start.identity(settings.protocol, source)
        ) as task_run:
            if task_run is None:
                continue  # another process is at it
            place, protocol = task_run.path, settings.protocol
            if task_run.results(TaskResults) is None:
                note(f"{name}: task {number} of {len(folders)}")
                examples = vtab_data.prepare_task(source, name, settings.sizes, folder, expected.get(name))
                task_run.finish(run_task(name, examples, start, protocol, place, device, figures))
            elif name in expected:
                manifest = vtab_data.read_manifest(vtab_data.manifest_path(folder, name))
                vtab_data.check_manifest(manifest, expected[name])
            for each in [*place.glob("choices/*"), *sorted(place.glob("final/*"))]:
                # 19 times the checkpoints of a large model fill a disk.
                shutil.rmtree(each / "checkpoints", ignore_errors=True)
                if not protocol.keep_models:
                    shutil.rmtree(each / MODEL, ignore_errors=True)
                elif lacks_model(each):
                    note(f"{each / MODEL} is missing or damaged; to train it again, remove {place}")
    with tables.results_lock(folder):
        result = {
            "model": start.experiment.model.model,
            "paper": paper,
            "normalisation": start.value_op,
            "protocol": asdict(settings.protocol),
            "experiment": start.experiment.as_dict(),
            **collect(names, list(folders), folder, paper_scores),
        }
        tables.write_tables(folder, result, *table(result))
    return result


@dataclass(frozen=True)
class Start:
    """The model that every task starts from."""

    checkpoint: Checkpoint | None  # None: the name of an architecture, with fresh weights
    weights: str  # digest
    value_op: str  # the end of its preprocessing line, such as to_range(-1, 1)
    experiment: Experiment  # with what depends on the model: its name, image size, evaluation line, dropout

    @classmethod
    def read(cls, name: str, experiment: Experiment) -> Start:
        checkpoint = read_start(replace(experiment.model, model=name))
        model = create(name, classes=1) if checkpoint is None else to_model(checkpoint)
        stride = model.config.stride if isinstance(model.config, ViTConfig) else 1
        size = experiment.model.pixels or round_to(384, stride)
        value_op = str(pp.Pipeline((), pp.parse(model.preprocess).value_op))
        resolved: dict[str, Any] = {"model": name, "image_size": size}
        resolved["evaluate_preprocess"] = experiment.data.evaluate_preprocess or f"resize({size})|{value_op}"
        if isinstance(model.config, ViTConfig):  # no dropout, whatever the model was trained with
            resolved |= {n: 0.0 for n in ("dropout", "drop_path") if getattr(experiment.model, n) is None}
        weights = "fresh" if checkpoint is None else model_digest(model)
        return cls(checkpoint, weights, value_op, override(experiment, resolved))

    def identity(self, protocol: VTABProtocol, source: Path) -> dict[str, Any]:
        """Return the settings that must be equal for a task to be continued."""
        files = sorted(path for path in source.rglob("*") if path.is_file() and path.name != "manifest.csv")
        fingerprint = digest_files((str(path.relative_to(source)), path) for path in files)
        settings = {name: value for name, value in asdict(protocol).items() if name != "keep_models"}
        settings |= {"weights": self.weights, "value_op": self.value_op, "fingerprint": fingerprint}
        return self.experiment.identity() | {"vtab": {**settings, "data": str(source)}}


def run_task(
    name: str,
    examples: tuple[vtab_data.TaskData, str],
    start: Start,
    protocol: VTABProtocol,
    folder: Path,
    device: Device,
    figures: Figures | None,
) -> dict[str, Any]:
    """Choose lr on val, train on all examples with each seed, test."""
    (data, manifest), task, size = examples, TASKS[name], start.experiment.model.pixels or 0
    plain, augment = f"resize({size})|{start.value_op}", start.experiment.data.augment
    line = pp.augmented_line(augment or "none", plain, (size, size))
    # Labels of structured tasks are places, distances, numbers of objects: other pixels would make them wrong.
    if augment is None and task.group != "structured":
        flip = "flip_lr|" if task.flip else ""
        line = f"resize({round(size * 7 / 6)})|random_crop({size})|{flip}{start.value_op}"
    line = start.experiment.data.preprocess or line
    experiment = override(start.experiment, {"data": data.where, "preprocess": line, "augment": None})
    inputs = Inputs(open_data(experiment.data), start.checkpoint)

    def train(place: str, **changes: Any) -> dict[str, Any]:
        changed = override(experiment, changes)
        return run(changed, folder / place, device=device, inputs=inputs, figures=figures).results

    val: dict[float, float] = {}
    for lr in sorted(protocol.lrs):
        results = train(f"choices/{lr:g}", train=data.train, val=data.val, test="none", lr=lr)
        val[lr] = read_score(results, "val", "val_top1", folder)
    best = max(val, key=lambda lr: val[lr], default=experiment.optimizer.lr)  # of equals, the lowest
    everything = {"train": f"{data.train}+{data.val}", "val": "none", "test": data.test, "lr": best}
    seeds = range(experiment.seed, experiment.seed + protocol.seeds)
    runs = [train(f"final/{seed}", seed=seed, **everything) for seed in seeds]
    values = [read_score(results, "test", "top1", folder) for results in runs]
    mean, std = mean_and_std(values)
    return {
        "accuracy": mean,
        "std": std,
        "values": values,
        "lr": best,
        "val": {f"{lr:g}": accuracy for lr, accuracy in val.items()},
        "test_examples": runs[0].get("test_examples", 0),
        "preprocess": line,
        "manifest": manifest,
    }


def read_score(results: dict[str, Any], split: str, name: str, folder: Path) -> float:
    """Return a score of a finished run, whose run.json may have been edited."""
    value: float | None = (results.get(split) or {}).get(name)
    if value is None:
        raise CheckpointError(f"a run in {folder} has no {name} on {split}; remove {folder} to train again")
    return value


def collect(
    names: list[str], present: list[str], folder: Path, paper_scores: dict[str, float]
) -> dict[str, Any]:
    """Return a row for each task, and the means of groups and of all 19."""
    rows: list[dict[str, Any]] = []
    for name in names:
        results = tables.read_piece(folder / "tasks" / name, TaskResults) if name in present else None
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


def table(result: dict[str, Any]) -> tables.Table:
    """Return the table for display."""
    rows = []
    for row in result["rows"]:
        cells = [row["status"], "-", "-"]
        if row["status"] == "done":
            accuracy = format_accuracy(row["accuracy"], row["test_examples"])
            cells = [accuracy, tables.std_cell(row["std"]), str(len(row["values"]))]
        rows.append([row["task"], row["group"], *cells, format_accuracy(row["paper"])])
    groups = {row["group"] for row in result["rows"]}
    means = {f"mean of {group}": (mean, "") for group, mean in result["groups"].items() if group in groups}
    means["mean of 19"] = (result["vtab"], format_accuracy(result["paper_vtab"]))
    for name, (mean, paper) in means.items():
        missing = f" ({mean['done']} of {mean['of']})" if mean["mean"] is None else ""
        rows.append([name, "", format_accuracy(mean["mean"]) + missing, "", "", paper])
    protocol, experiment = result["protocol"], result["experiment"]
    sizes = protocol["train_examples"], protocol["val_examples"]
    lines = [
        f"{experiment['model']['image_size']} px, {experiment['training']['steps']:,} steps of "
        f"{experiment['data']['batch_size']} images, normalisation {result['normalisation']}, augmentation "
        f"{experiment['data']['augment'] or 'by task'}; {sizes[0]} + {sizes[1]} training examples"
    ]
    if sizes != (800, 200):
        lines.append("Not VTAB-1k, which has 800 + 200 training examples for each task")
    return ["task", "group", "accuracy", "std", "runs", "paper"], rows, lines
