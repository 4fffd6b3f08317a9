"""The flags of study. Apart from study_verb.py because the settings of a study import torch; imported when needed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import tyro

from vitrail.cli.verb import COMMON, Common
from vitrail.studies.plan import Choices
from vitrail.studies.run import Machine

CHOICES, MACHINE = Choices(), Machine()


@dataclass(frozen=True)
class StudyOptions:
    # data-size, scaling, positions, ...; list: all of them
    name: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="NAME")]
    choices: Choices = CHOICES
    machine: Machine = MACHINE
    out: str = ""  # folder of the study; if unset, studies/NAME-SIZE
    dry_run: bool = False  # show every point and what the study costs, without running it
    yes: bool = False  # run a study at the paper's scale
    common: Common = COMMON


def parse_study_flags(words: list[str], description: str) -> StudyOptions:
    config = (tyro.conf.FlagCreatePairsOff, tyro.conf.OmitArgPrefixes)
    return tyro.cli(StudyOptions, args=words, prog="vitrail study", description=description, config=config)
