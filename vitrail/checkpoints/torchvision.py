"""torchvision's VisionTransformer <-> ours: a state dict in a `.safetensors` or torch file.

There is no config file. Unless the caller says otherwise, and with a note: exact GELU and LayerNorm 1e-6, as
torchvision has them; heads by the known variant; the preprocessing of the published weights with these sizes, else
that of most of them: the short side to 256 (for images of 224), bilinear, the middle, ImageNet's mean and std.

Before torchvision 0.12 the two layers of an MLP were called linear_1 and linear_2: both are read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from torch import Tensor

from vitrail.checkpoints import mapping, torch_files
from vitrail.checkpoints.checkpoint import Checkpoint, parameter_shapes, unwritten_names
from vitrail.checkpoints.license import unwritten_license
from vitrail.checkpoints.mapping import Entry
from vitrail.checkpoints.plain import plain, refuse_unless_token, with_table
from vitrail.checkpoints.sizes import Size, count, grid_of
from vitrail.checkpoints.torch_files import Found
from vitrail.checkpoints.torch_names import layer, renamed
from vitrail.checkpoints.transforms import IMAGENET_MEAN, IMAGENET_STD, Transform, line_of, transform_of
from vitrail.checkpoints.unsaid import NOTHING, Asked, Choices
from vitrail.errors import CheckpointError
from vitrail.models.hybrid import HybridConfig
from vitrail.models.vit import VARIANTS, ViTConfig
from vitrail.runtime.files import atomic_file

LAYER = "encoder.layers.encoder_layer_"
OLD_NAMES = {"mlp.linear_1.": "mlp.0.", "mlp.linear_2.": "mlp.3."}
NORM_EPS = 1e-6
# (width, patch size, image size) of published weights with a preprocessing of their own: the short side, how
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


def read(found: Found, asked: Asked = NOTHING, *, image_size: Size | None = None) -> Checkpoint:
    """`image_size` is not needed: its grids are square."""
    where = found.where
    t = renamed(found.tensors, new_name, where)
    choices = Choices(asked, where)
    try:
        config = config_of(t, choices, image_size)
    except (KeyError, IndexError, ValueError) as error:
        raise CheckpointError(f"{where}: the architecture cannot be inferred ({error})") from error
    weights = mapping.read(list(entries_of(config)), t, parameter_shapes(config), where)
    origin = {"format": "torchvision", **found.origin, "architecture": function_of(config)}
    line = preprocessing(config)
    choices.assumed["preprocess"] = line
    origin |= {"heads": choices.who_said_heads, **choices.say("torchvision", found.path.name)}
    return Checkpoint(config, weights, line, provenance=origin)


def write(checkpoint: Checkpoint, path: Path) -> list[str]:
    """A state dict, by its suffix a `.safetensors` or a torch file; returns what its reader must set by hand."""
    if path.suffix not in (".safetensors", ".pth", ".pt"):
        raise CheckpointError(f"{path}: a torchvision state dict is written to .safetensors, .pth or .pt")
    c = checkpoint.config
    if not isinstance(c, ViTConfig) or isinstance(c, HybridConfig):
        raise CheckpointError(
            "a torchvision file holds a plain ViT; hybrids and BiTs can be written for timm"
        )
    refuse_unless_token(c, "torchvision")
    if c.image_size[0] != c.image_size[1] or c.channels != 3:
        raise CheckpointError(
            f"torchvision's ViTs take square images of 3 channels, not {c.image_size} of {c.channels}"
        )
    checkpoint = with_table(plain(checkpoint, "torchvision"))
    c = checkpoint.config
    assert isinstance(c, ViTConfig)
    tensors = mapping.write(list(entries_of(c)), checkpoint.weights)
    with atomic_file(path) as temporary:
        if path.suffix == ".safetensors":
            torch_files.save_safetensors(tensors, temporary)
        else:
            torch_files.save_torch(tensors, temporary)
    unwritten = unwritten_names(checkpoint.class_names) + unwritten_license(checkpoint.license)
    return reader_notes(c, checkpoint.preprocess) + unwritten


def reader_line(checkpoint: Checkpoint) -> str:
    """That of torchvision's Resize, CenterCrop and Normalize, with the line's numbers; empty where there is none."""
    transform, _ = transform_of(checkpoint.preprocess, "nearest")
    return "" if transform is None else line_of(transform)


def new_name(key: str) -> str:
    for old, new in OLD_NAMES.items():
        key = key.replace(old, new)
    return key


def entries_of(config: ViTConfig) -> Iterator[Entry]:
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


def config_of(t: Mapping[str, Tensor], choices: Choices, image_size: Size | None) -> ViTConfig:
    where = choices.where
    width, channels, patch_size, _ = t["conv_proj.weight"].shape
    depth = count(t, rf"{re.escape(LAYER)}(\d+)\.", where)
    mlp_dim = t[f"{LAYER}0.mlp.0.weight"].shape[0]
    heads = choices.heads(width, depth, mlp_dim, None)
    rows = t["encoder.pos_embedding"].shape[1]
    grid = grid_of((rows - 1,), patch_size, None, image_size, where)
    return ViTConfig(
        width,
        depth,
        mlp_dim,
        heads,
        patch_size,
        (grid[0] * patch_size, grid[1] * patch_size),
        channels,
        classes=t["heads.head.weight"].shape[0] if "heads.head.weight" in t else 0,
        pre_logits=t["heads.pre_logits.weight"].shape[0] if "heads.pre_logits.weight" in t else 0,
        pool=choices.of("pool", "token", "token"),
        activation=choices.of("activation", None, "gelu"),
        norm_eps=choices.of("norm_eps", None, NORM_EPS),
    )


def preprocessing(c: ViTConfig) -> str:
    side = min(c.image_size)
    resize, method = WEIGHTS.get((c.width, c.patch_size, side), (round(side * 256 / 224), "bilinear"))
    return line_of(Transform(resize, c.image_size, method, IMAGENET_MEAN, IMAGENET_STD))


def function_of(c: ViTConfig) -> str | None:
    """The function of torchvision.models that makes this architecture."""
    sizes = (c.width, c.depth, c.mlp_dim, c.heads)
    variant = next((name for name, known in VARIANTS.items() if known == sizes), "")
    return FUNCTIONS.get((variant, c.patch_size))


def reader_notes(c: ViTConfig, line: str) -> list[str]:
    """A state dict carries nothing but weights: how the model must be built, and what it cannot do."""
    arguments = f"image_size={c.image_size[0]}, num_classes={c.classes or 1000}"
    if c.pre_logits:
        arguments += f", representation_size={c.pre_logits}"
    function = function_of(c)
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
        part = "heads.head" if c.pre_logits else "heads"
        notes.append(f"the reader must set model.{part} = torch.nn.Identity(): there is no classifier")
    if c.activation == "gelu_tanh":
        notes.append(
            "the reader must set approximate='tanh' on every torch.nn.GELU of the model: torchvision's is exact"
        )
    return [*notes, f"the reader must prepare images as '{line}'"] if line else notes
