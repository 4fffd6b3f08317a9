"""Google's `.npz` checkpoints <-> ours: the ViT paper's, AugReg, Linen, big_vision, hybrids, BiT-M.

The architecture is inferred from the arrays alone. Other differences between the programs that wrote such files are a
Dialect; it is kept in the provenance, so that writing gives the same file again, key by key and bit by bit.

D width, h heads, d = D / h, N patches. Their kernels are (in, out) and (rows, columns, in, out).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from vitrail.checkpoints.architecture import NO_HINTS, Hints, Inference, Size
from vitrail.checkpoints.checkpoint import Checkpoint, check_extent, listing, note_unwritten
from vitrail.checkpoints.json_files import Count, misfit
from vitrail.checkpoints.mapping import Entry, make_plain, read_weights, respell, write_weights
from vitrail.checkpoints.npz import read_npz, write_npz
from vitrail.data import preprocess as pp
from vitrail.errors import CheckpointError
from vitrail.models.checking import MOST
from vitrail.models.hybrid import HybridConfig
from vitrail.models.names import Config
from vitrail.models.resnet import BiTConfig, StemConfig
from vitrail.models.vit import ViTConfig
from vitrail.runtime.log import note, visible

# Names of the parts of a block: attention, second norm, MLP.
BLOCK_NAMES: dict[str, tuple[str, str, str]] = {
    "original": ("MultiHeadDotProductAttention_1", "LayerNorm_2", "MlpBlock_3"),
    "linen": ("MultiHeadDotProductAttention_0", "LayerNorm_1", "MlpBlock_0"),
}
# Some BiT files count their convolutions: standardized_conv2d_17.
CONV = "standardized_conv2d"
COUNTED = re.compile(rf"{CONV}_\d+")
BLOCKS, SCANNED = "Transformer/encoderblock_", "Transformer/encoderblock/"
POSITIONS, TOP_POSITIONS = "Transformer/posembed_input/pos_embedding", "pos_embedding"
# Arrays that a file may hold beside the model: optimizer state, the text tower and scalars of SigLIP.
NOT_THE_MODEL = re.compile(r"(opt/state|opt/|states?/|params/txt/|txt/|params/[tb]$|[tb]$|extra/)")
ODD = tuple[str, str, tuple[Count, Count, Count, Count] | None]  # dtype, order, shape
DTYPES = ("<f2", "<f4", "<f8", "|V2")  # |V2: bfloat16, which numpy does not know


@dataclass(frozen=True)
class Dialect:
    """Differences between files, apart from the architecture."""

    prefix: str = ""  # of every key: '', 'opt/target/', 'params/', 'params/img/'
    names: str = "original"  # one of BLOCK_NAMES
    scan: bool = False  # the blocks of all layers are in one array each, with a leading axis of depth
    top: bool = False  # pos_embedding at the top level, without a row for the class token (big_vision)
    # key: [dtype, order, shape] of the arrays that are not plain float32 in C order
    odd: dict[str, list[Any]] = field(default_factory=dict)


def read(path: Path, hints: Hints = NO_HINTS, *, image_size: Size | None = None) -> Checkpoint:
    """Read a file. `image_size` is needed only if the grid is not square; `hints` only if the model was not made by
    the published code, which has one GELU and one epsilon."""
    arrays = read_npz(path)
    prefix = find_prefix(arrays, path)
    inside = {k.removeprefix(prefix): a for k, a in arrays.items() if k.startswith(prefix)}
    beside = [k for k in arrays if not k.startswith(prefix) or NOT_THE_MODEL.match(k.removeprefix(prefix))]
    if strange := [k for k in beside if not NOT_THE_MODEL.match(k)]:
        raise CheckpointError(f"{path}: extra {listing(strange)}")
    inside = {k: a for k, a in inside.items() if prefix + k not in beside}
    if beside:
        note(f"{path.name}: {len(beside)} arrays beside the model (optimizer, other towers) are left out")
    where, scan = str(path), any(key.startswith(SCANNED) for key in inside)
    naming = "original" if any("MlpBlock_3" in key for key in inside) else "linen"
    dialect = Dialect(prefix, naming, scan, TOP_POSITIONS in inside, find_odd(inside))
    tensors = {key: to_tensor(a, f"{path}: {key}") for key, a in inside.items()}
    tensors = unscan(respell(tensors, {COUNTED.pattern: CONV}, where), where)
    config = infer_config(tensors, dialect, Inference(where, hints, image_size, sure=True))
    check_extent(config, tensors, where)
    weights = read_weights(names(config, dialect), tensors, config, where)
    head = weights.get("head.classifier.weight")
    if head is not None and not head.any():
        note(f"{path.name}: the head is all zeros (as in the published ImageNet-21k files): no predictions")
    if any(a.dtype == np.float64 for a in inside.values()):
        note(f"{path.name}: float64 weights are rounded to float32")
    provenance = {"format": "npz", "file": visible(path.name), "dialect": asdict(dialect)}
    return Checkpoint(config, weights, published_line(config, dialect), provenance=provenance)


def write(checkpoint: Checkpoint, path: Path) -> list[str]:
    """Write in the dialect that the weights came in, else in the original naming; return notes for the reader."""
    dialect = read_dialect(checkpoint)
    config = checkpoint.config
    from_npz = checkpoint.provenance.get("format") == "npz"
    if not isinstance(config, BiTConfig) and not (from_npz and config.positions == "sincos"):
        checkpoint, config = make_plain(checkpoint, "npz", with_positions=True)
        if config.norm_at != "encoder" or (config.class_token and config.pool != "token"):
            what = "a last norm after it" if config.norm_at != "encoder" else "a class token"
            raise CheckpointError(f"npz has no counterpart for pool={config.pool!r} with {what}")
    weights = checkpoint.weights
    table = weights.get("positions.table")
    if dialect.top and table is not None and "cls" in weights and table[:, :1].any():
        # This dialect has no position for the class token: it is added to the token itself.
        weights = {**weights, "cls": weights["cls"] + table[:, :1]}
    tensors = write_weights(names(config, dialect), weights)
    if dialect.scan:
        tensors = scan_layers(tensors)
    spelling = {COUNTED.sub(CONV, key): key for key in dialect.odd}
    arrays, notes = {}, reader_notes(checkpoint, dialect)
    for key, w in tensors.items():
        name = spelling.get(key, key)
        arrays[dialect.prefix + name], exact = as_stored(
            w.numpy(), *dialect.odd.get(name, ("<f4", "C", None))
        )
        if not exact:
            notes.append(
                f"{name} is written as float32: {dialect.odd[name][0]} can no longer hold its values"
            )
    write_npz(path, arrays)
    return notes


def infer_config(t: Mapping[str, Tensor], dialect: Dialect, inference: Inference) -> Config:
    if "embedding/kernel" not in t:
        return inference.infer(bit_names(), t)
    query = t.get(f"{BLOCKS}0/{BLOCK_NAMES[dialect.names][0]}/query/kernel")
    stated = {"heads": query.shape[1] if query is not None and query.ndim > 1 else None}
    inference.stated = {**stated, "pool": "token"} if "cls" in t else stated
    inference.defaults = {"activation": "gelu_tanh", "norm_eps": 1e-6}  # of the published code
    if POSITIONS not in t and not dialect.top:
        if "cls" in t or dialect.names == "original":
            raise CheckpointError(f"{inference.where}: missing {POSITIONS}")
        inference.stated = {**stated, "positions": "sincos"}  # big_vision's fixed ones
    return inference.infer(vit_names(dialect, 1, "cls" in t), t)


def published_line(config: Config, dialect: Dialect) -> str:
    """Return the preprocessing line of the code that published such files."""
    fixed_positions = isinstance(config, ViTConfig) and config.positions == "sincos"
    published = "big_vision_eval" if dialect.top or dialect.scan or fixed_positions else "official_eval"
    return str(pp.parse(pp.PRESETS[published]).at(config.image_size))


def reader_line(checkpoint: Checkpoint) -> str:
    return published_line(checkpoint.config, read_dialect(checkpoint))


def reader_notes(checkpoint: Checkpoint, dialect: Dialect) -> list[str]:
    """Return the settings in which this model differs from the published code: its reader must set them."""
    config, line = checkpoint.config, checkpoint.preprocess
    published: Config = BiTConfig() if isinstance(config, BiTConfig) else ViTConfig()
    is_bit = isinstance(config, BiTConfig)
    names = ("norm_eps", "standardisation", "standardisation_eps") if is_bit else ("activation", "norm_eps")
    notes = [
        f"the reader must set {name}={getattr(config, name)!r}: .npz files contain weights only"
        for name in names
        if getattr(config, name) != getattr(published, name)
    ]
    if isinstance(config, HybridConfig) and replace(config.stem, units=(), width_factor=1) != StemConfig(()):
        notes.append(f"the reader must set the stem's {replace(config.stem, units=())}")
    if line and line != published_line(config, dialect):
        notes.append(f"the reader must prepare images as '{line}'")
    return notes + note_unwritten(checkpoint)


# --- the dialect ---


def read_dialect(checkpoint: Checkpoint) -> Dialect:
    """Return the dialect that the weights came in, else the original naming.

    It decides what is written, and may come from an untrusted model: only values that a file can have are accepted.
    """
    if checkpoint.provenance.get("format") != "npz":
        return Dialect()
    stored = checkpoint.provenance.get("dialect")
    if isinstance(stored, dict) and misfit(stored, Dialect, "") is None:
        dialect = Dialect(**stored)
        prefix = re.fullmatch(r"([\w-]{1,40}/){0,4}", dialect.prefix, re.ASCII)
        if prefix and dialect.names in BLOCK_NAMES and all(map(is_odd, dialect.odd, dialect.odd.values())):
            return dialect
    raise CheckpointError(f"the npz dialect in the provenance of this model is invalid: {stored!r:.200}")


def is_odd(key: str, spec: Any) -> bool:
    return len(key) <= 200 and misfit(spec, ODD, "") is None and spec[0] in DTYPES and spec[1] in ("C", "F")


def find_prefix(arrays: Mapping[str, np.ndarray], path: Path) -> str:
    """Return the prefix of the one key that every model of a family has."""
    for landmark in (r"(.*?)embedding/kernel", r"(.*?)resnet/root_block/standardized_conv2d(_\d+)?/kernel"):
        matches = [m for m in (re.fullmatch(landmark, key) for key in arrays) if m]
        if matches:
            return min((m[1] for m in matches), key=len)
    raise CheckpointError(
        f"{path} is not a ViT, hybrid or BiT checkpoint: it has neither embedding/kernel nor "
        f"resnet/root_block; its keys begin {', '.join(list(arrays)[:3]) or '(none)'}"
    )


def find_odd(arrays: Mapping[str, np.ndarray]) -> dict[str, list[Any]]:
    odd = {}
    for key, a in arrays.items():
        fortran = a.flags.f_contiguous and not a.flags.c_contiguous
        old_norm = a.ndim == 4 and a.size == a.shape[-1] and key.endswith(("scale", "bias", "gamma", "beta"))
        if a.dtype != np.float32 or fortran or old_norm or COUNTED.search(key):
            odd[key] = [a.dtype.str, "F" if fortran else "C", list(a.shape) if old_norm else None]
    return odd


def to_tensor(a: np.ndarray, where: str) -> Tensor:
    """Return a view of an array. numpy does not know bfloat16: such arrays come as two opaque bytes."""
    if a.dtype.kind == "V" and a.dtype.itemsize == 2:
        return torch.from_numpy(a.view(np.int16)).view(torch.bfloat16)
    if a.dtype.str not in DTYPES:
        raise CheckpointError(f"{where} is {a.dtype}; weights are float16, bfloat16, float32 or float64")
    return torch.from_numpy(a)


def as_stored(a: np.ndarray, dtype: str, order: Any, shape: list[int] | None) -> tuple[np.ndarray, bool]:
    """Return an array as the file had it; and False if its dtype would change values, and float32 is kept."""
    stored: np.ndarray
    if dtype == "|V2":
        rounded = torch.from_numpy(a).to(torch.bfloat16)
        stored = rounded.view(torch.int16).numpy().view(np.dtype(dtype))
        exact = torch.equal(torch.from_numpy(a), rounded.float())
    else:
        with np.errstate(over="ignore"):
            stored = a.astype(dtype)
        exact = np.array_equal(stored.astype(np.float32), a, equal_nan=True)
    if not exact:
        stored = a
    if shape is not None and math.prod(shape) == stored.size:
        stored = stored.reshape(shape)
    return np.asarray(stored, order=order), exact


def unscan(tensors: Mapping[str, Tensor], where: str) -> dict[str, Tensor]:
    """Split arrays of all layers into one for each layer."""
    split: dict[str, Tensor] = {}
    for key, w in tensors.items():
        layers = range(w.shape[0] if w.ndim else 0)
        if len(layers) > MOST["depth"] and key.startswith(SCANNED):
            raise CheckpointError(f"{where}: {key} is of {len(layers)} layers; at most {MOST['depth']}")
        rest = key.removeprefix(SCANNED)
        unpacked = {f"{BLOCKS}{i}/{rest}": w[i] for i in layers} if layers and rest != key else {key: w}
        if twice := sorted(split.keys() & unpacked.keys()):
            raise CheckpointError(f"{where} holds twice {listing(twice)}")
        split |= unpacked
    return split


def scan_layers(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Join the arrays of all layers, as `unscan` splits them."""
    joined: dict[str, list[Tensor]] = {}
    layer = {key: int(match[1]) for key in tensors if (match := re.match(rf"{BLOCKS}(\d+)/", key))}
    for key in sorted(tensors, key=lambda key: layer.get(key, 0)):
        joined.setdefault(re.sub(rf"^{BLOCKS}\d+/", SCANNED, key), []).append(tensors[key])
    return {key: torch.stack(ws) if key.startswith(SCANNED) else ws[0] for key, ws in joined.items()}


# --- names ---


def names(config: Config, dialect: Dialect) -> dict[str, Entry]:
    if isinstance(config, BiTConfig):
        return bit_names()
    return vit_names(dialect, config.heads, bool(config.class_token))


def vit_names(dialect: Dialect, heads: int, class_token: bool) -> dict[str, Entry]:
    attention, norm2, mlp = (f"{BLOCKS}{{i}}/{name}" for name in BLOCK_NAMES[dialect.names])
    pool, block = "MAPHead_0/MultiHeadDotProductAttention_0", "encoder.blocks.{i}"
    positions = Entry((TOP_POSITIONS if dialect.top else POSITIONS,))
    if dialect.top and class_token:  # (1, N, D) <-> (1, 1 + N, D)
        positions = replace(
            positions, into=lambda table: pad(table, (0, 0, 1, 0)), back=lambda table: table[:, 1:]
        )
    ours, theirs = "stem.stages.{s}.{u}", "block{s1}/unit{u1}"
    stem: dict[str, Entry] = {}
    for n in (1, 2, 3):
        stem |= conv(f"{ours}.conv{n}", f"{theirs}/conv{n}") | norm(f"{ours}.norm{n}", f"{theirs}/gn{n}")
    return {
        **conv("stem.root.conv", "conv_root"),
        **norm("stem.root.norm", "gn_root"),
        **stem,
        **conv(f"{ours}.projection", f"{theirs}/conv_proj"),
        **norm(f"{ours}.projection_norm", f"{theirs}/gn_proj"),
        **conv("embedding", "embedding"),
        "embedding.bias": Entry(("embedding/bias",)),
        "cls": Entry(("cls",)),
        "positions.table": positions,
        **norm(f"{block}.norm1", f"{BLOCKS}{{i}}/LayerNorm_0"),
        **projection(f"{block}.attention.qkv", attention, "query key value", heads),
        **dense(f"{block}.attention.out", f"{attention}/out", heads),
        **norm(f"{block}.norm2", norm2),
        **dense(f"{block}.mlp.fc1", f"{mlp}/Dense_0"),
        **dense(f"{block}.mlp.fc2", f"{mlp}/Dense_1"),
        **norm("encoder.norm", "Transformer/encoder_norm"),
        "attention_pool.probe": Entry(("MAPHead_0/probe",)),
        **projection("attention_pool.q", pool, "query", heads),
        **projection("attention_pool.kv", pool, "key value", heads),
        **dense("attention_pool.out", f"{pool}/out", heads),
        **norm("attention_pool.norm", "MAPHead_0/LayerNorm_0"),
        **dense("attention_pool.mlp.fc1", "MAPHead_0/MlpBlock_0/Dense_0"),
        **dense("attention_pool.mlp.fc2", "MAPHead_0/MlpBlock_0/Dense_1"),
        **dense("head.pre_logits", "pre_logits"),
        **dense("head.classifier", "head"),
    }


def norm(ours: str, theirs: str, weight: str = "scale", bias: str = "bias") -> dict[str, Entry]:
    """Old group norms have the shape (1, 1, 1, C)."""
    pairs = {"weight": weight, "bias": bias}
    return {f"{ours}.{a}": Entry((f"{theirs}/{b}",), Tensor.flatten) for a, b in pairs.items()}


def dense(ours: str, theirs: str, heads: int = 0) -> dict[str, Entry]:
    """(in, out) <-> (out, in); with heads (h, d, D) <-> (D, D), the output first."""
    kernel = Entry((f"{theirs}/kernel",), Tensor.t, Tensor.t)
    if heads:
        into, back = (lambda w: w.flatten(0, 1).t()), (lambda w: w.t().unflatten(0, (heads, -1)))
        kernel = Entry((f"{theirs}/kernel",), into, back)
    return {f"{ours}.weight": kernel, f"{ours}.bias": Entry((f"{theirs}/bias",))}


def conv(ours: str, theirs: str) -> dict[str, Entry]:
    """HWIO <-> OIHW."""
    turn = (lambda w: w.permute(3, 2, 0, 1)), (lambda w: w.permute(2, 3, 1, 0))
    return {f"{ours}.weight": Entry((f"{theirs}/kernel",), *turn)}


def projection(ours: str, theirs: str, names: str, heads: int) -> dict[str, Entry]:
    """q, k, v: (D, h, d) <-> (D, D), the output first; the bias (h, d) <-> (D)."""
    kernels, biases = (tuple(f"{theirs}/{n}/{leaf}" for n in names.split()) for leaf in ("kernel", "bias"))
    turn = (lambda w: w.flatten(1).t()), (lambda w: w.t().unflatten(1, (heads, -1)))
    return {
        f"{ours}.weight": Entry(kernels, *turn),
        f"{ours}.bias": Entry(biases, Tensor.flatten, lambda b: b.unflatten(0, (heads, -1))),
    }


def bit_names() -> dict[str, Entry]:
    ours, theirs = "stages.{s}.{u}", "resnet/block{s1}/unit{u1:02}"
    rows = conv("root.conv", f"resnet/root_block/{CONV}")
    for n, letter in enumerate("abc", 1):
        rows |= norm(f"{ours}.norm{n}", f"{theirs}/{letter}/group_norm", "gamma", "beta")
        rows |= conv(f"{ours}.conv{n}", f"{theirs}/{letter}/{CONV}")
    rows |= conv(f"{ours}.projection", f"{theirs}/a/proj/{CONV}")
    rows |= norm("norm", "resnet/group_norm", "gamma", "beta")
    head, turn = "resnet/head/conv2d", ((lambda w: w[0, 0].T), (lambda w: w.T[None, None]))
    rows |= {"head.classifier.weight": Entry((f"{head}/kernel",), *turn)}
    return rows | {"head.classifier.bias": Entry((f"{head}/bias",))}
