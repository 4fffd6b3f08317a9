"""A checkpoint and labelled images -> a classifier: new head, new resolution, trained by the one loop.

    prepare("photos", "ViT-B_16.npz", protocol="paper")   the fine-tuning with every setting, and its inputs
    run_finetuning(prepared, out)                         the whole of it; the same call again resumes

The pre-training head is replaced by a linear layer of zeros, positions are resampled for the image size. With a
sweep, lr is chosen on a part held out of train, then all of train is used. The test split is evaluated once for each
seed.

A folder is the run of the first seed, with the choices and results of the whole in its run.json and results.md;
sweep/ and seeds/ contain the other runs. Those run first, so that a finished folder is a finished fine-tuning.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypedDict

from vitrail.checkpoints.json_files import Count, check_kind
from vitrail.checkpoints.license import describe_license, stated_license
from vitrail.checkpoints.run.state import fail_together
from vitrail.data.groups import copies_across
from vitrail.data.sources import TEST_SPLITS
from vitrail.data.splits import groups_of, parse_split
from vitrail.errors import CheckpointError, ConfigError, DataError
from vitrail.evaluators.score import mean_and_std
from vitrail.objectives import objective_name
from vitrail.runtime.device import Device, pick
from vitrail.runtime.distributed import barrier, gather, group, rank
from vitrail.runtime.files import atomic_file
from vitrail.runtime.log import note
from vitrail.train.assemble import Assembled, Inputs, assemble
from vitrail.train.data_splits import NOTHING, list_some, resolve_splits
from vitrail.train.estimate import advise
from vitrail.train.keywords import override
from vitrail.train.run import Figures, Results, Scores, Trained, finish, lacks_model, run
from vitrail.train.settings import Experiment
from vitrail.transfer.facts import count_tested, find_val, gather_facts
from vitrail.transfer.protocols import PROTOCOLS, Finetuning, Protocol, Sweep
from vitrail.transfer.results_page import describe_tie, results_page
from vitrail.transfer.speed import find_speed

# Settings of a person's that others depend on: fields of `Facts`.
ASKED = ("image_size", "optimizer", "schedule", "preprocess", "augment", "tune", "loss")
Start = Callable[[str, Experiment], Trained]  # train in a folder inside


class Swept(TypedDict):
    """The scores by which lr is chosen."""

    val_top1: float
    val_loss: float | None


class Scored(TypedDict):
    mean: float | None
    std: float | None
    values: list[float | None]


class FinetuningResults(Results):
    """The results in run.json of a finished fine-tuning: those of the first seed, and of all together."""

    lr: float
    sweep: dict[str, Swept]
    dev: float | None
    seeds: Count
    scores: dict[str, Scored]
    untested: list[str]


@dataclass(frozen=True)
class Prepared:
    """A fine-tuning with every setting, and what it starts from, open and in memory."""

    finetuning: Finetuning
    inputs: Inputs


def prepare(
    data: str | Path,
    model: str | Path,
    *,
    protocol: str | Protocol = "default",
    device: Device = "auto",
    out: str | Path | None = None,
    **settings: Any,
) -> Prepared:
    """Look at the data and the checkpoint, and complete the settings by a protocol, named or given.

    With a budget the machine is measured, unless a run in `out` has begun with that budget: it keeps its choices.
    """
    if isinstance(protocol, str):
        if protocol not in PROTOCOLS:
            raise ConfigError(f"protocol {protocol!r} is not one of {', '.join(PROTOCOLS)}")
        protocol = PROTOCOLS[protocol]
    if str(data) and not str(model):
        raise ConfigError(
            "no model: pass a checkpoint or a bundle (--model PATH), ti8-64 (included), or the name of an "
            "architecture to train from scratch"
        )
    train = settings.get("train", "train")
    chosen: dict[str, Any] = {name: settings.get(name) for name in ASKED}
    start = {"data": data, "model": model, "image_size": chosen["image_size"], "train": train}
    inputs = Inputs.read(override(Experiment(), start))
    sweep = override(Sweep(), {k: v for k, v in settings.items() if k in vars(Sweep())})
    chosen |= {"gpu": pick(device).type == "cuda", "sweep": sweep.sweep, "budget": sweep.budget}
    facts = gather_facts(inputs, str(model), train, **chosen)
    facts = replace(facts, runs=sweep.seeds + len(sweep.lrs) * sweep.sweep)
    if not {"train", "val", "test"} & set(settings):
        facts = find_val(inputs.data, facts)
    if sweep.budget:
        if protocol is not PROTOCOLS["default"]:
            raise ConfigError(
                f"budget {sweep.budget} is for protocol default: others have steps of their own"
            )
        facts = replace(facts, test_examples=count_tested(inputs.data, train, settings.get("test", "auto")))
        facts = replace(facts, speed=find_speed(out, sweep.budget, facts, inputs, str(model), device))
    finetuning = override(protocol(facts), {"data": data, "model": model, **settings})
    objective = finetuning.experiment.objective
    if not objective.needs_labels:
        raise ConfigError(
            f"objective {objective_name(objective)} does not train a classifier: use pretrain with this model"
        )
    return Prepared(finetuning, inputs)


def run_finetuning(
    prepared: Prepared, out: str | Path, *, device: Device = "auto", figures: Figures | None = None
) -> Trained:
    """Choose lr, train a run for each seed, summarise. Interrupted, it raises `Interrupted`; called again, it
    resumes.

    If it is finished, return the results, and write missing or damaged models again.
    """
    finetuning, inputs, folder = prepared.finetuning, prepared.inputs, Path(out)
    sweep, seeds = sweep_runs(finetuning), finetuning.sweep.seeds

    def start(place: str, experiment: Experiment) -> Trained:
        return run(experiment, folder / place, device=device, inputs=inputs, figures=figures)

    with group(pick(device)) as where:
        # Whatever does not fit together is found before anything is written; the runs of a sweep differ in lr alone.
        for experiment in list(sweep.values())[:1]:
            assemble(experiment, where, folder, inputs)
        assembled = assemble(finetuning.experiment, where, folder, inputs)
        with closing(assembled.open_run(folder, finetuning.identity())) as whole:
            results = whole.results(FinetuningResults)
            if results is not None:
                lr = results["lr"]
                mend(folder, sweep | seed_runs(finetuning, lr), start)
                results = finish(with_lr(finetuning, assembled, lr), whole, figures)
            else:
                if rank() == 0:
                    describe_finetuning(finetuning, assembled, inputs)
                    advise(assembled, runs=seeds + len(sweep))
                assembled.objective.cpu()  # the weights of one run at a time are on the device
                lr, swept = choose_lr(finetuning, sweep, start)
                others = []
                for number, (place, experiment) in enumerate(seed_runs(finetuning, lr).items(), 1):
                    tell(f"Seed {experiment.seed}, run {number} of {seeds}")
                    others.append(start(place, experiment).results)
                if others:
                    tell(f"Seed {finetuning.experiment.seed}, run {seeds} of {seeds}")
                assembled.objective.to(assembled.device)
                choice = {"lr": lr, "sweep": swept, "dev": finetuning.sweep.dev if swept else None}
                choice["untested"] = assembled.sources.untested()
                conclude = partial(summarise_seeds, others=others, choice=choice, folder=folder)
                results = finish(with_lr(finetuning, assembled, lr), whole, figures, conclude)
            barrier()
    return Trained(folder, results)


def tell(text: str) -> None:
    """Note something once, by the first process."""
    if rank() == 0:
        note(text)


def sweep_runs(finetuning: Finetuning) -> dict[str, Experiment]:
    """Return the runs of the sweep: trained on a part of train, evaluated on the rest, without a test split."""
    sweep, experiment = finetuning.sweep, finetuning.experiment
    part, train = f"{100 * (1 - sweep.dev):g}%", experiment.data.train
    splits = {"train": f"{train}[:{part} per class]", "val": f"{train}[{part}: per class]", "test": "none"}
    lrs = sorted(sweep.lrs) if sweep.sweep else ()
    return {f"sweep/{lr:g}": override(experiment, {**splits, "evaluate_every": 0, "lr": lr}) for lr in lrs}


def seed_runs(finetuning: Finetuning, lr: float) -> dict[str, Experiment]:
    """Return the runs of all seeds but the first, whose run is the folder itself."""
    experiment, first = finetuning.experiment, finetuning.experiment.seed + 1
    return {
        f"seeds/{seed}": override(experiment, {"lr": lr, "seed": seed})
        for seed in range(first, first + finetuning.sweep.seeds - 1)
    }


def with_lr(finetuning: Finetuning, assembled: Assembled, lr: float) -> Assembled:
    """Return the assembled run of the first seed with the lr that was chosen."""
    identity = override(finetuning.experiment, {"lr": lr}).identity()
    return replace(assembled, experiment=override(assembled.experiment, {"lr": lr}), identity=identity)


def choose_lr(
    finetuning: Finetuning, sweep: dict[str, Experiment], start: Start
) -> tuple[float, dict[str, Scores]]:
    """Return the lr with the best accuracy on a held-out part of train, and the scores of each. Of equal ones, take
    that with the lowest loss, then the lowest lr."""
    swept: dict[str, Scores] = {}
    for number, (place, experiment) in enumerate(sweep.items(), 1):
        name = f"{experiment.optimizer.lr:g}"
        tell(f"Sweep, run {number} of {len(sweep)}: lr {name}")
        trained = start(place, experiment)
        val = trained.results["val"]
        check_kind(val, Swept, f"{trained.folder}: results on val")
        swept[name] = {score: val[score] for score in ("val_top1", "val_loss")}
    if not swept:
        return finetuning.experiment.optimizer.lr, {}

    def worth(name: str) -> tuple[float, float]:
        top1, loss = swept[name]["val_top1"], swept[name]["val_loss"]
        assert top1 is not None
        return top1, -math.inf if loss is None else -loss

    if remark := describe_tie(swept):
        tell(remark)
    lr = sweep[f"sweep/{max(swept, key=worth)}"].optimizer.lr
    tell(f"Training on all of train with lr {lr:g}")
    return lr, swept


def summarise_seeds(
    first: dict[str, Any], others: list[dict[str, Any]], choice: dict[str, Any], folder: Path
) -> dict[str, Any]:
    """Return the results of the first run with mean, standard deviation and values over the seeds of each score (None
    where one is not finite), and the mean accuracy of each class; write them into results.md."""
    runs, scores = [first, *others], {}
    for name in first["test"] or {}:
        values = [run["test"].get(name) for run in runs]
        mean, std = (None, None) if None in values else mean_and_std(values)
        scores[name] = {"mean": mean, "std": std, "values": values}
    per_class = [
        {"name": one[0]["name"], "n": one[0]["n"], "accuracy": statistics.mean(c["accuracy"] for c in one)}
        for one in zip(*(run.get("per_class", []) for run in runs), strict=False)
    ]
    results = first | choice | {"seeds": len(runs), "scores": scores, "per_class": per_class}
    if rank() == 0:
        with atomic_file(folder / "results.md") as path:
            path.write_text(results_page(results), encoding="utf-8")
        if results["broken"]:
            note(f"Left out {results['broken']:,} broken images: see {folder / 'bad_files.jsonl'}")
    return results


def mend(folder: Path, inside: dict[str, Experiment], start: Start) -> None:
    """Write missing or damaged models of the finished runs inside again; a run may have been removed."""
    for place, experiment in inside.items():
        broken = False
        try:
            with fail_together(f"{folder / place} cannot be read"):
                if rank() == 0:
                    broken = lacks_model(folder / place)
            if gather(broken)[0]:
                start(place, experiment)
        except CheckpointError as error:
            tell(str(error))


def describe_finetuning(finetuning: Finetuning, assembled: Assembled, inputs: Inputs) -> None:
    """Note how many images are used for what, what will not be tested, and the license of the weights."""
    settings, sources = finetuning.experiment, assembled.sources
    text = f"Training on {len(sources.train):,} images ({sources.train.name})"
    if sources.test is None:
        text += (
            "; nothing will be tested: --train 'train[:90% per class]' --test 'train[90%: per class]' would hold "
            "out a part"
        )
    else:
        text += f", testing on {len(sources.test):,} ({sources.test.name})"
    if sources.val is not None:
        text += f", watching {len(sources.val):,} ({sources.val.name})"
    if (held_out := sources.calibrate) is not None and held_out is not sources.val:
        text += f", calibrating on {len(held_out):,} ({held_out.name})"
    # Those of validation and test that are there and of which nothing is used.
    resolved = resolve_splits(settings.data, inputs.data)
    splits = [split for split in (resolved.train, resolved.val, resolved.test) if split not in NOTHING]
    used, unused = {part.name for split in splits for part in parse_split(split)}, {}
    calibrating = {"validation"} if held_out is not None and held_out is not sources.val else set()
    for name in inputs.data.splits:
        if name in TEST_SPLITS and name not in used | calibrating:
            with suppress(DataError):  # images without labels, or none: nobody could use it
                source = inputs.data.whole(name)
                unused[name] = f"{len(source):,} ({source.name})"
    if unused:
        text += f"; {', '.join(unused.values())} unused"
    spare = "validation" in {*unused, *calibrating}
    if settings.data.train == "train" and spare and not finetuning.sweep.sweep:
        text += " (train+validation would train on both)"
    note(text + ("; vitrail split the folder" if inputs.data.reader.cut else ""))
    if inputs.data.reader.cut and sources.test is not None and groups_of(sources.train) is None:
        copies = copies_across(sources.train, sources.test)
        if copies:
            note(
                f"{copies:,} of {len(sources.test):,} test images are near-duplicates of training images, so the "
                f"test is too easy: '{inputs.data.base}?group=copies' keeps copies on one side of the split"
            )
    for remark in finetuning.remarks:
        note(remark)
    if missing := sources.untested():
        assert sources.test is not None
        note(
            f"{sources.test.name} has no images of {len(missing):,} of {len(sources.train.class_names):,} classes, "
            f"which will not be tested: {list_some(missing)}"
        )
    if stated_license(assembled.model.license):
        license = describe_license(assembled.model.license)
        note(f"License of {settings.model.model}, which also applies to models trained from it: {license}")
