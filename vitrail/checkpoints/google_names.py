"""The names in Google's `.npz` files <-> ours.

Their kernels are (in, out) and (rows, columns, in, out). D width, h heads, d = D / h, K classes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from vitrail.checkpoints.mapping import Entry
from vitrail.models.hybrid import HybridConfig
from vitrail.models.names import Config
from vitrail.models.resnet import BiTConfig, StemConfig

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


def naming_of(keys: Iterable[str]) -> str:
    """Which of BLOCK_NAMES a file keeps to."""
    return "original" if any("MlpBlock_3" in key for key in keys) else "linen"


def entries_of(config: Config, *, names: str, top: bool) -> Iterator[Entry]:
    """Every parameter of a config. `names`, `top`: as in the file's dialect (google.py)."""
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
        rowless = top and bool(config.class_token)
        key = TOP_POSITIONS if top else POSITIONS
        yield Entry("positions.table", (key,), *((with_row, without_row) if rowless else ()))
    for i in range(config.depth):
        yield from block_entries(f"encoder.blocks.{i}.", f"{BLOCKS}{i}/", names, config.heads)
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
        yield Entry(
            "head.classifier.weight", (f"{key}/kernel",), lambda w: w[0, 0].T, lambda w: w.T[None, None]
        )
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
