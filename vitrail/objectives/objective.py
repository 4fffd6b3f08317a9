"""The interface of an objective: what training minimises, and the views and evaluators that belong to it.

An objective is a frozen dataclass of settings with the methods below; no base class is needed. The ones in the
package are named in __init__.py; you can pass your own from Python:

    vitrail.pretrain("photos", model="S/16", objective=Mine())

The module that `build` returns maps a batch to (loss, metrics). All that it owns (a teacher, a decoder, a head) is
saved and restored with the run. It may also have

    backbone() -> nn.Module            the model that is saved and evaluated; without it: the attribute `model`
    count_classes(counts) -> None      called before training with the number of training images of each class (K,)
    after_update(step, steps) -> None  called after each update: a teacher's average, a schedule of its own

Everything random in `forward` and `after_update` is seeded by (seed, step, rank), so that a run can be resumed.
"""

from __future__ import annotations

from typing import Any, ClassVar, Protocol, runtime_checkable

from torch import Tensor, nn

from vitrail.data import preprocess as pp
from vitrail.data.loader import View
from vitrail.data.settings import DataSettings
from vitrail.data.sources import Source
from vitrail.errors import ConfigError
from vitrail.evaluators.score import Evaluator
from vitrail.inference.engine import fits_model, training_line
from vitrail.models.names import Model

Batch = dict[str, Tensor]


@runtime_checkable
class Objective(Protocol):
    needs_labels: ClassVar[bool]  # False: the model gets no classifier, and classes need no images

    def views(self, model: Model, data: DataSettings) -> dict[str, View]:
        """Return what the loader draws of each example, by the name that it has in the batch."""
        ...

    def build(self, model: Model) -> nn.Module:
        """Return the module that maps a batch to (loss, metrics)."""
        ...

    def evaluators(self, module: Any, val: Source, data: DataSettings) -> list[Evaluator]:
        """Return what is measured on held-out data during training; `data.batch_size` is that of one process.

        May be left out: then nothing is measured.
        """
        ...


def training_view(model: Model, data: DataSettings) -> View:
    """Return the view of the training line: the one that is set or named, else inception crop and flip."""
    line = data.preprocess or training_line(model, data.augment)
    pipeline = pp.parse(line)
    if not fits_model(pipeline, model):
        raise ConfigError(f"'{line}' makes {pipeline.image_size}, the model takes {model.config.image_size}")
    if (pipeline.strip is None) != (pp.parse(model.preprocess).strip is None):
        raise ConfigError(
            f"preprocess '{line}' and the model's own '{model.preprocess}': one of the two keeps the aspect of "
            "images, by fit_patches, and the other does not"
        )
    if pipeline.value_op != pp.parse(model.preprocess).value_op:
        raise ConfigError(
            f"preprocess '{line}' and the model's own '{model.preprocess}' end in different ranges. A model "
            "is used with the range of values that it was trained on: set evaluate_preprocess too"
        )
    return View(pipeline)


def backbone(module: Any) -> Model:
    """Return the model that is saved and evaluated."""
    model: Model = module.backbone() if hasattr(module, "backbone") else module.model
    return model


def mean(each: Tensor, weight: Tensor) -> Tensor:
    """Average over the examples (B,) by weight; 0 where all are broken."""
    return (each * weight).sum() / weight.sum().clamp(min=1)
