"""A checkpoint and labelled images -> a classifier: new head, new resolution, trained by the one loop.

    finetune("photos/", "ViT-B_16.npz")                 one run
    finetune("photos/", "ViT-B_16.npz", sweep=True)     the rate chosen on a part held out of train, then all of train
    finetune("photos/", "ViT-B_16.npz", seeds=3)        mean and spread over seeds

The pre-training head goes, a linear layer of zeros takes its place, positions are resampled for the image size. The
test split is evaluated once for each seed. A folder holds run.json with the choices and results, sweep/ and seeds/
with a run each, model/ (the bundle of the first seed), figures/ and results.md. The same call again continues.
"""

from __future__ import annotations

import dataclasses
import shutil
import statistics
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from vitrail.checkpoints.formats import has_weights, load
from vitrail.checkpoints.run import Run
from vitrail.checkpoints.torch_files import check_own_folder
from vitrail.errors import ConfigError
from vitrail.evaluators.feature_cache import model_digest
from vitrail.models.names import Model
from vitrail.runtime.device import Device, pick
from vitrail.runtime.distributed import barrier, group, rank
from vitrail.runtime.files import atomic_file, atomic_folder
from vitrail.runtime.log import note
from vitrail.train.assembly import assemble
from vitrail.train.experiment import INCIDENTAL, Experiment
from vitrail.train.folders import default_folder
from vitrail.train.run import Trained, run
from vitrail.transfer.estimate import advise
from vitrail.transfer.finetuning import Finetuning, experiment_of, held_out, resolved, with_rate

PUBLISHED = ("model", "figures")  # of the first seed's run


@dataclass(frozen=True)
class Finetuned:
    """`results`: the chosen rate, and for each score mean, std and the value of each seed."""

    folder: Path
    results: dict[str, Any]

    def model(self) -> Model:
        return load(self.folder / "model")


def finetune(
    data: str, model: str, *, out: str | Path | None = None, device: Device = "auto", **fields: Any
) -> Finetuned:
    """Fine-tune `model` on `data`; any field of `Finetuning` by name. `out`: where the results go."""
    known = {f.name for f in dataclasses.fields(Finetuning)}
    if unknown := sorted(set(fields) - known):
        raise ConfigError(
            f"finetune has no field {', '.join(unknown)}; its fields are {', '.join(sorted(known))}"
        )
    asked = Finetuning(data=str(data), model=str(model), **fields)
    return run_finetuning(asked, default_out(asked) if out is None else Path(out), device=device)


def default_out(asked: Finetuning) -> Path:
    return default_folder(asked.data, asked.model)


def run_finetuning(asked: Finetuning, folder: Path, *, device: Device = "auto") -> Finetuned:
    with group(pick(device)) as where:
        complete = resolved(asked, gpu=where.type == "cuda")
        experiment = experiment_of(complete)
        start = checked(complete, experiment, where, folder)
        with closing(Run.open(folder, identity(complete))) as whole:
            if has_weights(complete.model):
                whole.note_start(model_digest(start))
            done = whole.results()
            if done is None:
                done = finetuned(complete, experiment, folder, device, where)
                whole.finish(done)
            barrier()
    return Finetuned(folder, done)


def checked(f: Finetuning, experiment: Experiment, device: torch.device, folder: Path) -> Model:
    """The model that training begins with; whatever does not fit together is found before anything is written."""
    for rate in rates_of(f):
        assemble(with_rate(held_out(f, experiment), rate, f.seed), device, folder)
    return assemble(experiment, device, folder).model


def finetuned(
    f: Finetuning, experiment: Experiment, folder: Path, device: Device, where: torch.device
) -> dict[str, Any]:
    """Sweep, then a run for each seed: the results."""
    check_published(folder / "seeds" / str(f.seed), folder)
    if rank() == 0:
        advise(experiment, where, runs=f.seeds, sweep=len(rates_of(f)))
    rate, swept = chosen_rate(f, experiment, folder, device)
    runs = [
        run(with_rate(experiment, rate, seed), folder / "seeds" / str(seed), device=device)
        for seed in range(f.seed, f.seed + f.seeds)
    ]
    results = summary(f, rate, swept, runs)
    if rank() == 0:
        publish(runs[0], folder, results)
    return results


def identity(complete: Finetuning) -> dict[str, Any]:
    return {k: v for k, v in dataclasses.asdict(complete).items() if k not in INCIDENTAL}


def rates_of(f: Finetuning) -> tuple[float, ...]:
    return tuple(sorted(f.rates or ())) if f.sweep else ()


def chosen_rate(
    f: Finetuning, experiment: Experiment, folder: Path, device: Device
) -> tuple[float, dict[str, float]]:
    """The rate with the best accuracy on a held-out part of train; of equal ones the lowest."""
    assert f.rate is not None
    if not f.sweep:
        return f.rate, {}
    held, swept = held_out(f, experiment), {}
    for rate in rates_of(f):
        trained = run(with_rate(held, rate, f.seed), folder / "sweep" / f"{rate:g}", device=device)
        swept[rate] = trained.results["val"]["val_top1"]
    return max(swept, key=lambda rate: swept[rate]), {f"{rate:g}": score for rate, score in swept.items()}


def summary(f: Finetuning, rate: float, swept: dict[str, float], runs: list[Trained]) -> dict[str, Any]:
    tests = [trained.results["test"] for trained in runs]
    scores = {}
    for name in tests[0] or ():
        values = [test[name] for test in tests]
        spread = statistics.stdev(values) if len(values) > 1 else None
        scores[name] = {"mean": statistics.mean(values), "std": spread, "values": values}
    first = runs[0].results
    return {
        "rate": rate,
        "sweep": swept,
        "dev": f.dev if swept else None,
        "seeds": f.seeds,
        "steps": first["steps"],
        "scores": scores,
        "test_split": first.get("test_split"),
        "test_examples": first.get("test_examples"),
        "train_examples": first["train_examples"],
        "broken": first["broken"],
    }


def publish(first: Trained, folder: Path, results: dict[str, Any]) -> None:
    """The first seed's bundle and pictures where people look for them, and a table to read."""
    check_published(first.folder, folder)
    for name in PUBLISHED:
        there = first.folder / name
        with atomic_folder(folder / name) as temporary:
            for file in sorted(there.iterdir()):
                shutil.copyfile(file, temporary / file.name)
    with atomic_file(folder / "results.md") as path:
        path.write_text(results_table(results), encoding="utf-8")
    if results["broken"]:
        note(f"{results['broken']} broken images were left out: see {first.folder / 'bad_files.jsonl'}")


def check_published(first: Path, folder: Path) -> None:
    """Folders that are replaced hold what an earlier call put there, and nothing of the user's."""
    for name in PUBLISHED:
        ours = [file.name for file in (first / name).iterdir()] if (first / name).is_dir() else []
        check_own_folder(folder / name, tuple(ours), "fine-tuned")


def results_table(results: dict[str, Any]) -> str:
    """Markdown."""
    lines = [f"| score | mean | std | n = {results['seeds']} |", "|---|---|---|---|"]
    for name, score in results["scores"].items():
        spread = "" if score["std"] is None else f"{score['std']:.4f}"
        values = ", ".join(f"{value:.4f}" for value in score["values"])
        lines.append(f"| {name} | {score['mean']:.4f} | {spread} | {values} |")
    tested = (
        f"{results['test_examples']} of {results['test_split']}" if results["test_split"] else "not tested"
    )
    lines.append(
        f"\nrate {results['rate']:g}, {results['steps']} steps, {results['train_examples']} training images, {tested}"
    )
    return "\n".join(lines) + "\n"
