"""A file written by `vitrail export`, as a model: whatever only runs a model forward takes it too.

    open_model(path_or_name)  -> Model, or Exported for a file or folder of `vitrail export`
    exported.run(x)           -> its outputs by name: logits, probabilities (B, K), features (B, D)

The file says itself how images are prepared and what its classes are called: in its metadata, as one JSON object, the
card. It may come from a stranger. So its trial, in a process of its own (runtimes.py), comes before it is used: a
crash, an endless loop, or outputs other than its card says, are an error in words. Its metadata is bounded and
checked; nothing in it is evaluated.
"""

from __future__ import annotations

import hashlib
import json
import signal
import subprocess
import sys
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any, Self, TypedDict

import numpy as np
import torch
from torch import Tensor, nn

from vitrail.checkpoints.formats import as_model, find_exported, load
from vitrail.checkpoints.json_files import parse_object
from vitrail.checkpoints.license import check_license
from vitrail.data.preprocess import parse
from vitrail.errors import CheckpointError, ConfigError
from vitrail.inference import runtimes
from vitrail.models.calibration import Calibration
from vitrail.models.names import Model
from vitrail.models.vit import Described
from vitrail.runtime.device import pick

VERSION = 1
SECONDS = 120.0  # that the trial of a file may take
MEMORY = 8 << 30  # bytes that it may use, beside four times the file
MOST_SIDE, MOST_BATCH = 16_384, 4096


class Required(TypedDict):
    """The metadata of a file."""

    version: int
    vitrail: str  # version that wrote it
    input: str  # tensor: float32 (B, 3, H, W), prepared; pixels: uint8 (B, H, W, 3), as decoded, of any size
    batch: int  # images at a time; 0: any number
    image_size: list[int]  # of the prepared images
    stride: int  # prepared images may have any sides that this divides; 0: only image_size
    outputs: list[str]
    classes: int
    width: int  # of the features
    precision: str
    architecture: dict[str, Any]
    preprocess: str
    class_names: list[str] | None
    provenance: dict[str, Any]
    metrics: dict[str, Any]
    license: dict[str, str]


class Card(Required, total=False):
    calibration: dict[str, Any]  # from logits to probabilities, which the file does itself, and to answers


@dataclass(frozen=True)
class ExportedConfig:
    """The part of a model's config that the engine asks for."""

    image_size: tuple[int, int]
    classes: int
    width: int  # of the features
    digest: str  # of the file: its features are kept under it
    channels: int = 3


class Exported(Described):
    """images -> logits (B, classes), computed by another runtime, on the CPU."""

    def __init__(self, opened: runtimes.Opened, card: Card, digest: str) -> None:
        super().__init__()
        self.opened, self.card = opened, card
        H, W = card["image_size"]
        self.config = ExportedConfig((H, W), card["classes"], card["width"], digest)
        self.preprocess, self.class_names = card["preprocess"], card["class_names"]
        self.provenance, self.metrics, self.license = card["provenance"], card["metrics"], card["license"]
        self.calibration = Calibration.from_json(card.get("calibration", {}))
        self.place = nn.Parameter(
            torch.empty(0), requires_grad=False
        )  # parameters say where a model computes

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        return self  # the runtime computes where it computes: to("cuda") changes nothing

    @property
    def takes_pixels(self) -> bool:
        """Return whether it prepares images itself: uint8 (B, H, W, 3) of any size."""
        return self.card["input"] == "pixels"

    def run(self, x: Tensor) -> dict[str, Tensor]:
        """Return all outputs of images (B, ...), whatever number of them the file takes at a time."""
        images = x.detach().cpu().contiguous().numpy()
        at_once = self.card["batch"] or len(images)
        parts = []
        for start in range(0, len(images), at_once):
            part = images[start : start + at_once]
            missing = at_once - len(part)
            full = np.concatenate([part, np.repeat(part[:1], missing, axis=0)]) if missing else part
            parts.append({name: a[: len(part)] for name, a in self.opened.run(full).items()})
        return {name: torch.from_numpy(np.concatenate([part[name] for part in parts])) for name in parts[0]}

    def forward(self, x: Tensor) -> Tensor:
        return self.run(x)["logits"]

    def features(self, x: Tensor) -> Tensor:
        """Return the input of the classifier, (B, D)."""
        return self.run(x)["features"]


Runnable = Model | Exported


def open_model(path_or_name: str | Path, **reading: Any) -> Runnable:
    """Return an exported file as it is, else what vitrail.load returns; `reading`: its keywords."""
    path = find_exported(path_or_name)
    if path is None:
        return load(path_or_name, **reading)
    usual = {name: parameter.default for name, parameter in signature(load).parameters.items()}
    if changed := [name for name, value in reading.items() if value and value != usual[name]]:
        raise ConfigError(
            f"{path} is an exported file, which cannot be changed: leave out {', '.join(changed)}"
        )
    return read_exported(path)


def as_runnable(model: Runnable | str | Path) -> Runnable:
    """Return a model, exported or not, as it is; open a path or a name, onto the GPU if there is one."""
    if isinstance(model, str | Path):
        return open_model(model).to(pick())
    return model if isinstance(model, Exported) else as_model(model)


def check_precision(model: nn.Module, precision: str) -> None:
    """Raise ConfigError for a precision that an exported file, which has its own, cannot be computed in."""
    if isinstance(model, Exported) and precision not in ("auto", "float32"):
        raise ConfigError(f"precision {precision!r}: an exported file has the one that it was exported with")


def read_exported(path: Path, threads: int = 1) -> Exported:
    """Open a file of `vitrail export` after its trial. `threads`: of each run; the engine runs several at once."""
    card = check_card(try_in_process(path), str(path))
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "blake2b").hexdigest()
    return Exported(runtimes.open_file(path, threads), card, digest)


def try_in_process(path: Path) -> dict[str, Any]:
    """Return what runtimes.try_file says of a file; CheckpointError if anything is wrong, a crash included."""
    if not path.is_file():
        raise CheckpointError(f"{path}: no such file")
    most = MEMORY + 4 * sum(
        file.stat().st_size for file in (path, path.with_suffix(".bin")) if file.is_file()
    )
    runtime = runtimes.SUFFIXES[path.suffix.lower()]
    command = [sys.executable, "-P", str(Path(runtimes.__file__)), str(path.absolute()), str(most)]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise CheckpointError(
            f"{path}: {runtime} did not open it and run one image within {SECONDS:g} seconds"
        ) from error
    if done.returncode:
        crash = (
            signal.Signals(-done.returncode).name if done.returncode < 0 else f"exit code {done.returncode}"
        )
        raise CheckpointError(f"{path} is damaged: {runtime} crashed on it ({crash})")
    try:
        result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError) as error:
        raise CheckpointError(f"{path} is damaged: {runtime} stopped without an answer") from error
    if "missing" in result:
        raise ConfigError(f"{path} needs {result['missing']}: pip install '{EXTRA[runtime]}'")
    if "error" in result:
        raise CheckpointError(f"{path} cannot be run: {result['error']}")
    return result


EXTRA = {
    "onnxruntime": "vitrail[onnx]",
    "openvino": "vitrail[openvino]",
    "torch": "vitrail",
    "executorch": "vitrail[executorch]",
}


def check_card(result: dict[str, Any], where: str) -> Card:
    """Return the card of a trial's result; CheckpointError if it is wrong, or the outputs are not as it says."""
    entries = parse_object(json.dumps(result["card"]).encode(), Card, where)
    card: Card = entries  # type: ignore[assignment]
    names, K = card["class_names"], card["classes"]
    if card["version"] != VERSION:
        raise CheckpointError(
            f"{where}: its metadata has version {card['version']}; this vitrail reads {VERSION}"
        )
    in_range = all(1 <= side <= MOST_SIDE for side in card["image_size"]) and 0 <= card["batch"] <= MOST_BATCH
    if len(card["image_size"]) != 2 or not in_range or card["input"] not in ("tensor", "pixels"):
        raise CheckpointError(
            f"{where}: its metadata describes no input that exists: {card['input']!r:.40}, image size "
            f"{card['image_size']!r:.40}, batch {card['batch']}"
        )
    if names is not None and len(names) != K:
        raise CheckpointError(f"{where}: {len(names):,} class names for {K:,} classes")
    try:
        parse(card["preprocess"])
        check_license(card["license"])
        Calibration.from_json(card.get("calibration", {})).check(K)
    except ConfigError as error:
        raise CheckpointError(f"{where}: {error}") from error
    batch = card["batch"] or 1
    expected = {"features": ["float32", batch, card["width"]]}
    if K:
        expected |= {name: ["float32", batch, K] for name in ("logits", "probabilities")}
    outputs = {name: shape for name, shape in result["outputs"].items() if name != "rollout"}
    if outputs != expected:
        raise CheckpointError(f"{where}: its outputs are {outputs!r:.300}, and its metadata says {expected}")
    return card
