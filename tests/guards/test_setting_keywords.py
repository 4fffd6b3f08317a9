"""vitrail/setting_keywords.py lists every setting for editors and type checkers: it is made from the settings.

python -m tests.guards.test_setting_keywords      writes it again
"""

import dataclasses
import re
from pathlib import Path

import vitrail
from vitrail.data.settings import DataSettings
from vitrail.objectives import OBJECTIVES
from vitrail.train.settings import ModelSettings, OptimizerSettings, TrainingSettings
from vitrail.transfer.protocols import Sweep

PLACE = Path(vitrail.__file__).with_name("setting_keywords.py")
ARGUMENTS = {"model", "data"}  # of the functions themselves
HEAD = '''"""The settings as typed keywords of vitrail.pretrain and vitrail.finetune, for editors and type checkers.

Written from the settings themselves by tests/guards/test_setting_keywords.py; do not edit it.
"""

from __future__ import annotations

from typing import Literal, TypedDict

from vitrail.models.choices import (
    Activation,
    BlockKind,
    MLPKind,
    Norm,
    Pool,
    Positions,
    PositionsAt,
    QKVBias,
    Rotary,
)
from vitrail.train.settings import Duration, Parallel


'''


def content() -> str:
    groups = [ModelSettings, DataSettings, *OBJECTIVES.values(), OptimizerSettings, TrainingSettings]
    lines = ["class ExperimentSettings(TypedDict, total=False):", '    """Settings of an experiment."""', ""]
    for group in groups:
        lines += [annotation(field) for field in dataclasses.fields(group) if field.name not in ARGUMENTS]
    lines += ["    seed: int", "", "", "class FinetuningSettings(ExperimentSettings, total=False):"]
    lines += ['    """Settings of an experiment and of a sweep."""', ""]
    lines += [annotation(field) for field in dataclasses.fields(Sweep)]
    return HEAD + "\n".join(lines) + "\n"


def annotation(field) -> str:
    """Several values may be given as a list, which becomes a tuple."""
    kind = re.sub(r"tuple\[(.*), \.\.\.\]", r"tuple[\1, ...] | list[\1]", field.type.replace("'", '"'))
    return f"    {field.name}: {kind}"


def test_it_is_what_the_settings_make_of_it():
    assert PLACE.read_text(encoding="utf-8") == content()


if __name__ == "__main__":
    PLACE.write_text(content(), encoding="utf-8")
