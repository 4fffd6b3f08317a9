"""A model from a name, a file or a folder; and back, in anyone's format.

create("B/16")              fresh weights
load("ViT-B_16.npz")        whatever it is: told by what is in it, not by its suffix
load("ti8-64")              a model in the box (box.py)
save(model, path, to=...)   a bundle, or what the readers of that format expect
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from vitrail.checkpoints import bundle, google, huggingface, timm, torch_files, torchvision
from vitrail.checkpoints.box import BOX, located
from vitrail.checkpoints.checkpoint import Checkpoint, check_finite, of_model, to_model
from vitrail.checkpoints.huggingface_kinds import refuse_others
from vitrail.checkpoints.unsaid import NOTHING, Asked
from vitrail.data.preprocess import default_line, evaluation_line
from vitrail.data.readers.folder_layout import EXTENSIONS, HEIC
from vitrail.errors import CheckpointError, ConfigError
from vitrail.models.names import MODELS, Model, build, make_config
from vitrail.runtime.device import pick
from vitrail.runtime.log import note

Size = int | tuple[int, int]

# format: write a checkpoint to a path, and return what its readers must set by hand
FORMATS: dict[str, Callable[[Checkpoint, Path], list[str]]] = {
    "bundle": bundle.write,
    "npz": google.write,
    "timm": timm.write,
    "huggingface": huggingface.write,
    "torchvision": torchvision.write,
}
# format: the preprocessing line of its readers, by what is written of a checkpoint
READER_LINES: dict[str, Callable[[Checkpoint], str]] = {
    "npz": google.reader_line,
    "timm": timm.reader_line,
    "huggingface": huggingface.reader_line,
    "torchvision": torchvision.reader_line,
}
# Formats of torch files, told apart by the names of their tensors.
TORCH_FORMATS = (timm, huggingface, torchvision)


def create(name: str, *, classes: int = 1000, image_size: Size | None = None, **overrides: Any) -> Model:
    """A model with fresh weights, initialised as the published code does; any field of its config by name."""
    if image_size is not None:
        overrides["image_size"] = image_size
    model = build(make_config(name, classes=classes, **overrides))
    model.preprocess = default_line(model.config.image_size)
    model.provenance = {"format": "created", "name": name}
    return model


def load(
    path_or_name: str | Path,
    *,
    classes: int | None = None,
    image_size: Size | None = None,
    heads: int | None = None,
    activation: str | None = None,
    norm_eps: float | None = None,
    pool: str | None = None,
    resample: str = "official",
) -> Model:
    """A model with its weights, in evaluation mode, from whatever stands at a path, or from the box.

    `classes`: another number gives a new head of zeros. `image_size`: another one resamples the positions, by
    the method `resample`. `heads`, `activation` (gelu, gelu_tanh), `norm_eps`, `pool` (token, mean, attention): for
    files that do not tell.
    """
    asked = Asked(heads, activation, norm_eps, pool)
    checkpoint = read(path_or_name, asked, image_size=image_size)
    return to_model(checkpoint, classes=classes, image_size=image_size, resample=resample)


def list_models(pattern: str = "*") -> list[str]:
    """Return the names that match a pattern such as "R50*": architectures for `create`, then models in the box.

    The box holds models with weights, for `load`. `create` takes any patch and image size too: Ti/8@64.
    """
    return [name for name in (*MODELS, *BOX) if fnmatch(name.lower(), pattern.lower())]


def as_model(model: Model | str | Path) -> Model:
    """A model as it is; what a path or a name stands for is loaded, and goes to the GPU where there is one."""
    if isinstance(model, str | Path):
        return load(model).to(pick())
    if not hasattr(model, "preprocess"):  # torch.compile's wrapper of a model has it too
        raise ConfigError(f"a model, a path or a name is expected, not of type {type(model).__name__}")
    return model


def save(model: Model, path: str | Path, *, to: str = "bundle") -> None:
    """Write `model` in a format of FORMATS. What the format cannot carry is said, for its reader to set.

    A bundle may replace a bundle; in any other format, an existing path is refused.
    """
    write(of_model(model), Path(path), to)


def convert(
    source: str | Path,
    destination: str | Path,
    *,
    to: str = "bundle",
    precision: str = "float32",
    classes: int | None = None,
    image_size: Size | None = None,
    heads: int | None = None,
    activation: str | None = None,
    norm_eps: float | None = None,
    pool: str | None = None,
    resample: str = "official",
    preprocess: str = "",
    license: str = "",
) -> Model:
    """Read anything, write `to`; an existing destination is refused. Returns the model that was read.

    `precision`: what the weights of a bundle are stored in (bundle.PRECISIONS). `preprocess`: another line than its
    own, or the name of a preset. `license`: of the weights, where the source states none.
    """
    check_new(Path(destination))
    if precision != "float32" and to != "bundle":
        raise ConfigError(f"precision {precision!r} can be chosen for a bundle, not for {to}")
    model = load(
        source, classes=classes, image_size=image_size, heads=heads, activation=activation, norm_eps=norm_eps,
        pool=pool, resample=resample,
    )  # fmt: skip
    if preprocess:
        model.preprocess, model.metrics = evaluation_line(preprocess, model.config.image_size), {}
    if license:
        if stated := model.license.get("weights"):
            raise ConfigError(f"the license of {source} is stated, and is passed on as it is: {stated}")
        model.license = {**model.license, "weights": license}
    write(bundle.in_precision(of_model(model), precision), Path(destination), to)
    return model


def write(checkpoint: Checkpoint, path: Path, to: str) -> None:
    if to not in FORMATS:
        raise ConfigError(f"format {to!r} is not one of {', '.join(FORMATS)}")
    if to != "bundle":  # which looks itself whether it would replace anything else
        check_new(path)
    for line in FORMATS[to](checkpoint, path):
        note(line)


def reader_line(checkpoint: Checkpoint, to: str) -> str:
    """How the readers of a format prepare images, by what is written of it; empty where nothing is."""
    if to == "bundle" or not checkpoint.preprocess or checkpoint.config.channels != 3:
        return checkpoint.preprocess
    return READER_LINES[to](checkpoint)


def check_new(path: Path) -> None:
    if path.exists() or path.is_symlink():
        raise CheckpointError(f"{path} exists; nothing is overwritten")


def read(path_or_name: str | Path, asked: Asked = NOTHING, *, image_size: Size | None = None) -> Checkpoint:
    """The checkpoint at a path or in the box, its weights finite. `asked`: what its file may not tell."""
    if not isinstance(path_or_name, str | Path):
        raise ConfigError(f"a path or a name is loaded, not what is of type {type(path_or_name).__name__}")
    path = located(path_or_name)
    if path is None:
        raise not_there(path_or_name)
    if path.suffix.lower() in EXTENSIONS | HEIC and path.is_file():
        raise CheckpointError(f"{path} is a picture, not a model; on the command line the model comes first")
    if path.is_dir() and bundle.recognises(path):
        checkpoint = bundle.read(path)
        asked.check(checkpoint.config, str(path))
    elif path.is_file() and is_npz(path):
        checkpoint = google.read(path, asked, image_size=image_size)
    else:
        checkpoint = read_torch(path, asked, image_size)
    check_finite(checkpoint.weights, str(path))
    return checkpoint


def read_torch(path: Path, asked: Asked, image_size: Size | None) -> Checkpoint:
    found = torch_files.find(path)
    refuse_others(found)
    known = next((module for module in TORCH_FORMATS if module.recognises(found.tensors)), None)
    if known is None:
        names = ", ".join(list(found.tensors)[:3])
        raise CheckpointError(
            f"{path}: its tensors ({names}, ...) are named as none of timm, transformers, torchvision do"
        )
    return known.read(found, asked, image_size=image_size)


def is_npz(path: Path) -> bool:
    """Torch files are zips too; only an `.npz` has `.npy` members. A damaged one is known by its suffix."""
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name.endswith(".npy") for name in archive.namelist())
    except (zipfile.BadZipFile, ValueError, NotImplementedError):
        return path.suffix == ".npz"


def has_weights(path_or_name: str) -> bool:
    """Whether there are weights to load, on the disk or in the box; if not, it is the name of an architecture.

    What is neither is an error: of a file or folder that is not there where it looks like one.
    """
    if located(path_or_name):
        return True
    try:
        make_config(path_or_name)
    except ConfigError as error:
        if looks_like_path(path_or_name):
            raise not_there(path_or_name) from error
        raise
    return False


def looks_like_path(text: str) -> bool:
    """It ends like a file, or has parts and does not end like an architecture (Q/16, Q/16@384)."""
    if Path(text).suffix in (".npz", *torch_files.SUFFIXES):
        return True
    return "/" in text and not re.fullmatch(r"[^/]+/\d+(@\w+)?", text)


def not_there(path_or_name: str | Path) -> CheckpointError:
    name, box = str(path_or_name), f"models in the box: {', '.join(BOX)}"
    try:
        make_config(name)
    except ConfigError:
        return CheckpointError(f"no such file or folder: {name} ({box})")
    return CheckpointError(
        f"{name} names an architecture, but there is no file or folder of that name to load weights from; "
        f"vitrail.create({name!r}) makes one with fresh weights ({box})"
    )
