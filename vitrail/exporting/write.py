"""A model -> its file, in the format and precision of the settings, opened again.

onnx        traced graph ──► onnx.py ──► quantise.py
openvino    traced graph ──► onnx.py ──► openvino.py
torch       traced graph ──► programs.py
aoti        traced graph ──► programs.py, which compiles it
executorch  traced graph ──► executorch.py
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import torch

from vitrail.checkpoints.checkpoint import model_digest
from vitrail.data.sources import Source
from vitrail.errors import ConfigError
from vitrail.exporting import programs
from vitrail.exporting.calibration_images import calibration_inputs
from vitrail.exporting.card import make_card
from vitrail.exporting.graph import example, trace, traceable
from vitrail.exporting.settings import ExportSettings
from vitrail.inference import runtimes
from vitrail.inference.exported import Card, Exported, read_exported
from vitrail.models.names import Model

PACKAGES = {
    "onnx": ("onnx", "onnxscript", "onnxruntime"),
    "openvino": ("onnx", "onnxscript", "openvino", "nncf"),
    "executorch": ("executorch",),
}


def write(model: Model, settings: ExportSettings, folder: Path, images: Source | None) -> Exported:
    """Write the file with its metadata into a folder, and return it opened. `images`: to calibrate on."""
    device, file = next(model.parameters()).device, folder / settings.file
    with torch.no_grad():
        outputs = traceable(model, settings)(example(model, settings).to(device))
    card = make_card(model, settings, list(outputs), outputs["features"].shape[1])
    if settings.to == "torch":
        programs.write_torch(trace(model, settings), file, card)
        if device.type != "cpu":  # the trial of a file has no GPU
            return Exported(runtimes.open_file(file), card, model_digest(model))
    elif settings.to == "aoti":
        programs.write_aoti(trace(model, settings), file, card)
        return Exported(programs.open_aoti(file, device), card, model_digest(model))
    elif settings.to == "executorch":
        from vitrail.exporting.executorch import write_executorch

        write_executorch(trace(model, settings), file, card)
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
