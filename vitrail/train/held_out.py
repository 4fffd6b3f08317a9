"""The end of a run: how sure the trained model may be, fitted on images that it has not been trained on.

These are a split of the data that is named, else the validation split; never the test split. A run that was swept,
and has no such images, takes the temperature of the sweep's run with the same lr, which has seen most of train.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TypedDict

from vitrail.checkpoints import bundle
from vitrail.checkpoints.json_files import Count, Number
from vitrail.data.several_labels import targets_of
from vitrail.errors import CheckpointError, DataError
from vitrail.evaluators.temperature import calibrate_model
from vitrail.models.calibration import Calibration
from vitrail.models.names import Model
from vitrail.runtime.distributed import rank
from vitrail.runtime.log import note
from vitrail.train.assemble import Assembled, evaluation_batch


class Fitted(TypedDict, total=False):
    """The images that a calibration was fitted on, and its scores there."""

    data: str
    n: Count
    before: dict[str, Number]
    after: dict[str, Number]
    wanted_precision: Number
    answered: Number
    precision: Number | None


class CalibrationEntries(TypedDict, total=False):
    """A calibration in run.json, as `Calibration.as_json` returns it."""

    temperature: Number
    thresholds: list[Number]
    multi_label: bool
    fitted: Fitted


def calibrate_run(model: Model, assembled: Assembled, folder: Path) -> None:
    """Set model.calibration at the end of a run; leave it as it is if there is nothing to fit it on."""
    experiment, held_out = assembled.experiment, assembled.sources.calibrate
    if not model.config.classes or not experiment.objective.needs_labels:
        return
    several = targets_of(assembled.sources.train) is not None
    model.calibration = Calibration(multi_label=several)
    if held_out is None:
        model.calibration = replace(swept_calibration(folder, experiment.optimizer.lr), multi_label=several)
        return
    try:
        calibrate_model(
            model,
            held_out,
            wanted_precision=experiment.training.wanted_precision,
            mapping="order",
            batch_size=evaluation_batch(experiment),
            num_workers=experiment.data.num_workers,
            max_bad=1.0,  # training is over: broken images do not undo it
        )
    except DataError as error:  # on every process alike
        if rank() == 0:
            note(f"not calibrated: {error}")


def swept_calibration(folder: Path, lr: float) -> Calibration:
    """Return the calibration of the sweep's run inside a folder; none, where there is no such run."""
    place = folder / "sweep" / f"{lr:g}" / "model" / bundle.CARD
    if not place.is_file():
        return Calibration()
    try:
        return Calibration.from_json(bundle.read_card(place).get("calibration", {}))
    except CheckpointError:
        return Calibration()


def describe_calibration(entries: CalibrationEntries) -> str:
    """Return a sentence on a calibration; nothing where there is none."""
    fitted = entries.get("fitted", {})
    if "n" not in fitted:
        return ""
    data, temperature = fitted.get("data", ""), entries.get("temperature", 1.0)
    text = f"Calibrated on {fitted['n']:,} images ({data}): temperature {temperature:.3g}"
    before, after = fitted.get("before", {}).get("ece"), fitted.get("after", {}).get("ece")
    if before is not None and after is not None:
        text += f", ECE there {before:.4f} before, {after:.4f} after"
    if (precision := fitted.get("precision")) is not None:
        text += f"; sure of {fitted.get('answered', 0.0):.1%} of them, of which {precision:.1%} are right"
    return text
