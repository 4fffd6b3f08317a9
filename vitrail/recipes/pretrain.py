"""A recipe, the user's data, and any field by name -> a run: what `vitrail pretrain` and `vitrail.pretrain` call."""

from __future__ import annotations

import dataclasses
import difflib
from pathlib import Path
from typing import Any, get_type_hints

from vitrail.checkpoints.formats import has_weights
from vitrail.errors import ConfigError
from vitrail.recipes.names import recipe as named
from vitrail.runtime.device import Device
from vitrail.runtime.distributed import rank
from vitrail.runtime.log import note
from vitrail.train.experiment import Experiment
from vitrail.train.fields import typed
from vitrail.train.folders import default_folder
from vitrail.train.run import Trained, run


def pretrain(
    data: str | Path,
    *,
    recipe: str = "small",
    out: str | Path | None = None,
    device: Device = "auto",
    **fields: Any,
) -> Trained:
    """Pre-train on `data`, by a recipe with any of its fields replaced: model="Ti/8@64", steps="30ep", rate=1e-3."""
    experiment, left = with_fields(named(recipe).make(), {"data": data, **fields})
    if left:
        raise unknown_fields(sorted(left), sorted(field_names(experiment)))
    return by_recipe(recipe, experiment, default_out(recipe, experiment) if out is None else out, device)


def by_recipe(recipe: str, experiment: Experiment, out: str | Path, device: Device) -> Trained:
    """The run; where the recipe goes on from another's model and none is given, it is said."""
    start = named(recipe or "small").start
    if start and not has_weights(experiment.model.model) and rank() == 0:
        note(f"begins with fresh weights; what is known of {recipe} is for --model with the model of {start}")
    return run(experiment, out, device=device)


def default_out(recipe: str, experiment: Experiment) -> Path:
    """runs/photos-vit-b16-i21k; without a recipe, and for small, which any model is trained by, runs/photos-b-16"""
    return default_folder(experiment.data.data, experiment.model.model if recipe in ("", "small") else recipe)


def with_fields(config: Any, fields: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The config with the fields set wherever they are in it, and those that are nowhere."""
    changes, annotations = {}, get_type_hints(type(config))
    for f in dataclasses.fields(config):
        value = getattr(config, f.name)
        if dataclasses.is_dataclass(value):
            changes[f.name], fields = with_fields(value, fields)
        elif f.name in fields:
            fields = dict(fields)
            changes[f.name] = typed(f.name, fields.pop(f.name), annotations[f.name])
    return dataclasses.replace(config, **changes), fields


def field_names(config: Any) -> list[str]:
    """What `with_fields` can set."""
    names = []
    for f in dataclasses.fields(config):
        value = getattr(config, f.name)
        names += field_names(value) if dataclasses.is_dataclass(value) else [f.name]
    return names


def unknown_fields(unknown: list[str], known: list[str]) -> ConfigError:
    near = [match for name in unknown for match in difflib.get_close_matches(name, known, n=1)]
    suggestion = f"; did you mean {' and '.join(near)}?" if near else ""
    return ConfigError(
        f"an experiment has no field {', '.join(unknown)}{suggestion} (its fields are {', '.join(known)})"
    )
