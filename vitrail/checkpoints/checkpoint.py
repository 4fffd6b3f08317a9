"""Checkpoint: an architecture, its weights under our names and their metadata, independent of any file format.

    a file in any format  --FORMAT.read-->  Checkpoint  --to_model-->  model
    model  --from_model-->  Checkpoint  --FORMAT.write-->  a file in any format

Weights load strictly. There are two exceptions, by argument: another number of classes (a new head of zeros) and
another image size (E_pos resampled). Both give another model, so metrics and calibration are dropped.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.checkpoints.license import check_license, describe_license, stated_license
from vitrail.data import preprocess as pp
from vitrail.errors import CheckpointError, ConfigError
from vitrail.models import checking, positions
from vitrail.models.adapters import base_weights
from vitrail.models.calibration import Calibration
from vitrail.models.flexible import resample_patches
from vitrail.models.hybrid import HybridConfig
from vitrail.models.names import Config, Model, build
from vitrail.models.resnet import BiTConfig
from vitrail.models.vit import ViTConfig

# Values of `family` in a written config.
FAMILIES: dict[str, type[Config]] = {"vit": ViTConfig, "hybrid": HybridConfig, "bit": BiTConfig}
MAX_FIXED = 1 << 27  # numbers in the tables of fixed positions, which no weights back


@dataclass
class Checkpoint:
    config: Config
    weights: dict[str, Tensor]  # by the names of the model's parameters
    preprocess: str  # the line that makes the model's input
    class_names: list[str] | None = None
    provenance: dict[str, Any] = field(default_factory=dict)  # where it came from
    metrics: dict[str, Any] = field(default_factory=dict)  # measured with exactly these weights
    license: dict[str, str] = field(default_factory=dict)  # of weights and data (license.py)
    fp8: dict[str, Any] = field(
        default_factory=dict
    )  # scales for exactly these weights (evaluators/fp8_check.py)
    calibration: Calibration = field(default_factory=Calibration)  # temperature and thresholds, likewise


def from_model(model: Model) -> Checkpoint:
    if model.class_names is not None and len(model.class_names) != model.config.classes:
        raise ConfigError(
            f"{len(model.class_names)} class names for a model of {model.config.classes} classes"
        )
    check_license(model.license)
    model.calibration.check(model.config.classes)
    if model.state_dict().keys() != parameter_shapes(model.config).keys():
        raise ConfigError(
            "this model has other parameters than its config describes, such as adapters or text embeddings: save "
            "the model that it was made from"
        )
    weights = {name: w.detach().float().cpu() for name, w in model.state_dict().items()}
    return Checkpoint(
        model.config, weights, model.preprocess, model.class_names, model.provenance, model.metrics, model.license,
        model.fp8, model.calibration,
    )  # fmt: skip


def to_model(
    checkpoint: Checkpoint,
    *,
    classes: int | None = None,
    image_size: int | tuple[int, int] | None = None,
    resample: str = "official",
    patch_size: int | None = None,
) -> Model:
    """Return the model in evaluation mode. The checkpoint's tensors become its parameters: nothing is copied."""
    checkpoint = change_classes(checkpoint, classes)
    checkpoint = change_patch_size(checkpoint, patch_size, image_size, resample)
    checkpoint = change_image_size(checkpoint, image_size, resample)
    with torch.device("meta"):
        model = build(checkpoint.config)
    model.load_state_dict(checkpoint.weights, strict=True, assign=True)
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    model.preprocess, model.class_names = checkpoint.preprocess, checkpoint.class_names
    model.provenance, model.metrics = checkpoint.provenance, checkpoint.metrics
    model.license, model.fp8 = checkpoint.license, checkpoint.fp8
    model.calibration = checkpoint.calibration
    return model.eval()


def model_digest(model: nn.Module) -> str:
    """Return a digest of the architecture and of every weight, bit by bit; adapters do not count."""
    return weights_digest(base_weights(model.state_dict()), repr(model.config))


def weights_digest(weights: Mapping[str, Tensor], text: str = "") -> str:
    """Return a digest of a text and of every weight, bit by bit."""
    state = hashlib.blake2b(text.encode(), digest_size=16)
    for name, w in weights.items():
        state.update(f"{name} {w.dtype} {tuple(w.shape)};".encode())
        state.update(w.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return state.hexdigest()


def parameter_shapes(config: Config) -> dict[str, tuple[int, ...]]:
    """Return the names and shapes of the parameters of a config."""
    with torch.device("meta"):
        return {name: tuple(w.shape) for name, w in build(config).state_dict().items()}


def check_finite_weights(weights: dict[str, Tensor], where: str) -> None:
    """Raise an error if a weight is NaN or infinite: its probabilities would mean nothing."""
    # Minimum and maximum are NaN if anything is: one pass, a tenth of the time of isfinite.
    wrong = [n for n, w in weights.items() if w.numel() and not torch.stack(w.aminmax()).isfinite().all()]
    if wrong:
        counts = [f"{n} ({int((~weights[n].isfinite()).sum()):,} of {weights[n].numel():,})" for n in wrong]
        raise CheckpointError(f"{where}: weights that are not finite: {listing(counts)}")


def check_extent(config: Config, weights: dict[str, Tensor], where: str) -> None:
    """Raise an error, before a model is built, if a config describes a far larger model than its weights."""
    if isinstance(config, BiTConfig):
        layers, fixed = sum(config.units), 0
    else:
        layers = config.depth + (sum(config.stem.units) if isinstance(config, HybridConfig) else 0)
        tables = config.depth if config.positions_at == "every" else 1
        fixed = tables * config.tokens * config.width if config.positions == "sincos" else 0
    if layers > len(weights):
        raise CheckpointError(f"{where}: {layers} layers, but only {len(weights)} tensors beside it")
    if fixed > MAX_FIXED:
        raise CheckpointError(
            f"{where}: positions 'sincos' of width {config.width} for images of {config.image_size} are {fixed:,} "
            f"numbers; at most {MAX_FIXED:,} are allowed"
        )


def listing(problems: list[str], most: int = 8) -> str:
    more = f"; and {len(problems) - most} more" if len(problems) > most else ""
    return "; ".join(problems[:most]) + more


def note_unwritten(checkpoint: Checkpoint) -> list[str]:
    """Return the notes of a format that has no place for class names and licenses."""
    notes = []
    if checkpoint.class_names:
        notes.append(f"class names are not written: {listing(checkpoint.class_names)}")
    if stated_license(checkpoint.license):
        text = describe_license(checkpoint.license)
        notes.append(f"the license is not written, pass it on with the file: {text}")
    return notes


def fold_temperature(checkpoint: Checkpoint) -> tuple[Checkpoint, list[str]]:
    """Return the checkpoint for a format without a place for a calibration, and notes.

    The temperature divides weights and bias of the classifier, which gives the same probabilities; the rest is lost.
    """
    c, notes = checkpoint.calibration, []
    if c.temperature != 1:
        names = ("head.classifier.weight", "head.classifier.bias")
        weights = checkpoint.weights | {name: checkpoint.weights[name] / c.temperature for name in names}
        checkpoint = dataclasses.replace(checkpoint, weights=weights)
        notes.append(f"the temperature, {c.temperature:.4g}, is written into the classifier's weights")
    if c.multi_label:
        notes.append("the classes are not exclusive: their probabilities are a sigmoid of each output")
    if c.thresholds:
        notes.append("the thresholds of the classes are not written")
    return dataclasses.replace(checkpoint, calibration=Calibration()), notes


def change_classes(checkpoint: Checkpoint, classes: int | None) -> Checkpoint:
    """Return the checkpoint with a new head of zeros, without the pre-training MLP of the old one."""
    if classes is None or classes == checkpoint.config.classes:
        return checkpoint
    config = dataclasses.replace(checkpoint.config, classes=classes)
    if isinstance(config, ViTConfig):
        config = dataclasses.replace(config, pre_logits=0)
    weights = {name: w for name, w in checkpoint.weights.items() if not name.startswith("head.")}
    if classes:
        weights["head.classifier.weight"] = torch.zeros(classes, config.pooled_width)
        weights["head.classifier.bias"] = torch.zeros(classes)
    return dataclasses.replace(
        checkpoint, config=config, weights=weights, class_names=None, metrics={}, calibration=Calibration()
    )


def change_image_size(
    checkpoint: Checkpoint, image_size: int | tuple[int, int] | None, method: str = "official"
) -> Checkpoint:
    """Return the checkpoint for another image size: positions resampled, preprocessing line adapted."""
    if method not in positions.RESAMPLE:
        raise ConfigError(f"resample={method!r} is not one of {', '.join(positions.RESAMPLE)}")
    old = checkpoint.config
    if image_size is None:
        return checkpoint
    size = (image_size, image_size) if isinstance(image_size, int) else image_size
    config = dataclasses.replace(old, image_size=size)
    any_shape = bool(checkpoint.preprocess) and pp.parse(checkpoint.preprocess).strip is not None
    if config.image_size == old.image_size and not any_shape:
        return checkpoint
    weights = checkpoint.weights
    if isinstance(config, ViTConfig) and isinstance(old, ViTConfig):
        weights = {name: resample_weights(name, w, old, config, method) for name, w in weights.items()}
    line = str(pp.parse(checkpoint.preprocess).at(config.image_size)) if checkpoint.preprocess else ""
    return dataclasses.replace(
        checkpoint, config=config, weights=weights, preprocess=line, metrics={},
        calibration=checkpoint.calibration.unfitted(),
    )  # fmt: skip


def change_patch_size(
    checkpoint: Checkpoint,
    patch_size: int | None,
    image_size: int | tuple[int, int] | None = None,
    method: str = "official",
) -> Checkpoint:
    """Return the checkpoint for patches of another size, as FlexiViT's, at its own image size or another one."""
    old = checkpoint.config
    if patch_size is None or (isinstance(old, ViTConfig) and old.patch_size == patch_size):
        return checkpoint
    if not isinstance(old, ViTConfig) or isinstance(old, HybridConfig) or old.patch_stride:
        raise ConfigError("patch_size can be changed for plain ViTs, whose patches are taken from the image")
    size = old.image_size if image_size is None else checking.image_size(image_size)
    grid = dataclasses.replace(old, patch_size=patch_size, image_size=size).grid
    weights = dict(checkpoint.weights)
    weights["embedding.weight"] = resample_patches(weights["embedding.weight"], patch_size)
    # The same grid at first, so that positions are resampled by change_image_size alone.
    rows, columns = old.grid
    same = dataclasses.replace(
        old, patch_size=patch_size, image_size=(patch_size * rows, patch_size * columns)
    )
    line = str(pp.parse(checkpoint.preprocess).at(same.image_size)) if checkpoint.preprocess else ""
    changed = dataclasses.replace(
        checkpoint, config=same, weights=weights, preprocess=line, metrics={},
        calibration=checkpoint.calibration.unfitted(),
    )  # fmt: skip
    return change_image_size(changed, (grid[0] * patch_size, grid[1] * patch_size), method)


def resample_weights(name: str, w: Tensor, old: ViTConfig, new: ViTConfig, method: str) -> Tensor:
    if "positions." not in name or old.grid == new.grid:
        return w
    if old.positions == "relative":
        raise ConfigError(
            f"relative 1-D positions learned on a grid of {old.grid[0]}x{old.grid[1]} patches have no "
            f"counterpart on {new.grid[0]}x{new.grid[1]}: load this model at its own image size"
        )
    if old.positions == "relative_bias":
        return positions.resample_bias(w, old.grid, new.grid, method)
    if name.endswith(".x"):
        return positions.resample_axis(w, new.grid[1], method)
    if name.endswith(".y"):
        return positions.resample_axis(w, new.grid[0], method)
    return positions.resample(w, old.grid, new.grid, method)


def config_to_json(config: Config) -> dict[str, Any]:
    """Return a config as a card has it: parts of later ViTs are named only by models that have them."""
    family = next(name for name, kind in FAMILIES.items() if type(config) is kind)
    entries = {"family": family, **dataclasses.asdict(config)}
    names = [field.name for field in dataclasses.fields(ViTConfig)]
    for name in names[names.index("registers") :]:
        if name in entries and entries[name] == getattr(ViTConfig, name):
            del entries[name]
    return entries


def config_from_json(entries: dict[str, Any], where: str) -> Config:
    fields = dict(entries)
    family = fields.pop("family", None)
    if not isinstance(family, str) or family not in FAMILIES:
        raise CheckpointError(f"{where}: family {family!r} is not one of {', '.join(FAMILIES)}")
    known = {f.name for f in dataclasses.fields(FAMILIES[family])}
    if unknown := sorted(set(fields) - known):
        raise CheckpointError(f"{where}: the architecture has unknown fields {', '.join(unknown)}")
    try:
        return FAMILIES[family](**fields)
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"{where}: {error}") from error
