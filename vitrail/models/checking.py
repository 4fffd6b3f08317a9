"""Checks of the fields of a config; each raises ConfigError with the value and what is allowed."""

from __future__ import annotations

from typing import Any

from vitrail.errors import ConfigError

# Upper bounds of sizes: far beyond any model, and still within what torch can count.
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


def whole(config: Any, least: int, *names: str) -> None:
    """Check that fields are whole numbers of at least `least`."""
    for name in names:
        value = getattr(config, name)
        if not is_whole(value) or value < least:
            raise ConfigError(f"{name} must be a whole number of at least {least}, not {value!r}")
        if value > MOST[name]:
            raise ConfigError(f"{name} must be at most {MOST[name]}, not {value!r:.60}")


def number(config: Any, least: float, most: float, *names: str) -> None:
    """Check that fields are numbers with least <= value < most."""
    for name in names:
        value = getattr(config, name)
        if not isinstance(value, int | float) or not least <= value < most:
            raise ConfigError(f"{name} must be in [{least:g}, {most:g}), not {value!r}")


def units(config: Any, least_stages: int) -> tuple[int, ...]:
    """Return the numbers of bottleneck units in the stages of a ResNet."""
    value = config.units
    units = tuple(value) if isinstance(value, tuple | list) else None
    if units is None or len(units) < least_stages or not all(is_whole(n) and n >= 1 for n in units):
        raise ConfigError(f"units={value!r} must be a whole number of at least 1 for each stage")
    if len(units) > MOST_STAGES or sum(units) > MOST_UNITS:
        raise ConfigError(
            f"units={value!r:.60} must have at most {MOST_STAGES} stages and {MOST_UNITS} units in all"
        )
    return units


def is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
