"""torchvision's VisionTransformer <-> ours: a state dict in a `.safetensors` or torch file.

There is no config file. Without hints from the caller it is read, with a note, as torchvision's own: exact GELU and
LayerNorm 1e-6; heads of the known variant; the preprocessing of the published weights with these sizes, else that of
most of them: the short side to 256 (for images of 224), bilinear, the middle, ImageNet's mean and std.

Before torchvision 0.12 the two layers of an MLP were called linear_1 and linear_2: both are read.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from vitrail.checkpoints import torch_files
from vitrail.checkpoints.architecture import NO_HINTS, Hints, Inference, Size, find_variant
from vitrail.checkpoints.checkpoint import Checkpoint, note_unwritten
from vitrail.checkpoints.mapping import Table, make_plain, read_weights, respell, write_weights
from vitrail.checkpoints.torch_files import WeightFiles
from vitrail.checkpoints.transforms import IMAGENET, Transform, line_to_transform
from vitrail.errors import CheckpointError
from vitrail.models.vit import ViTConfig
from vitrail.runtime.files import atomic_file

LAYER = "encoder.layers.encoder_layer_{i}"
TABLE: Table = {
    "embedding": "conv_proj",
    "cls": "class_token",
    "positions.table": "encoder.pos_embedding",
    "encoder.blocks.{i}.norm1": f"{LAYER}.ln_1",
    "encoder.blocks.{i}.attention.qkv.weight": f"{LAYER}.self_attention.in_proj_weight",
    "encoder.blocks.{i}.attention.qkv.bias": f"{LAYER}.self_attention.in_proj_bias",
    "encoder.blocks.{i}.attention.out": f"{LAYER}.self_attention.out_proj",
    "encoder.blocks.{i}.norm2": f"{LAYER}.ln_2",
    "encoder.blocks.{i}.mlp.fc1": f"{LAYER}.mlp.0",
    "encoder.blocks.{i}.mlp.fc2": f"{LAYER}.mlp.3",
    "encoder.norm": "encoder.ln",
    "head.pre_logits": "heads.pre_logits",
    "head.classifier": "heads.head",
}
OLD_NAMES = {r"mlp\.linear_1\.": "mlp.0.", r"mlp\.linear_2\.": "mlp.3."}
DEFAULTS = {"activation": "gelu", "norm_eps": 1e-6}
ALWAYS = {"pool": "token", "class_token": True, "positions": "1d"}
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
    t = respell(files.tensors, OLD_NAMES, where)
    inference = Inference(where, hints, image_size, ALWAYS, defaults=DEFAULTS)
    config = inference.infer(TABLE, t)
    assert isinstance(config, ViTConfig)
    weights = read_weights(TABLE, t, config, where)
    inference.assumed.pop("image_size", None)  # torchvision's are square
    line = inference.assumed["preprocess"] = preprocessing(config)
    provenance = inference.provenance("torchvision", files, find_function(config))
    return Checkpoint(config, weights, line, provenance=provenance)


def preprocessing(c: ViTConfig) -> str:
    side = min(c.image_size)
    resize, method = WEIGHTS.get((c.width, c.patch_size, side), (round(side * 256 / 224), "bilinear"))
    return Transform(resize, c.image_size, method, IMAGENET["mean"], IMAGENET["std"]).line()


def find_function(c: ViTConfig) -> str | None:
    """Return the name of the function in torchvision.models that makes this architecture."""
    return FUNCTIONS.get((find_variant(c), c.patch_size))


def write(checkpoint: Checkpoint, path: Path) -> list[str]:
    """Write a state dict, by its suffix as `.safetensors` or torch file; return what its reader must set by hand."""
    if path.suffix not in (".safetensors", ".pth", ".pt"):
        raise CheckpointError(f"{path}: a torchvision state dict is written to .safetensors, .pth or .pt")
    checkpoint, c = make_plain(checkpoint, "torchvision", with_positions=True, only_token=("token",))
    if c.image_size[0] != c.image_size[1] or c.channels != 3:
        raise CheckpointError(
            f"torchvision's ViTs take square images of 3 channels, not {c.image_size} of {c.channels}"
        )
    tensors = write_weights(TABLE, checkpoint.weights)
    with atomic_file(path) as temporary:
        if path.suffix == ".safetensors":
            torch_files.save_safetensors(tensors, temporary)
        else:
            torch_files.save_torch(tensors, temporary)
    return reader_notes(c, checkpoint.preprocess) + note_unwritten(checkpoint)


def reader_line(checkpoint: Checkpoint) -> str:
    """Return the line of torchvision's Resize, CenterCrop and Normalize with the same numbers, if any."""
    transform, _ = line_to_transform(checkpoint.preprocess, "nearest")
    return "" if transform is None else transform.line()


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
    if c.norm_eps != DEFAULTS["norm_eps"]:
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
