"""The studies by name: the values of `vitrail study NAME`."""

from __future__ import annotations

import difflib

from vitrail.errors import ConfigError
from vitrail.studies.attention_type import ATTENTION_TYPE
from vitrail.studies.data_size import DATA_SIZE
from vitrail.studies.head import HEAD
from vitrail.studies.optimizer import OPTIMIZER
from vitrail.studies.positions import POSITION_EMBEDDINGS
from vitrail.studies.regularisation import REGULARISATION
from vitrail.studies.resolution import RESOLUTION
from vitrail.studies.scaling import SCALING
from vitrail.studies.self_supervision import SELF_SUPERVISION
from vitrail.studies.shape import SHAPE
from vitrail.studies.study import Study

STUDIES: dict[str, Study] = {
    study.name: study
    for study in (
        DATA_SIZE, SCALING, POSITION_EMBEDDINGS, HEAD, SHAPE, OPTIMIZER, SELF_SUPERVISION, RESOLUTION, ATTENTION_TYPE,
        REGULARISATION,
    )
}  # fmt: skip


def find_study(name: str) -> Study:
    if name not in STUDIES:
        near = difflib.get_close_matches(name, STUDIES, n=1, cutoff=0.4)
        suggestion = f"; did you mean {near[0]}?" if near else ""
        raise ConfigError(f"unknown study {name!r}{suggestion} (`vitrail study list` lists them)")
    return STUDIES[name]
