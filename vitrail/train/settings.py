"""The settings of a run, as one value: what recipes return, flags change and run.json records.

    Experiment = ModelSettings + DataSettings + Objective + OptimizerSettings + TrainingSettings + seed

Every setting is a field of one of these, once; its comment is the help of its flag. Durations are values: 10_000
(steps), "90ep", "5%".
"""

from __future__ import annotations

import dataclasses
import math
import re
from dataclasses import dataclass, field
from typing import Any, Literal

from vitrail.data.settings import DataSettings
from vitrail.errors import ConfigError
from vitrail.models.choices import (
    Activation,
    BlockKind,
    MLPKind,
    Norm,
    Pool,
    Positions,
    PositionsAt,
    QKVBias,
    Rotary,
)
from vitrail.models.names import Config, make_config
from vitrail.objectives import objective_name
from vitrail.objectives.classification import Classification
from vitrail.objectives.objective import Objective
from vitrail.train.tuning import parse_tune

Duration = int | str
Parallel = Literal["ddp", "fsdp"]

# Settings of where a run is computed and when it gives up, not of what it computes: they may change when it resumes.
INCIDENTAL = {
    "num_workers",
    "max_bad",
    "log_every",
    "save_every",
    "keep",
    "save_adapter",
    "tensorboard",
    "parallel",
    "replicas",
}
# Architecture settings that may change when weights are loaded; the others would need other weights.
CHANGEABLE = {"dropout", "attention_dropout", "drop_path"}


@dataclass(frozen=True)
class ModelSettings:
    """Settings of the model; those left unset are those of the named architecture or the loaded model."""

    # architecture such as B/16 (fresh weights), or weights to start from: a path, or ti8-64
    model: str = "B/16"
    # pixels per side; any: images keep their aspect
    image_size: int | Literal["any"] | None = None
    max_tokens: int = 256  # with image_size any: patches of an image, at most
    patch_size: int | None = None  # pixels per side of a patch
    width: int | None = None  # width D of the tokens
    depth: int | None = None  # number of layers L
    heads: int | None = None  # attention heads per layer
    mlp_dim: int | None = None  # hidden width of the MLPs
    pool: Pool | None = None  # what the head reads
    class_token: bool | None = None  # prepend a class token; if unset, with pool token only
    positions: Positions | None = None  # position embeddings (Table 8)
    # where they are added: once, or at every layer
    positions_at: PositionsAt | None = None
    # attention over all tokens, or by rows and columns (D.6)
    block: BlockKind | None = None
    activation: Activation | None = None  # activation of the MLPs: exact GELU, or its tanh form
    norm_eps: float | None = None  # epsilon of LayerNorm
    dropout: float | None = None  # dropout after dense layers
    attention_dropout: float | None = None  # dropout of attention weights
    drop_path: float | None = None  # stochastic depth: rate at the last layer, rising linearly from 0
    pre_logits: bool = False  # add a tanh layer of width D before the classifier, as the paper pre-trains
    head_bias: float | None = None  # initial bias of the classifier
    registers: int | None = None  # tokens without a place, after the class token
    patch_stride: int | None = None  # pixels from one patch to the next; 0: the patch size
    pre_norm: bool | None = None  # a norm before the first layer
    norm: Norm | None = None  # the kind of all norms
    layer_scale: float | None = None  # initial scale of each branch; 0: none
    mlp: MLPKind | None = None  # MLPs of two dense layers, or gated ones
    mlp_norm: bool | None = None  # a norm of the hidden layer of MLPs
    attention_norm: bool | None = None  # a norm of the outputs of attention heads
    qk_norm: bool | None = None  # norms of queries and keys
    qkv_bias: QKVBias | None = None  # which of queries, keys and values have biases
    rotary: Rotary | None = None  # rotary positions: by patches, by [-1, 1], or with learned frequencies

    @property
    def pixels(self) -> int | None:
        """Pixels per side, where that is set."""
        return None if self.image_size == "any" else self.image_size

    def fresh_overrides(self) -> dict[str, Any]:
        """Return the fields of the named architecture that are set, for fresh weights."""
        apart = ("model", "pre_logits", "max_tokens", *(("image_size",) if self.image_size == "any" else ()))
        overrides = {
            name: value for name, value in vars(self).items() if name not in apart and value is not None
        }
        if self.pre_logits:
            overrides["pre_logits"] = self.width or make_config(self.model).width
        return overrides

    def completed(self, config: Config) -> ModelSettings:
        """Return the settings with unset ones filled in from a model, for display; its head is new."""
        height, width = config.image_size
        known = vars(config)
        known = known | {"rotary": getattr(known.get("rotary"), "kind", None)}
        known = known | {"image_size": height if height == width else None, "head_bias": 0.0}
        unset = {name: known[name] for name, value in vars(self).items() if value is None and name in known}
        return dataclasses.replace(self, **unset, pre_logits=bool(known.get("pre_logits")))

    def loaded_overrides(self) -> dict[str, Any]:
        """Return the settings that apply to loaded weights; refuse those that need other weights."""
        free = (
            CHANGEABLE
            | {"model", "image_size", "max_tokens"}
            | (set() if self.pre_logits else {"pre_logits"})
        )
        if fixed := [name for name, value in vars(self).items() if value is not None and name not in free]:
            raise ConfigError(
                f"{', '.join(fixed)} cannot be set for weights that are loaded from {self.model}; with an "
                "architecture's name, such as B/16, the weights are fresh"
            )
        return {name: getattr(self, name) for name in sorted(CHANGEABLE) if getattr(self, name) is not None}


@dataclass(frozen=True)
class OptimizerSettings:
    optimizer: Literal["adamw", "sgd"] = "adamw"  # AdamW, or SGD with momentum
    lr: float = 1e-3  # peak learning rate
    # how lr falls after the warmup
    schedule: Literal["cosine", "linear", "constant", "milestones"] = "cosine"
    warmup: Duration = "5%"  # how long lr rises from 0: steps, epochs (2ep) or a part of the run (5%)
    end_lr: float = 1e-5  # learning rate at which schedule linear ends
    milestones: tuple[Duration, ...] = ()  # for schedule milestones: steps after which lr drops to a tenth
    momentum: float = 0.9  # momentum of SGD; first beta of AdamW
    beta2: float = 0.999  # second beta of AdamW
    weight_decay: float = 0.0  # decay of kernels (not biases, norms, positions), scaled by lr
    layer_decay: float = 1.0  # factor of lr from one layer to the one below
    grad_clip: float = 1.0  # largest global norm of the gradient; 0: no clipping
    ema: float = 0.0  # decay of the exponential moving average of the weights, such as 0.9999; 0: off
    ema_ramp: bool = False  # let the decay rise to its value as (1 + t) / (10 + t) after t steps
    # what is trained: all; head; last:4, the last layers and the head; lora:8, adapters of rank 8 and the head
    tune: str = "all"
    freeze: tuple[str, ...] = ()  # what else stays fixed: prefixes of parameter names, such as embedding

    def __post_init__(self) -> None:
        if self.optimizer not in ("adamw", "sgd"):
            raise ConfigError(f"optimizer {self.optimizer!r} is not one of adamw, sgd")
        for name in ("lr", "end_lr", "weight_decay", "grad_clip"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"{name} {getattr(self, name)}: must be finite and not negative")
        for name in ("momentum", "beta2", "ema"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"{name} {getattr(self, name)}: must be in [0, 1)")
        parse_tune(self.tune)
        if not 0 < self.layer_decay <= 1:
            raise ConfigError(f"layer_decay {self.layer_decay}: must be in (0, 1]")
        if (self.schedule == "milestones") != bool(self.milestones):
            raise ConfigError(
                f"schedule {self.schedule} with milestones {list(self.milestones)}: the two belong together, such as "
                "schedule milestones with milestones 30% 60% 90%"
            )


@dataclass(frozen=True)
class TrainingSettings:
    steps: Duration = 10_000  # length of the run: steps (10_000) or epochs (90ep)
    grad_accum: int = 1  # parts that each batch is computed in
    # precision of training; auto: bf16 on CUDA, else float32
    precision: Literal["auto", "float32", "bf16"] = "auto"
    # use of torch.compile; auto: on for CUDA, if the run takes minutes; graphs: with CUDA graphs, for small models on
    # one GPU
    compile: Literal["auto", "on", "graphs", "off"] = "auto"
    # recompute activations in the backward pass: less memory, a third more time
    activation_checkpointing: bool = False
    parallel: Parallel = "ddp"  # over several processes: whole copies of the weights (ddp), or shards (fsdp)
    replicas: int = 1  # with fsdp: groups of processes that hold copies of the shards
    log_every: Duration = "0.5%"  # how often metrics are logged: steps, epochs or a part of the run
    evaluate_every: Duration = "10%"  # how often scores are measured; 0: only at the end
    save_every: Duration = "5%"  # how often a checkpoint is saved; 0: only at the end
    keep: int = 2  # number of most recent checkpoints to keep
    # score, such as val_top1 or val_loss, whose best checkpoint is kept and becomes the model
    monitor: str = ""
    patience: int = 0  # evaluations without improvement before the run stops; 0: never stop early
    on_nonfinite: Literal["stop", "skip"] = "stop"  # what to do when the loss is nan or inf
    max_skipped: int = 10  # batches that may be skipped before the run stops
    # with tune lora:R: also write the adapters and the head apart from the base, into the run's folder
    save_adapter: bool = False
    # share of the answers of each class that are to be right: where that is not so, the model is unsure; 0: any share
    wanted_precision: float = 0.0
    tensorboard: bool = False  # also write the curves for TensorBoard, into the run's folder

    def __post_init__(self) -> None:
        for name, least in {"grad_accum": 1, "patience": 0, "max_skipped": 0}.items():
            if getattr(self, name) < least:
                raise ConfigError(f"{name} {getattr(self, name)}: must be at least {least}")
        if not 0 <= self.wanted_precision < 1:
            raise ConfigError(
                f"wanted_precision {self.wanted_precision:g}: must be 0, or a share below 1, such as 0.95"
            )
        if self.patience and not self.monitor:
            raise ConfigError(f"patience {self.patience} needs a score to monitor, such as monitor val_top1")


@dataclass(frozen=True)
class Experiment:
    """A complete run."""

    model: ModelSettings = field(default_factory=ModelSettings)
    data: DataSettings = field(default_factory=DataSettings)
    objective: Objective = field(default_factory=Classification)
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    training: TrainingSettings = field(default_factory=TrainingSettings)
    seed: int = 0  # seed of the weights, the order of the data and its augmentation

    def as_dict(self) -> dict[str, Any]:
        """Return all settings by group, the objective with its name."""
        groups: dict[str, Any] = {
            name: dataclasses.asdict(getattr(self, name))
            for name in ("model", "data", "optimizer", "training")
        }
        own: dict[str, Any] = dataclasses.asdict(self.objective)  # type: ignore[call-overload]
        return groups | {"objective": {"name": objective_name(self.objective), **own}, "seed": self.seed}

    def identity(self) -> dict[str, Any]:
        """Return the settings that must be equal for a run to be resumed, as run.json has them."""
        return {
            name: {k: v for k, v in part.items() if k not in INCIDENTAL} if isinstance(part, dict) else part
            for name, part in self.as_dict().items()
        }

    def resolve(self, examples: int, *, cuda: bool) -> Experiment:
        """Return the experiment with every duration in steps, and what `auto` means on the device."""
        training, optimizer, batch_size = self.training, self.optimizer, self.data.batch_size
        steps = in_steps(training.steps, examples=examples, batch_size=batch_size)
        if steps < 1:
            raise ConfigError(
                f"steps {training.steps}: {examples:,} examples in batches of {batch_size} make {steps}"
            )

        def resolve(duration: Duration, least: int = 1) -> int:
            """Return at least a step, but 0 for 0 of anything: only at the end."""
            count = in_steps(duration, examples=examples, batch_size=batch_size, total=steps)
            return max(least, count) if re.search("[1-9]", str(duration)) else 0

        warmup = resolve(optimizer.warmup, least=0)
        if warmup >= steps:
            raise ConfigError(
                f"warmup {optimizer.warmup} ({warmup} steps) must be shorter than the run of {steps} steps"
            )
        milestones = tuple(resolve(at) for at in optimizer.milestones)
        if list(milestones) != sorted(milestones) or max(milestones, default=0) > steps:
            raise ConfigError(
                f"milestones {milestones} must increase, and be within the {steps} steps of the run"
            )
        changed: dict[str, Any] = {"steps": steps, "log_every": max(1, resolve(training.log_every))}
        changed |= {name: resolve(getattr(training, name)) for name in ("evaluate_every", "save_every")}
        auto = {"precision": "bf16" if cuda else "float32", "compile": "on" if cuda else "off"}
        changed |= {name: value for name, value in auto.items() if getattr(training, name) == "auto"}
        return dataclasses.replace(
            self,
            optimizer=dataclasses.replace(optimizer, warmup=warmup, milestones=milestones),
            training=dataclasses.replace(training, **changed),
        )


def in_steps(duration: Duration, *, examples: int, batch_size: int, total: int | None = None) -> int:
    """Return a duration in steps of `batch_size` out of `examples`; of a run's own length, without a `total`."""
    text = str(duration).strip().replace("_", "")
    if text.isdecimal():
        if total is None and not int(text):
            raise ConfigError(f"steps {duration}: a run has at least 1")
        return int(text)
    if match := re.fullmatch(r"(\d+(?:\.\d+)?)\s*(?:ep|epoch|epochs)", text):
        return round(float(match[1]) * examples / batch_size)
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*%", text)
    if match and total is not None and float(match[1]) <= 100:
        return round(float(match[1]) / 100 * total)
    allowed = "steps (10_000), epochs (90ep)" + ("" if total is None else " or a part of the run (5%)")
    raise ConfigError(f"{duration!r} is not a duration: {allowed}")
