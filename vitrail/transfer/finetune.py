"""A checkpoint and labelled images -> a classifier: new head, new resolution, trained by the one loop.

    finetune("photos/", "ViT-B_16.npz")                 one run
    finetune("photos/", "ViT-B_16.npz", sweep=True)     the rate chosen on a part held out of train, then all of train
    finetune("photos/", "ViT-B_16.npz", seeds=3)        mean and spread over seeds

The pre-training head goes, a linear layer of zeros takes its place, positions are resampled for the image size. The
test split is evaluated once for each seed. A folder holds run.json with the choices and results, sweep/ and seeds/
with a run each, model/ (the bundle of the first seed), figures/, mistakes.jsonl and results.md. The same call again
continues; finished, it writes those models again that are missing or damaged since.
"""

from __future__ import annotations

import dataclasses
import shutil
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

import torch

from vitrail.checkpoints.formats import has_weights, load
from vitrail.checkpoints.json_files import check_kind
from vitrail.checkpoints.license import in_words, known
from vitrail.checkpoints.run import Run
from vitrail.checkpoints.run.state import fail_together
from vitrail.checkpoints.torch_files import check_own_folder
from vitrail.data.sources import TEST_SPLITS, Source, is_cut_here, open_source, splits_of, unseen_split
from vitrail.data.splits import parse_split
from vitrail.errors import CheckpointError, ConfigError, DataError
from vitrail.inference.feature_cache import model_digest
from vitrail.models.names import Model
from vitrail.runtime.device import Device, pick
from vitrail.runtime.distributed import barrier, gather, group, rank
from vitrail.runtime.files import atomic_file, atomic_folder
from vitrail.runtime.log import note
from vitrail.train.assembly import assemble
from vitrail.train.experiment import INCIDENTAL, Experiment
from vitrail.train.fields import typed
from vitrail.train.folders import default_folder
from vitrail.train.results import FILES, MODEL, Scores, is_broken, lacks_model
from vitrail.train.run import MISTAKES, Trained, run
from vitrail.train.sources import NOTHING, Sources, some_of
from vitrail.transfer.estimate import advise
from vitrail.transfer.finetune_results import Results, Swept, best_of, summary
from vitrail.transfer.finetune_settings import Finetuning, experiment_of, held_out, resolved, with_rate
from vitrail.transfer.results_page import results_page, tie

PUBLISHED = (MODEL, "figures")  # of the first seed's run


@dataclass(frozen=True)
class Finetuned:
    """`results`: the chosen rate, and for each score mean, std and the value of each seed."""

    folder: Path
    results: dict[str, Any]

    def model(self) -> Model:
        return load(self.folder / MODEL)


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
            done = whole.results(Results)
            if done is not None:
                mend(complete, experiment, folder, done, device)
            else:
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
        for seed in seeds_of(f)
    ]
    results = summary(f, rate, swept, runs) | {"untested": sources.untested()}
    if rank() == 0:
        publish(runs[0], folder, results)
    return results | {"model": runs[0].results["model"]}


def mend(f: Finetuning, experiment: Experiment, folder: Path, done: dict[str, Any], device: Device) -> None:
    """Write those bundles of a finished fine-tuning again that are not what was written: each run its own, from its
    checkpoint, then the copy of the first one's. A run inside may have been removed to make room."""
    first = folder / "seeds" / str(f.seed)
    runs = {first.with_name(str(s)): with_rate(experiment, done["rate"], s) for s in seeds_of(f)}
    for rate in rates_of(f):
        runs[folder / "sweep" / f"{rate:g}"] = with_rate(held_out(f, experiment), rate, f.seed)
    for place, its in runs.items():
        broken = False
        try:
            with fail_together(f"{place} cannot be read"):
                if rank() == 0:
                    broken = lacks_model(place)
            if gather(broken)[0]:
                run(its, place, device=device)
        except CheckpointError as error:
            if rank() == 0:
                note(str(error))
    with fail_together(f"{folder / MODEL} cannot be written"):
        if rank() == 0 and is_broken(folder, done):
            if is_broken(first, done):
                raise CheckpointError(
                    f"{folder} is finished, but its {MODEL} is missing or damaged, and so is the one in {first} that "
                    "it is a copy of: remove the folder, or choose another, to train anew"
                )
            note(f"{folder / MODEL} was missing or damaged: it is copied again from {first}")
            check_own_folder(folder / MODEL, FILES, "fine-tuned")
            copy_folder(first / MODEL, folder / MODEL)


def identity(complete: Finetuning) -> dict[str, Any]:
    return {k: v for k, v in dataclasses.asdict(complete).items() if k not in INCIDENTAL}


def seeds_of(f: Finetuning) -> range:
    return range(f.seed, f.seed + f.seeds)


def rates_of(f: Finetuning) -> tuple[float, ...]:
    return tuple(sorted(f.rates or ())) if f.sweep else ()


def chosen_rate(
    f: Finetuning, experiment: Experiment, folder: Path, device: Device
) -> tuple[float, dict[str, Scores]]:
    """The rate with the best accuracy on a held-out part of train; of equal ones that of the lowest loss, then the
    lowest. And the scores of each."""
    assert f.rate is not None
    if not f.sweep:
        return f.rate, {}
    held, swept = held_out(f, experiment), {}
    rates = {f"{rate:g}": rate for rate in rates_of(f)}
    for name, rate in rates.items():
        trained = run(with_rate(held, rate, f.seed), folder / "sweep" / name, device=device)
        val = trained.results["val"]
        check_kind(val, Swept, f"{trained.folder}: results on val")
        swept[name] = {score: val[score] for score in ("val_top1", "val_loss")}
    if (said := tie(swept)) and rank() == 0:
        note(said)
    return rates[best_of(swept)], swept


def publish(first: Trained, folder: Path, results: dict[str, Any]) -> None:
    """The first seed's bundle and pictures where people look for them, and a table to read."""
    check_published(first.folder, folder)
    for name in PUBLISHED:
        copy_folder(first.folder / name, folder / name)
    if (first.folder / MISTAKES).exists():
        with atomic_file(folder / MISTAKES) as path:
            shutil.copyfile(first.folder / MISTAKES, path)
    with atomic_file(folder / "results.md") as path:
        path.write_text(results_page(results), encoding="utf-8")
    if results["broken"]:
        note(f"{results['broken']} broken images were left out: see {first.folder / 'bad_files.jsonl'}")


def copy_folder(there: Path, here: Path) -> None:
    with atomic_folder(here) as temporary:
        for file in sorted(there.iterdir()):
            shutil.copyfile(file, temporary / file.name)


def check_published(first: Path, folder: Path) -> None:
    """Folders that are replaced hold what an earlier call put there, and nothing of the user's."""
    for name in PUBLISHED:
        ours = [file.name for file in (first / name).iterdir()] if (first / name).is_dir() else []
        check_own_folder(folder / name, tuple(ours), "fine-tuned")
