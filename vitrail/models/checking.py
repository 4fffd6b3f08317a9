"""What every config checks of its fields, in words."""

from __future__ import annotations

from typing import Any

from vitrail.errors import ConfigError

# The most that a size may be: far beyond any model, and still what torch can count.
MOST = {
    "width": 1 << 16,
    "depth": 1000,
    "mlp_dim": 1 << 18,
    "heads": 1 << 16,
    "patch_size": 1 << 10,
    "channels": 1 << 12,
    "classes": 1 << 24,
    "pre_logits": 1 << 18,
}
MOST_PIXELS = 1 << 16  # along a side of an image
MOST_STAGES, MOST_UNITS = 6, 1000  # of a ResNet; units of all its stages together


def image_size(given: Any) -> tuple[int, int]:
    """One number for a square, or (height, width)."""
    size = (given, given) if is_whole(given) else tuple(given) if isinstance(given, tuple | list) else ()
    if len(size) != 2 or not all(map(is_whole, size)):
        raise ConfigError(f"image_size={given!r} is neither a whole number nor (height, width)")
    if min(size) < 1:
        raise ConfigError(f"image_size={given!r}: a side must have at least 1 pixel")
    if max(size) > MOST_PIXELS:
        raise ConfigError(f"image_size={given!r:.60} is more than {MOST_PIXELS} pixels along a side")
    return size[0], size[1]


def whole(config: Any, least: int, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        if not is_whole(value) or value < least:
            raise ConfigError(f"{name} must be a whole number of at least {least}, not {value!r}")
        if value > MOST[name]:
            raise ConfigError(f"{name} must be at most {MOST[name]}, not {value!r:.60}")


def number(config: Any, least: float, most: float, *names: str) -> None:
    """least <= value < most"""
    for name in names:
        value = getattr(config, name)
        if not isinstance(value, int | float) or not least <= value < most:
            raise ConfigError(f"{name} must be in [{least:g}, {most:g}), not {value!r}")


def units(config: Any, least_stages: int) -> tuple[int, ...]:
    """Bottleneck units in each stage of a ResNet."""
    given = config.units
    units = tuple(given) if isinstance(given, tuple | list) else None
    if units is None or len(units) < least_stages or not all(is_whole(n) and n >= 1 for n in units):
        raise ConfigError(f"units={given!r}: a whole number of at least 1 for each stage")
    if len(units) > MOST_STAGES or sum(units) > MOST_UNITS:
        raise ConfigError(f"units={given!r:.60}: at most {MOST_STAGES} stages, and {MOST_UNITS} units in all")
    return units


def is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
