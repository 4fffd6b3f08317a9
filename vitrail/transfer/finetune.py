"""A checkpoint and labelled images -> a classifier: new head, new resolution, trained by the one loop.

    finetune("photos/", "ViT-B_16.npz")                 one run
    finetune("photos/", "ViT-B_16.npz", sweep=True)     the rate chosen on a part held out of train, then all of train
    finetune("photos/", "ViT-B_16.npz", seeds=3)        mean and spread over seeds

The pre-training head goes, a linear layer of zeros takes its place, positions are resampled for the image size. The
test split is evaluated once for each seed. A folder holds run.json with the choices and results, sweep/ and seeds/
with a run each, model/ (the bundle of the first seed), figures/, mistakes.jsonl and results.md. The same call again
continues.
"""

from __future__ import annotations

import dataclasses
import shutil
import statistics
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

import torch

from vitrail.checkpoints.formats import has_weights, load
from vitrail.checkpoints.license import in_words, known
from vitrail.checkpoints.run import Run
from vitrail.checkpoints.torch_files import check_own_folder
from vitrail.data.sources import TEST_SPLITS, Source, is_cut_here, open_source, splits_of, unseen_split
from vitrail.data.splits import parse_split
from vitrail.errors import ConfigError, DataError
from vitrail.evaluators.feature_cache import model_digest
from vitrail.models.names import Model
from vitrail.runtime.device import Device, pick
from vitrail.runtime.distributed import barrier, group, rank
from vitrail.runtime.files import atomic_file, atomic_folder
from vitrail.runtime.log import note
from vitrail.train.assembly import assemble
from vitrail.train.experiment import INCIDENTAL, Experiment
from vitrail.train.fields import typed
from vitrail.train.folders import default_folder
from vitrail.train.run import MISTAKES, Trained, run
from vitrail.train.sources import NOTHING, Sources, some_of
from vitrail.transfer.estimate import advise
from vitrail.transfer.finetune_settings import Finetuning, experiment_of, held_out, resolved, with_rate
from vitrail.transfer.results_page import results_page, tie

PUBLISHED = ("model", "figures")  # of the first seed's run


@dataclass(frozen=True)
class Finetuned:
    """`results`: the chosen rate, and for each score mean, std and the value of each seed."""

    folder: Path
    results: dict[str, Any]

    def model(self) -> Model:
        return load(self.folder / "model")


def finetune(
    data: str | Path,
    model: str | Path,
    *,
    out: str | Path | None = None,
    device: Device = "auto",
    **fields: Any,
) -> Finetuned:
    """Fine-tune `model` on `data`; any field of `Finetuning` by name. `out`: where the results go."""
    known = {f.name for f in dataclasses.fields(Finetuning)}
    if unknown := sorted(set(fields) - known):
        raise ConfigError(
            f"finetune has no field {', '.join(unknown)}; its fields are {', '.join(sorted(known))}"
        )
    if isinstance(model, Model):
        raise ConfigError(
            "finetune takes the path or name of a model, by which a run is known and continued, not the model: "
            "vitrail.save(model, FOLDER) first, and give the FOLDER"
        )
    given, annotations = {"data": data, "model": model, **fields}, get_type_hints(Finetuning)
    asked = Finetuning(**{name: typed(name, value, annotations[name]) for name, value in given.items()})
    return run_finetuning(asked, default_out(asked) if out is None else Path(out), device=device)


def default_out(asked: Finetuning) -> Path:
    return default_folder(asked.data, asked.model)


def run_finetuning(asked: Finetuning, folder: Path, *, device: Device = "auto") -> Finetuned:
    with group(pick(device)) as where:
        complete = resolved(asked, gpu=where.type == "cuda")
        experiment = experiment_of(complete)
        sources, model = checked(complete, experiment, where, folder)
        start = model_digest(model) if has_weights(complete.model) else None
        with closing(Run.open(folder, identity(complete), data=sources.noted(), start=start)) as whole:
            done = whole.results()
            if done is None:
                check_published(folder / "seeds" / str(complete.seed), folder)
                if rank() == 0:
                    describe(complete, sources)
                    tell_license(complete.model, model.license)
                    advise(experiment, where, runs=complete.seeds, sweep=len(rates_of(complete)))
                done = finetuned(complete, experiment, sources, folder, device)
                whole.finish(done)
            barrier()
    return Finetuned(folder, done)


def checked(
    f: Finetuning, experiment: Experiment, device: torch.device, folder: Path
) -> tuple[Sources, Model]:
    """The data, and the model that training begins with; whatever does not fit together is found before anything is
    written."""
    for rate in rates_of(f):
        assemble(with_rate(held_out(f, experiment), rate, f.seed), device, folder)
    parts = assemble(experiment, device, folder)
    return parts.sources, parts.model


def describe(f: Finetuning, sources: Sources) -> None:
    """How many images are used for what, and what will not be tested."""
    words = [f"{len(sources.train):,} images of {sources.train.name} to train on"]
    if sources.test is not None:
        words.append(f"{len(sources.test):,} of {sources.test.name} to test on")
    unused = unused_splits(f)
    words += [f"{len(source):,} of {source.name} unused" for source in unused.values()]
    if f.train == "train" and "validation" in unused and not f.sweep:
        words[-1] += " (--train train+validation trains on both)"
    cut = "; vitrail cut them out of one folder" if is_cut_here(f.data) else ""
    note(", ".join(words) + cut)
    if missing := sources.untested():
        assert sources.test is not None
        note(
            f"{sources.test.name} has no images of {len(missing):,} of {len(sources.train.class_names):,} classes, "
            f"which will not be tested: {some_of(missing)}"
        )


def tell_license(start: str, license: dict[str, str]) -> None:
    """What is known of the weights that training begins with holds for those that it ends with."""
    if known(license):
        note(f"license of {start}, and of what is trained from it: {in_words(license)}")


def unused_splits(f: Finetuning) -> dict[str, Source]:
    """Of validation and test, those that are there and of which nothing is used."""
    test = unseen_split(f.data, f.train) if f.test == "auto" else f.test
    used = {part.name for text in (f.train, test) if text not in NOTHING for part in parse_split(text or "")}
    made = {}
    for name in splits_of(f.data):
        if name in TEST_SPLITS and name not in used:
            with suppress(DataError):  # of images without labels, or of none: nobody could use it
                made[name] = open_source(f.data, name)
    return made


def finetuned(
    f: Finetuning, experiment: Experiment, sources: Sources, folder: Path, device: Device
) -> dict[str, Any]:
    """Sweep, then a run for each seed: the results."""
    rate, swept = chosen_rate(f, experiment, folder, device)
    runs = [
        run(with_rate(experiment, rate, seed), folder / "seeds" / str(seed), device=device)
        for seed in range(f.seed, f.seed + f.seeds)
    ]
    results = summary(f, rate, swept, runs) | {"untested": sources.untested()}
    if rank() == 0:
        publish(runs[0], folder, results)
    return results


def identity(complete: Finetuning) -> dict[str, Any]:
    return {k: v for k, v in dataclasses.asdict(complete).items() if k not in INCIDENTAL}


def rates_of(f: Finetuning) -> tuple[float, ...]:
    return tuple(sorted(f.rates or ())) if f.sweep else ()


def chosen_rate(
    f: Finetuning, experiment: Experiment, folder: Path, device: Device
) -> tuple[float, dict[str, dict[str, float]]]:
    """The rate with the best accuracy on a held-out part of train; of equal ones that of the lowest loss, then the
    lowest. And the scores of each."""
    assert f.rate is not None
    if not f.sweep:
        return f.rate, {}
    held, swept = held_out(f, experiment), {}
    rates = {f"{rate:g}": rate for rate in rates_of(f)}
    for name, rate in rates.items():
        val = run(with_rate(held, rate, f.seed), folder / "sweep" / name, device=device).results["val"]
        swept[name] = {score: val[score] for score in ("val_top1", "val_loss")}
    if (said := tie(swept)) and rank() == 0:
        note(said)
    best = max(swept, key=lambda name: (swept[name]["val_top1"], -swept[name]["val_loss"]))
    return rates[best], swept


def summary(
    f: Finetuning, rate: float, swept: dict[str, dict[str, float]], runs: list[Trained]
) -> dict[str, Any]:
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
        "per_class": class_means(runs),
        "wrong": first.get("wrong"),
        "license": first.get("license", {}),
    }


def class_means(runs: list[Trained]) -> list[dict[str, Any]]:
    """Of each class that was tested, how many images, and the mean accuracy over the seeds."""
    by_seed = zip(*(trained.results.get("per_class", []) for trained in runs), strict=False)
    return [
        {"name": same[0]["name"], "n": same[0]["n"], "accuracy": statistics.mean(c["accuracy"] for c in same)}
        for same in by_seed
    ]


def publish(first: Trained, folder: Path, results: dict[str, Any]) -> None:
    """The first seed's bundle and pictures where people look for them, and a table to read."""
    check_published(first.folder, folder)
    for name in PUBLISHED:
        there = first.folder / name
        with atomic_folder(folder / name) as temporary:
            for file in sorted(there.iterdir()):
                shutil.copyfile(file, temporary / file.name)
    if (first.folder / MISTAKES).exists():
        with atomic_file(folder / MISTAKES) as path:
            shutil.copyfile(first.folder / MISTAKES, path)
    with atomic_file(folder / "results.md") as path:
        path.write_text(results_page(results), encoding="utf-8")
    if results["broken"]:
        note(f"{results['broken']} broken images were left out: see {first.folder / 'bad_files.jsonl'}")


def check_published(first: Path, folder: Path) -> None:
    """Folders that are replaced hold what an earlier call put there, and nothing of the user's."""
    for name in PUBLISHED:
        ours = [file.name for file in (first / name).iterdir()] if (first / name).is_dir() else []
        check_own_folder(folder / name, tuple(ours), "fine-tuned")
