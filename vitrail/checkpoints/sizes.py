"""What a state dict does not say outright, and the formats of PyTorch libraries must find out.

Heads split the width without leaving a trace in any shape. They are asked of, in this order: the argument,
the config file beside the weights (a conflict of the two is an error), the known variant with this width,
depth and MLP. The grid is read off the number of positions where it is a square, else asked of the config
file and the argument.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from vitrail.errors import CheckpointError, ConfigError
from vitrail.models.vit import VARIANTS

Size = int | tuple[int, int]


def heads_of(
    width: int, depth: int, mlp_dim: int, *, asked: int | None, configured: int | None, where: str
) -> tuple[int, str]:
    """How many heads there are, and who says so."""
    if asked is not None and configured is not None and asked != configured:
        raise CheckpointError(f"{where}: heads={asked} was asked for, but its config file says {configured}")
    if asked is not None:
        return asked, "argument"
    if configured is not None:
        return configured, "config file"
    fitting = [name for name, sizes in VARIANTS.items() if sizes[:3] == (width, depth, mlp_dim)]
    if not fitting:
        raise CheckpointError(
            f"{where} does not say how many heads its layers have, and no known variant has width {width}, "
            f"depth {depth} and mlp_dim {mlp_dim}: say heads= (vitrail convert --heads writes a bundle that says it)"
        )
    others = "".join(f"; {name} has {VARIANTS[name][3]}: heads={VARIANTS[name][3]}" for name in fitting[1:])
    return VARIANTS[fitting[0]][3], f"the known variant {fitting[0]}{others}"


def grid_of(
    counts: tuple[int, ...], stride: int, configured: Size | None, asked: Size | None, where: str
) -> tuple[int, int]:
    """Rows and columns. `counts`: how many patches there may be, the likeliest first."""
    fitting = [size for size in (configured, asked) if size is not None and patches(size, stride) in counts]
    square = next((n for n in counts if math.isqrt(n) ** 2 == n), None)
    if configured is None and square is not None:
        return math.isqrt(square), math.isqrt(square)
    if fitting:
        return grid_at(fitting[0], stride)
    said = "which are not a square"
    if configured is not None:
        said = (
            f"but its config file says images of {pair(configured)}, which have {patches(configured, stride)}"
        )
    raise CheckpointError(
        f"{where} has positions for {counts[0]} patches of {stride} pixels, {said}: say image_size=(height, width)"
    )


def patches(size: Size, stride: int) -> int:
    return math.prod(grid_at(size, stride))


def grid_at(size: Size, stride: int) -> tuple[int, int]:
    """Rows and columns of patches in an image."""
    if stride < 1:
        raise ConfigError(f"patches of {stride} pixels")
    height, width = pair(size)
    return height // stride, width // stride


def pair(size: Size) -> tuple[int, int]:
    if isinstance(size, int):
        return size, size
    if len(size) != 2:
        raise ConfigError(f"image_size={size!r} is neither one number nor (height, width)")
    return size[0], size[1]


def count(keys: Iterable[str], pattern: str, where: str) -> int:
    """How many there are of what the pattern numbers; from 0 on, without gaps."""
    found = sorted({int(m[1]) for m in (re.match(pattern, key) for key in keys) if m})
    if found != list(range(len(found))):
        raise CheckpointError(f"{where}: {pattern!r} counts {found}, not from 0 on without gaps")
    return len(found)
