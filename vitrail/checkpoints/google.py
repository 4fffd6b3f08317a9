"""Google's `.npz` checkpoints <-> ours: the ViT paper's, AugReg, Linen, big_vision, hybrids, BiT-M.

The architecture is inferred from the arrays alone. What differs between the codes that wrote such files is a
`Dialect`; it is kept in the provenance, so that writing gives the same file again, key by key and bit by bit.

    prefix      what every key begins with: '', 'opt/target/', 'params/', 'params/img/'
    names       of the parts of a block: original (LayerNorm_2, MlpBlock_3) or linen (LayerNorm_1, MlpBlock_0)
    scan        the blocks of all layers in one array each, with a leading axis of depth
    top         pos_embedding at the top level and without a row for the class token (big_vision)
    odd         key: [dtype, order, shape] of the arrays that are not plain float32 in C order

D width, h heads, d = D / h, M mlp_dim, P patch. Their kernels are (in, out) and (rows, columns, in, out).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitrail.checkpoints import mapping
from vitrail.checkpoints.checkpoint import Checkpoint, listing, parameter_shapes
from vitrail.checkpoints.mapping import Entry
from vitrail.checkpoints.npz import read_npz, write_npz
from vitrail.errors import CheckpointError
from vitrail.models.hybrid import HybridConfig
from vitrail.models.names import Config
from vitrail.models.resnet import BiTConfig, StemConfig
from vitrail.models.vit import ViTConfig
from vitrail.runtime.log import note

BLOCK_NAMES: dict[str, dict[str, str]] = {
    "original": {
        "norm1": "LayerNorm_0",
        "attention": "MultiHeadDotProductAttention_1",
        "norm2": "LayerNorm_2",
        "mlp": "MlpBlock_3",
    },
    "linen": {
        "norm1": "LayerNorm_0",
        "attention": "MultiHeadDotProductAttention_0",
        "norm2": "LayerNorm_1",
        "mlp": "MlpBlock_0",
    },
}
BLOCKS, SCANNED = "Transformer/encoderblock_", "Transformer/encoderblock/"
POSITIONS, TOP_POSITIONS = "Transformer/posembed_input/pos_embedding", "pos_embedding"
# What may stand in a file beside the model: optimizer state, the text tower and scalars of SigLIP.
NOT_THE_MODEL = re.compile(r"(opt/state|opt/|states?/|params/txt/|txt/|params/[tb]$|[tb]$|extra/)")
OFFICIAL_LINE = "resize({0},{1})|to_range(-1,1)"  # VT and BiT evaluate on a plain squash
BIG_VISION_LINE = "resize_small({2},area)|central_crop({0},{1})|to_range(-1,1)"


@dataclass(frozen=True)
class Dialect:
    prefix: str = ""
    names: str = "original"
    scan: bool = False
    top: bool = False
    odd: dict[str, list[Any]] = field(default_factory=dict)


def read(path: Path, *, image_size: int | tuple[int, int] | None = None) -> Checkpoint:
    """`image_size` is asked for only where the file has a grid that is not square."""
    arrays = read_npz(path)
    prefix = prefix_of(arrays, path)
    inside = {k.removeprefix(prefix): a for k, a in arrays.items() if k.startswith(prefix)}
    beside = [k for k in arrays if not k.startswith(prefix) or NOT_THE_MODEL.match(k.removeprefix(prefix))]
    if strange := [k for k in beside if not NOT_THE_MODEL.match(k)]:
        raise CheckpointError(f"{path}: extra {listing(strange)}")
    inside = {k: a for k, a in inside.items() if prefix + k not in beside}
    if beside:
        note(f"{path.name}: {len(beside)} arrays beside the model (optimizer, other towers) are left out")
    names = "original" if any("MlpBlock_3" in key for key in inside) else "linen"
    scan = any(key.startswith(SCANNED) for key in inside)
    dialect = Dialect(prefix, names, scan, TOP_POSITIONS in inside, oddities(inside))

    tensors = {key: tensor_of(a) for key, a in inside.items()}
    tensors = {canonical(key): w for key, w in unscanned(tensors).items()}
    try:
        config = config_of(tensors, image_size, path)
    except (KeyError, IndexError, ValueError) as error:
        raise CheckpointError(f"{path}: the architecture cannot be inferred ({error})") from error
    entries = list(entries_of(config, dialect))
    weights = mapping.read(entries, tensors, parameter_shapes(config), str(path))
    head = weights.get("head.classifier.weight")
    if head is not None and not head.any():
        note(f"{path.name}: the head is all zero (so were the published ImageNet-21k ones): no predictions")
    provenance = {"format": "npz", "file": path.name, "dialect": asdict(dialect)}
    return Checkpoint(config, weights, line_of(config, dialect), provenance=provenance)


def write(checkpoint: Checkpoint, path: Path) -> list[str]:
    """In the dialect the weights came in, else in the original naming, which others read."""
    config = checkpoint.config
    if problem := no_counterpart(config):
        raise CheckpointError(f"npz has no counterpart for {problem}")
    kept = checkpoint.provenance
    dialect = Dialect(**kept["dialect"]) if kept.get("format") == "npz" else Dialect()
    weights = checkpoint.weights
    if dialect.top and (table := weights.get("positions.table")) is not None and "cls" in weights:
        if table[:, :1].any():  # the class token's position, which this dialect has not
            weights = {**weights, "cls": weights["cls"] + table[:, :1]}
    tensors = mapping.write(list(entries_of(config, dialect)), weights)
    if dialect.scan:
        tensors = scanned(tensors)
    arrays, notes = {}, reader_notes(config)
    for key, w in tensors.items():
        name, spec = spelled(key, dialect)
        arrays[dialect.prefix + name], exact = as_stored(w.numpy(), spec)
        if not exact:
            notes.append(f"{name} is written as float32: {spec[0]} cannot hold its values any more")
    write_npz(path, arrays)
    return notes


# --- what the file is ---------------------------------------------------------------------------


def prefix_of(arrays: Mapping[str, np.ndarray], path: Path) -> str:
    """What stands before the one key that every model of a family has."""
    for landmark in (r"(.*?)embedding/kernel", r"(.*?)resnet/root_block/standardized_conv2d(_\d+)?/kernel"):
        found = [m for m in (re.fullmatch(landmark, key) for key in arrays) if m]
        if found:
            return min((m[1] for m in found), key=len)
    raise CheckpointError(
        f"{path} is not a ViT, hybrid or BiT checkpoint: it has neither embedding/kernel nor "
        f"resnet/root_block; its keys begin {', '.join(list(arrays)[:3]) or '(none)'}"
    )


def config_of(
    tensors: Mapping[str, Tensor], image_size: int | tuple[int, int] | None, path: Path
) -> Config:
    if "embedding/kernel" not in tensors:
        return bit_config(tensors, image_size)
    patch_size, _, _, width = tensors["embedding/kernel"].shape
    depth = numbered(tensors, rf"{BLOCKS}(\d+)/", first=0)
    part = next(p for p in BLOCK_NAMES.values() if f"{BLOCKS}0/{p['mlp']}/Dense_0/kernel" in tensors)
    heads = tensors[f"{BLOCKS}0/{part['attention']}/query/kernel"].shape[1]
    shared: dict[str, Any] = {
        "width": width,
        "depth": depth,
        "mlp_dim": tensors[f"{BLOCKS}0/{part['mlp']}/Dense_0/kernel"].shape[1],
        "heads": heads,
        "patch_size": patch_size,
        "classes": tensors["head/kernel"].shape[-1] if "head/kernel" in tensors else 0,
        "pre_logits": tensors["pre_logits/kernel"].shape[-1] if "pre_logits/kernel" in tensors else 0,
        "class_token": "cls" in tensors,
        "pool": "token" if "cls" in tensors else "attention" if "MAPHead_0/probe" in tensors else "mean",
    }
    stem = stem_config(tensors)
    stride = patch_size * (stem.stride if stem else 1)
    grid, kind = grid_of(tensors, image_size, stride, path)
    shared |= {"image_size": (grid[0] * stride, grid[1] * stride), "positions": kind}
    return HybridConfig(**shared, stem=stem) if stem else ViTConfig(**shared)


def grid_of(
    tensors: Mapping[str, Tensor], image_size: int | tuple[int, int] | None, stride: int, path: Path
) -> tuple[tuple[int, int], Any]:
    """Rows and columns, and the kind of positions. A file without any is big_vision's fixed sin-cos."""
    asked = (image_size, image_size) if isinstance(image_size, int) else image_size
    asked_grid = (asked[0] // stride, asked[1] // stride) if asked else None
    table = tensors.get(POSITIONS, tensors.get(TOP_POSITIONS))
    if table is None:
        return asked_grid or (224 // stride, 224 // stride), "sincos"
    N = table.shape[1] - (POSITIONS in tensors and "cls" in tensors)
    side = math.isqrt(N)
    if side * side == N:
        return (side, side), "1d"
    if asked_grid and asked_grid[0] * asked_grid[1] == N:
        return asked_grid, "1d"
    raise CheckpointError(
        f"{path} has positions for {N} patches, which are not a square: say image_size=(height, width)"
    )


def stem_config(tensors: Mapping[str, Tensor]) -> StemConfig | None:
    if "conv_root/kernel" not in tensors:
        return None
    stages = numbered(tensors, r"block(\d+)/", first=1)
    units = tuple(numbered(tensors, rf"block{s}/unit(\d+)/", first=1) for s in range(1, stages + 1))
    return StemConfig(units, tensors["conv_root/kernel"].shape[-1] / 64)


def bit_config(tensors: Mapping[str, Tensor], image_size: int | tuple[int, int] | None) -> BiTConfig:
    """A ResNet takes any image size; its arrays do not tell which: 224, where nothing is asked for."""
    stages = numbered(tensors, r"resnet/block(\d+)/", first=1)
    units = tuple(numbered(tensors, rf"resnet/block{s}/unit(\d+)/", first=1) for s in range(1, stages + 1))
    width = tensors["resnet/root_block/standardized_conv2d/kernel"].shape[-1] / 64
    head = tensors.get("resnet/head/conv2d/kernel")
    size: Any = image_size or (224, 224)
    return BiTConfig(units, width, size, classes=0 if head is None else head.shape[-1])


def numbered(tensors: Mapping[str, Tensor], pattern: str, *, first: int) -> int:
    """How many there are of what the pattern counts; without gaps, from `first` on."""
    found = sorted({int(m[1]) for m in (re.match(pattern, key) for key in tensors) if m})
    if found != list(range(first, first + len(found))):
        raise ValueError(f"{pattern} counts {found}")
    return len(found)


def line_of(config: Config, dialect: Dialect) -> str:
    H, W = config.image_size
    line = BIG_VISION_LINE if dialect.top or dialect.scan else OFFICIAL_LINE
    return line.format(H, W, round(min(H, W) * 8 / 7))


# --- their names <-> ours -----------------------------------------------------------------------


def entries_of(config: Config, dialect: Dialect) -> Iterator[Entry]:
    if isinstance(config, BiTConfig):
        yield from bit_entries(config)
        return
    if isinstance(config, HybridConfig):
        yield from stem_entries(config.stem)
    yield conv("embedding.weight", "embedding/kernel")
    yield Entry("embedding.bias", ("embedding/bias",))
    if config.class_token:
        yield Entry("cls", ("cls",))
    if config.positions == "1d":
        rowless = dialect.top and bool(config.class_token)
        key = TOP_POSITIONS if dialect.top else POSITIONS
        yield Entry("positions.table", (key,), *((with_row, without_row) if rowless else ()))
    for i in range(config.depth):
        yield from block_entries(f"encoder.blocks.{i}.", f"{BLOCKS}{i}/", dialect.names, config.heads)
    yield from norm("encoder.norm", "Transformer/encoder_norm")
    if config.pool == "attention":
        yield from pool_entries(config.heads)
    if config.pre_logits:
        yield from dense("head.pre_logits", "pre_logits")
    if config.classes:
        yield from dense("head.classifier", "head")


def block_entries(ours: str, theirs: str, names: str, heads: int) -> Iterator[Entry]:
    part = {key: theirs + name for key, name in BLOCK_NAMES[names].items()}
    yield from norm(f"{ours}norm1", part["norm1"])
    yield from projections(f"{ours}attention.qkv", part["attention"], ("query", "key", "value"), heads)
    yield from out_projection(f"{ours}attention.out", part["attention"], heads)
    yield from norm(f"{ours}norm2", part["norm2"])
    yield from dense(f"{ours}mlp.fc1", f"{part['mlp']}/Dense_0")
    yield from dense(f"{ours}mlp.fc2", f"{part['mlp']}/Dense_1")


def pool_entries(heads: int) -> Iterator[Entry]:
    ours, theirs, attention = "attention_pool", "MAPHead_0", "MAPHead_0/MultiHeadDotProductAttention_0"
    yield Entry(f"{ours}.probe", (f"{theirs}/probe",))
    yield from projections(f"{ours}.q", attention, ("query",), heads)
    yield from projections(f"{ours}.kv", attention, ("key", "value"), heads)
    yield from out_projection(f"{ours}.out", attention, heads)
    yield from norm(f"{ours}.norm", f"{theirs}/LayerNorm_0")
    yield from dense(f"{ours}.mlp.fc1", f"{theirs}/MlpBlock_0/Dense_0")
    yield from dense(f"{ours}.mlp.fc2", f"{theirs}/MlpBlock_0/Dense_1")


def stem_entries(stem: StemConfig) -> Iterator[Entry]:
    yield conv("stem.root.conv.weight", "conv_root/kernel")
    yield from norm("stem.root.norm", "gn_root")
    for s, units in enumerate(stem.units):
        for u in range(units):
            ours, theirs = f"stem.stages.{s}.{u}", f"block{s + 1}/unit{u + 1}"
            for n in (1, 2, 3):
                yield conv(f"{ours}.conv{n}.weight", f"{theirs}/conv{n}/kernel")
                yield from norm(f"{ours}.norm{n}", f"{theirs}/gn{n}")
            if u == 0:
                yield conv(f"{ours}.projection.weight", f"{theirs}/conv_proj/kernel")
                yield from norm(f"{ours}.projection_norm", f"{theirs}/gn_proj")


def bit_entries(config: BiTConfig) -> Iterator[Entry]:
    kernel = "standardized_conv2d/kernel"
    yield conv("root.conv.weight", f"resnet/root_block/{kernel}")
    for s, units in enumerate(config.units):
        for u in range(units):
            ours, theirs = f"stages.{s}.{u}", f"resnet/block{s + 1}/unit{u + 1:02}"
            for n, letter in enumerate("abc", 1):
                yield from norm(f"{ours}.norm{n}", f"{theirs}/{letter}/group_norm", "gamma", "beta")
                yield conv(f"{ours}.conv{n}.weight", f"{theirs}/{letter}/{kernel}")
            if u == 0:
                yield conv(f"{ours}.projection.weight", f"{theirs}/a/proj/{kernel}")
    yield from norm("norm", "resnet/group_norm", "gamma", "beta")
    if config.classes:
        key = "resnet/head/conv2d"
        yield Entry("head.classifier.weight", (f"{key}/kernel",), lambda w: w[0, 0].T, lambda w: w.T[None, None])
        yield Entry("head.classifier.bias", (f"{key}/bias",))


def norm(ours: str, theirs: str, scale: str = "scale", bias: str = "bias") -> Iterator[Entry]:
    """Also of the shape (1, 1, 1, C) that old group norms have."""
    yield Entry(f"{ours}.weight", (f"{theirs}/{scale}",), Tensor.flatten)
    yield Entry(f"{ours}.bias", (f"{theirs}/{bias}",), Tensor.flatten)


def dense(ours: str, theirs: str) -> Iterator[Entry]:
    yield Entry(f"{ours}.weight", (f"{theirs}/kernel",), Tensor.t, Tensor.t)  # (in, out) <-> (out, in)
    yield Entry(f"{ours}.bias", (f"{theirs}/bias",))


def conv(ours: str, theirs: str) -> Entry:
    """HWIO <-> OIHW."""
    return Entry(ours, (theirs,), lambda w: w.permute(3, 2, 0, 1), lambda w: w.permute(2, 3, 1, 0))


def projections(ours: str, theirs: str, names: tuple[str, ...], heads: int) -> Iterator[Entry]:
    """q, k, v: (D, h, d) <-> (D, D), the output first."""
    yield Entry(
        f"{ours}.weight",
        tuple(f"{theirs}/{name}/kernel" for name in names),
        lambda w: w.flatten(1).t(),
        lambda w: w.t().unflatten(1, (heads, -1)),  # (D, h, d)
    )
    biases = tuple(f"{theirs}/{name}/bias" for name in names)
    yield Entry(f"{ours}.bias", biases, Tensor.flatten, lambda b: b.unflatten(0, (heads, -1)))  # (h, d)


def out_projection(ours: str, theirs: str, heads: int) -> Iterator[Entry]:
    """(h, d, D) <-> (D, D), the output first."""
    yield Entry(
        f"{ours}.weight",
        (f"{theirs}/out/kernel",),
        lambda w: w.flatten(0, 1).t(),
        lambda w: w.t().unflatten(0, (heads, -1)),  # (h, d, D)
    )
    yield Entry(f"{ours}.bias", (f"{theirs}/out/bias",))


def with_row(table: Tensor) -> Tensor:
    return torch.nn.functional.pad(table, (0, 0, 1, 0))  # (1, 1 + N, D)


def without_row(table: Tensor) -> Tensor:
    return table[:, 1:]  # (1, N, D)


# --- the odd ends of a dialect --------------------------------------------------------------------


def oddities(arrays: Mapping[str, np.ndarray]) -> dict[str, list[Any]]:
    odd = {}
    for key, a in arrays.items():
        fortran = a.flags.f_contiguous and not a.flags.c_contiguous
        old_norm = a.ndim == 4 and a.size == a.shape[-1] and key.endswith(("scale", "bias", "gamma", "beta"))
        numbered_key = key != canonical(key)
        if a.dtype != np.float32 or fortran or old_norm or numbered_key:
            odd[key] = [a.dtype.str, "F" if fortran else "C", list(a.shape) if old_norm else None]
    return odd


def canonical(key: str) -> str:
    """Some BiT files count their convolutions: standardized_conv2d_17."""
    return re.sub(r"standardized_conv2d_\d+", "standardized_conv2d", key)


def spelled(key: str, dialect: Dialect) -> tuple[str, list[Any]]:
    """The key as the file had it, and how its array was stored."""
    for name, spec in dialect.odd.items():
        if canonical(name) == key:
            return name, spec
    return key, ["<f4", "C", None]


def tensor_of(a: np.ndarray) -> Tensor:
    """A view. numpy knows no bfloat16: such arrays come as two opaque bytes."""
    if a.dtype.kind == "V" and a.dtype.itemsize == 2:
        return torch.from_numpy(a.view(np.int16)).view(torch.bfloat16)
    if a.dtype.kind != "f" or a.dtype.byteorder == ">":
        raise CheckpointError(f"weights of type {a.dtype} are not known: float16, bfloat16, float32, float64")
    return torch.from_numpy(a)


def as_stored(a: np.ndarray, spec: list[Any]) -> tuple[np.ndarray, bool]:
    """The array as the dialect stores it; False where its type would change values, and float32 is kept."""
    dtype, order, shape = spec
    stored: np.ndarray
    if np.dtype(dtype).kind == "V":
        stored = torch.from_numpy(a).to(torch.bfloat16).view(torch.int16).numpy().view(np.dtype(dtype))
        exact = torch.equal(torch.from_numpy(a), torch.from_numpy(a).to(torch.bfloat16).float())
    else:
        with np.errstate(over="ignore"):
            stored = a.astype(dtype)
        exact = np.array_equal(stored.astype(np.float32), a, equal_nan=True)
    if not exact:
        stored = a
    if shape is not None and math.prod(shape) == stored.size:
        stored = stored.reshape(shape)
    return np.asarray(stored, order=order), exact


def unscanned(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """One array for all layers -> one for each."""
    made = {}
    for key, w in tensors.items():
        if key.startswith(SCANNED):
            made |= {f"{BLOCKS}{i}/{key.removeprefix(SCANNED)}": w[i] for i in range(w.shape[0])}
        else:
            made[key] = w
    return made


def scanned(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    made, layers = {}, {}
    for key, w in tensors.items():
        match = re.match(rf"{BLOCKS}(\d+)/(.*)", key)
        if match:
            layers.setdefault(match[2], {})[int(match[1])] = w
        else:
            made[key] = w
    return made | {SCANNED + k: torch.stack([by[i] for i in range(len(by))]) for k, by in layers.items()}


def no_counterpart(config: Config) -> str | None:
    if isinstance(config, BiTConfig):
        return None
    if config.block == "axial":
        return "axial blocks"
    if config.positions not in ("1d", "sincos") or config.positions_at != "stem":
        return f"positions={config.positions!r} at {config.positions_at!r}"
    if config.norm_at != "encoder":
        return "a last norm after the pooling"
    if config.class_token and config.pool != "token":
        return f"a class token with pool={config.pool!r}"
    return None


def reader_notes(config: Config) -> list[str]:
    """What the published code assumes and this model does not do: its reader must set it."""
    published: Config = BiTConfig() if isinstance(config, BiTConfig) else ViTConfig()
    notes = []
    if isinstance(config, BiTConfig):
        names: tuple[str, ...] = ("norm_eps", "standardisation", "standardisation_eps")
    else:
        names = ("activation", "norm_eps", "positions")
    for name in names:
        if getattr(config, name) != getattr(published, name):
            notes.append(f"the reader must set {name}={getattr(config, name)!r}: .npz files carry weights only")
    if isinstance(config, HybridConfig) and replace(config.stem, units=(), width_factor=1) != StemConfig(()):
        notes.append(f"the reader must set the stem's {replace(config.stem, units=())}")
    return notes
