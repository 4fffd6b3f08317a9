"""What a run will need, before it starts: steps, FLOPs, memory, time. From the experiment, and the architecture of
the weights that it begins from; nothing is built.

    FLOPs         training FLOPs of an image (models/cost.py) x batch x steps
    memory        of each process: weights, gradients and the optimizer's moments in float32, the average where there
                  is one, and what the backward pass keeps of its part of a batch
    time          FLOPs / (processes x peak x utilisation)

The layer by which masked patches are predicted is not counted: 0.2% of B/16 for mean colours.
"""

from __future__ import annotations

from dataclasses import dataclass

from vitrail.checkpoints.checkpoint import at_image_size, with_classes
from vitrail.checkpoints.formats import has_weights, read
from vitrail.errors import ConfigError
from vitrail.models.cost import Cost, accelerator_days, cost
from vitrail.models.names import Config, make_config
from vitrail.models.vit import ViTConfig
from vitrail.train.experiment import Experiment, Training

UTILISATION = 0.4  # part of the peak that training reaches, unless something else is known
TPU_V3_CORE = 61.5e12  # FLOP/s: what the paper counts its days in


@dataclass(frozen=True)
class Accelerators:
    """What a run is estimated for."""

    processes: int = 1  # that share the global batch, with one accelerator each
    peak_flops: float = TPU_V3_CORE  # of one of them
    utilisation: float = UTILISATION


@dataclass(frozen=True)
class Estimate:
    steps: int
    examples_seen: int  # steps x batch
    image_size: tuple[int, int]
    parameters: int
    flops: float  # of the whole run
    state_bytes: int  # of a process: weights, gradients, moments, average
    activation_bytes: int  # of a process: kept for the backward pass
    accelerator_days: float  # of all processes together
    seconds: float  # by the clock

    @property
    def exaflops(self) -> float:
        return self.flops / 1e18

    @property
    def memory_bytes(self) -> int:
        return self.state_bytes + self.activation_bytes


def estimate(experiment: Experiment, examples: int, classes: int, on: Accelerators | None = None) -> Estimate:
    """Of a run over `examples` training images of `classes` classes."""
    on = Accelerators() if on is None else on
    batch = experiment.data.batch
    training = experiment.training.in_steps(examples, batch)
    assert isinstance(training.steps, int)
    config = model_config(experiment, classes)
    c = cost(config)
    flops = float(c.training_flops) * batch * training.steps
    days = accelerator_days(flops, on.peak_flops, on.utilisation)
    images = images_at_once(batch, on.processes, training.accumulate)
    return Estimate(
        steps=training.steps,
        examples_seen=training.steps * batch,
        image_size=config.image_size,
        parameters=c.parameters,
        flops=flops,
        state_bytes=c.parameters * bytes_per_parameter(training) // shards(training, on.processes),
        activation_bytes=images * values_kept(config, c, training) * bytes_per_value(training),
        accelerator_days=days,
        seconds=days * 86_400 / on.processes,
    )


def model_config(experiment: Experiment, classes: int) -> Config:
    """Of the model that the run would train: that of its name, or of the file that is there."""
    choice = experiment.model
    classes = 0 if experiment.objective.objective == "masked" else classes
    if has_weights(choice.model):
        body = with_classes(read(choice.model, image_size=choice.image_size), 0)  # its head is never kept
        return at_image_size(with_classes(body, classes), choice.image_size).config
    fields = ("image_size", "pool", "dropout", "drop_path", "head_bias")
    given = {name: getattr(choice, name) for name in fields if getattr(choice, name) is not None}
    if choice.pre_logits:
        given["pre_logits"] = make_config(choice.model).width
    return make_config(choice.model, classes=classes, **given)


def images_at_once(batch: int, processes: int, accumulate: int) -> int:
    if processes < 1 or accumulate < 1 or batch % (processes * accumulate):
        raise ConfigError(
            f"a batch of {batch} on {processes} processes, each in {accumulate} parts: these are not equal parts"
        )
    return batch // (processes * accumulate)


def bytes_per_parameter(training: Training) -> int:
    """float32: the weight, its gradient, Adam's two moments or SGD's one, and the average."""
    moments = 2 if training.optimization.optimizer == "adamw" else 1
    return 4 * (2 + moments + bool(training.average))


def shards(training: Training, processes: int) -> int:
    """Processes that share one copy of the state."""
    if training.parallel == "ddp":
        return 1
    if processes % training.replicas:
        raise ConfigError(f"{processes} processes do not form {training.replicas} groups of equal size")
    return processes // training.replicas


def bytes_per_value(training: Training) -> int:
    """Of activations. `auto` is counted as bf16, which it is wherever a run of any size is done."""
    return 4 if training.precision == "float32" else 2


def values_kept(config: Config, c: Cost, training: Training) -> int:
    """Of one image. With recomputation a layer keeps its input only, and one layer at a time all that it makes."""
    if not training.recompute or not isinstance(config, ViTConfig):
        return c.activations
    T, D = config.tokens, config.width
    layer = T * (8 * D + 2 * config.mlp_dim) * (2 if config.block == "axial" else 1)
    return c.activations - (config.depth - 1) * layer + config.depth * T * D
