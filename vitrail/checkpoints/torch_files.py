"""Weights as PyTorch libraries keep them: `.safetensors`, files of torch.save, folders of these with JSON.

    a file or a folder  --find_weights-->  WeightFiles  --timm.read, huggingface.read, torchvision.read-->  Checkpoint

Nothing in a torch file is ever executed (torch_pickle.py), and everything is bounded before it is used: no file gives
more bytes of tensors than it has. The checksums of a torch file's zip are checked; a `.safetensors` file has none.
Tensors are views of the file: a format copies each one once, into its place in the model.
Writing happens inside runtime.files.atomic_file or atomic_folder, so files are written completely or not at all.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from vitrail.checkpoints.checkpoint import listing
from vitrail.checkpoints.json_files import read_object, save_json
from vitrail.checkpoints.license import CARD, model_card
from vitrail.checkpoints.mapping import respell
from vitrail.checkpoints.torch_pickle import TensorView, read_torch_file
from vitrail.errors import CheckpointError
from vitrail.runtime.files import atomic_folder, check_regular, umask
from vitrail.runtime.log import visible

MAX_BYTES = 64 << 30  # of one model's tensors together
MAX_CARD = 1 << 16  # bytes of a README.md
MAX_TENSORS = 20_000  # of one file
WEIGHTS = ("model.safetensors", "pytorch_model.bin")  # names of a folder's weights, best first
SUFFIXES = (".safetensors", ".pth", ".pt", ".bin", ".ckpt", ".tar")
CONFIGS = ("config.json", "preprocessor_config.json")
# Keys under which training scripts keep the weights, best first; prefixes of DataParallel and torch.compile.
WRAPPERS = ("state_dict_ema", "model_ema", "state_dict", "model", "target_encoder")
# Whole numbers that older files keep beside their weights; what they say follows from the shapes.
NUMBERS = re.compile(r"(.*\.)?(position_ids|relative_position_index)")
PREFIX = r"^(module\.|_orig_mod\.)+"


@dataclass(frozen=True)
class WeightFiles:
    """Weights and the config files beside them."""

    tensors: dict[str, Tensor]
    configs: dict[str, dict[str, Any]]  # by file name, one of CONFIGS
    path: Path  # of the weights
    card: str = ""  # the beginning of the README.md beside them

    @property
    def where(self) -> str:
        return str(self.path)

    @property
    def origin(self) -> dict[str, Any]:
        """Entries of every format's provenance: the name of the file, never its folder."""
        dtypes = sorted({str(w.dtype).removeprefix("torch.") for w in self.tensors.values()})
        return {"file": visible(self.path.name), "dtype": ", ".join(dtypes)}


def find_weights(path: Path) -> WeightFiles:
    """Read the weights in a file or a folder, and the config files beside them."""
    if path.is_dir():
        usual = [path / f"{name}{suffix}" for name in WEIGHTS for suffix in ("", ".index.json")]
        others = sorted(p for p in path.iterdir() if p.suffix in SUFFIXES and p.is_file())
        weights = next((file for file in usual if file.is_file()), others[0] if len(others) == 1 else None)
        if weights is None:
            names = ", ".join(p.name for p in others[:5])
            problem = f"holds {names}: name one of them" if others else "holds neither"
            raise CheckpointError(
                f"{path}: a folder of weights has {' or '.join(WEIGHTS)}; this one {problem}"
            )
        path = weights
    tensors = read_shards(path) if path.name.endswith(".index.json") else read_tensors(path)
    beside = {name: path.with_name(name) for name in CONFIGS}
    configs = {name: read_object(file, follow_links=True) for name, file in beside.items() if file.is_file()}
    return WeightFiles(tensors, configs, path, read_card(path.with_name(CARD)))


def read_card(path: Path) -> str:
    """Return the beginning of a README.md, where the hub states the license of weights; empty if there is none."""
    try:
        check_regular(path)
        with path.open("rb") as file:
            return file.read(MAX_CARD).decode(errors="replace")
    except (OSError, CheckpointError):
        return ""


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Return name -> tensor of a `.safetensors` or torch file, recognised by its first bytes."""
    try:
        check_regular(path)
        with path.open("rb") as file:
            start = file.read(9)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
    return read_safetensors(path) if start[8:] == b"{" else read_torch(path)


def read_safetensors(path: Path) -> dict[str, Tensor]:
    try:
        check_regular(path)
        with path.open("rb") as opened, safe_open(usable_name(opened, path), framework="pt") as file:
            names = file.keys()
            check_count(len(names), path)
            tensors = {name: file.get_tensor(name) for name in names}
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} is not a whole .safetensors file ({error})") from error
    return check_tensors(tensors, path)


def usable_name(opened: IO[bytes], path: Path) -> str:
    """Return a name of an open file that safetensors accepts: it takes only UTF-8."""
    try:
        return str(path).encode().decode()
    except UnicodeEncodeError:
        return f"/dev/fd/{opened.fileno()}"


def read_torch(path: Path) -> dict[str, Tensor]:
    """Return the state dict of a torch file, also one that a training script or a wrapper nested deeper."""
    if path.stat().st_size > MAX_BYTES:
        raise CheckpointError(f"{path} has more than {MAX_BYTES >> 30} GiB; refused")
    try:
        content = read_torch_file(path)
        if isinstance(content, dict):
            content = next((content[key] for key in WRAPPERS if key in content), content)
        if not isinstance(content, dict):
            raise CheckpointError(f"{path} holds a {type(content).__name__}, not a dict of names and tensors")
        check_count(len(content), path)
        tensors = {
            name: value.tensor() if isinstance(value, TensorView) else value
            for name, value in content.items()
        }
    except CheckpointError:
        raise
    except Exception as error:  # damaged bytes can fail in any way
        raise CheckpointError(
            f"{path} is not a torch file of plain tensors, the only kind that is read "
            f"({str(error)[:200] or type(error).__name__})"
        ) from error
    tensors = check_tensors(tensors, path)
    if all(re.match(PREFIX, name) for name in tensors):
        return respell(tensors, {PREFIX: ""}, str(path))
    return tensors


def check_tensors(tensors: dict[Any, Any], path: Path) -> dict[str, Tensor]:
    """Raise an error unless all are plain floating-point tensors, none larger than the bytes behind it."""
    tensors = {
        name: w
        for name, w in tensors.items()
        if not (isinstance(name, str) and isinstance(w, Tensor) and NUMBERS.fullmatch(name))
        or w.is_floating_point()
    }
    problems = [str(name) for name, w in tensors.items() if not isinstance(name, str) or not is_plain(w)]
    if problems or not tensors:
        raise CheckpointError(
            f"{path}: not a dict of names and plain floating-point tensors: {listing(problems) or 'empty'}"
        )
    total, size = sum(w.nbytes for w in tensors.values()), path.stat().st_size
    if total > MAX_BYTES:
        raise CheckpointError(f"{path} holds more than {MAX_BYTES >> 30} GiB of tensors; refused")
    if total > size:
        raise CheckpointError(
            f"{path} has tensors of {total:,} bytes in {size:,}: several share the same bytes; refused"
        )
    return tensors


def check_count(count: int, path: Path) -> None:
    if count > MAX_TENSORS:
        raise CheckpointError(f"{path} holds {count:,} tensors; refused: more than {MAX_TENSORS:,}")


def is_plain(w: object) -> bool:
    if not isinstance(w, Tensor) or w.layout != torch.strided or w.device.type != "cpu" or w.is_quantized:
        return False
    floating = w.is_floating_point() and w.dtype != torch.float4_e2m1fn_x2  # two values in a byte
    return floating and w.nbytes <= w.untyped_storage().nbytes()


def read_shards(index: Path) -> dict[str, Tensor]:
    """Return the tensors of an index file, which lists which file beside it holds which tensor."""
    places = read_object(index, follow_links=True).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(name, str) for name in places.values()):
        raise CheckpointError(f"{index} has no weight_map of names and files")
    tensors: dict[str, Tensor] = {}
    for name in sorted(set(places.values())):
        if Path(name).name != name:
            raise CheckpointError(f"{index} points to {name!r}, which is not a file beside it")
        stored = read_tensors(index.parent / name)
        if strange := sorted(stored.keys() ^ {key for key, place in places.items() if place == name}):
            raise CheckpointError(f"{index}: {name} does not hold what it lists: {listing(strange)}")
        tensors |= stored
    return tensors


def save_safetensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write a `.safetensors` file with the metadata `format: pt`, which other libraries look for."""
    save_file({name: w.detach().contiguous() for name, w in tensors.items()}, path, metadata={"format": "pt"})
    path.chmod(0o666 & ~umask())  # safetensors ignores the umask


def save_torch(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write a torch file, each tensor with its own storage: a view would be written with all it is a view of."""
    content = {name: w.detach().clone() for name, w in tensors.items()}
    with path.open("wb") as file:
        try:
            torch.save(content, file)
        except RuntimeError as error:  # torch raises it in place of the OSError of the file
            cause = error.__context__
            raise (cause if isinstance(cause, OSError) else OSError(errno.EIO, str(error)[:200])) from None


def save_folder(
    path: Path,
    tensors: Mapping[str, Tensor],
    files: Mapping[str, Mapping[str, Any]],
    license: Mapping[str, str],
) -> None:
    """Write a folder as timm and transformers have it: weights, JSON files, and a card with the license."""
    with atomic_folder(path) as temporary:
        save_safetensors(tensors, temporary / WEIGHTS[0])
        for name, content in files.items():
            save_json(content, temporary / name)
        (temporary / CARD).write_text(model_card(license), encoding="utf-8")


def check_own_folder(folder: Path, names: tuple[str, ...], kind: str) -> None:
    """Raise an error if a folder, which will be replaced, holds anything but `names`."""
    strangers = sorted({p.name for p in folder.iterdir()} - set(names)) if folder.is_dir() else []
    if folder.is_file() or strangers:
        problem = f"a folder that also holds {', '.join(strangers[:3])}" if strangers else "a file"
        raise CheckpointError(f"{folder} is {problem}; a {kind} model needs a folder without other files")
