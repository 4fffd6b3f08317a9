"""The flags of pretrain and finetune: every setting of a run, and the options of the command itself.

They are read in two steps. Flags that select the run (--data, --model, --recipe, --protocol, --objective, ...) are
read first and give the complete experiment; then all flags are parsed over it, so that --help shows the values
that will be used. Apart from train_verbs.py because settings import torch; this file is imported when it is needed.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import tyro

from vitrail.checkpoints.checkpoint import Checkpoint
from vitrail.cli.verb import COMMON, Common
from vitrail.objectives import OBJECTIVES
from vitrail.train.assemble import model_config
from vitrail.train.estimate import UTILISATION
from vitrail.train.settings import Experiment

T = TypeVar("T")
if TYPE_CHECKING:
    ObjectiveName = str
else:
    ObjectiveName = Literal[tuple(OBJECTIVES)]
SEED = Annotated[int, tyro.conf.arg(help="seed of the weights, the order of the data and its augmentation")]


@dataclass(frozen=True)
class PretrainOptions:
    recipe: str = ""  # published experiment to start from; `list` shows them
    objective: ObjectiveName = "classification"  # what training minimises
    out: str = ""  # folder of the run; if unset, runs/DATA-RECIPE, or runs/DATA-MODEL
    dry_run: bool = False  # show all settings and what the run needs, without training
    processes: int = 1  # with --dry-run: accelerators that share the batch
    # with --dry-run: peak of one; if unset, this machine's, or a TPUv3 core's
    peak_tflops: float | None = None
    utilisation: float = UTILISATION  # with --dry-run: fraction of the peak that training reaches


@dataclass(frozen=True)
class FinetuneOptions:
    recipe: str = ""  # published fine-tuning to start from; `list` shows them
    # what chooses the settings that are left unset: default is for photographs, plain the same without looking at
    # them, paper is Table 4, augreg the preset of its checkpoints, bit is BiT-HyperRule
    protocol: Literal["default", "plain", "paper", "augreg", "bit"] = "default"
    out: str = ""  # folder of the run; if unset, runs/DATA-MODEL


def parse_flags(
    words: list[str], options: T, experiment: Experiment, more: dict[str, Any], prog: str, description: str
) -> tuple[T, Experiment, dict[str, Any], Common]:
    """Parse all flags over the options, the experiment and `more` groups of settings."""
    groups = more | {name: getattr(experiment, name) for name in ("model", "data", "optimizer", "training")}
    groups |= {"loss": experiment.objective}
    fields: list[Any] = [("command", type(options), dataclasses.field(default=options))]
    fields += [(name, type(value), dataclasses.field(default=value)) for name, value in groups.items()]
    fields += [("seed", SEED, dataclasses.field(default=experiment.seed))]
    fields += [("common", Common, dataclasses.field(default=COMMON))]
    flags: Any = tyro.cli(
        dataclasses.make_dataclass("Flags", fields, frozen=True),
        args=words,
        prog=prog,
        description=description,
        config=(tyro.conf.FlagCreatePairsOff, tyro.conf.OmitArgPrefixes, tyro.conf.SuppressFixed),
    )
    changed = {name: getattr(flags, name) for name in ("model", "data", "optimizer", "training", "seed")}
    experiment = dataclasses.replace(experiment, **changed, objective=flags.loss)
    return flags.command, experiment, {name: getattr(flags, name) for name in more}, flags.common


def asks_for_help(words: list[str]) -> bool:
    return not {"--help", "-h"}.isdisjoint(words)


def show_architecture(experiment: Experiment, start: Checkpoint | None) -> Experiment:
    """Return the experiment with every field of its architecture, for --help."""
    config = model_config(experiment, 0, start)
    return dataclasses.replace(experiment, model=experiment.model.completed(config))


def facts_in(words: list[str]) -> dict[str, Any]:
    """Return the facts of `Facts` that the flags tell."""
    size = word_after("--image-size", words)
    return {
        "image_size": int(size) if size.isdecimal() else "any" if size == "any" else None,
        "optimizer": word_after("--optimizer", words) or None,
        "schedule": word_after("--schedule", words) or None,
        "preprocess": word_after("--preprocess", words) or None,
        "augment": word_after("--augment", words) or None,
        "tune": word_after("--tune", words) or None,
        "loss": word_after("--loss", words) or None,
        "sweep": "--sweep" in words,
        "budget": word_after("--budget", words),
    }


def word_after(flag: str, words: list[str]) -> str:
    """Return WORD of the last --flag WORD or --flag=WORD, which the parser takes too; nothing if there is none."""
    word = ""
    for here, following in pairwise([*words, ""]):
        name, equals, value = here.partition("=")
        if name.replace("_", "-") == flag:
            word = value if equals else following
    return word
