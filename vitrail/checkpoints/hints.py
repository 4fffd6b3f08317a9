"""Settings that neither the names nor the shapes of tensors tell: who states them, or that they were assumed.

    argument of vitrail.load  >  config file beside the weights  >  default of the library

Argument and config file may not contradict each other. A note says what was assumed, and the model's provenance
keeps it. Heads split the width without leaving a trace in any shape: without a hint they are those of the known
variant with this width, depth and MLP. The grid follows from the number of positions if that is a square.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from vitrail.errors import CheckpointError, ConfigError
from vitrail.models import checking
from vitrail.models.names import Config
from vitrail.models.vit import VARIANTS
from vitrail.runtime.log import note

Size = int | tuple[int, int]


@dataclass(frozen=True)
class Hints:
    """Settings that the caller states; None for those left to the file."""

    heads: int | None = None
    activation: str | None = None
    norm_eps: float | None = None
    pool: str | None = None

    def __post_init__(self) -> None:
        checking.check_fields(self.stated())

    def stated(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}

    def check(self, config: Config, where: str) -> None:
        """Raise an error if a hint contradicts a file that leaves nothing open."""
        for name, value in self.stated().items():
            if not hasattr(config, name):
                raise CheckpointError(
                    f"{where} is a ResNet, which has no {name}, but {name}={value} was passed"
                )
            if getattr(config, name) != value:
                raise CheckpointError(
                    f"{where} has {name}={getattr(config, name)}, but {name}={value} was passed"
                )


NO_HINTS = Hints()


@dataclass
class Choices:
    """Fields of a config as they are decided, and which of them were assumed."""

    hints: Hints
    where: str
    assumed: dict[str, Any] = field(default_factory=dict)
    heads_source: str = ""

    def choose(self, name: str, configured: Any, default: Any, *, sure: bool = False) -> Any:
        """Return the value of a field. `sure`: the default is known to be right, not assumed."""
        hint = getattr(self.hints, name)
        if hint is not None and configured is not None and hint != configured:
            raise CheckpointError(f"{self.where}: {name}={hint} was passed, but it has {configured}")
        if hint is None and configured is None and not sure:
            self.assumed[name] = default
        return next(value for value in (hint, configured, default) if value is not None)

    def choose_heads(self, width: int, depth: int, mlp_dim: int, configured: int | None) -> int:
        variants = [name for name, sizes in VARIANTS.items() if sizes[:3] == (width, depth, mlp_dim)]
        if self.hints.heads is None and configured is None and not variants:
            raise CheckpointError(
                f"{self.where} does not say how many heads its layers have, and no known variant has width {width}, "
                f"depth {depth} and mlp_dim {mlp_dim}: give heads= (vitrail convert --heads writes a bundle with it)"
            )
        if self.hints.heads is not None:
            self.heads_source = "argument"
        elif configured is not None:
            self.heads_source = "config file"
        else:
            others = [f"; {name} has {VARIANTS[name][3]}: heads={VARIANTS[name][3]}" for name in variants[1:]]
            self.heads_source = f"the known variant {variants[0]}{''.join(others)}"
        default = VARIANTS[variants[0]][3] if variants else None
        heads: int = self.choose("heads", configured, default)
        return heads

    def choose_image_size(
        self, patches: tuple[int, ...] | None, stride: int, configured: Size | None, asked: Size | None
    ) -> tuple[int, int]:
        """Return the pixels of images with one of these numbers of `patches`, the likeliest first; None: any."""
        stated = configured or asked
        if patches is None:
            rows, columns = grid_at(stated or 224, stride)
        else:
            rows, columns = find_grid(patches, stride, configured, asked, self.where)
        size = rows * stride, columns * stride
        if stated is None or checking.image_size(stated) != size:
            self.assumed["image_size"] = f"{size[0]}x{size[1]}"
        return size

    def report(self, library: str, name: str) -> dict[str, Any]:
        """Note what was assumed about the file `name`, and return it for the provenance."""
        if not self.assumed:
            return {}
        values = [f"{field}={value}" for field, value in self.assumed.items()]
        note(
            f"{name} does not say, so it is read like {library}'s own models: {', '.join(values)}. To change one: "
            "vitrail.load(..., activation=...) in Python, --activation on the command line; preprocess with vitrail "
            "convert"
        )
        return {"assumed": self.assumed}


@contextmanager
def inferring_architecture(where: str) -> Iterator[None]:
    """Turn what goes wrong with unexpected names and shapes into an error in words."""
    try:
        yield
    except (KeyError, IndexError, ValueError) as error:
        raise CheckpointError(f"{where}: the architecture cannot be inferred ({error})") from error


def find_grid(
    patches: tuple[int, ...], stride: int, configured: Size | None, asked: Size | None, where: str
) -> tuple[int, int]:
    """Return rows and columns. `patches`: how many there may be, the likeliest first."""
    square = next((n for n in patches if math.isqrt(n) ** 2 == n), None)
    if configured is None and square is not None:
        return math.isqrt(square), math.isqrt(square)
    for size in (configured, asked):
        if size is not None and math.prod(grid_at(size, stride)) in patches:
            return grid_at(size, stride)
    problem = "which are not a square"
    if configured is not None:
        size, n = checking.image_size(configured), math.prod(grid_at(configured, stride))
        problem = f"but its config file says images of {size}, which have {n}"
    raise CheckpointError(
        f"{where} has positions for {patches[0]} patches of {stride} pixels, {problem}: give "
        "image_size=(height, width)"
    )


def grid_at(size: Size, stride: int) -> tuple[int, int]:
    """Return rows and columns of patches in an image."""
    if stride < 1:
        raise ConfigError(f"patches of {stride} pixels")
    height, width = checking.image_size(size)
    return height // stride, width // stride


def count_numbered(keys: Iterable[str], pattern: str, where: str, first: int = 0) -> int:
    """Return how many parts the pattern numbers; raise an error unless they run from `first` without gaps."""
    matches = (re.match(pattern, key) for key in keys)
    numbers = sorted({int(match[1]) for match in matches if match})
    if numbers != list(range(first, first + len(numbers))):
        raise CheckpointError(f"{where}: {pattern!r} counts {numbers}, not from {first} on without gaps")
    return len(numbers)
