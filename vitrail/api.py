"""The verbs that train, as Python functions; the command line calls them too.

    vitrail.pretrain("photos", model="S/16", steps="30ep")
    vitrail.finetune("photos", "ti8-64", lr=0.01)

Every setting of an experiment (vitrail/train/settings.py) is a keyword, and a flag of the same name.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Unpack

from vitrail.checkpoints.checkpoint import model_digest
from vitrail.checkpoints.formats import has_weights, load, save
from vitrail.checkpoints.run.folder import START, check_run_folder
from vitrail.checkpoints.run.records import RUN_JSON
from vitrail.checkpoints.run.state import fail_together
from vitrail.errors import ConfigError
from vitrail.inspection import figures
from vitrail.models.names import Model
from vitrail.objectives.objective import Objective
from vitrail.recipes.names import find_finetuning_recipe, find_recipe
from vitrail.runtime.device import Device, pick
from vitrail.runtime.distributed import group, rank
from vitrail.runtime.log import note
from vitrail.setting_keywords import ExperimentSettings, FinetuningSettings
from vitrail.train.assemble import default_folder
from vitrail.train.keywords import override
from vitrail.train.run import Trained, run
from vitrail.train.settings import Experiment
from vitrail.transfer.finetune import prepare, run_finetuning


def pretrain(
    data: str | Path,
    *,
    model: str | Path | Model | None = None,
    objective: str | Objective | None = None,
    recipe: str = "small",
    out: str | Path | None = None,
    device: Device = "auto",
    **settings: Unpack[ExperimentSettings],
) -> Trained:
    """Pre-train on `data` by a recipe, with any setting replaced: model="Ti/8@64", steps="30ep", lr=1e-3.

    `model`: an architecture's name, a path to weights, or a model. `objective`: a name (classification,
    masked-patches), or an object of your own (vitrail/objectives/objective.py). The same call again resumes.
    """
    keywords: dict[str, Any] = {"data": data, **settings}
    keywords |= {} if objective is None else {"objective": objective}
    if model is not None and not isinstance(model, Model):
        keywords["model"] = model
    experiment = override(find_recipe(recipe).make(), keywords)
    folder = Path(out) if out is not None else default_out(recipe, experiment)
    if isinstance(model, Model):
        experiment = override(experiment, {"model": store_start(model, folder, device)})
    return run_recipe(recipe, experiment, folder, device)


def finetune(
    data: str | Path,
    model: str | Path | Model,
    *,
    protocol: str = "default",
    recipe: str = "",
    out: str | Path | None = None,
    device: Device = "auto",
    **settings: Unpack[FinetuningSettings],
) -> Trained:
    """Fine-tune `model`, a path, a name or a model, on `data`, with any setting of an experiment or a sweep by
    keyword.

    Settings that are not given are chosen by `protocol` (default, plain, paper, augreg, bit), or by a published
    `recipe`. The same call again resumes.
    """
    name = "model" if isinstance(model, Model) else str(model)
    folder = default_folder(str(data), name) if out is None else Path(out)
    if isinstance(model, Model):
        model = store_start(model, folder, device)
    chosen = find_finetuning_recipe(recipe).make if recipe else protocol
    prepared = prepare(data, model, protocol=chosen, device=device, out=folder, **settings)
    return run_finetuning(prepared, folder, device=device, figures=figures)


def run_recipe(recipe: str, experiment: Experiment, out: Path, device: Device) -> Trained:
    """Run an experiment; note if its recipe starts from the model of another recipe and none is given."""
    start = find_recipe(recipe or "small").start
    with group(pick(device)):
        if start and not has_weights(experiment.model.model) and rank() == 0:
            note(
                f"Starting from fresh weights; the result of {recipe} is for --model with the model of {start}"
            )
        return run(experiment, out, device=device, figures=figures)


def default_out(recipe: str, experiment: Experiment) -> Path:
    """Return runs/photos-vit-b16-i21k; without a recipe, and for small, which trains any model, runs/photos-b-16."""
    return default_folder(experiment.data.data, experiment.model.model if recipe in ("", "small") else recipe)


def store_start(model: Model, folder: Path, device: Device) -> str:
    """Save a model object into the run's folder, so that the run can be resumed; return its path."""
    place = folder / START
    with group(pick(device)):
        with fail_together(f"{place} cannot be written"):
            if rank() == 0 and not (folder / RUN_JSON).exists():  # of a call that failed, a start may be left
                check_run_folder(folder)
                save(model, place)
        if not place.exists():
            raise ConfigError(
                f"{folder} holds something other than a run that started from a model object: choose another `out`"
            )
        if model_digest(load(place)) != model_digest(model):
            raise ConfigError(f"{folder} started from another model: choose another `out`")
    return str(place)
