"""A model from a name, a file or a folder; and back, in anyone's format.

create("B/16")              new weights
load("ViT-B_16.npz")        any format, recognised by the content, not by the suffix
load("ti8-64")              an included model (included.py)
load("hub:google/vit-base-patch16-224")     a model of the Hugging Face hub (repositories.py)
save(model, path, to=...)   a bundle, or another format
"""

from __future__ import annotations

import re
import shutil
import zipfile
from fnmatch import fnmatch
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any, Literal

from vitrail.checkpoints import adapter as adapters
from vitrail.checkpoints import bundle, google, huggingface, timm, torch_files, torchvision
from vitrail.checkpoints.architecture import NO_HINTS, Hints, Size
from vitrail.checkpoints.checkpoint import (
    Checkpoint,
    check_finite_weights,
    fold_temperature,
    from_model,
    to_model,
)
from vitrail.checkpoints.included import INCLUDED, locate_weights
from vitrail.checkpoints.license import describe_license, restrictions, stated_license
from vitrail.checkpoints.model_card import write_card
from vitrail.checkpoints.repositories import PREFIX, Pushed, fetch, is_hub_name, upload
from vitrail.data.preprocess import any_shape_line, default_line, evaluation_line, parse
from vitrail.data.readers.file_names import EXTENSIONS, HEIC
from vitrail.errors import CheckpointError, ConfigError
from vitrail.models.names import MODELS, Model, build, make_config
from vitrail.models.strips import check_any_shape
from vitrail.models.vit import ViT
from vitrail.runtime.device import pick
from vitrail.runtime.log import note

# format: a module with write(checkpoint, path), which returns what a reader must set by hand, and, but for bundles,
# reader_line(checkpoint): how readers of a written checkpoint prepare images
FORMATS: dict[str, ModuleType] = {
    "bundle": bundle, "npz": google, "timm": timm, "huggingface": huggingface, "torchvision": torchvision,
}  # fmt: skip
# Formats of torch files, told apart by the names of their tensors.
TORCH_FORMATS = (timm, huggingface, torchvision)
PUSHED = ("bundle", "timm", "huggingface")  # formats that are folders of safetensors and JSON
PICTURE = "picture.png"  # beside a card
# Files of `vitrail export`, in its folder under the name `model`: other runtimes run them, and nothing trains them.
EXPORTED = (".onnx", ".xml", ".pt2", ".pte")


def create(name: str, *, classes: int = 1000, image_size: Size | None = None, **overrides: Any) -> Model:
    """Return a model with new weights, initialised as in the published code; any field of its config by name."""
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
    image_size: Size | Literal["any"] | None = None,
    heads: int | None = None,
    activation: str | None = None,
    norm_eps: float | None = None,
    pool: str | None = None,
    resample: str = "official",
    patch_size: int | None = None,
    ignore_fields: tuple[str, ...] = (),
    adapter: str | Path = "",
    max_tokens: int = 256,
) -> Model:
    """Return a model with its weights, in evaluation mode, from a path in any format, or by name: an included one, or
    hub:OWNER/NAME[@REVISION] of the Hugging Face hub.

    `classes`: another number gives a new head of zeros. `image_size`: another one resamples the positions, by
    the method `resample`. `patch_size`: another one resamples the patch embedding, as FlexiViT's. `heads`,
    `activation` (gelu, gelu_tanh), `norm_eps`, `pool` (token, mean, attention): for files that do not record them.
    `ignore_fields`: entries of the config file to read as if they were not there.
    `adapter`: a folder that --save-adapter wrote, for the weights it belongs to. `image_size` "any": images keep
    their aspect, with at most `max_tokens` patches.
    """
    hints = Hints(heads, activation, norm_eps, pool, tuple(ignore_fields))
    size = None if image_size == "any" else image_size
    checkpoint = read(path_or_name, hints, image_size=size)
    if adapter:
        checkpoint = adapters.apply(checkpoint, Path(adapter))
    model = to_model(checkpoint, classes=classes, image_size=size, resample=resample, patch_size=patch_size)
    return take_any_shape(model, max_tokens) if image_size == "any" else model


def take_any_shape(model: Model, max_tokens: int) -> Model:
    """Let a model prepare images such that they keep their aspect, with at most so many patches; return it."""
    if not isinstance(model, ViT):
        raise ConfigError("images of any shape need a ViT, not a ResNet: choose an image_size")
    check_any_shape(model.config)
    value_op = parse(model.preprocess).value_op
    model.preprocess, model.metrics = any_shape_line(max_tokens, model.config.stride, value_op), {}
    model.calibration = model.calibration.unfitted()
    return model


def list_models(pattern: str = "*") -> list[str]:
    """Return the names that match a pattern such as "R50*": architectures for `create`, then included models.

    Included models have weights, for `load`. `create` takes any patch and image size too: Ti/8@64.
    """
    return [name for name in (*MODELS, *INCLUDED) if fnmatch(name.lower(), pattern.lower())]


def as_model(model: Model | str | Path) -> Model:
    """Return a model as it is; load a path or a name, onto the GPU if there is one."""
    if isinstance(model, str | Path):
        return load(model).to(pick())
    if not hasattr(model, "preprocess"):  # torch.compile's wrapper of a model has it too
        raise ConfigError(f"expected a model, a path or a name, not an object of type {type(model).__name__}")
    return model


def find_exported(path_or_name: str | Path) -> Path | None:
    """Return the file of `vitrail export` at a path, or in the folder there; None if it is anything else."""
    path = Path(path_or_name)
    if path.is_dir():
        return next((file for suffix in EXPORTED if (file := path / f"model{suffix}").is_file()), None)
    return path if path.suffix.lower() in EXPORTED else None


def save(model: Model, path: str | Path, *, to: str = "bundle") -> None:
    """Write `model` in a format of FORMATS. A note says what the format cannot store, so that its reader can set it.

    A bundle may replace a bundle; in any other format, an existing path is refused.
    """
    write(from_model(model), Path(path), to)


def convert(
    source: str | Path,
    destination: str | Path,
    *,
    to: str = "bundle",
    precision: str = "float32",
    preprocess: str = "",
    license: str = "",
    **reading: Any,
) -> Model:
    """Read any format, write `to`, and return the model that was read; an existing destination is refused.

    `precision`: of the stored weights of a bundle (bundle.PRECISIONS). `preprocess`: a line in place of the model's
    own, or the name of a preset. `license`: of the weights, if the source states none. `reading`: arguments of load.
    """
    check_new(Path(destination))
    if precision != "float32" and to != "bundle":
        raise ConfigError(f"precision {precision!r} can only be chosen for a bundle, not for {to}")
    model = load(source, **reading)
    if preprocess:
        model.preprocess, model.metrics = evaluation_line(preprocess, model.config.image_size), {}
        model.calibration = model.calibration.unfitted()
    if license:
        state_license(model, license, source)
    write(bundle.cast_weights(from_model(model), precision), Path(destination), to)
    return model


def state_license(model: Model, license: str, source: str | Path) -> None:
    """Set the license of the weights of a model; ConfigError if its source states one."""
    if stated := model.license.get("weights"):
        raise ConfigError(f"{source} states its license, which cannot be changed: {stated}")
    model.license = {**model.license, "weights": license}


def push(
    model: Model,
    repository: str,
    *,
    to: str = "bundle",
    private: bool = False,
    revision: str | None = None,
    message: str = "Add a model",
    picture: str | Path | None = None,
) -> Pushed:
    """Upload `model` to a repository of the Hugging Face hub, with a card, in one commit.

    `to`: a format that is a folder: bundle, timm or huggingface. `private`: for a repository that does not exist yet.
    `revision`: a branch. `picture`: a PNG file for the card. The card takes the place of a README.md that is there.
    """
    if to not in PUSHED:
        raise ConfigError(f"format {to!r} is not one of {', '.join(PUSHED)}, which the hub can hold")
    checkpoint, name = from_model(model), repository.removeprefix(PREFIX)
    with TemporaryDirectory() as folder:
        place = Path(folder, "model")
        write(checkpoint, place, to)
        if picture is not None:
            shutil.copyfile(picture, place / PICTURE)
        load = f"{PREFIX}{name}" + (f"@{revision}" if revision else "")
        card = write_card(checkpoint, name, load=load, picture=PICTURE if picture is not None else "")
        (place / "README.md").write_text(card, encoding="utf-8")
        return upload(place, name, private=private, revision=revision, message=message)


def write(checkpoint: Checkpoint, path: Path, to: str) -> None:
    if to not in FORMATS:
        raise ConfigError(f"format {to!r} is not one of {', '.join(FORMATS)}")
    if to != "bundle":  # a bundle may replace a bundle, and checks that itself
        check_new(path)
    notes: list[str] = []
    if to != "bundle":
        checkpoint, notes = fold_temperature(checkpoint)
    for line in (*FORMATS[to].write(checkpoint, path), *notes):
        note(line)


def reader_line(checkpoint: Checkpoint, to: str) -> str:
    """Return how readers of a format prepare the images of a written checkpoint; empty if it does not say."""
    if to == "bundle" or not checkpoint.preprocess or checkpoint.config.channels != 3:
        return checkpoint.preprocess
    line: str = FORMATS[to].reader_line(checkpoint)
    return line


def check_new(path: Path) -> None:
    if path.exists() or path.is_symlink():
        raise CheckpointError(f"{path} exists, and nothing is overwritten: choose another path")


def read(path_or_name: str | Path, hints: Hints = NO_HINTS, *, image_size: Size | None = None) -> Checkpoint:
    """Read the checkpoint at a path, or an included one, and check that its weights are finite."""
    if not isinstance(path_or_name, str | Path):
        raise ConfigError(f"expected a path or a name, not an object of type {type(path_or_name).__name__}")
    if exported := find_exported(path_or_name):
        raise CheckpointError(
            f"{exported} is an exported file: predict, evaluate, fewshot, linear and knn run it, but it has no "
            "weights to train, look into or convert; pass the model that it was exported from"
        )
    path = locate_weights(path_or_name)
    if path is None:
        raise not_there(path_or_name)
    if path.suffix.lower() in EXTENSIONS | HEIC and path.is_file():
        raise CheckpointError(f"{path} is a picture, not a model; on the command line the model comes first")
    if path.is_dir() and bundle.recognises(path):
        checkpoint = bundle.read(path)
    elif path.is_file() and is_npz(path):
        checkpoint = google.read(path, hints, image_size=image_size)
    else:
        files = torch_files.find_weights(path)
        huggingface.refuse_other_models(files)
        library = next((module for module in TORCH_FORMATS if module.recognises(files.tensors)), None)
        if library is None:
            names = ", ".join(list(files.tensors)[:3])
            raise CheckpointError(
                f"{path}: its tensors ({names}, ...) have none of the names of timm, transformers or torchvision"
            )
        checkpoint = library.read(files, hints, image_size=image_size)
    hints.check(checkpoint.config, str(path))
    check_finite_weights(checkpoint.weights, str(path))
    return note_origin(checkpoint, str(path_or_name)) if is_hub_name(path_or_name) else checkpoint


def note_origin(checkpoint: Checkpoint, name: str) -> Checkpoint:
    """Return a checkpoint of the hub with its repository and commit, and the license that is stated there."""
    fetched = fetch(name)
    checkpoint.provenance = {**checkpoint.provenance, "hub": fetched.provenance}
    if fetched.license and not stated_license(checkpoint.license):
        checkpoint.license = {"weights": fetched.license}
    if limits := restrictions(checkpoint.license):
        note(f"{name} is licensed for {limits} only: {describe_license(checkpoint.license)}")
    return checkpoint


def is_npz(path: Path) -> bool:
    """Return whether a file is an `.npz`: it has `.npy` members, unlike the zip of a torch file.

    A damaged one is recognised by its suffix.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name.endswith(".npy") for name in archive.namelist())
    except (zipfile.BadZipFile, ValueError, NotImplementedError):
        return path.suffix == ".npz"


def has_weights(path_or_name: str) -> bool:
    """Return whether there are weights to load, on disk or included; False for the name of an architecture.

    Anything else is an error.
    """
    if locate_weights(path_or_name):
        return True
    try:
        make_config(path_or_name)
    except ConfigError as error:
        # The suffix of a file, or slashes unlike those of an architecture (Q/16, Q/16@384).
        is_file = Path(path_or_name).suffix in (".npz", *torch_files.SUFFIXES)
        if is_file or ("/" in path_or_name and not re.fullmatch(r"[^/]+/\d+(@\w+)?", path_or_name)):
            raise not_there(path_or_name) from error
        raise
    return False


def not_there(path_or_name: str | Path) -> CheckpointError:
    name, included = str(path_or_name), f"included models: {', '.join(INCLUDED)}"
    try:
        make_config(name)
    except ConfigError:
        return CheckpointError(f"no such file or folder: {name} ({included})")
    return CheckpointError(
        f"{name} is the name of an architecture, and there is no file or folder of that name to load weights from; "
        f"vitrail.create({name!r}) makes a model with new weights ({included})"
    )
