"""A study -> pieces of work: every run with its settings and what it waits for. plan.json of a study's folder.

    trials      one for each family and learning rate, with seed 0, on held-out train
    runs        one for each point and seed 1, 2, ..., with the learning rate that was best in the trials

A plan is data alone: a worker on another machine needs nothing but the folder. A new plan replaces the old one; what
is finished and still planned is not computed again, and a piece whose settings have changed is refused by its
run.json."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypedDict

from vitrail.checkpoints.json_files import Count, read_object, save_json
from vitrail.checkpoints.run.records import NUMERICS
from vitrail.errors import ConfigError
from vitrail.recipes.names import find_recipe
from vitrail.runtime.files import atomic_file
from vitrail.studies.study import Point, Scale, Size, Study
from vitrail.train.keywords import override
from vitrail.train.settings import Duration, Experiment, ModelSettings

PLAN, RUNS = "plan.json", "runs"
TRIAL_SEED = 0
SEEDS = 3
# Settings of a model that loaded weights may be given.
OF_LOADED = {"image_size", "dropout", "attention_dropout", "drop_path"}


@dataclass(frozen=True)
class Piece:
    """One run."""

    name: str  # its folder in runs/
    point: str
    family: str
    seed: int
    settings: dict[str, Any]  # of the experiment, by keyword
    recipe: str = ""
    trials: tuple[str, ...] = ()  # pieces of which the best gives lr
    start: str = ""  # piece whose model it begins with
    fresh_positions: bool = False
    scores: tuple[str, ...] = ()  # measured at the end; (): a trial, or a model to start from
    trial: bool = False
    tuned: bool = False  # lr is chosen by trials, or by the study itself

    def experiment(self, weights: str = "") -> Experiment:
        """Return the experiment: with the architecture's name, or the weights to begin with."""
        base = find_recipe(self.recipe).make() if self.recipe else Experiment()
        if not weights:
            return override(base, self.settings)
        # Settings of the architecture are those of the weights.
        own = {f.name for f in dataclasses.fields(ModelSettings)} - OF_LOADED
        settings = {name: value for name, value in self.settings.items() if name not in own}
        return override(dataclasses.replace(base, model=ModelSettings()), settings | {"model": weights})

    def config(self, plan: Plan) -> dict[str, Any]:
        """Return what must be equal for the piece to be resumed, or to count as finished."""
        names = ("settings", "recipe", "start", "fresh_positions", "trials", "scores")
        transfer = plan.transfer if self.scores else ()
        return {name: getattr(self, name) for name in names} | {"transfer": transfer}

    def needs(self) -> tuple[str, ...]:
        return (*self.trials, self.start) if self.start else self.trials


class PieceJson(TypedDict):
    name: str
    point: str
    family: str
    seed: Count
    settings: dict[str, Any]
    recipe: str
    trials: list[str]
    start: str
    fresh_positions: bool
    scores: list[str]
    trial: bool
    tuned: bool


class PlanJson(TypedDict):
    study: str
    size: str
    data: str
    transfer: list[str]
    numerics: str
    keep_models: bool
    pieces: list[PieceJson]


@dataclass(frozen=True)
class Plan:
    study: str
    size: str
    data: str
    transfer: tuple[str, ...]  # data sets for probes
    pieces: tuple[Piece, ...]
    keep_models: bool = False  # of finished runs
    numerics: str = NUMERICS

    def write(self, folder: Path) -> None:
        with atomic_file(folder / PLAN) as path:
            save_json(asdict(self), path)

    def ordered(self, rank: Callable[[Piece], Any]) -> Plan:
        return dataclasses.replace(self, pieces=tuple(sorted(self.pieces, key=rank)))

    @classmethod
    def read(cls, folder: Path) -> Plan:
        content = read_object(folder / PLAN, PlanJson)
        tuples = ("trials", "scores")
        pieces = tuple(
            Piece(**piece | {name: tuple(piece[name]) for name in tuples}) for piece in content["pieces"]
        )
        if bad := [piece.name for piece in pieces if not is_inside(piece.name)]:
            raise ConfigError(f"{folder / PLAN}: {bad[0]!r} is not the name of a folder inside {RUNS}")
        return cls(**content | {"pieces": pieces, "transfer": tuple(content["transfer"])})

    def starts(self) -> set[str]:
        """Return the names of the pieces whose models others begin with."""
        return {piece.start for piece in self.pieces if piece.start}


def is_inside(name: str) -> bool:
    return re.fullmatch(r"[A-Za-z0-9+][\w.+\-]*(/[A-Za-z0-9][\w.+\-]*)?", name) is not None


@dataclass(frozen=True)
class Choices:
    """How a study is run."""

    size: Size = "tiny"  # tiny: minutes on a CPU; small: one GPU; paper: the paper's scale
    data: str = ""  # data set; if unset, the study's own at this size
    transfer: tuple[str, ...] = ()  # data sets for few-shot and linear probes; if unset, the study's own
    seeds: int = SEEDS  # number of runs of each point
    points: tuple[str, ...] = ()  # only these points
    length: float = 1.0  # factor of the length of every run
    # settings of all runs in place of the study's, such as steps=100 or compile=off
    override: tuple[str, ...] = ()
    keep_models: bool = False  # keep the models of finished runs, not only their scores

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise ConfigError(f"seeds {self.seeds}: must be at least 1")
        if not 0 < self.length <= 1000:
            raise ConfigError(f"length {self.length:g}: a factor above 0, up to 1000")


def make_plan(study: Study, choices: Choices) -> Plan:
    """Return every run of a study at a size."""
    if choices.size not in study.scales:
        raise ConfigError(f"study {study.name} has no size {choices.size}; it has {', '.join(study.scales)}")
    scale, changes = study.scales[choices.size], parse_overrides(choices.override)
    known, points = {point.name: point for point in scale.points}, chosen_points(scale, choices.points)
    trials: dict[str, tuple[str, ...]] = {}
    pieces: list[Piece] = []
    tuned = [point for point in points if is_tuned(point, scale, changes)]
    for family in dict.fromkeys(point.family for point in tuned):
        members = [point for point in scale.points if point.family == family]
        members = [point for point in members if is_tuned(point, scale, changes)]
        point = next((p for p in members if p.tune), members[0])
        tried = [
            make_piece(
                scale, choices, point, TRIAL_SEED, f"lr-{lr:g}", {"lr": lr, "test": "none"}, trial=True
            )
            for lr in (scale.lrs[family] if isinstance(scale.lrs, Mapping) else scale.lrs)
        ]
        trials[family] = tuple(one.name for one in tried)
        pieces += tried
    for point in points:
        of_family = trials[point.family] if point in tuned else ()
        # By the study itself: its lr is a setting of the point, or the authors'.
        chosen = ("lr" in point.settings or bool(point.recipe)) and "lr" not in changes
        more: dict[str, Any] = {
            "trials": of_family,
            "tuned": bool(of_family) or chosen,
            "scores": study.scores,
        }
        pieces += [
            make_piece(scale, choices, point, seed, f"seed-{seed}", {}, **more)
            for seed in range(1, choices.seeds + 1)
        ]
    # What any of them begins with; a trial begins with the model of the first seed.
    starts = dict.fromkeys((known[one.point].start, max(1, one.seed)) for one in pieces if one.start)
    pieces += [
        make_piece(scale, choices, known[name], seed, f"seed-{seed}", {"test": "none"})
        for name, seed in starts
    ]
    names = [one.name for one in pieces]
    assert len(set(names)) == len(names), "two points have one folder"
    data = choices.data or scale.data
    transfer = choices.transfer or scale.transfer or (data,)
    return Plan(study.name, choices.size, data, transfer, tuple(pieces), choices.keep_models)


def make_piece(
    scale: Scale, choices: Choices, point: Point, seed: int, name: str, own: dict[str, Any], **fields: Any
) -> Piece:
    """Return a run of a point; `own`: settings of this run."""
    settings = {**scale.settings, "data": scale.data, **point.settings, **own}
    settings |= {**({"data": choices.data} if choices.data else {}), **parse_overrides(choices.override)}
    settings = {k: v.replace("{seed}", str(seed)) if isinstance(v, str) else v for k, v in settings.items()}
    start = f"{folder_name(point.start)}/seed-{max(1, seed)}" if point.start else ""
    piece = Piece(
        f"{folder_name(point.name)}/{name}",
        point.name,
        point.family,
        seed,
        settings | {"seed": seed},
        point.recipe,
        start=start,
        fresh_positions=point.fresh_positions,
        **fields,
    )
    longer = lengthen(piece.experiment(), choices.length)
    return dataclasses.replace(piece, settings=piece.settings | longer)


def chosen_points(scale: Scale, names: Sequence[str]) -> tuple[Point, ...]:
    """Return the named points, all if none is named, without those that others start from."""
    known = [point.name for point in scale.points if point.scored]
    if unknown := [name for name in names if name not in known]:
        raise ConfigError(f"no point {unknown[0]!r}; this study has: {', '.join(known)}")
    return tuple(point for point in scale.points if point.name in (names or known))


def is_tuned(point: Point, scale: Scale, changes: dict[str, Any]) -> bool:
    """Return whether trials choose the learning rate of a point."""
    return bool(scale.lrs) and point.scored and "lr" not in point.settings and "lr" not in changes


def parse_overrides(texts: Sequence[str]) -> dict[str, Any]:
    """Read name=value; values as Python writes them, everything else as text."""
    changes: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise ConfigError(f"override {text!r}: write name=value, such as steps=100")
        try:
            changes[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            changes[name] = value
    return changes


def lengthen(experiment: Experiment, factor: float) -> dict[str, Any]:
    """Return the durations that are not a part of the run, longer by a factor."""
    if factor == 1:
        return {}
    durations: dict[str, Duration] = {
        "steps": experiment.training.steps,
        "warmup": experiment.optimizer.warmup,
    }

    def longer(duration: Duration) -> Duration:
        if isinstance(duration, int):
            return max(1, round(duration * factor)) if duration else 0
        number = re.match(r"[\d._]*", duration)
        assert number is not None
        unit = duration[number.end() :]
        return duration if unit.strip() == "%" else f"{float(number[0]) * factor:g}{unit}"

    return {name: longer(duration) for name, duration in durations.items()}


def folder_name(point: str) -> str:
    """Return the name of a point's folder."""
    return re.sub(r"[^A-Za-z0-9.+]+", "-", point).strip("-.")
