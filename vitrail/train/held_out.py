"""The end of a run: how sure the trained model may be, fitted on images that it has not been trained on.

These are a split of the data that is named, else the validation split; never the test split. A run that was swept,
and has no such images, takes the temperature of the sweep's run with the same lr, which has seen most of train.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from vitrail.checkpoints import bundle
from vitrail.data.several_labels import targets_of
from vitrail.errors import CheckpointError, DataError
from vitrail.evaluators.temperature import calibrate_model
from vitrail.models.calibration import Calibration
from vitrail.models.names import Model
from vitrail.runtime.distributed import rank
from vitrail.runtime.log import note
from vitrail.train.assemble import Assembled, evaluation_batch


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


def describe_calibration(entries: dict[str, Any]) -> str:
    """Return a sentence on a calibration as `Calibration.as_json` returns it; nothing where there is none."""
    c = Calibration.from_json(entries)
    if "n" not in c.fitted:
        return ""
    text = f"Calibrated on {c.fitted['n']:,} images ({c.fitted['data']}): temperature {c.temperature:.3g}"
    if "ece" in c.fitted.get("before", {}):
        before, after = (c.fitted[name]["ece"] for name in ("before", "after"))
        text += f", ECE there {before:.4f} before, {after:.4f} after"
    if c.fitted.get("precision") is not None:
        text += (
            f"; sure of {c.fitted['answered']:.1%} of them, of which {c.fitted['precision']:.1%} are right"
        )
    return text
