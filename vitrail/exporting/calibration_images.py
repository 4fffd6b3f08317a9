"""Images that int8 is calibrated on: given ones, or those that the model was trained on, if they are still there.

    given_images(where, split)              those of --calibrate: a data set, or a folder of images without labels
    training_images(model)                  the training split that the model's provenance records; or an error
    calibration_inputs(model, ..., images)  a fixed sample of a source, as inputs of the file

Never images that anything is chosen by or evaluated on: a validation split would make the comparison too good.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from vitrail.data.readers.file_names import is_image_name, scan_folder
from vitrail.data.sources import DataSet, Source, open_source
from vitrail.errors import ConfigError, DataError
from vitrail.exporting.settings import ExportSettings
from vitrail.inference.engine import transform
from vitrail.inference.images import Pictures, decode_example, find_images
from vitrail.models.names import Model
from vitrail.runtime.progress import progress

CALIBRATION = 288  # images
NEEDED = "int8 needs images of the training set to calibrate on"


def given_images(where: Source | str | Path, split: str) -> Source:
    """Return the split of a data set; of a folder that images lie in, and no other folder, those images."""
    if isinstance(where, Source):
        return where
    folder = Path(where)
    if folder.is_dir():
        entries = list(scan_folder(folder))
        if any(is_image_name(e.name) for e in entries) and not any(e.is_dir() for e in entries):
            return Pictures(find_images([str(folder)]))
    return open_source(where, split)


def training_images(model: Model) -> Source:
    """Return the split that a model was trained on; ConfigError if it is not recorded, not there or not the same."""
    provenance: dict[str, Any] = model.provenance
    experiment, used = (provenance.get(name) for name in ("experiment", "used"))
    data = experiment.get("data") if isinstance(experiment, dict) else None
    where = data.get("data") if isinstance(data, dict) else None
    name = used.get("train") if isinstance(used, dict) else None
    recorded = provenance.get("data")  # the fingerprints of the training, validation and test split
    if not all(isinstance(value, str) and value for value in (where, name, recorded)):
        raise ConfigError(f"{NEEDED}, and the model does not record its own: --calibrate DATA")
    assert isinstance(where, str) and isinstance(name, str) and isinstance(recorded, str)
    try:
        data_set = DataSet(where)
        first = data_set.part("train").name.removesuffix("train")  # tiny-imagenet:
        source = data_set.part(name.removeprefix(first))
        same = source.fingerprint() == recorded.split()[0]
    except (ConfigError, DataError) as error:
        raise ConfigError(
            f"{NEEDED}, and those that it was trained on, {name!r} of {where!r}, cannot be opened ({error}): "
            "--calibrate DATA"
        ) from error
    if not same:
        raise ConfigError(
            f"{NEEDED}, and {name!r} of {where!r} has changed since the model was trained on it: --calibrate DATA"
        )
    return source


def calibration_inputs(model: Model, settings: ExportSettings, images: Source) -> list[np.ndarray]:
    """Return inputs of one image each, of images drawn from a source with a fixed seed."""
    prepare, places = transform(model), np.random.default_rng(0).permutation(len(images))[:CALIBRATION]
    inputs = []
    for i in progress(places, len(places), "read images"):
        try:
            image = decode_example(images, int(i))
        except DataError:
            continue
        inputs.append(image[None] if settings.input == "pixels" else prepare(image)[None].numpy())
    if not inputs:
        raise DataError(f"{images.name}: none of {len(places)} images can be read, to calibrate on")
    return inputs
