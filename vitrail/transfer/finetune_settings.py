"""What a fine-tuning is: its settings, with what the person leaves open filled in by a protocol (protocols.py), and
the experiment that they come to."""

from __future__ import annotations

import dataclasses
import re
import statistics
from dataclasses import dataclass
from typing import Literal

from vitrail.checkpoints.formats import has_weights, read
from vitrail.data import preprocess as pp
from vitrail.data.decode import decode
from vitrail.data.sources import Source, open_source
from vitrail.errors import ConfigError, DataError, ImageError
from vitrail.models.names import make_config
from vitrail.models.vit import ViTConfig
from vitrail.train.duration import Duration
from vitrail.train.experiment import DataChoice, Experiment, ModelChoice, ObjectiveChoice, Switch, Training
from vitrail.train.optim import Optimization
from vitrail.train.parallel import Parallel
from vitrail.train.schedule import Decay
from vitrail.transfer.protocols import PROTOCOLS, Facts

LOOKED_AT = 20  # images, for their size
# Adam's rates are not SGD's, which the protocols have.
ADAMW = {"rate": 3e-4, "rates": (1e-4, 3e-4, 1e-3, 3e-3)}


@dataclass(frozen=True)
class Finetuning:
    """What is None is filled in by the protocol (protocols.py)."""

    data: str = ""  # a folder of images, Parquet or tar shards, or a name
    model: str = ""  # ti8-64 (in the box), a bundle, anyone's checkpoint; an architecture: from scratch
    # what fills in the fields that are None: default is for photographs, paper is Table 4, augreg the preset of its
    # checkpoints, bit is BiT-HyperRule
    protocol: Literal["default", "paper", "augreg", "bit"] = "default"
    train: str = "train"  # split that is trained on
    test: str = "auto"  # split that is evaluated once for each seed, or none; auto: test or validation
    sweep: bool = False  # choose the rate on a part held out of train
    rates: tuple[float, ...] | None = None  # what --sweep chooses from; None: by the protocol
    dev: float | None = None  # part of train that --sweep holds out; None: 10%, 2% or 1%, by size
    seeds: int = 1  # runs, for mean and spread
    seed: int = 0  # seed of the first run
    image_size: int | None = None  # pixels of a side; None: by the protocol
    steps: Duration | None = None  # length: steps (500) or passes over the data (20ep); None: by the protocol
    batch: int | None = None  # examples in a step, of all processes together; None: by the protocol
    rate: float | None = None  # the highest learning rate; None: by the protocol
    warmup: Duration | None = None  # how long the rate rises from 0, as 100 or 10%; None: by the protocol
    decay: Decay | None = None  # how the rate falls after the warm-up; None: by the protocol
    stairs: tuple[Duration, ...] | None = None  # after which the rate drops to a tenth; None: by the protocol
    optimizer: Literal["sgd", "adamw"] | None = None  # what takes the steps; None: sgd
    weight_decay: float | None = None  # decay of the kernels; None: 0
    layer_decay: float = 1.0  # factor of the rate from one layer to the one below
    # parts that stay as they are: body (all but the head), embedding, encoder.blocks.0
    freeze: tuple[str, ...] = ()
    clip: float | None = None  # largest global norm of the gradient; 0: no clipping; None: by the protocol
    average: float = 0.0  # decay of the running average of the weights, as 0.9999; 0: none
    average_ramp: bool = False  # let that decay rise to its value, (1 + t) / (10 + t) after t steps
    # part of the activations that is dropped; None: the model's, with protocols paper, augreg and bit 0
    dropout: float | None = None
    # stochastic depth of the last layer; None: the model's, with protocols paper, augreg and bit 0
    drop_path: float | None = None
    mixup: float | None = None  # images are mixed, by Beta(p, p) for this p; None: by the protocol
    smoothing: float = 0.0  # part of each target that is spread over all classes
    accumulate: int = 1  # parts that a batch is computed in
    recompute: bool = False  # activation checkpointing: less memory, a third more time
    parallel: Parallel = "ddp"  # with several processes: whole copies, or shards (fsdp)
    replicas: int = 1  # with fsdp: groups of processes that hold copies of the shards
    precision: Literal["auto", "float32", "bf16"] = "auto"  # auto: bf16 on CUDA, else float32
    compile: Switch = "auto"  # auto: on for CUDA; graphs: as CUDA graphs, for small models on one GPU
    preprocess: str | None = None  # line of training; None: by the protocol
    evaluate_preprocess: str | None = None  # line that is stored with the model; None: by the protocol
    max_bad: float = 0.01  # part of the images that may be broken before the run stops
    workers: int | None = None  # processes that decode; None: on CUDA one for each core, at most 16, else 0
    resident: bool = False  # keep the images on the device and augment them there; for small ones


def resolved(asked: Finetuning, *, gpu: bool) -> Finetuning:
    """With every open field filled in, and what cannot be refused."""
    check(asked)
    source = open_source(asked.data, asked.train)
    check_counts(source)
    facts = facts_of(asked.model, source, gpu, asked.image_size)
    fields = PROTOCOLS[asked.protocol](facts, asked.image_size)
    if asked.optimizer == "adamw":
        fields |= ADAMW
    if asked.decay not in (None, "stairs"):
        fields.pop("stairs", None)
    complete = dataclasses.replace(asked, **{k: v for k, v in fields.items() if getattr(asked, k) is None})
    assert complete.batch is not None and complete.dev is not None
    left = int(len(source) * (1 - complete.dev)) - len(source.class_names) if asked.sweep else len(source)
    if asked.batch is None and complete.batch > left:
        # Published batches on small data: as large as the data allows, in powers of two.
        complete = dataclasses.replace(complete, batch=2 ** (max(1, left).bit_length() - 1))
    return complete


def check(asked: Finetuning) -> None:
    if not asked.data:
        raise ConfigError("no data: --data PATH (a folder of images, Parquet or tar shards), or a name")
    if not asked.model:
        raise ConfigError(
            "no model: --model PATH (anyone's checkpoint, a bundle), ti8-64 (in the box), or an architecture's name "
            "to train from scratch"
        )
    if asked.seeds < 1:
        raise ConfigError(f"seeds {asked.seeds}: at least 1 run is needed")
    if asked.protocol not in PROTOCOLS:
        raise ConfigError(f"protocol {asked.protocol!r} is not one of {', '.join(PROTOCOLS)}")
    if asked.dev is not None and not 0 < asked.dev < 1:
        raise ConfigError(f"dev {asked.dev:g}: the part of train that is held out lies between 0 and 1")
    if asked.sweep and asked.rates is not None and not asked.rates:
        raise ConfigError("a sweep without rates: --rates 0.001 0.01, or leave them to the protocol")
    if asked.sweep and not re.fullmatch(r"[\w.\-]+", asked.train):
        raise ConfigError(
            f"a sweep holds out a part of train, which must be a whole split, not {asked.train!r}"
        )


def facts_of(model: str, source: Source, gpu: bool, image_size: int | None = None) -> Facts:
    if has_weights(model):
        known = read(model)
        config, line = known.config, known.preprocess
    else:
        config, line = make_config(model), "to_range(-1, 1)"
    height, width = config.image_size
    if height != width and image_size is None:
        raise ConfigError(
            f"{model} is for images of {height} x {width} pixels, and fine-tuning crops squares: --image-size "
            f"{min(height, width)} resamples its positions to a square"
        )
    stride, has_dropout = (config.stride, True) if isinstance(config, ViTConfig) else (1, False)
    value = str(pp.Pipeline((), pp.parse(line).value_op))
    sizes = some_sizes(source)
    short = int(statistics.median(min(size) for size in sizes))
    area = int(statistics.median(h * w for h, w in sizes))
    return Facts(len(source), short, area, min(height, width), stride, value, gpu, has_dropout)


def some_sizes(source: Source) -> list[tuple[int, int]]:
    """(H, W) of a few images, evenly taken."""
    sizes: list[tuple[int, int]] = []
    for index in range(0, len(source), max(1, len(source) // LOOKED_AT)):
        try:
            image = source.read(index).image
            height, width = (decode(image) if isinstance(image, bytes) else image).shape[:2]
            sizes.append((height, width))
        except (ImageError, DataError):
            continue  # the loader reports broken files; they have no size
    if not sizes:
        raise DataError(f"{source.name}: none of the images that were looked at for their size can be read")
    return sizes


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
            max_bad=f.max_bad,
            workers=f.workers,
            resident=f.resident,
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
            average_ramp=f.average_ramp,
            accumulate=f.accumulate,
            precision=f.precision,
            compile=f.compile,
            recompute=f.recompute,
            parallel=f.parallel,
            replicas=f.replicas,
            save_every="25%",
        ),
        f.seed,
    )


def held_out(f: Finetuning, experiment: Experiment) -> Experiment:
    """The same on a part of train, with the rest to choose by, and no test split."""
    assert f.dev is not None
    part = f"{100 * (1 - f.dev):g}%"
    data = dataclasses.replace(
        experiment.data,
        train=f"{f.train}[:{part} per class]",
        val=f"{f.train}[{part}: per class]",
        test="none",
    )
    training = dataclasses.replace(experiment.training, evaluate_every=0)
    return dataclasses.replace(experiment, data=data, training=training)


def with_rate(experiment: Experiment, rate: float, seed: int) -> Experiment:
    training = dataclasses.replace(experiment.training, rate=rate)
    return dataclasses.replace(experiment, training=training, seed=seed)
