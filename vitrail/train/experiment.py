"""Everything that a run depends on, as one value: what recipes return, flags change and run.json records.

    Experiment = ModelChoice + DataChoice + ObjectiveChoice + Training

The comments of the fields are the help of the flags. Durations are values: 10_000 (steps), "90ep", "5%".
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass, field
from typing import Any, Literal

from vitrail.errors import ConfigError
from vitrail.train.duration import Duration, in_steps
from vitrail.train.optim import Optimization
from vitrail.train.parallel import Parallel
from vitrail.train.schedule import Decay, Schedule

Switch = Literal["auto", "on", "graphs", "off"]
# Fields that change where a run is computed and when it gives up, not what it computes: they may differ when it is
# continued.
INCIDENTAL = {"workers", "max_bad", "log_every", "save_every", "keep", "tensorboard", "parallel", "replicas"}


@dataclass(frozen=True)
class ModelChoice:
    model: str = "B/16"  # a name (fresh weights), or a path (the weights that are there)
    image_size: int | None = None  # pixels of a side; the name's or the file's own where nothing is said
    pool: Literal["token", "mean", "attention"] | None = None  # None: the model's own, here and below
    dropout: float | None = None
    drop_path: float | None = None  # stochastic depth: rate of the last layer
    pre_logits: bool = False  # a tanh layer of width D before the classifier, as the paper pre-trains
    head_bias: float | None = None  # initial bias of the classifier


@dataclass(frozen=True)
class DataChoice:
    data: str = ""  # a path or a name
    train: str = "auto"  # what is trained on; auto: train without what is held out
    val: str = "auto"  # held out of train, for every choice; auto: 10%, 2% or 1% of each class, by size; none
    test: str = "auto"  # evaluated once, at the end; auto: the test or validation split; none
    preprocess: str = ""  # training line; else inception crop and flip, to the model's size and range
    evaluate_preprocess: str = ""  # the line that is stored with the model; else the model's own
    batch: int = 256  # B, examples in a global batch
    mixup: float = 0.0  # p of Beta(p, p)
    cutmix: float = 0.0  # likewise
    max_bad: float = 0.01  # part of the examples that may be broken before the run stops
    workers: int | None = None  # processes that decode; None: by the machine
    resident: bool = False  # images stay on the device and are augmented there; for small ones
    fewshot: tuple[str, ...] = ()  # data sets to evaluate 5-shot while training


@dataclass(frozen=True)
class ObjectiveChoice:
    objective: Literal["softmax", "sigmoid", "masked"] = "softmax"  # cross-entropies; masked patch prediction
    smoothing: float = 0.0  # of the targets
    target: Literal["mean", "grid", "pixels"] = "mean"  # what is predicted of a masked patch
    corrupted: float = 0.5  # part of the patches; of these
    masked: float = 0.8  # become the mask embedding
    replaced: float = 0.1  # become another patch; the rest is kept


@dataclass(frozen=True)
class Training:
    steps: Duration = 10_000
    rate: float = 1e-3  # the highest learning rate
    decay: Decay = "cosine"
    warmup: Duration = "5%"
    end_rate: float = 1e-5  # where the linear decay ends
    stairs: tuple[int, ...] = ()  # steps at which the rate drops to a tenth
    optimization: Optimization = field(default_factory=Optimization)
    clip: float = 1.0  # largest global norm of the gradient; 0: none
    average: float = 0.0  # decay of the running average of the weights (0.9999); 0: none
    accumulate: int = 1  # parts that a batch is computed in
    precision: Literal["auto", "float32", "bf16"] = "auto"  # auto: bf16 on CUDA
    compile: Switch = "auto"  # auto: on for CUDA; graphs: as CUDA graphs, for small models on one GPU
    recompute: bool = False  # activation checkpointing: less memory, a third more time
    parallel: Parallel = "ddp"  # with several processes: whole copies, or shards (fsdp)
    replicas: int = 1  # with fsdp: groups of processes that hold copies of the shards
    log_every: Duration = "0.5%"
    evaluate_every: Duration = "10%"  # 0: only at the end, here and below
    save_every: Duration = "5%"
    keep: int = 2  # last checkpoints
    watch: str = ""  # a score, as val_top1 or val_loss: its best checkpoint is kept and becomes the model
    patience: int = 0  # evaluations without a better one before the run ends; 0: never
    on_nonfinite: Literal["stop", "skip"] = "stop"
    max_skipped: int = 10  # batches
    tensorboard: bool = False

    def in_steps(self, examples: int, batch: int) -> Training:
        """The same with every duration in steps."""
        steps = in_steps(self.steps, examples=examples, batch=batch)
        if steps < 1:
            raise ConfigError(
                f"steps {self.steps!r}: {examples:,} examples in batches of {batch} make {steps}"
            )

        def resolved(duration: Duration) -> int:
            """At least a step, but for 0 of anything: only at the end."""
            made = in_steps(duration, examples=examples, batch=batch, total=steps)
            return max(1, made) if re.search("[1-9]", str(duration)) else 0

        warmup = in_steps(self.warmup, examples=examples, batch=batch, total=steps)
        if warmup >= steps:
            raise ConfigError(
                f"a warm-up of {self.warmup} ({warmup} steps) leaves nothing of a run of {steps}"
            )
        return dataclasses.replace(
            self,
            steps=steps,
            warmup=warmup,
            log_every=max(1, resolved(self.log_every)),
            evaluate_every=resolved(self.evaluate_every),
            save_every=resolved(self.save_every),
        )

    def schedule(self) -> Schedule:
        """Of a training whose durations are in steps."""
        assert isinstance(self.steps, int) and isinstance(self.warmup, int)
        return Schedule(self.rate, self.steps, self.decay, self.warmup, self.end_rate, self.stairs)


@dataclass(frozen=True)
class Experiment:
    """A complete run."""

    model: ModelChoice = field(default_factory=ModelChoice)
    data: DataChoice = field(default_factory=DataChoice)
    objective: ObjectiveChoice = field(default_factory=ObjectiveChoice)
    training: Training = field(default_factory=Training)
    seed: int = 0

    def identity(self) -> dict[str, Any]:
        """What must be the same for a run to be continued, as run.json has it."""
        return {
            name: {k: v for k, v in part.items() if k not in INCIDENTAL} if isinstance(part, dict) else part
            for name, part in dataclasses.asdict(self).items()
        }
