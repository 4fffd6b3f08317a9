"""Every field of the configs of transformers' and timm's classes, changed one by one and several at once.

A model with the field is made by its own class, every parameter distinct, and saved by its own saver. It is read
here with its outputs and written back with the same, or refused: no file is read wrong. A few are drawn, and three
times as many are `long`; all of them, about 40 minutes, with VITRAIL_EVERY_FIELD=1 and -m "long or not long".
"""

from __future__ import annotations

import inspect
import json
import os
import random
from dataclasses import fields as dataclass_fields
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.parity.comparing import TOLERANCE, inputs
from tests.parity.test_huggingface_families import CASES, made, output
from tests.peers import torchvision_or_skip
from tests.randomise import randomise
from vitrail.checkpoints.formats import load, save
from vitrail.errors import CheckpointError

torchvision_or_skip()
timm = pytest.importorskip("timm")
transformers = pytest.importorskip("transformers")
eva, beit = (pytest.importorskip(f"timm.models.{name}") for name in ("eva", "beit"))
vision_transformer, naflexvit = (
    pytest.importorskip(f"timm.models.{name}") for name in ("vision_transformer", "naflexvit")
)

Fields = dict[str, Any]
SIZES_OF_IMAGES = [16, 40, (16, 32), [32, 24]]
# transformers: other values than those of test_huggingface_families. Other fields: see other_values.
VALUES: dict[str, list[Any]] = {
    "hidden_size": [24, 48], "num_hidden_layers": [1, 3], "num_attention_heads": [1, 4], "intermediate_size": [33],
    "image_size": [*SIZES_OF_IMAGES, 36], "patch_size": [4, 16, [8, 8], (4, 8)], "num_channels": [1, 4],
    "hidden_act": [
        "gelu", "gelu_pytorch_tanh", "gelu_new", "gelu_fast", "quick_gelu", "silu", "swish", "relu", "mish",
    ],
    "pooler_act": ["gelu"], "layer_norm_eps": [1e-1, 1e-3], "mlp_ratio": [1, 3], "num_patches": [4, 12, 25],
    "num_register_tokens": [0, 1, 4], "rope_theta": [10.0, 1e4], "pos_embed_rescale": [None, 1.5],
    "pos_embed_jitter": [1.1], "pos_embed_shift": [0.5], "pooler_output_size": [16, 40], "projection_dim": [8, 24],
    "layerscale_value": [0.1, 0.0], "layer_scale_init_value": [0.0, 1.0],
}  # fmt: skip
# Fields of no model in particular, or that a model in evaluation mode does not see as they are set here.
COMMON = {"mask_ratio", "output_attentions", *transformers.PretrainedConfig().to_dict()}
CLASSES = ["ViTModel", "ViTForImageClassification", *CASES, "Siglip2ForImageClassification"]

# timm: a function of each class; arguments are other values than these.
FUNCTIONS: dict[str, tuple[Any, Fields]] = {
    "vit_base_patch16_224": (vision_transformer.VisionTransformer, {}),
    "vit_base_patch16_clip_224": (vision_transformer.VisionTransformer, {}),
    "vit_giant_patch14_dinov2": (vision_transformer.VisionTransformer, {}),
    "aimv2_large_patch14_224": (vision_transformer.VisionTransformer, {}),
    "deit_tiny_distilled_patch16_224": (vision_transformer.VisionTransformer, {}),
    "eva02_base_patch14_224": (eva.Eva, {}),
    "vit_base_patch16_dinov3": (eva.Eva, {}),
    "vit_small_patch16_rope_mixed_ape_224": (eva.Eva, {}),
    "beit_base_patch16_224": (beit.Beit, {}),
    "naflexvit_base_patch16_gap": (naflexvit.NaFlexVitCfg, {"pos_embed_grid_size": [4, 4]}),
}
SIZES: Fields = {
    "embed_dim": 32,
    "depth": 2,
    "num_heads": 2,
    "patch_size": 8,
    "img_size": 32,
    "num_classes": 7,
}
RATES = (
    "drop_rate",
    "pos_drop_rate",
    "patch_drop_rate",
    "proj_drop_rate",
    "attn_drop_rate",
    "drop_path_rate",
)
YES = [True, False]
ARGUMENTS: dict[str, list[Any]] = {
    "img_size": SIZES_OF_IMAGES, "patch_size": [4, 16, (4, 8)], "in_chans": [1, 4], "num_classes": [0],
    "embed_dim": [48], "depth": [1, 3], "num_heads": [1, 4], "mlp_ratio": [1.0, 2.5, 3.3], "init_values": [0.1],
    **{name: [0.1] for name in RATES},
    "global_pool": ["token", "avg", "map", "max", "avgmax", ""], "pos_embed": ["none", "factorized", "rope"],
    "act_layer": ["gelu_tanh", "quick_gelu", "silu", "relu", "hard_swish"],
    "norm_layer": ["layernorm", "rmsnorm", "layernormfp32", "simplenorm"],
    "embed_norm_layer": ["layernorm", "rmsnorm"],
    "input_norm_layer": ["layernorm"], "reg_tokens": [0, 1, 4], "num_reg_tokens": [0, 1, 4], "num_kv_heads": [1],
    "swiglu_align_to": [8, 64], "attn_type": ["eva", "rope"], "rope_type": ["", "cat", "mixed", "dinov3", "axial"],
    "rope_grid_offset": [1.0], "rope_grid_indexing": ["xy", "ij"], "rope_temperature": [10.0],
    "head_init_scale": [1.0],
    "rope_shift_coords": [0.1], "rope_jitter_coords": [1.2], "rope_rescale_coords": [2.0], "weight_init": ["jax"],
    "ref_feat_shape": [(4, 4), 16, (3, 5)], "rope_ref_feat_shape": [(3, 5)], "rope_mrope_section": [[1, 1, 2]],
    "attn_pool_num_heads": [1, 4], "attn_pool_mlp_ratio": [1.0, 2.0], "pos_embed_grid_size": [(3, 3), (3, 5)],
    "pos_embed_interp_mode": ["bilinear"], "embed_proj_type": ["conv"],
}  # fmt: skip
OBJECTS = {
    "self",
    "device",
    "dtype",
    "embed_layer",
    "block_fn",
    "attn_layer",
    "mlp_layer",
    "cfg",
}  # not in a JSON file


def other_values(name: str, value: Any) -> list[Any]:
    if isinstance(value, bool):
        return [not value]
    return [value + 1] if isinstance(value, int) else [0.3] if isinstance(value, float) else []


def fields_of(name: str) -> dict[str, list[Any]]:
    """transformers': each field of a class with its other values."""
    config = getattr(transformers, name).config_class()
    config = config.vision_config if "Siglip" in name and "ForImage" in name else config
    values = {
        key: VALUES.get(key, other_values(key, value))
        for key, value in config.to_dict().items()
        if key not in COMMON
    }
    return values | ({"vision_use_head": [False]} if "Siglip" in name else {})


def arguments_of(function: str) -> dict[str, list[Any]]:
    """timm's: each argument of a class with its other values; None is no value there, but the function's own."""
    kind, _ = FUNCTIONS[function]
    if kind is naflexvit.NaFlexVitCfg:
        defaults = {f.name: f.default for f in dataclass_fields(kind)} | {"in_chans": 3, "num_classes": 7}
    else:
        defaults = {p.name: p.default for p in inspect.signature(kind.__init__).parameters.values()}
    values = {
        name: ARGUMENTS.get(name, YES if value is None or isinstance(value, bool) else [])
        for name, value in defaults.items()
        if name not in OBJECTS
    }
    if kind is naflexvit.NaFlexVitCfg:  # it takes any size
        values.pop("img_size", None)
        values |= {"pos_embed": ["factorized"], "patch_size": [4, 16]}
    return values


def one_by_one(values: dict[str, list[Any]]) -> list[Fields]:
    return [{name: value} for name, those in values.items() for value in those]


def several(values: dict[str, list[Any]], rng: random.Random) -> Fields:
    names = [name for name, those in values.items() if those]
    return {name: rng.choice(values[name]) for name in rng.sample(names, rng.randint(2, 5))}


THEIRS = [(name, case) for name in CLASSES for case in one_by_one(fields_of(name))]
TIMMS = [(name, case) for name in FUNCTIONS for case in one_by_one(arguments_of(name))]
RNG = random.Random(0)
MANY_THEIRS = [(name, several(fields_of(name), RNG)) for name in CLASSES for _ in range(8)]
MANY_TIMMS = [(name, several(arguments_of(name), RNG)) for name in FUNCTIONS for _ in range(16)]


def cases(everything: list[Any], quick: int) -> list[Any]:
    """Return some, the first of them not `long`: others when there are more fields, the same when there are not."""
    drawn = random.Random(1).sample(everything, len(everything))
    if not os.environ.get("VITRAIL_EVERY_FIELD"):
        drawn = drawn[: 4 * quick]
    return [*drawn[:quick], *(pytest.param(*case, marks=pytest.mark.long) for case in drawn[quick:])]


def same(ours: Tensor, theirs: Tensor) -> bool:
    return ours.shape == theirs.shape and float((ours - theirs).abs().max()) < TOLERANCE * 3


def read_or_refused(folder: Path, image_size: Any = None) -> nn.Module | None:
    try:
        return load(folder, image_size=image_size)
    except CheckpointError as error:
        assert len(str(error)) > 30
        assert "cannot be inferred" not in str(error)  # an accident, and no reason
        return None


@pytest.mark.parametrize(("name", "case"), cases(THEIRS, 24) + cases(MANY_THEIRS, 12))
def test_fields_of_transformers(name: str, case: Fields, tmp_path: Path) -> None:
    try:
        theirs = made(name, case)
    except (TypeError, ValueError, RuntimeError, AttributeError, AssertionError):
        pytest.skip("transformers has no such model")
    theirs.save_pretrained(tmp_path / "theirs")
    ours = read_or_refused(tmp_path / "theirs")
    if ours is None:
        return
    x = inputs(ours.config.image_size, ours.config.channels)
    try:
        wanted = output(theirs, x)
    except (ValueError, RuntimeError):
        pytest.skip("transformers cannot compute it: a grid that is not square, or patches that leave a rest")
    with torch.no_grad():
        assert same(ours(x), wanted)
    save(ours, tmp_path / "back", to="huggingface")
    with torch.no_grad():
        assert same(load(tmp_path / "back")(x), wanted)
    (kind,) = json.loads((tmp_path / "back" / "config.json").read_text())["architectures"]
    no_pooler = name in ("ViTModel", "DeiTModel", "IJepaModel") and not ours.config.pre_logits
    more = {"add_pooling_layer": False} if no_pooler else {"mask_ratio": 0.0} if "MAE" in name else {}
    back = getattr(transformers, kind).from_pretrained(tmp_path / "back", **more).eval()
    assert same(output(back, x), wanted) if not no_pooler else same_token(back, x, wanted)


def same_token(back: nn.Module, x: Tensor, wanted: Tensor) -> bool:
    with torch.no_grad():
        z = back(x).last_hidden_state
    return same(z.mean(dim=1) if "IJepa" in type(back).__name__ else z[:, 0], wanted)


@pytest.mark.parametrize(("function", "case"), cases(TIMMS, 24) + cases(MANY_TIMMS, 12))
def test_arguments_of_timm(function: str, case: Fields, tmp_path: Path) -> None:
    arguments = SIZES | FUNCTIONS[function][1] | case
    if function.startswith("naflex"):
        del arguments["img_size"]
        size: Any = tuple(arguments["patch_size"] * n for n in arguments["pos_embed_grid_size"])
    else:
        size = arguments["img_size"]
        size = (size, size) if isinstance(size, int) else tuple(size)
    x = torch.randn(2, arguments.get("in_chans", 3), *size, generator=torch.Generator().manual_seed(1))
    try:
        theirs = randomise(timm.create_model(function, **arguments)).eval()
        with torch.no_grad():
            wanted = theirs(x)
    except (TypeError, ValueError, RuntimeError, AttributeError, AssertionError, KeyError):
        pytest.skip("timm has no such model")
    stored = {name: value for name, value in arguments.items() if name != "num_classes"}
    timm.models.save_for_hf(theirs, tmp_path / "theirs", model_args=stored, safe_serialization=True)
    ours = read_or_refused(tmp_path / "theirs", size if function.startswith("naflex") else None)
    if ours is None:
        return
    assert ours.config.image_size == size
    with torch.no_grad():
        assert same(ours(x), wanted)
    try:
        save(ours, tmp_path / "back", to="timm")
    except CheckpointError as error:
        assert "no counterpart" in str(error) or "timm has" in str(error)
        return
    back = timm.create_model(f"local-dir:{tmp_path / 'back'}", pretrained=True).eval()
    with torch.no_grad():
        assert same(back(x), wanted)
