"""torchvision's VisionTransformer <-> ours: a state dict in a `.safetensors` or torch file.

There is no config file. Without hints from the caller it is read, with a note, as torchvision's own: exact GELU and
LayerNorm 1e-6; heads of the known variant; the preprocessing of the published weights with these sizes, else that of
most of them: the short side to 256 (for images of 224), bilinear, the middle, ImageNet's mean and std.

Before torchvision 0.12 the two layers of an MLP were called linear_1 and linear_2: both are read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from torch import Tensor

from vitrail.checkpoints import torch_files
from vitrail.checkpoints.checkpoint import Checkpoint, unwritten_names
from vitrail.checkpoints.hints import (
    NO_HINTS,
    Choices,
    Hints,
    Size,
    count_numbered,
    find_grid,
    inferring_architecture,
)
from vitrail.checkpoints.license import unwritten_license
from vitrail.checkpoints.mapping import Entry, layer, make_plain, read_weights, rename, write_weights
from vitrail.checkpoints.torch_files import WeightFiles
from vitrail.checkpoints.transforms import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    Transform,
    line_to_transform,
    transform_to_line,
)
from vitrail.errors import CheckpointError
from vitrail.models.hybrid import HybridConfig
from vitrail.models.vit import VARIANTS, ViTConfig
from vitrail.runtime.files import atomic_file

LAYER = "encoder.layers.encoder_layer_"
OLD_NAMES = {"mlp.linear_1.": "mlp.0.", "mlp.linear_2.": "mlp.3."}
NORM_EPS = 1e-6
# (width, patch size, image size) of published weights with a preprocessing of their own: short side, method
WEIGHTS: dict[tuple[int, int, int], tuple[int, str]] = {
    (1024, 16, 224): (242, "bilinear"),
    (768, 16, 384): (384, "bicubic"),
    (1024, 16, 512): (512, "bicubic"),
    (1280, 14, 518): (518, "bicubic"),
    (1280, 14, 224): (224, "bicubic"),
}
FUNCTIONS = {
    ("B", 16): "vit_b_16",
    ("B", 32): "vit_b_32",
    ("L", 16): "vit_l_16",
    ("L", 32): "vit_l_32",
    ("H", 14): "vit_h_14",
}


def recognises(tensors: Mapping[str, Tensor]) -> bool:
    return "conv_proj.weight" in tensors and "class_token" in tensors


def read(files: WeightFiles, hints: Hints = NO_HINTS, *, image_size: Size | None = None) -> Checkpoint:
    """Read a state dict. `image_size` is needed only if the grid is not square."""
    where = files.where
    t = rename(files.tensors, new_name, where)
    choices = Choices(hints, where)
    with inferring_architecture(where):
        config = infer_config(t, choices, image_size)
    weights = read_weights(entries(config), t, config, where)
    line = preprocessing(config)
    choices.assumed["preprocess"] = line
    origin = {"format": "torchvision", **files.origin, "architecture": find_function(config)}
    origin |= {"heads": choices.heads_source, **choices.report("torchvision", files.path.name)}
    return Checkpoint(config, weights, line, provenance=origin)


def new_name(key: str) -> str:
    for old, new in OLD_NAMES.items():
        key = key.replace(old, new)
    return key


def infer_config(t: Mapping[str, Tensor], choices: Choices, image_size: Size | None) -> ViTConfig:
    where = choices.where
    width, channels, patch_size, _ = t["conv_proj.weight"].shape
    depth = count_numbered(t, rf"{re.escape(LAYER)}(\d+)\.", where)
    mlp_dim, patches = t[f"{LAYER}0.mlp.0.weight"].shape[0], t["encoder.pos_embedding"].shape[1] - 1
    grid = find_grid((patches,), patch_size, None, image_size, where)
    return ViTConfig(
        width,
        depth,
        mlp_dim,
        choices.choose_heads(width, depth, mlp_dim, None),
        patch_size,
        (grid[0] * patch_size, grid[1] * patch_size),
        channels,
        classes=t["heads.head.weight"].shape[0] if "heads.head.weight" in t else 0,
        pre_logits=t["heads.pre_logits.weight"].shape[0] if "heads.pre_logits.weight" in t else 0,
        pool=choices.choose("pool", "token", "token"),
        activation=choices.choose("activation", None, "gelu"),
        norm_eps=choices.choose("norm_eps", None, NORM_EPS),
    )


def preprocessing(c: ViTConfig) -> str:
    side = min(c.image_size)
    resize, method = WEIGHTS.get((c.width, c.patch_size, side), (round(side * 256 / 224), "bilinear"))
    return transform_to_line(Transform(resize, c.image_size, method, IMAGENET_MEAN, IMAGENET_STD))


def find_function(c: ViTConfig) -> str | None:
    """Return the name of the function in torchvision.models that makes this architecture."""
    sizes = (c.width, c.depth, c.mlp_dim, c.heads)
    variant = next((name for name, known in VARIANTS.items() if known == sizes), "")
    return FUNCTIONS.get((variant, c.patch_size))


def write(checkpoint: Checkpoint, path: Path) -> list[str]:
    """Write a state dict, by its suffix as `.safetensors` or torch file; return what its reader must set by hand."""
    if path.suffix not in (".safetensors", ".pth", ".pt"):
        raise CheckpointError(f"{path}: a torchvision state dict is written to .safetensors, .pth or .pt")
    c = checkpoint.config
    if not isinstance(c, ViTConfig) or isinstance(c, HybridConfig):
        raise CheckpointError(
            "a torchvision file holds a plain ViT; hybrids and BiTs can be written for timm"
        )
    if c.image_size[0] != c.image_size[1] or c.channels != 3:
        raise CheckpointError(
            f"torchvision's ViTs take square images of 3 channels, not {c.image_size} of {c.channels}"
        )
    checkpoint = make_plain(checkpoint, "torchvision", with_positions=True, with_token=True)
    c = checkpoint.config
    assert isinstance(c, ViTConfig)
    tensors = write_weights(entries(c), checkpoint.weights)
    with atomic_file(path) as temporary:
        if path.suffix == ".safetensors":
            torch_files.save_safetensors(tensors, temporary)
        else:
            torch_files.save_torch(tensors, temporary)
    unwritten = unwritten_names(checkpoint.class_names) + unwritten_license(checkpoint.license)
    return reader_notes(c, checkpoint.preprocess) + unwritten


def reader_line(checkpoint: Checkpoint) -> str:
    """Return the line of torchvision's Resize, CenterCrop and Normalize with the same numbers, if any."""
    transform, _ = line_to_transform(checkpoint.preprocess, "nearest")
    return "" if transform is None else transform_to_line(transform)


def reader_notes(c: ViTConfig, line: str) -> list[str]:
    """Return how the model must be built, as a state dict carries nothing but weights."""
    arguments = f"image_size={c.image_size[0]}, num_classes={c.classes or 1000}"
    if c.pre_logits:
        arguments += f", representation_size={c.pre_logits}"
    function = find_function(c)
    if function is None:
        function = "VisionTransformer"
        arguments += (
            f", patch_size={c.patch_size}, num_layers={c.depth}, num_heads={c.heads}, hidden_dim={c.width}, "
            f"mlp_dim={c.mlp_dim}"
        )
    if c.norm_eps != NORM_EPS:
        arguments += f", norm_layer=functools.partial(torch.nn.LayerNorm, eps={c.norm_eps})"
    notes = [f"the reader builds the model with torchvision.models.{function}({arguments})"]
    if not c.classes:
        name = "heads.head" if c.pre_logits else "heads"
        notes.append(f"the reader must set model.{name} = torch.nn.Identity(): there is no classifier")
    if c.activation == "gelu_tanh":
        notes.append(
            "the reader must set approximate='tanh' on every torch.nn.GELU of the model: torchvision's is exact"
        )
    return [*notes, f"the reader must prepare images as '{line}'"] if line else notes


def entries(config: ViTConfig) -> Iterator[Entry]:
    yield from layer("embedding", "conv_proj")
    yield Entry("cls", ("class_token",))
    yield Entry("positions.table", ("encoder.pos_embedding",))
    for i in range(config.depth):
        ours, theirs = f"encoder.blocks.{i}", f"{LAYER}{i}"
        yield from layer(f"{ours}.norm1", f"{theirs}.ln_1")
        yield Entry(f"{ours}.attention.qkv.weight", (f"{theirs}.self_attention.in_proj_weight",))
        yield Entry(f"{ours}.attention.qkv.bias", (f"{theirs}.self_attention.in_proj_bias",))
        yield from layer(f"{ours}.attention.out", f"{theirs}.self_attention.out_proj")
        yield from layer(f"{ours}.norm2", f"{theirs}.ln_2")
        yield from layer(f"{ours}.mlp.fc1", f"{theirs}.mlp.0")
        yield from layer(f"{ours}.mlp.fc2", f"{theirs}.mlp.3")
    yield from layer("encoder.norm", "encoder.ln")
    if config.pre_logits:
        yield from layer("head.pre_logits", "heads.pre_logits")
    if config.classes:
        yield from layer("head.classifier", "heads.head")
