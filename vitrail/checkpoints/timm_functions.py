"""timm's functions: what each has that leaves no trace in its tensors, and which of them is named when we write.

A test compares every function of the installed timm with what is read here.
"""

from __future__ import annotations

import re
from typing import Any

from vitrail.models.names import TIMM_SIZES
from vitrail.models.vit import VARIANTS

# Heads of all functions of a size, but for those below.
HEADS = {word: VARIANTS[ours][3] for word, ours in TIMM_SIZES.items()} | {
    "xsmall": 4, "wee": 4, "pwee": 4, "little": 5, "mediumd": 8, "betwixt": 10, "so150m2": 13, "so150m": 14,
    "intern300m": 16, "enormous": 16, "1b": 16, "3b": 24, "5b": 32, "7b": 32,
}  # fmt: skip
SIZE = re.compile(
    r"(?:vit_pe_(?:core|lang|spatial)|vit|deit3?|flexivit|eva02|eva|beitv2|beit3|beit|aimv2|naflexvit)_([a-z0-9]+?)"
    r"(?:_.*)?"
)

UNIT: dict[str, Any] = {
    "use_rot_pos_emb": True, "rope_type": "dinov3", "rope_temperature": 100.0, "rope_rotate_half": True,
}  # fmt: skip
ROPE: dict[str, Any] = {"use_rot_pos_emb": True, "rope_type": "cat"}
PE = ROPE | {"rope_grid_indexing": "xy", "eps": 1e-5}
# (regular expression for a function's name, arguments); those of all rows that match are merged, the last one wins.
# `eps` stands for norm_layer, `post_norm` and `twin` for block_fn, which are no texts or numbers there.
FUNCTIONS: list[tuple[str, dict[str, Any]]] = [
    (
        r"(vit|deit)_(tiny|small|base|large|huge|giant|gigantic)_patch\d+_\d+(_miil)?"
        r"|flexivit_(small|base|large)|vit_(base|huge|giant)_patch\d+_gap_\d+|eva_large_patch14_\d+"
        r"|vit_(tiny|small|base|large)_r\d*_s\d+(_p8)?_\d+|resnetv2_\d+x\d_bit|vit_base_patch16_plus_240"
        r"|vit_(small|base)_patch16_(36x1|18x2)_224|vit_base_patch32_plus_256|deit3_.*"
        r"|vit_(medium|mediumd|betwixt|so150m2?|little|wee|pwee|base)_patch16_(reg\d_)?(gap|map)_\d+"
        r"|vit_(small|base|large|giant)_patch14(_reg4)?_dinov2|vit_(base|large|giant|so400m)_patch14_reg1_tipsv2"
        r"|vit_intern300m_patch14_448|deit_(tiny|small|base)_distilled_patch16_\d+|vit_\w+_patch14_xp_224",
        {},
    ),
    (r"test_vit[234]?", {"num_heads": 2}),
    (r"test_vit[34]", {"num_heads": 3}),
    (r"test_vit3", {"pool_include_prefix": True}),
    (r"vit_base_patch16_gap_224", {"num_heads": 16}),
    (r"vit_base_patch\d+_plus_.*", {"num_heads": 14}),
    (r"vit_giant_patch1[46]_(reg4_dinov2|dinov2|reg1_tipsv2|lingbot|sapiens2)", {"num_heads": 24}),
    (r"vit_\w+_patch\d+_siglip(_gap)?_\d+", {}),
    (r"vit_(base_patch32|giantopt_patch16|so400m_patch16)_siglip_.*", {"act_layer": "gelu_tanh"}),
    (r"vit_large_patch16_siglip(_gap)?_512", {"act_layer": "gelu_tanh"}),
    (r"vit_\w+_patch\d+(_plus)?_clip(_quickgelu)?_\d+", {"eps": 1e-5}),
    (r"vit_\w+_clip_quickgelu_\d+", {"act_layer": "quick_gelu"}),
    (r"vit_base_patch16_rpn_224", {"post_norm": True}),
    (r"vit_(base|large|huge)_patch1[46]_xp_224", {}),
    (r"beit3_\w+", {"eps": 1e-5}),
    (r"aimv2_\w+", {"act_layer": "silu", "eps": 1e-5}),
    (r"aimv2_large_\w+", {"num_heads": 8}),
    (r"aimv2_huge_\w+", {"num_heads": 12}),
    # Eva
    (r"eva_giant_patch14_(clip_)?\d+", {}),
    (r"eva02_\w+", ROPE | {"ref_feat_shape": (16, 16)}),
    (r"eva02_enormous_patch14_clip_224", {"post_norm": True, "use_rot_pos_emb": False}),
    (r"vit_\w+_rope_reg\d_gap_256", ROPE | {"ref_feat_shape": (16, 16)}),
    (
        r"vit_(small|base|large)_patch16_rope(_ape)?_224",
        ROPE | {"rope_grid_indexing": "xy", "rope_temperature": 100.0},
    ),
    (
        r"vit_(small|base|large)_patch16_rope_mixed(_ape)?_224",
        ROPE | {"rope_type": "mixed", "rope_grid_indexing": "xy", "rope_temperature": 10.0},
    ),
    (r"vit_\w+_patch16_(dinov3(_qkvb)?|lingbot)", UNIT | {"eps": 1e-5}),
    (r"vit_huge_plus_patch16_dinov3(_qkvb)?", {"num_heads": 20}),
    (r"vit_\w+_patch16_sapiens2", UNIT | {"rope_rescale_coords": 2.0}),
    (r"vit_pe_\w+", PE | {"ref_feat_shape": (32, 32)}),
    (
        r"vit_pe_(core_(base|large|small|tiny)|lang_large|spatial_(base|large|small|tiny))_\w+",
        {"rope_grid_offset": 1.0},
    ),
    (r"vit_pe_core_base_patch16_224", {"ref_feat_shape": (14, 14)}),
    (r"vit_pe_core_(large_patch14_336|(small|tiny)_patch16_384)", {"ref_feat_shape": (24, 24)}),
    (r"vit_pe_core_\w+", {"attn_pool_num_heads": 8}),
    # Beit, NaFlexVit
    (r"beit(v2)?_\w+", {}),
    (r"naflexvit_\w+", {}),
    (r"naflexvit_\w+_siglip", {"act_layer": "gelu_tanh"}),
]  # fmt: skip
# Functions that are not plain: what they have, and what to use instead.
OTHER_FUNCTIONS: list[tuple[str, str]] = [
    (r"vit_d(little|wee|pwee)_.*", "differential attention; their vit_little, vit_wee and vit_pwee are read"),
]


def function_arguments(name: str) -> dict[str, Any] | None:
    """Return the arguments of a function that leave no trace in tensors; None for a function that is not known."""
    rows = [args for pattern, args in FUNCTIONS if re.fullmatch(pattern, name)]
    if not rows:
        return None
    size = SIZE.fullmatch(name)
    args: dict[str, Any] = {"num_heads": HEADS[size[1]]} if size and size[1] in HEADS else {}
    for more in rows:
        args |= more
    return args


# --- arguments ---

DEFAULTS: dict[str, Any] = {"activation": "gelu", "norm_eps": 1e-6}
# Group normalisation and weight standardisation in stems and in BiTs.
RESNET: dict[str, Any] = {"norm_eps": 1e-5, "standardisation": "sqrt_var", "standardisation_eps": 1e-8}
# Our words for the values of some arguments, and our fields.
POOLS = {"token": "token", "avg": "mean", "map": "attention"}
WORDS: dict[str, dict[str, str]] = {
    "act_layer": {name: name for name in ("gelu", "gelu_tanh", "quick_gelu", "silu")},
    "norm_layer": {"layernorm": "layer", "layernorm2d": "layer", "rmsnorm": "rms"},
    "global_pool": POOLS,
}
DROPOUTS = {"proj_drop_rate": "dropout", "attn_drop_rate": "attention_dropout", "drop_path_rate": "drop_path"}
FIELDS: dict[str, str] = {  # their argument: our field; empty: only checked
    "num_heads": "heads", "act_layer": "activation", "global_pool": "pool", "norm_layer": "norm", "eps": "norm_eps",
    "attn_pool_num_heads": "pool_heads", "init_values": "layer_scale", **DROPOUTS,
}  # fmt: skip
# Arguments of rotary positions, which together are one field of ours.
ROTARY: dict[str, str] = {
    "rope_temperature": "base", "rope_grid_offset": "offset", "ref_feat_shape": "reference",
    "rope_ref_feat_shape": "reference", "rope_shift_coords": "shift", "rope_jitter_coords": "jitter",
    "rope_rescale_coords": "rescale",
}  # fmt: skip
ROTARY_KINDS = {"cat": "grid", "axial": "grid", "dinov3": "unit", "mixed": "learned"}
READ = {
    *FIELDS, *ROTARY, "rope_type", "use_rot_pos_emb", "rope_rotate_half", "rope_grid_indexing", "img_size",
    "pool_include_prefix", "post_norm", "use_post_norm",
}  # fmt: skip
# Arguments that the tensors show too, or that only concern training.
TRACED = {
    "patch_size", "in_chans", "num_classes", "embed_dim", "depth", "mlp_ratio", "qkv_bias", "class_token",
    "pos_embed", "no_embed_class", "reg_tokens", "num_reg_tokens", "pre_norm", "qk_norm", "fc_norm", "final_norm",
    "channels", "stem_chs", "drop_rate", "pos_drop_rate", "patch_drop_rate", "weight_init", "fix_init",
    "zero_init_last", "dynamic_img_size", "dynamic_img_pad", "scale_attn_norm", "scale_mlp_norm", "proj_bias",
    "qkv_fused", "swiglu_mlp", "swiglu_align_to", "scale_mlp", "scale_attn_inner", "attn_type", "num_kv_heads",
    "attn_only_layer_scale", "use_abs_pos_emb", "use_pre_transformer_norm", "use_post_transformer_norm",
    "use_fc_norm", "attn_pool_mlp_ratio", "head_init_scale", "use_rel_pos_bias", "use_shared_rel_pos_bias",
    "scale_attn_inner_norm", "pos_embed_grid_size", "pos_embed_interp_mode", "pos_embed_ar_preserving",
    "pos_embed_use_grid_sample", "embed_norm_layer", "use_key_only_attn_mask", "embed_proj_type",
    "enable_patch_interpolator",
}  # fmt: skip
# Arguments that are refused unless they have one of these values, which change nothing.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "attn_layer": ("", "attn"), "patchify_channels_last": (True,), "attn_gated": (False,),
}  # fmt: skip
