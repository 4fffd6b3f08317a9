"""A study as a value: a table of experiments, how they are scored, the figure, the paper's numbers, what is claimed.

    Study = {size: Scale} + scores + Figure + Paper + Claims
    Scale = Points (settings) + the settings that they share + data

Nothing here computes. plan.py makes pieces of work of a study, work.py does them, results.py collects them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from vitrail.recipes.recipe import PublishedData
from vitrail.studies.claims import Claim

Size = Literal["tiny", "small", "paper"]
Settings = Mapping[str, Any]  # settings of an experiment by keyword, as vitrail.pretrain takes them


@dataclass(frozen=True)
class Point:
    """One experiment, trained once for each seed. In texts, {seed} is the seed of the run."""

    name: str
    settings: Settings = field(default_factory=dict)  # what sets it apart; with an lr, none is tuned
    family: str = ""  # points of one family share a learning rate, and are joined in the figure
    tune: bool = False  # lr of the family is chosen on this point; if on none, on its first
    recipe: str = ""  # published experiment that the settings are applied to
    start: str = ""  # name of the point whose model it begins with
    fresh_positions: bool = False  # draw the position embeddings of that model anew
    scored: bool = True  # False: only for other points to start from


@dataclass(frozen=True)
class Scale:
    """A study at one size."""

    points: tuple[Point, ...]
    settings: Settings  # of all points; those of a point come after
    data: str = ""  # data set if no other is given; "": it has to be given
    transfer: tuple[str, ...] = ()  # data sets for few-shot and linear probes; (): the data set itself
    # tried for each family, as many for each, on held-out train with one seed; (): lr of the settings
    lrs: tuple[float, ...] | Mapping[str, tuple[float, ...]] = ()
    published: PublishedData | None = None  # the authors' data, for the cost


@dataclass(frozen=True)
class Figure:
    """The axes of the figure: a row for each point, or lines over a number."""

    # what is along x: train_examples, exaflops, gflops (of a forward pass), or a setting; "": a row for each point
    x: str = ""
    x_label: str = ""
    fit: bool = False  # draw the fitted power law of each family


@dataclass(frozen=True)
class Paper:
    """Numbers of the paper."""

    numbers: tuple[tuple[str, str | float, float], ...]  # family, point or place along x, percent
    source: str  # where they stand, what was trained and tested
    x_label: str = ""


@dataclass(frozen=True)
class Study:
    name: str
    title: str
    section: str  # of the paper
    statement: str  # the paper's
    scales: Mapping[Size, Scale]
    scores: tuple[str, ...] = ("top1",)  # top1 (of the test split), 5-shot, linear; the first is drawn
    figure: Figure = field(default_factory=Figure)
    paper: Paper | None = None
    claims: tuple[Claim, ...] = ()
    remarks: tuple[str, ...] = ()  # how it differs from the paper's
