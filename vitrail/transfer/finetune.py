"""A checkpoint and labelled images -> a classifier: new head, new resolution, trained by the one loop.

    prepare("photos", "ViT-B_16.npz", protocol="paper")   the fine-tuning with every setting, and its inputs
    run_finetuning(prepared, out)                         the whole of it; the same call again resumes

The pre-training head is replaced by a linear layer of zeros, positions are resampled for the image size. With a
sweep, lr is chosen on a part held out of train, then all of train is used. The test split is evaluated once for each
seed.

A folder is the run of the first seed, with the choices and results of the whole in its run.json and results.md;
sweep/ and seeds/ hold the other runs. Those come first, so that a finished folder is a finished fine-tuning.
"""

from __future__ import annotations

import math
import re
import statistics
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypedDict

from vitrail.checkpoints.json_files import Count, check_kind
from vitrail.checkpoints.license import describe_license, stated_license
from vitrail.checkpoints.run import Run
from vitrail.checkpoints.run.state import fail_together
from vitrail.data.settings import DataSettings
from vitrail.data.sources import TEST_SPLITS, Source, folder_layout
from vitrail.data.splits import parse_split
from vitrail.errors import CheckpointError, ConfigError, DataError
from vitrail.objectives import objective_name
from vitrail.runtime.device import Device, pick
from vitrail.runtime.distributed import barrier, gather, group, rank
from vitrail.runtime.files import atomic_file
from vitrail.runtime.log import note
from vitrail.train.assemble import Assembled, Inputs, assemble
from vitrail.train.data_splits import NOTHING, list_some, resolve_splits
from vitrail.train.estimate import advise
from vitrail.train.keywords import override
from vitrail.train.results import Results, Scores, lacks_model
from vitrail.train.run import Figures, Trained, finish, open_run, run
from vitrail.train.settings import Experiment
from vitrail.transfer.protocols import PROTOCOLS, Finetuning, Protocol, gather_facts
from vitrail.transfer.results_page import describe_tie, results_page


class Swept(TypedDict):
    """The scores that lr is chosen by."""

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
    **settings: Any,
) -> Prepared:
    """Look at the data and the checkpoint, and complete the settings by a protocol, named or given."""
    if isinstance(protocol, str):
        if protocol not in PROTOCOLS:
            raise ConfigError(f"protocol {protocol!r} is not one of {', '.join(PROTOCOLS)}")
        protocol = PROTOCOLS[protocol]
    if str(data) and not str(model):
        raise ConfigError(
            "no model: give anyone's checkpoint or a bundle (--model PATH), ti8-64 (included), or the name of an "
            "architecture to train from scratch"
        )
    train = settings.get("train", "train")
    first = override(
        Experiment(), {"data": data, "model": model, "image_size": settings.get("image_size"), "train": train}
    )
    inputs = Inputs.read(first)
    chosen = {name: settings.get(name) for name in ("image_size", "optimizer", "schedule")}
    gpu = pick(device).type == "cuda"
    facts = gather_facts(
        inputs, first.model.model, train, gpu=gpu, sweep=bool(settings.get("sweep")), **chosen
    )
    finetuning = override(protocol(facts), {"data": data, "model": model, **settings})
    objective = finetuning.experiment.objective
    if not objective.needs_labels:
        raise ConfigError(
            f"objective {objective_name(objective)} trains no classifier, as fine-tuning does: use pretrain with "
            f"this model"
        )
    check_sweep(finetuning)
    return Prepared(finetuning, inputs)


def check_sweep(finetuning: Finetuning) -> None:
    train = finetuning.experiment.data.train
    if finetuning.sweep.sweep and not re.fullmatch(r"[\w.\-]+", train):
        raise ConfigError(f"a sweep holds out a part of train, which must be a whole split, not {train!r}")


@dataclass(frozen=True)
class Runs:
    """The runs of a fine-tuning: the last one is the folder itself, the others lie inside."""

    finetuning: Finetuning
    inputs: Inputs
    folder: Path
    device: Device
    figures: Figures | None

    @property
    def sweep(self) -> dict[str, Experiment]:
        """Experiments on a part of train, with the rest to choose by and no test split, by the name of their lr."""
        sweep, experiment = self.finetuning.sweep, self.finetuning.experiment
        if not sweep.sweep:
            return {}
        part, train = f"{100 * (1 - sweep.dev):g}%", experiment.data.train
        held_out = replace(
            experiment,
            data=replace(
                experiment.data,
                train=f"{train}[:{part} per class]",
                val=f"{train}[{part}: per class]",
                test="none",
            ),
            training=replace(experiment.training, evaluate_every=0),
        )
        return {f"{lr:g}": with_lr(held_out, lr) for lr in sorted(sweep.lrs)}

    def seeds(self, lr: float) -> dict[int, Experiment]:
        """Experiments of all seeds but the first."""
        experiment = with_lr(self.finetuning.experiment, lr)
        first = experiment.seed + 1
        return {
            seed: replace(experiment, seed=seed)
            for seed in range(first, first + self.finetuning.sweep.seeds - 1)
        }

    def final(self, assembled: Assembled, lr: float) -> Assembled:
        """Return the assembled run of the first seed with the lr that was chosen."""
        identity = with_lr(self.finetuning.experiment, lr).identity()
        return replace(assembled, experiment=with_lr(assembled.experiment, lr), identity=identity)

    def run(self, experiment: Experiment, *place: str) -> Trained:
        folder = self.folder.joinpath(*place)
        return run(experiment, folder, device=self.device, inputs=self.inputs, figures=self.figures)


def with_lr(experiment: Experiment, lr: float) -> Experiment:
    return replace(experiment, optimizer=replace(experiment.optimizer, lr=lr))


def run_finetuning(
    prepared: Prepared, out: str | Path, *, device: Device = "auto", figures: Figures | None = None
) -> Trained:
    """Choose lr, train a run for each seed, summarise. Interrupted, it raises `Interrupted`; called again, it
    resumes.

    Finished, it returns the results, and writes those models again that are missing or damaged since.
    """
    finetuning, folder = prepared.finetuning, Path(out)
    runs = Runs(finetuning, prepared.inputs, folder, device, figures)
    with group(pick(device)) as where:
        # Whatever does not fit together is found before anything is written; the runs of a sweep differ in lr alone.
        for experiment in list(runs.sweep.values())[:1]:
            assemble(experiment, where, folder, prepared.inputs)
        assembled = assemble(finetuning.experiment, where, folder, prepared.inputs)
        with closing(open_run(assembled, folder, finetuning.identity())) as whole:
            results = whole.results(FinetuningResults)
            if results is not None:
                mend(runs, results["lr"])
                results = finish(runs.final(assembled, results["lr"]), whole, figures)
            else:
                if rank() == 0:
                    describe(finetuning, assembled, prepared.inputs)
                    advise(assembled, runs=finetuning.sweep.seeds + len(runs.sweep))
                results = train_all(runs, assembled, whole)
            barrier()
    return Trained(folder, results)


def train_all(runs: Runs, assembled: Assembled, whole: Run) -> dict[str, Any]:
    """Sweep, train the other seeds, then the first one in the folder itself; return the results of all."""
    assembled.objective.cpu()  # the weights of one run at a time are on the device
    lr, swept = choose_lr(runs)
    if swept and rank() == 0:
        note(f"Training on all of train with lr {lr:g}")
    others = []
    for number, (seed, experiment) in enumerate(runs.seeds(lr).items(), 1):
        if rank() == 0:
            note(f"Seed {seed}, run {number} of {runs.finetuning.sweep.seeds}")
        others.append(runs.run(experiment, "seeds", str(seed)))
    if others and rank() == 0:
        note(f"Seed {runs.finetuning.experiment.seed}, run {len(others) + 1} of {len(others) + 1}")

    def conclude(first: dict[str, Any]) -> dict[str, Any]:
        tested = [first, *(trained.results for trained in others)]
        results = first | {
            "lr": lr,
            "sweep": swept,
            "dev": runs.finetuning.sweep.dev if swept else None,
            "seeds": len(tested),
            "scores": summarise_scores([results["test"] or {} for results in tested]),
            "per_class": average_classes([results.get("per_class", []) for results in tested]),
            "untested": assembled.sources.untested(),
        }
        if rank() == 0:
            with atomic_file(runs.folder / "results.md") as path:
                path.write_text(results_page(results), encoding="utf-8")
            if results["broken"]:
                note(f"Left out {results['broken']:,} broken images: see {runs.folder / 'bad_files.jsonl'}")
        return results

    assembled.objective.to(assembled.device)
    return finish(runs.final(assembled, lr), whole, runs.figures, conclude)


def choose_lr(runs: Runs) -> tuple[float, dict[str, Scores]]:
    """Return the lr with the best accuracy on a held-out part of train, and the scores of each. Of equals, the one
    with the lowest loss, then the lowest."""
    swept: dict[str, Scores] = {}
    for number, (name, experiment) in enumerate(runs.sweep.items(), 1):
        if rank() == 0:
            note(f"Sweep, run {number} of {len(runs.sweep)}: lr {name}")
        trained = runs.run(experiment, "sweep", name)
        val = trained.results["val"]
        check_kind(val, Swept, f"{trained.folder}: results on val")
        swept[name] = {score: val[score] for score in ("val_top1", "val_loss")}
    if not swept:
        return runs.finetuning.experiment.optimizer.lr, {}

    def worth(name: str) -> tuple[float, float]:
        top1, loss = swept[name]["val_top1"], swept[name]["val_loss"]
        assert top1 is not None
        return top1, -math.inf if loss is None else -loss

    if (remark := describe_tie(swept)) and rank() == 0:
        note(remark)
    return runs.sweep[max(swept, key=worth)].optimizer.lr, swept


def summarise_scores(tests: list[Scores]) -> dict[str, Any]:
    """Return mean, standard deviation and values over the seeds of each score; None where one is not finite."""
    scores = {}
    for name in tests[0]:
        values = [test.get(name) for test in tests]
        numbers = [value for value in values if value is not None]
        all_finite = len(numbers) == len(values)
        scores[name] = {
            "mean": statistics.mean(numbers) if all_finite else None,
            "std": statistics.stdev(numbers) if all_finite and len(values) > 1 else None,
            "values": values,
        }
    return scores


def average_classes(by_seed: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return the number of images and the mean accuracy over the seeds of each class that was tested."""
    return [
        {"name": one[0]["name"], "n": one[0]["n"], "accuracy": statistics.mean(c["accuracy"] for c in one)}
        for one in zip(*by_seed, strict=False)
    ]


def mend(runs: Runs, lr: float) -> None:
    """Let the finished runs inside write their models again that are missing or damaged; a run may have been
    removed."""
    inside = {("sweep", name): experiment for name, experiment in runs.sweep.items()}
    inside |= {("seeds", str(seed)): experiment for seed, experiment in runs.seeds(lr).items()}
    for place, experiment in inside.items():
        broken = False
        try:
            with fail_together(f"{runs.folder.joinpath(*place)} cannot be read"):
                if rank() == 0:
                    broken = lacks_model(runs.folder.joinpath(*place))
            if gather(broken)[0]:
                runs.run(experiment, *place)
        except CheckpointError as error:
            if rank() == 0:
                note(str(error))


def describe(finetuning: Finetuning, assembled: Assembled, inputs: Inputs) -> None:
    """Say how many images are used for what, what will not be tested, and under which license the weights are."""
    settings, sources = finetuning.experiment, assembled.sources
    text = f"Training on {len(sources.train):,} images ({sources.train.name})"
    text += (
        ", no test" if sources.test is None else f", testing on {len(sources.test):,} ({sources.test.name})"
    )
    unused = find_unused(settings.data, inputs)
    if unused:
        text += "; " + ", ".join(f"{len(source):,} ({source.name})" for source in unused.values()) + " unused"
        if settings.data.train == "train" and "validation" in unused and not finetuning.sweep.sweep:
            text += " (train+validation would train on both)"
    layout = folder_layout(settings.data.data)
    cut_here = layout is not None and not layout.splits
    note(text + ("; vitrail split the folder" if cut_here else ""))
    if missing := sources.untested():
        assert sources.test is not None
        note(
            f"{sources.test.name} has no images of {len(missing):,} of {len(sources.train.class_names):,} classes, "
            f"which will not be tested: {list_some(missing)}"
        )
    if stated_license(assembled.model.license):
        license = describe_license(assembled.model.license)
        note(f"License of {settings.model.model}, which also holds for what is trained from it: {license}")


def find_unused(settings: DataSettings, inputs: Inputs) -> dict[str, Source]:
    """Return those of validation and test that are there and of which nothing is used."""
    resolved = resolve_splits(settings, inputs.data)
    splits = [split for split in (resolved.train, resolved.val, resolved.test) if split not in NOTHING]
    used = {part.name for split in splits for part in parse_split(split)}
    unused = {}
    for name in inputs.data.splits:
        if name in TEST_SPLITS and name not in used:
            with suppress(DataError):  # images without labels, or none: nobody could use it
                unused[name] = inputs.data.whole(name)
    return unused
