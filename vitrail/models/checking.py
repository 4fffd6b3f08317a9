"""Checks of the fields of a config: one table; each raises ConfigError with the value and what is allowed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from vitrail.errors import ConfigError
from vitrail.models import choices

# Whole numbers: field, greatest value. Far beyond any model, and still within what torch can count.
MOST = {
    "width": 1 << 16,
    "depth": 1000,
    "mlp_dim": 1 << 18,
    "heads": 1 << 16,
    "patch_size": 1 << 10,
    "channels": 1 << 12,
    "classes": 1 << 24,
    "pre_logits": 1 << 18,
    "registers": 1 << 12,
    "patch_stride": 1 << 10,
    "pool_heads": 1 << 16,
    "pool_mlp_dim": 1 << 18,
}
MAY_BE_0 = {"classes", "pre_logits", "registers", "patch_stride", "pool_heads", "pool_mlp_dim"}
# Numbers: field, (least value, the value that it stays below).
WITHIN = {
    "dropout": (0, 1),
    "attention_dropout": (0, 1),
    "drop_path": (0, 1),
    "norm_eps": (0, 1),
    "standardisation_eps": (0, 1),
    "head_bias": (-1000, 1000),
    "width_factor": (0.5, 1000),
    "layer_scale": (0, 1000),
    "rotary_base": (1e-3, 1e9),
    "rotary_offset": (-1000, 1000),
    "rotary_shift": (0, 10),
    "rotary_jitter": (1, 100),
    "rotary_rescale": (1, 100),
}
CHOICES = {
    "pool": get_args(choices.Pool),
    "positions": get_args(choices.Positions),
    "positions_at": get_args(choices.PositionsAt),
    "block": get_args(choices.BlockKind),
    "activation": get_args(choices.Activation),
    "norm_at": get_args(choices.NormAt),
    "norm": get_args(choices.Norm),
    "mlp": get_args(choices.MLPKind),
    "qkv_bias": get_args(choices.QKVBias),
    "rotary_kind": get_args(choices.Rotary),
    "rotary_pairs": get_args(choices.Pairs),
    "standardisation": get_args(choices.Standardisation),
}
YES_OR_NO = {
    "distillation_token", "embedding_bias", "embedding_norm", "pre_norm", "mlp_norm", "attention_norm", "qk_norm",
    "dense_bias", "rotary_columns_first",
}  # fmt: skip
MOST_PIXELS = 1 << 16  # along a side of an image


def check_fields(fields: Mapping[str, Any]) -> None:
    """Check the fields that the tables have."""
    for name, value in fields.items():
        wrong = ""
        if name in MOST:
            least = 0 if name in MAY_BE_0 else 1
            if not is_whole(value) or value < least:
                wrong = f"{name} must be a whole number of at least {least}, not {value!r}"
            elif value > MOST[name]:
                wrong = f"{name} must be at most {MOST[name]}, not {value!r:.60}"
        elif name in WITHIN:
            low, high = WITHIN[name]
            if not isinstance(value, int | float) or not low <= value < high:
                wrong = f"{name} must be in [{low:g}, {high:g}), not {value!r}"
        elif name in YES_OR_NO and not isinstance(value, bool):
            wrong = f"{name} must be True or False, not {value!r:.60}"
        elif name in CHOICES and value not in CHOICES[name]:
            wrong = f"{name}={value!r} is not one of {', '.join(CHOICES[name])}"
        if wrong:
            raise ConfigError(wrong)


def image_size(value: Any) -> tuple[int, int]:
    """Return (height, width) from one number, for a square, or two."""
    size = (value, value) if is_whole(value) else tuple(value) if isinstance(value, tuple | list) else ()
    if len(size) != 2 or not all(map(is_whole, size)):
        raise ConfigError(f"image_size={value!r} is neither a whole number nor (height, width)")
    if min(size) < 1:
        raise ConfigError(f"image_size={value!r}: a side must have at least 1 pixel")
    if max(size) > MOST_PIXELS:
        raise ConfigError(f"image_size={value!r:.60} is more than {MOST_PIXELS} pixels along a side")
    return size[0], size[1]


def is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
