"""The flags of pretrain and finetune: every field of what they run, and what belongs to the command itself.

Apart from train_verbs.py because an experiment's own file imports torch; this one is imported when it is needed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from vitrail.cli.verb import COMMON, Common
from vitrail.recipes.table_3 import small
from vitrail.train.estimate import UTILISATION
from vitrail.train.experiment import Experiment
from vitrail.transfer.finetune_settings import Finetuning


@dataclass(frozen=True)
class Pretrain:
    recipe: str = ""  # a published experiment to begin from; `list` shows them
    # the run's folder; where nothing is said runs/DATA-RECIPE, or without a recipe and for small runs/DATA-MODEL
    out: str = ""
    dry_run: bool = False  # show the resolved experiment and what it needs; nothing is trained
    processes: int = 1  # for --dry-run: accelerators that share the batch
    peak_tflops: float | None = None  # for --dry-run: of one; None: this machine's, or a TPUv3 core's
    utilisation: float = UTILISATION  # for --dry-run: part of the peak that training reaches
    experiment: Experiment = field(default_factory=small)
    common: Common = COMMON


@dataclass(frozen=True)
class Finetune:
    recipe: str = ""  # a published protocol to begin from; `list` shows them
    out: str = ""  # the folder; runs/DATA-MODEL where nothing is said
    finetuning: Finetuning = field(default_factory=Finetuning)
    common: Common = COMMON
