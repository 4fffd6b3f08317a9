"""Scales for precision fp8, and whether they may be used: a model in fp8 beside the same in float32, on given images.

    calibrate_and_check(model, images, test)      measures scales, evaluates both, and stores them in model.fp8 with
                                                  their evidence; an error if fp8 is too far from float32

The scales are measured on images that are not those of the check. B images.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from vitrail.data.sources import Source
from vitrail.data.splits import Subset
from vitrail.errors import CheckFailed, ConfigError
from vitrail.evaluators.accuracy import evaluate
from vitrail.inference.engine import BATCH_SIZE, evaluation_loader, evaluation_pipeline, outputs
from vitrail.inference.fp8 import measure_scales
from vitrail.models.names import Model
from vitrail.runtime.device import device_name

IMAGES = 1024  # to measure scales on: more change them little
MAX_DROP = 0.005  # of top-1 accuracy: what fp8 may lose


@dataclass(frozen=True)
class Comparison:
    """A model in fp8 and in float32 on the same labelled images."""

    data: str
    n: int
    top1_float32: float
    top1_fp8: float
    agreement: float  # share of the images that get the same class
    device: str

    @property
    def drop(self) -> float:
        return self.top1_float32 - self.top1_fp8


def calibrate_and_check(
    model: Model,
    images: Source,
    test: Source,
    *,
    count: int = IMAGES,
    max_drop: float = MAX_DROP,
    batch_size: int = BATCH_SIZE,
    num_workers: int | None = None,
) -> Comparison:
    """Measure scales on `count` of the images, store them in model.fp8, and compare fp8 with float32 on `test`.

    CheckFailed, and no scales, if fp8 loses more than `max_drop` of top-1 accuracy.
    """
    if count < 1:
        raise ConfigError(f"images to calibrate on: at least 1, not {count}")
    chosen = np.sort(np.random.default_rng(0).permutation(len(images))[:count])  # the same ones each time
    sample = Subset(images, chosen)

    def run() -> None:
        loader = evaluation_loader(sample, evaluation_pipeline(model), batch_size, num_workers, shared=False)
        for _ in outputs(model, loader, precision="float32", task=f"calibrate {images.name}"):
            pass

    before = model.fp8
    model.fp8 = measure_scales(model, run) | {"calibrated": {"data": images.name, "n": len(chosen)}}
    try:
        plain, rounded = (
            evaluate(model, test, batch_size=batch_size, num_workers=num_workers, precision=precision)
            for precision in ("float32", "fp8")
        )
        same = plain.predictions.predicted == rounded.predictions.predicted  # (B,)
        device = device_name(next(model.parameters()).device)
        compared = Comparison(test.name, plain.n, plain.top1, rounded.top1, float(same.mean()), device)
        if compared.drop > max_drop:
            raise CheckFailed(
                f"fp8 gives {compared.top1_fp8:.2%} on {test.name}, float32 {compared.top1_float32:.2%}: a loss of "
                f"{100 * compared.drop:.2f} points, allowed are {100 * max_drop:.2f} (--max-drop)"
            )
    except BaseException:
        model.fp8 = before
        raise
    model.fp8["checked"] = asdict(compared)
    return compared
