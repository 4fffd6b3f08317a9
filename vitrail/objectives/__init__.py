"""BATCH -> (LOSS, METRICS). The objectives by name: what --objective takes and run.json records."""

from __future__ import annotations

from vitrail.errors import ConfigError
from vitrail.objectives.classification import Classification
from vitrail.objectives.masked_patches import MaskedPatches
from vitrail.objectives.objective import Objective

OBJECTIVES: dict[str, type[Objective]] = {
    "classification": Classification,
    "masked-patches": MaskedPatches,
}


def objective_named(name: str) -> Objective:
    """Return the objective with its default settings."""
    if name not in OBJECTIVES:
        raise ConfigError(f"objective {name!r} is not one of {', '.join(OBJECTIVES)}")
    return OBJECTIVES[name]()


def objective_name(objective: Objective) -> str:
    """Return its name; for a user-defined one, the qualified name of its class."""
    kind = type(objective)
    known = {kind: name for name, kind in OBJECTIVES.items()}
    return known.get(kind, f"{kind.__module__}.{kind.__qualname__}")
