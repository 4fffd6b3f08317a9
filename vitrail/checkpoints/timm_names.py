"""timm's names <-> ours: VisionTransformer, its hybrids with a ResNetV2 stem, and the BiT ResNetV2s.

Linear layers and convolutions have the same orientation on both sides; only the head of a BiT is a convolution
there. `completed` adds the two things that some timm models go without and ours have as zeros.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch.nn.functional as F
from torch import Tensor

from vitrail.checkpoints.mapping import Entry
from vitrail.checkpoints.torch_names import layer, with_zero_biases
from vitrail.models.hybrid import HybridConfig
from vitrail.models.names import Config
from vitrail.models.resnet import BiTConfig, StemConfig
from vitrail.models.vit import ViTConfig

# Parts that timm's models can have and ours cannot, by a piece of the name: what they are.
FOREIGN: dict[str, str] = {
    ".gamma": "LayerScale",
    "reg_token": "register tokens",
    "dist_token": "a distillation token",
    "norm_pre.": "a LayerNorm before the encoder",
    ".q_norm.": "normalised queries and keys",
    ".attn.norm.": "norms inside attention and MLPs",
    "rel_pos": "relative positions in windows",
    "mlp.w12.": "gated MLPs",
    "mlp.fc1_g.": "gated MLPs",
    "running_mean": "batch norms",
}


def entries_of(config: Config) -> Iterator[Entry]:
    if isinstance(config, BiTConfig):
        yield from bit_entries(config)
    else:
        yield from vit_entries(config)


def vit_entries(config: ViTConfig) -> Iterator[Entry]:
    if isinstance(config, HybridConfig):
        yield from stem_entries(config.stem)
    yield from layer("embedding", "patch_embed.proj")
    if config.class_token:
        yield Entry("cls", ("cls_token",))
    if config.positions == "1d":
        yield Entry("positions.table", ("pos_embed",))
    for i in range(config.depth):
        ours, theirs = f"encoder.blocks.{i}", f"blocks.{i}"
        yield from layer(f"{ours}.norm1", f"{theirs}.norm1")
        yield from layer(f"{ours}.attention.qkv", f"{theirs}.attn.qkv")
        yield from layer(f"{ours}.attention.out", f"{theirs}.attn.proj")
        yield from layer(f"{ours}.norm2", f"{theirs}.norm2")
        yield from layer(f"{ours}.mlp.fc1", f"{theirs}.mlp.fc1")
        yield from layer(f"{ours}.mlp.fc2", f"{theirs}.mlp.fc2")
    if config.norm_at == "encoder":
        yield from layer("encoder.norm", "norm")
    else:
        yield from layer("pooled_norm", "fc_norm")
    if config.pool == "attention":
        yield Entry("attention_pool.probe", ("attn_pool.latent",))
        for part in ("q", "kv", "norm", "mlp.fc1", "mlp.fc2"):
            yield from layer(f"attention_pool.{part}", f"attn_pool.{part}")
        yield from layer("attention_pool.out", "attn_pool.proj")
    if config.pre_logits:
        yield from layer("head.pre_logits", "pre_logits.fc")
    if config.classes:
        yield from layer("head.classifier", "head")


def stem_entries(stem: StemConfig) -> Iterator[Entry]:
    """A stem without stages is the root alone, and its names are one level shorter."""
    root = "patch_embed.backbone.stem" if stem.units else "patch_embed.backbone"
    yield Entry("stem.root.conv.weight", (f"{root}.conv.weight",))
    yield from layer("stem.root.norm", f"{root}.norm")
    for s, units in enumerate(stem.units):
        for u in range(units):
            ours, theirs = f"stem.stages.{s}.{u}", f"patch_embed.backbone.stages.{s}.blocks.{u}"
            yield from unit_entries(ours, theirs)
            if u == 0:
                yield Entry(f"{ours}.projection.weight", (f"{theirs}.downsample.conv.weight",))
                yield from layer(f"{ours}.projection_norm", f"{theirs}.downsample.norm")


def bit_entries(config: BiTConfig) -> Iterator[Entry]:
    yield Entry("root.conv.weight", ("stem.conv.weight",))
    for s, units in enumerate(config.units):
        for u in range(units):
            ours, theirs = f"stages.{s}.{u}", f"stages.{s}.blocks.{u}"
            yield from unit_entries(ours, theirs)
            if u == 0:
                yield Entry(f"{ours}.projection.weight", (f"{theirs}.downsample.conv.weight",))
    yield from layer("norm", "norm")
    if config.classes:
        yield Entry("head.classifier.weight", ("head.fc.weight",), squeezed, lambda w: w[:, :, None, None])
        yield Entry("head.classifier.bias", ("head.fc.bias",))


def unit_entries(ours: str, theirs: str) -> Iterator[Entry]:
    for n in (1, 2, 3):
        yield Entry(f"{ours}.conv{n}.weight", (f"{theirs}.conv{n}.weight",))
        yield from layer(f"{ours}.norm{n}", f"{theirs}.norm{n}")


def squeezed(w: Tensor) -> Tensor:
    """A 1x1 convolution (classes, D, 1, 1) as the matrix that it is."""
    return w.squeeze(3).squeeze(2)  # (classes, D)


def completed(tensors: Mapping[str, Tensor], config: Config) -> dict[str, Tensor]:
    """With zeros where timm's model has nothing: the bias of q, k and v, the position of the class token."""
    if isinstance(config, BiTConfig):
        return dict(tensors)
    biases = [f"blocks.{i}.attn.qkv.bias" for i in range(config.depth)]
    made = with_zero_biases(tensors, biases, 3 * config.width)
    table = tensors.get("pos_embed")
    if config.class_token and table is not None and table.ndim == 3 and table.shape[1] == config.tokens - 1:
        made["pos_embed"] = F.pad(table, (0, 0, 1, 0))  # (1, 1 + N, D)
    return made


def foreign_parts(tensors: Mapping[str, Tensor]) -> list[str]:
    return sorted({what for piece, what in FOREIGN.items() if any(piece in key for key in tensors)})
