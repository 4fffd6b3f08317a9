"""A model -> its file, in the format and precision of the settings, opened again.

onnx        traced graph ──► onnx.py ──► quantise.py
openvino    traced graph ──► onnx.py ──► openvino.py
torch       traced graph ──► programs.py
aoti        traced graph ──► programs.py, which compiles it
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from vitrail.checkpoints.checkpoint import model_digest
from vitrail.data.sources import Source
from vitrail.errors import ConfigError, DataError
from vitrail.exporting import programs
from vitrail.exporting.card import make_card
from vitrail.exporting.graph import example, trace, traceable
from vitrail.exporting.settings import ExportSettings
from vitrail.inference.engine import transform
from vitrail.inference.exported import Card, Exported, read_exported
from vitrail.inference.images import decode_example
from vitrail.models.names import Model
from vitrail.runtime.progress import progress

CALIBRATION = 288  # images that int8 is calibrated on
PACKAGES = {
    "onnx": ("onnx", "onnxscript", "onnxruntime"),
    "openvino": ("onnx", "onnxscript", "openvino", "nncf"),
}


def write(model: Model, settings: ExportSettings, folder: Path, images: Source | None) -> Exported:
    """Write the file with its metadata into a folder, and return it opened. `images`: to calibrate on."""
    device, file = next(model.parameters()).device, folder / settings.file
    with torch.no_grad():
        outputs = traceable(model, settings)(example(model, settings).to(device))
    card = make_card(model, settings, list(outputs), outputs["features"].shape[1])
    if settings.to == "torch":
        programs.write_torch(trace(model, settings), file, card)
    elif settings.to == "aoti":
        programs.write_aoti(trace(model, settings), file, card)
        return Exported(programs.open_aoti(file, device), card, model_digest(model))
    else:
        write_onnx_or_openvino(model, settings, file, card, images)
    return read_exported(file, torch.get_num_threads())


def check_packages(to: str) -> None:
    """Raise ConfigError if a package that a format needs is not installed."""
    if missing := [name for name in PACKAGES.get(to, ()) if find_spec(name) is None]:
        raise ConfigError(f"{to} needs {', '.join(missing)}: pip install 'vitrail[{to}]'")


def write_onnx_or_openvino(
    model: Model, settings: ExportSettings, file: Path, card: Card, images: Source | None
) -> None:
    from vitrail.exporting import onnx, quantise

    inputs = [] if images is None else calibration_inputs(model, settings, images)
    place = file.with_suffix(".onnx")
    onnx.write_onnx(trace(model, settings), place, card["outputs"])
    if settings.to == "openvino":
        from vitrail.exporting.openvino import write_openvino

        write_openvino(place, file, card, settings.precision, inputs)
        place.unlink()
        return
    if settings.precision == "int8":
        quantise.quantise(place, inputs, torch.get_num_threads())
    elif settings.precision == "int8_weights":
        quantise.weights_only(place)
    onnx.add_card(place, card)


def calibration_inputs(model: Model, settings: ExportSettings, images: Source) -> list[np.ndarray]:
    """Return inputs of one image each, of images drawn from a source."""
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
