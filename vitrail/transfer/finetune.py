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
import re
import shutil
import statistics
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from vitrail.checkpoints.formats import load
from vitrail.checkpoints.run import Run
from vitrail.data import preprocess as pp
from vitrail.data.decode import decode
from vitrail.data.sources import Source, open_source
from vitrail.errors import ConfigError, DataError, ImageError
from vitrail.models.names import Model
from vitrail.models.vit import ViTConfig
from vitrail.runtime.device import Device, pick
from vitrail.runtime.distributed import barrier, group, rank
from vitrail.runtime.files import atomic_file, atomic_folder
from vitrail.runtime.log import note
from vitrail.train.duration import Duration
from vitrail.train.experiment import DataChoice, Experiment, ModelChoice, ObjectiveChoice, Switch, Training
from vitrail.train.optim import Optimization
from vitrail.train.run import Trained, run
from vitrail.train.schedule import Decay
from vitrail.transfer.estimate import advise
from vitrail.transfer.protocols import PROTOCOLS, Facts

LOOKED_AT = 20  # images, for their size


@dataclass(frozen=True)
class Finetuning:
    """What is None is filled in by the protocol (protocols.py)."""

    data: str = ""  # a folder of images, Parquet or tar shards, or a name
    model: str = ""  # anyone's checkpoint or a bundle; an architecture's name: from scratch
    protocol: Literal["default", "paper", "bit"] = "default"
    train: str = "train"
    test: str = "auto"  # evaluated once for each seed; auto: the test or validation split; none
    sweep: bool = False  # choose the rate on a part held out of train
    rates: tuple[float, ...] | None = None  # to choose from
    dev: float | None = None  # the part that is held out for it
    seeds: int = 1  # runs, for mean and spread
    seed: int = 0  # the first of them
    image_size: int | None = None  # pixels of a side
    steps: Duration | None = None
    batch: int | None = None
    rate: float | None = None  # the highest learning rate
    warmup: Duration | None = None
    decay: Decay | None = None
    stairs: tuple[int, ...] | None = None
    optimizer: Literal["sgd", "adamw"] | None = None
    weight_decay: float | None = None
    layer_decay: float = 1.0  # factor of the rate from one layer to the one below
    freeze: tuple[
        str, ...
    ] = ()  # parts that stay as they are: body (all but the head), embedding, encoder.blocks.0
    clip: float | None = None
    average: float = 0.0  # decay of the running average of the weights
    dropout: float | None = None
    drop_path: float | None = None
    mixup: float | None = None
    smoothing: float = 0.0
    accumulate: int = 1  # parts that a batch is computed in
    precision: Literal["auto", "float32", "bf16"] = "auto"  # auto: bf16 on CUDA
    compile: Switch = "auto"  # auto: on for CUDA
    preprocess: str | None = None  # training line
    evaluate_preprocess: str | None = None  # the line that is stored with the model
    workers: int | None = None  # processes that decode


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
    return Path(
        "runs", f"{Path(asked.data.partition('?')[0]).name}-{Path(asked.model).name}".replace("/", "-")
    )


def run_finetuning(asked: Finetuning, folder: Path, *, device: Device = "auto") -> Finetuned:
    with group(pick(device)) as where:
        complete = resolved(asked, gpu=where.type == "cuda")
        experiment = experiment_of(complete)
        with closing(Run.open(folder, identity(complete))) as whole:
            done = whole.results()
            if done is None:
                if rank() == 0:
                    advise(experiment, where, runs=complete.seeds, sweep=len(rates_of(complete)))
                rate, swept = chosen_rate(complete, experiment, folder, device)
                runs = [
                    run(with_rate(experiment, rate, seed), folder / "seeds" / str(seed), device=device)
                    for seed in range(complete.seed, complete.seed + complete.seeds)
                ]
                done = summary(complete, rate, swept, runs)
                if rank() == 0:
                    publish(runs[0], folder, done)
                whole.finish(done)
            barrier()
    return Finetuned(folder, done)


def identity(complete: Finetuning) -> dict[str, Any]:
    return {k: v for k, v in dataclasses.asdict(complete).items() if k != "workers"}


def resolved(asked: Finetuning, *, gpu: bool) -> Finetuning:
    """With every open field filled in."""
    if not asked.data:
        raise ConfigError("no data: --data PATH (a folder of images, Parquet or tar shards), or a name")
    if not asked.model:
        raise ConfigError(
            "no model: --model PATH (anyone's checkpoint, or a bundle), or a name to train from scratch"
        )
    if asked.seeds < 1:
        raise ConfigError(f"seeds {asked.seeds}: at least 1 run is needed")
    source = open_source(asked.data, asked.train)
    check_counts(source)
    fields = PROTOCOLS[asked.protocol](facts_of(asked.model, source, gpu), asked.image_size)
    left = {k: v for k, v in fields.items() if getattr(asked, k) is None}
    complete = dataclasses.replace(asked, **left)
    if complete.batch is not None and complete.batch > len(source) and asked.batch is None:
        # Published batches on small data: as large as the data allows, in powers of two.
        complete = dataclasses.replace(complete, batch=2 ** (len(source).bit_length() - 1))
    return complete


def facts_of(model: str, source: Source, gpu: bool) -> Facts:
    from vitrail.checkpoints.formats import create

    known = load(model) if Path(model).exists() else create(model, classes=1)
    config = known.config
    stride = config.stride if isinstance(config, ViTConfig) else 1
    value = str(pp.Pipeline((), pp.parse(known.preprocess).value_op))
    return Facts(len(source), short_side(source), min(config.image_size), stride, value, gpu)


def short_side(source: Source) -> int:
    """Of a typical image: the median over a few, evenly taken."""
    sides = []
    for index in range(0, len(source), max(1, len(source) // LOOKED_AT)):
        try:
            image = source.read(index).image
            sides.append(min((decode(image) if isinstance(image, bytes) else image).shape[:2]))
        except (ImageError, DataError):
            continue  # the loader reports broken files; they have no size
    if not sides:
        raise DataError(f"{source.name}: none of the first images that were looked at can be read")
    return int(statistics.median(sides))


def check_counts(source: Source) -> None:
    """Found before anything is computed."""
    if len(source.class_names) < 2:
        raise DataError(
            f"{source.name} has one class only, {', '.join(source.class_names)}: there is nothing to tell apart"
        )
    counts = dict.fromkeys(source.class_names, 0)
    for label in source.labels.tolist():
        counts[source.class_names[label]] += 1
    if few := [name for name, n in counts.items() if n < 2]:
        raise DataError(
            f"{source.name}: {len(few)} classes have fewer than 2 images to train on: {', '.join(few[:5])}; "
            "add images, or leave these classes out"
        )


def experiment_of(f: Finetuning) -> Experiment:
    """The complete run, on all of train; what no protocol sets has the default of `Experiment`."""
    assert f.steps is not None and f.batch is not None and f.rate is not None and f.warmup is not None
    assert (
        f.decay is not None and f.optimizer is not None and f.weight_decay is not None and f.clip is not None
    )
    optimization = Optimization(
        f.optimizer, weight_decay=f.weight_decay, layer_decay=f.layer_decay, freeze=f.freeze
    )
    return Experiment(
        ModelChoice(f.model, f.image_size, dropout=f.dropout, drop_path=f.drop_path),
        DataChoice(
            f.data,
            train=f.train,
            val="none",
            test=f.test,
            preprocess=f.preprocess or "",
            evaluate_preprocess=f.evaluate_preprocess or "",
            batch=f.batch,
            mixup=f.mixup or 0.0,
            workers=f.workers,
        ),
        ObjectiveChoice("softmax", f.smoothing),
        Training(
            steps=f.steps,
            rate=f.rate,
            decay=f.decay,
            warmup=f.warmup,
            stairs=f.stairs or (),
            optimization=optimization,
            clip=f.clip,
            average=f.average,
            accumulate=f.accumulate,
            precision=f.precision,
            compile=f.compile,
            save_every="25%",
        ),
        f.seed,
    )


def rates_of(f: Finetuning) -> tuple[float, ...]:
    return (f.rates or ()) if f.sweep else ()


def chosen_rate(
    f: Finetuning, experiment: Experiment, folder: Path, device: Device
) -> tuple[float, dict[str, float]]:
    """The rate with the best accuracy on a held-out part of train; of equal ones the lowest."""
    assert f.rate is not None and f.dev is not None
    if not f.sweep:
        return f.rate, {}
    if not re.fullmatch(r"[\w.\-]+", f.train):
        raise ConfigError(f"a sweep holds out a part of train, which must be a whole split, not {f.train!r}")
    part = f"{100 * (1 - f.dev):g}%"
    data = dataclasses.replace(
        experiment.data,
        train=f"{f.train}[:{part} per class]",
        val=f"{f.train}[{part}: per class]",
        test="none",
    )
    training = dataclasses.replace(experiment.training, evaluate_every="100%")
    held = dataclasses.replace(experiment, data=data, training=training)
    swept = {}
    for rate in sorted(rates_of(f)):
        trained = run(with_rate(held, rate, f.seed), folder / "sweep" / f"{rate:g}", device=device)
        swept[f"{rate:g}"] = trained.results["val"]["val_top1"]
    return float(max(swept, key=lambda rate: swept[rate])), swept


def with_rate(experiment: Experiment, rate: float, seed: int) -> Experiment:
    training = dataclasses.replace(experiment.training, rate=rate)
    return dataclasses.replace(experiment, training=training, seed=seed)


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
    for name in ("model", "figures"):
        there = first.folder / name
        with atomic_folder(folder / name) as temporary:
            for file in sorted(there.iterdir()):
                shutil.copyfile(file, temporary / file.name)
    with atomic_file(folder / "results.md") as path:
        path.write_text(results_table(results), encoding="utf-8")
    if results["broken"]:
        note(f"{results['broken']} broken images were left out: see {first.folder / 'bad_files.jsonl'}")


def results_table(results: dict[str, Any]) -> str:
    """Markdown."""
    lines = [f"| score | mean | std | n = {results['seeds']} |", "|---|---|---|---|"]
    for name, score in results["scores"].items():
        spread = "" if score["std"] is None else f"{score['std']:.4f}"
        values = ", ".join(f"{value:.4f}" for value in score["values"])
        lines.append(f"| {name} | {score['mean']:.4f} | {spread} | {values} |")
    lines.append(
        f"\nrate {results['rate']:g}, {results['steps']} steps, {results['train_examples']} training images, "
        f"{results['test_examples']} of {results['test_split']}"
    )
    return "\n".join(lines) + "\n"
