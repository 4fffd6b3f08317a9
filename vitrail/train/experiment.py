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
    model: str = "B/16"  # a name such as B/16 (fresh weights), a path or ti8-64 (the weights there)
    image_size: int | None = None  # pixels of a side; None: the model's own
    pool: Literal["token", "mean", "attention"] | None = None  # what the head reads; None: the model's own
    dropout: float | None = None  # part of the activations that is dropped; None: the model's own, else 0
    drop_path: float | None = None  # stochastic depth: rate of the last layer; None: the model's own, else 0
    pre_logits: bool = False  # a tanh layer of width D before the classifier, as the paper pre-trains
    head_bias: float | None = None  # initial bias of the classifier; None: 0


@dataclass(frozen=True)
class DataChoice:
    data: str = ""  # a folder of images, Parquet or tar shards, or a name
    train: str = "auto"  # split that is trained on; auto: train without what is held out
    val: str = "auto"  # split to choose by, or none; auto: 10%, 2% or 1% of each class, none with --train
    test: str = "auto"  # split that is evaluated once, at the end, or none; auto: test or validation
    preprocess: str = ""  # line of training; none given: inception crop and flip, to the model's size
    evaluate_preprocess: str = ""  # line that is stored with the model; none given: the model's own
    batch: int = 256  # examples in a step, of all processes together
    mixup: float = 0.0  # images are mixed, with weights of Beta(p, p) for this p; 0: none
    cutmix: float = 0.0  # a rectangle comes from another image, its area by Beta(p, p) for this p; 0: none
    max_bad: float = 0.01  # part of the examples that may be broken before the run stops
    workers: int | None = None  # processes that decode; None: on CUDA one for each core, at most 16, else 0
    resident: bool = False  # keep the images on the device and augment them there; for small ones
    fewshot: tuple[str, ...] = ()  # data sets to evaluate 5-shot while training


@dataclass(frozen=True)
class ObjectiveChoice:
    objective: Literal["softmax", "sigmoid", "masked"] = "softmax"  # cross-entropies, or masked patches
    smoothing: float = 0.0  # part of each target that is spread over all classes
    # what is predicted of a masked patch: its mean colour, a grid of 4 x 4 colours, or its pixels
    target: Literal["mean", "grid", "pixels"] = "mean"
    corrupted: float = 0.5  # part of the patches that objective masked corrupts
    masked: float = 0.8  # part of the corrupted patches that becomes the mask embedding
    replaced: float = 0.1  # part of the corrupted patches that becomes another patch; the rest is kept


@dataclass(frozen=True)
class Training:
    steps: Duration = 10_000  # length of the run: steps (10_000) or passes over the data (90ep)
    rate: float = 1e-3  # the highest learning rate
    decay: Decay = "cosine"  # how the rate falls after the warm-up
    warmup: Duration = "5%"  # how long the rate rises from 0: steps, passes (2ep) or a part of the run (5%)
    end_rate: float = 1e-5  # the rate at which decay linear ends
    stairs: tuple[Duration, ...] = ()  # of decay stairs: after which steps the rate drops to a tenth
    optimization: Optimization = field(default_factory=Optimization)
    clip: float = 1.0  # largest global norm of the gradient; 0: none
    average: float = 0.0  # decay of the running average of the weights, as 0.9999; 0: none
    average_ramp: bool = False  # let that decay rise to its value, (1 + t) / (10 + t) after t steps
    accumulate: int = 1  # parts that a batch is computed in
    precision: Literal["auto", "float32", "bf16"] = "auto"  # auto: bf16 on CUDA, else float32
    compile: Switch = "auto"  # auto: on for CUDA; graphs: as CUDA graphs, for small models on one GPU
    recompute: bool = False  # activation checkpointing: less memory, a third more time
    parallel: Parallel = "ddp"  # with several processes: whole copies, or shards (fsdp)
    replicas: int = 1  # with fsdp: groups of processes that hold copies of the shards
    log_every: Duration = "0.5%"  # how often the loss is logged: steps, passes or a part of the run
    evaluate_every: Duration = "10%"  # how often the scores are measured; 0: only at the end
    save_every: Duration = "5%"  # how often a checkpoint is saved; 0: only at the end
    keep: int = 2  # checkpoints that stay, the last ones
    watch: str = ""  # a score, as val_top1 or val_loss: its best checkpoint is kept and becomes the model
    patience: int = 0  # evaluations without a better one before the run ends; 0: never
    on_nonfinite: Literal["stop", "skip"] = "stop"  # what is done at a loss of nan or inf
    max_skipped: int = 10  # batches that may be skipped before the run stops
    tensorboard: bool = False  # also write the curves for TensorBoard, into the run's folder

    def check(self) -> None:
        """What would harm, or do nothing."""
        least = {"clip": 0, "end_rate": 0, "accumulate": 1, "patience": 0, "max_skipped": 0}
        for name, lowest in least.items():
            if not getattr(self, name) >= lowest:
                raise ConfigError(f"{name} {getattr(self, name)}: it must be at least {lowest}")
        if self.patience and not self.watch:
            raise ConfigError(f"patience {self.patience} without a score to watch, such as watch=val_top1")
        if (self.decay == "stairs") != bool(self.stairs):
            raise ConfigError(
                f"decay {self.decay} with stairs {list(self.stairs)}: the two belong together, as decay=stairs with "
                "stairs 30% 60% 90%"
            )

    def in_steps(self, examples: int, batch: int) -> Training:
        """The same with every duration in steps."""
        self.check()
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
        stairs = [resolved(at) for at in self.stairs]
        if stairs != sorted(stairs) or max(stairs, default=0) > steps:
            raise ConfigError(
                f"stairs at {stairs}: they must rise, and lie within the {steps} steps of the run"
            )
        return dataclasses.replace(
            self,
            steps=steps,
            warmup=warmup,
            stairs=tuple(stairs),
            log_every=max(1, resolved(self.log_every)),
            evaluate_every=resolved(self.evaluate_every),
            save_every=resolved(self.save_every),
        )

    def schedule(self) -> Schedule:
        """Of a training whose durations are in steps."""
        assert isinstance(self.steps, int) and isinstance(self.warmup, int)
        stairs = tuple(map(int, self.stairs))
        return Schedule(self.rate, self.steps, self.decay, self.warmup, self.end_rate, stairs)


@dataclass(frozen=True)
class Experiment:
    """A complete run."""

    model: ModelChoice = field(default_factory=ModelChoice)
    data: DataChoice = field(default_factory=DataChoice)
    objective: ObjectiveChoice = field(default_factory=ObjectiveChoice)
    training: Training = field(default_factory=Training)
    seed: int = 0  # of the weights, the order of the data and its augmentation

    def identity(self) -> dict[str, Any]:
        """What must be the same for a run to be continued, as run.json has it."""
        return {
            name: {k: v for k, v in part.items() if k not in INCIDENTAL} if isinstance(part, dict) else part
            for name, part in dataclasses.asdict(self).items()
        }
