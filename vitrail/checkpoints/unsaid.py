"""What neither the names nor the shapes of tensors tell: who says it, or that it was assumed.

    argument of vitrail.load  >  config file beside the weights  >  as the library's models have it

Argument and config file may not contradict each other. What was assumed is said in one note, and kept in the model's
provenance.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from vitrail.checkpoints.sizes import Size, heads_of, pair
from vitrail.errors import CheckpointError, ConfigError
from vitrail.models import checking
from vitrail.models.names import Config
from vitrail.runtime.log import note

CHOICES = {"activation": ("gelu", "gelu_tanh"), "pool": ("token", "mean", "attention")}


@dataclass(frozen=True)
class Asked:
    """What the caller says of a model; None where nothing was said."""

    heads: int | None = None
    activation: str | None = None
    norm_eps: float | None = None
    pool: str | None = None

    def __post_init__(self) -> None:
        for name, allowed in CHOICES.items():
            if (given := getattr(self, name)) is not None and given not in allowed:
                raise ConfigError(f"{name}={given!r} is not one of {', '.join(allowed)}")
        if self.heads is not None:
            checking.whole(self, 1, "heads")
        if self.norm_eps is not None:
            checking.number(self, 0, 1, "norm_eps")

    @property
    def said(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}

    def check(self, config: Config, where: str) -> None:
        """An error where it contradicts a file that says it all."""
        for name, value in self.said.items():
            if not hasattr(config, name):
                raise CheckpointError(
                    f"{where} is a ResNet, which has no {name}, but {name}={value} was asked for"
                )
            if getattr(config, name) != value:
                raise CheckpointError(
                    f"{where} has {name}={getattr(config, name)}, but {name}={value} was asked for"
                )


@dataclass
class Choices:
    """Who decided what, while a config is put together."""

    asked: Asked
    where: str
    assumed: dict[str, Any] = field(default_factory=dict)
    who_said_heads: str = ""

    def of(self, name: str, configured: Any, default: Any, *, sure: bool = False) -> Any:
        """The value of a field of the config. `sure`: the default is known to be right where nothing is asked."""
        asked = getattr(self.asked, name)
        if asked is not None and configured is not None and asked != configured:
            raise CheckpointError(f"{self.where}: {name}={asked} was asked for, but it has {configured}")
        if asked is None and configured is None and not sure:
            self.assumed[name] = default
        return next(value for value in (asked, configured, default) if value is not None)

    def heads(self, width: int, depth: int, mlp_dim: int, configured: int | None) -> int:
        asked = self.asked.heads
        heads, who = heads_of(width, depth, mlp_dim, asked=asked, configured=configured, where=self.where)
        if asked is None and configured is None:
            self.assumed["heads"] = heads
        self.who_said_heads = who
        return heads

    def square(self, grid: tuple[int, int], stride: int, said: Size | None) -> tuple[int, int]:
        """Pixels of images with that grid. `said`: by the caller or a config file; else it was taken for a square."""
        size = grid[0] * stride, grid[1] * stride
        if said is None or pair(said) != size:
            self.assumed["image_size"] = f"{size[0]}x{size[1]}"
        return size

    def say(self, library: str, name: str) -> dict[str, Any]:
        """Note what was assumed of the file `name`; returns it for the provenance."""
        if not self.assumed:
            return {}
        values = [f"{field}={value}" for field, value in self.assumed.items()]
        note(
            f"{name} does not say, and is read as {library}'s models are: {', '.join(values)}. What is otherwise can "
            "be said: in Python as vitrail.load(..., activation=...), to every command as --activation; "
            "preprocess to vitrail convert"
        )
        return {"assumed": self.assumed}


NOTHING = Asked()
