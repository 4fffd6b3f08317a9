"""GRIDS OF RUNS -> TABLES AND FIGURES with the paper's numbers beside ours: `vitrail study`.

    study.py     a study as a value: points (settings), scores, figure, the paper's numbers, claims
    claims.py    what a claim is, and the statistics of its answer
    plan.py      a study -> every run with its settings      cost.py    what they cost
    work.py      a worker: does what nobody else is doing    local.py, cluster.py    many of them
    results.py   finished runs -> results.csv                page.py    figure and page
    run.py       all of it
    scales.py    what studies share at each size; then a file for each study, and names.py

A study of your own is a `Study` that you pass to `run_study`:

    from vitrail.studies import Choices, Point, Scale, Study, run_study
"""

from __future__ import annotations

from vitrail.studies.claims import Claim, equal, higher
from vitrail.studies.plan import Choices
from vitrail.studies.run import Machine, run_study
from vitrail.studies.study import Figure, Paper, Point, Scale, Study

__all__ = [
    "Choices", "Claim", "Figure", "Machine", "Paper", "Point", "Scale", "Study", "equal", "higher", "run_study",
]  # fmt: skip
