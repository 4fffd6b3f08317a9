"""The layouts of timm's state dicts: one table each, and what a table cannot say.

    VisionTransformer   blocks.0.attn.qkv, ls1.gamma       also deit, and the names of naflexvit's layers
    Eva                 q_proj, k_proj, v_proj, or qkv with q_bias and v_bias; gamma_1; mlp.fc1_g and fc1_x
    Beit                qkv with q_bias and v_bias; relative_position_bias_table

`find_table` looks at the names of the tensors, so a file needs no class to be recognised. `straighten` brings the few
parts that are not one tensor for one of ours into the form that the tables expect, without changing the function.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.checkpoints.mapping import Entry, Table
from vitrail.checkpoints.original_files import from_originals
from vitrail.errors import CheckpointError

BACKBONE = "patch_embed.backbone"
UNIT = {name: name for name in ("conv1", "conv2", "conv3", "norm1", "norm2", "norm3")}
UNIT |= {"projection": "downsample.conv", "projection_norm": "downsample.norm"}
OURS, THEIRS = "encoder.blocks.{i}", "blocks.{i}"
VIT: Table = {
    "stem.root.conv": f"{BACKBONE}.stem.conv",
    "stem.root.norm": f"{BACKBONE}.stem.norm",
    **{f"stem.stages.{{s}}.{{u}}.{a}": f"{BACKBONE}.stages.{{s}}.blocks.{{u}}.{b}" for a, b in UNIT.items()},
    "embedding": "patch_embed.proj",
    "embedding_norm": "patch_embed.norm",
    "cls": "cls_token",
    "distillation": "dist_token",
    "registers": "reg_token",
    "positions.table": "pos_embed",
    "pre_norm": "norm_pre",
    f"{OURS}.norm1": f"{THEIRS}.norm1",
    f"{OURS}.attention.qkv": f"{THEIRS}.attn.qkv",
    **{f"{OURS}.attention.{name}": f"{THEIRS}.attn.{name}" for name in ("q_norm", "k_norm", "norm")},
    f"{OURS}.attention.out": f"{THEIRS}.attn.proj",
    f"{OURS}.scale1.gamma": f"{THEIRS}.ls1.gamma",
    f"{OURS}.norm2": f"{THEIRS}.norm2",
    **{f"{OURS}.mlp.{name}": f"{THEIRS}.mlp.{name}" for name in ("fc1", "norm", "fc2")},
    f"{OURS}.scale2.gamma": f"{THEIRS}.ls2.gamma",
    "encoder.norm": "norm",
    "pooled_norm": "fc_norm",
    "attention_pool.probe": "attn_pool.latent",
    "attention_pool.out": "attn_pool.proj",
    **{f"attention_pool.{name}": f"attn_pool.{name}" for name in ("q", "kv", "norm", "mlp.fc1", "mlp.fc2")},
    "head.pre_logits": "pre_logits.fc",
    "head.classifier": "head",
}
# A stem without stages is the root alone, and its names are one level shorter.
ROOT_ALONE: Table = {"stem.root.conv": f"{BACKBONE}.conv", "stem.root.norm": f"{BACKBONE}.norm"}
# Rows in place of others, or beside them.
PACKED_GATE: Table = {f"{OURS}.mlp.gated": f"{THEIRS}.mlp.fc1"}
TWO_GATES: Table = {f"{OURS}.mlp.gated": (f"{THEIRS}.mlp.fc1_g", f"{THEIRS}.mlp.fc1_x")}
APART = [f"{THEIRS}.attn.{name}_proj" for name in "qkv"]
QKV_APART: Table = {f"{OURS}.attention.qkv": tuple(APART)}
QV_APART: Table = {
    f"{OURS}.attention.qkv.weight": tuple(f"{name}.weight" for name in APART),
    f"{OURS}.attention.qkv.qv_bias": (f"{APART[0]}.bias", f"{APART[2]}.bias"),
}
QV_BIAS: Table = {
    f"{OURS}.attention.qkv.weight": f"{THEIRS}.attn.qkv.weight",
    f"{OURS}.attention.qkv.qv_bias": (f"{THEIRS}.attn.q_bias", f"{THEIRS}.attn.v_bias"),
}
GAMMAS: Table = {f"{OURS}.scale{n}.gamma": f"{THEIRS}.gamma_{n}" for n in (1, 2)}
TWINS: Table = {
    f"{OURS}.{side}.{ours}": f"{THEIRS}.{theirs}"
    for n, side in enumerate(("left", "right"))
    for ours, theirs in {
        "norm1": f"attns.{n}.norm",
        "attention.qkv": f"attns.{n}.attn.qkv",
        "attention.out": f"attns.{n}.attn.proj",
        "attention.q_norm": f"attns.{n}.attn.q_norm",
        "attention.k_norm": f"attns.{n}.attn.k_norm",
        "attention.norm": f"attns.{n}.attn.norm",
        "scale1.gamma": f"attns.{n}.ls.gamma",
        "norm2": f"ffns.{n}.norm",
        "mlp.fc1": f"ffns.{n}.mlp.fc1",
        "mlp.norm": f"ffns.{n}.mlp.norm",
        "mlp.fc2": f"ffns.{n}.mlp.fc2",
        "scale2.gamma": f"ffns.{n}.ls.gamma",
    }.items()
}
BIASES: Table = {"encoder.positions.{i}.table": f"{THEIRS}.attn.relative_position_bias_table"}
SHARED_BIAS: Table = {"encoder.positions.{i}.table": "rel_pos_bias.relative_position_bias_table"}
FREQUENCIES: Table = {"encoder.rotary.frequencies": "rope.freqs"}
BIT: Table = {
    "root.conv": "stem.conv",
    **{f"stages.{{s}}.{{u}}.{a}": f"stages.{{s}}.blocks.{{u}}.{b}" for a, b in UNIT.items()},
    "norm": "norm",
    "head.classifier.weight": Entry(  # a convolution: (classes, D, 1, 1) <-> (classes, D)
        ("head.fc.weight",), lambda w: w.squeeze(3).squeeze(2), lambda w: w[:, :, None, None]
    ),
    "head.classifier.bias": "head.fc.bias",
}
# Tensors that play no part in what a model computes from an image: of pre-training, or computed from the others.
LEFT_OUT = re.compile(
    r"mask_token|decoder_.*|local_cls_norm\..*|rope_embed\.periods|.*\.bias_mask|.*relative_position_index|.*\.k_bias"
    r"|rope\.(periods|bands|pos_embed.*)"
)
# Parts that timm's models can have and ours cannot, by a piece of the name.
FOREIGN: dict[str, str] = {
    "rel_pos_h": "relative positions in windows", "running_mean": "batch norms",
    "attn.gate.": "gates of attention", ".lambda_": "differential attention", ".sub_norm.": "differential attention",
    ".out_proj.": "one product after attention and MLP", "embeds.norm_input.": "a norm of the pixels",
    "rel_pos.mlp.": "relative positions from an MLP",
}  # fmt: skip


def find_table(t: Mapping[str, Tensor]) -> Table:
    """Return the table of a state dict, by its names and shapes; it may have rows that are not used."""
    if "patch_embed.proj.weight" not in t:
        return BIT
    table = dict(VIT)
    if f"{BACKBONE}.conv.weight" in t:
        table |= ROOT_ALONE
    if "blocks.0.attns.0.norm.weight" in t:
        return {**table, **TWINS}
    if "blocks.0.mlp.fc1_g.weight" in t:
        table |= TWO_GATES
    elif is_packed(t):
        del table[f"{OURS}.mlp.fc1"]
        table |= PACKED_GATE
    if "blocks.0.attn.q_proj.weight" in t:
        partly = "blocks.0.attn.k_proj.bias" not in t and "blocks.0.attn.q_proj.bias" in t
        table |= QV_APART if partly else QKV_APART
    elif "blocks.0.attn.q_bias" in t:
        table |= QV_BIAS
    if "blocks.0.gamma_1" in t:
        table |= GAMMAS
    if "blocks.0.attn.relative_position_bias_table" in t:
        table |= BIASES
    elif "rel_pos_bias.relative_position_bias_table" in t:
        table |= SHARED_BIAS
    if "rope.freqs" in t:
        table |= FREQUENCIES
    return first_rows_first(table)


def first_rows_first(table: Table) -> Table:
    """Return the table with rows of one parameter before rows of weight and bias, which they replace."""
    whole = {name for name in table if name.endswith((".weight", ".qv_bias"))}
    return {name: row for name, row in table.items() if f"{name}.weight" not in whole}


def is_packed(t: Mapping[str, Tensor]) -> bool:
    """Return True for MLPs whose first layer makes the gate too."""
    fc1, fc2 = (t.get(f"blocks.0.mlp.{name}.weight") for name in ("fc1", "fc2"))
    return fc1 is not None and fc2 is not None and fc1.ndim == fc2.ndim == 2 and len(fc1) == 2 * fc2.shape[1]


def straighten(tensors: Mapping[str, Tensor], heads: int | None, where: str) -> dict[str, Tensor]:
    """Return the tensors in the form of the tables; the function that they compute is the same."""
    named = from_originals(tensors)
    if foreign := sorted({what for piece, what in FOREIGN.items() if any(piece in key for key in named)}):
        raise CheckpointError(f"{where} has {', '.join(foreign)}, for which there is no counterpart here")
    t = {name: w for name, w in named.items() if not LEFT_OUT.fullmatch(name)}
    if "embeds.proj.weight" in t:
        t = from_naflex(t)
    t = split_parallel(t)
    for name in [n for n in t if n.endswith(".gamma_1") and n.removesuffix("1") + "2" not in t]:
        t[name.removesuffix("1") + "2"] = torch.ones_like(t[name])  # a scale of attention alone
    for name in [n for n in t if re.search(r"\.attn\.[kv]_proj\.", n)]:
        t[name] = repeat_heads(t[name], t.get(re.sub(r"\.[kv]_proj\.", ".q_proj.", name)), heads, where)
    if "head.weight" in t and "head_dist.weight" in t:
        t |= join_heads(t["head.weight"], t["head_dist.weight"], t["head.bias"], t["head_dist.bias"])
        t = {name: w for name, w in t.items() if not name.startswith("head_dist.")}
    return t


def split_parallel(t: dict[str, Tensor]) -> dict[str, Tensor]:
    """Split the first product of ViT-22B's layers into that of the MLP and that of attention."""
    new = dict(t)
    for name in [n for n in t if n.endswith(".in_proj.weight")]:
        block = name.removesuffix(".in_proj.weight")
        qkv = 3 * t[name].shape[1]
        for leaf in ("weight", "bias"):
            if (w := new.pop(f"{block}.in_proj.{leaf}", None)) is not None:
                new[f"{block}.mlp.fc1.{leaf}"], new[f"{block}.attn.qkv.{leaf}"] = w[:-qkv], w[-qkv:]
        renamed = {"mlp_bias": "mlp.fc1.bias", "ls.gamma": "ls1.gamma"}
        renamed |= {f"{part}.bias": f"attn.{part}.bias" for part in ("q_norm", "k_norm")}
        renamed |= {f"{part}.weight": f"attn.{part}.weight" for part in ("q_norm", "k_norm")}
        pairs = {"in_norm": "norm1", "attn_out_proj": "attn.proj", "mlp_out_proj": "mlp.fc2"}
        renamed |= {f"{a}.{leaf}": f"{b}.{leaf}" for a, b in pairs.items() for leaf in ("weight", "bias")}
        for old, name_ in renamed.items():
            if (w := new.pop(f"{block}.{old}", None)) is not None:
                new[f"{block}.{name_}"] = w
    return new


def join_parallel(t: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors in VIT's names as ViT-22B's layers have them: the inverse, with all biases in one."""
    new = dict(t)
    for name in [n for n in t if n.endswith(".attn.qkv.weight")]:
        block = name.removesuffix(".attn.qkv.weight")
        for leaf in ("weight", "bias"):
            fc1, qkv = (new.pop(f"{block}.{part}.{leaf}", None) for part in ("mlp.fc1", "attn.qkv"))
            if fc1 is not None and qkv is not None:
                new[f"{block}.in_proj.{leaf}"] = torch.cat([fc1, qkv])
            elif fc1 is not None:
                new[f"{block}.mlp_bias"] = fc1
        renamed = {"norm1": "in_norm", "attn.proj": "attn_out_proj", "mlp.fc2": "mlp_out_proj", "ls1": "ls"}
        renamed |= {"attn.q_norm": "q_norm", "attn.k_norm": "k_norm"}
        for old, name_ in renamed.items():
            for leaf in ("weight", "bias", "gamma"):
                if (w := new.pop(f"{block}.{old}.{leaf}", None)) is not None:
                    new[f"{block}.{name_}.{leaf}"] = w
    return new


def repeat_heads(w: Tensor, q: Tensor | None, heads: int | None, where: str) -> Tensor:
    """Return keys or values of all heads, where several heads share one (grouped queries, arXiv:2305.13245)."""
    if q is None or len(w) == len(q):
        return w
    if heads is None or len(q) % heads or len(w) % (len(q) // heads) or len(q) % len(w):
        raise CheckpointError(f"{where}: {len(w)} rows of keys for {len(q)} of queries and {heads} heads")
    d = len(q) // heads
    return w.unflatten(0, (-1, d)).repeat_interleave(len(q) // len(w), dim=0).flatten(0, 1)


def join_heads(w: Tensor, w_d: Tensor, b: Tensor, b_d: Tensor) -> dict[str, Tensor]:
    """Return one classifier of both tokens side by side: DeiT's answer is the mean of its two classifiers'."""
    return {"head.weight": torch.cat([w, w_d], dim=1) / 2, "head.bias": (b + b_d) / 2}


def split_heads(w: Tensor, b: Tensor) -> dict[str, Tensor]:
    """Return the two classifiers whose mean is this one."""
    head, distilled = (2 * w).chunk(2, dim=1)
    weights = {"head.weight": head.contiguous(), "head_dist.weight": distilled.contiguous()}
    return weights | {"head.bias": b, "head_dist.bias": b.clone()}


def from_naflex(t: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return NaFlexVit's tensors under VisionTransformer's names; its patches are flat, channels last."""
    new = {re.sub(r"^embeds\.(cls_token|reg_token|pos_embed)$", r"\1", name): w for name, w in t.items()}
    new = {re.sub(r"^embeds\.(proj|norm)\.", r"patch_embed.\1.", name): w for name, w in new.items()}
    E = new["patch_embed.proj.weight"]
    if E.ndim == 2:  # (D, P*P*C)
        P = math.isqrt(E.shape[1] // 3)
        if not P or E.shape[1] != 3 * P * P:
            raise CheckpointError(
                f"flat patches of {E.shape[1]} numbers (in_chans, patch_size), which are not 3 P P"
            )
        new["patch_embed.proj.weight"] = E.unflatten(1, (P, P, 3)).permute(0, 3, 1, 2)  # (D, C, P, P)
    if "pos_embed" in new and new["pos_embed"].ndim == 4:
        new["pos_embed"] = new["pos_embed"].flatten(1, 2)  # (1, N, D)
    y, x = new.pop("embeds.pos_embed_y", None), new.pop("embeds.pos_embed_x", None)
    if y is not None and x is not None and y.ndim == x.ndim == 3:
        new["pos_embed"] = (y[:, :, None] + x[:, None]).flatten(1, 2)  # (1, N, D)
    prefix = sum(new[name].shape[1] for name in ("cls_token", "reg_token") if name in new)
    return pad_positions(new, prefix, new["pos_embed"].shape[1] + prefix) if "pos_embed" in new else new


def pad_positions(t: dict[str, Tensor], prefix: int, tokens: int) -> dict[str, Tensor]:
    """Give the tokens before the patches rows of zeros, if the table has none for them, or only for the first."""
    table = t.get("pos_embed")
    if table is None or table.ndim != 3 or (rows := table.shape[1] - (tokens - prefix)) not in (0, 1):
        return t
    first, others = table[:, :rows], table[:, rows:]
    return {**t, "pos_embed": torch.cat([first, F.pad(others, (0, 0, prefix - rows, 0))], dim=1)}  # (1, T, D)
