"""Plans: every run of a study, its settings and what it waits for."""

from pathlib import Path

import pytest

from tests.studies.quick import PATCHES
from vitrail.errors import ConfigError
from vitrail.studies.names import STUDIES, find_study
from vitrail.studies.plan import Choices, Plan, lengthen, make_plan, parse_overrides
from vitrail.train.keywords import override
from vitrail.train.settings import Experiment

SIZES = ("tiny", "small", "paper")
EVERY = pytest.mark.parametrize(("name", "size"), [(name, size) for name in STUDIES for size in SIZES])


@EVERY
def test_every_plan_is_made_of_valid_experiments(name, size):
    """At every size, also those that no test runs: names, settings and starts fit together."""
    plan = make_plan(STUDIES[name], Choices(size=size, data="data"))
    known = {piece.name for piece in plan.pieces}
    for piece in plan.pieces:
        piece.experiment()
        assert set(piece.needs()) <= known
        assert piece.trial or not piece.scores or piece.settings["seed"] >= 1
    assert {piece.seed for piece in plan.pieces if piece.scores} == {1, 2, 3}


@EVERY
def test_every_family_has_as_many_trials(name, size):
    pieces = make_plan(STUDIES[name], Choices(size=size, data="data")).pieces
    counts = {len(piece.trials) for piece in pieces if piece.scores}
    assert len(counts) == 1
    assert all(piece.settings["test"] == "none" for piece in pieces if piece.trial)
    if any(counts) or size == "paper":
        assert all(piece.tuned for piece in pieces if piece.scores)


def test_trials_have_a_seed_of_their_own():
    pieces = make_plan(PATCHES, Choices(seeds=3)).pieces
    trials = [piece for piece in pieces if piece.trial]
    assert {(piece.seed, piece.settings["seed"]) for piece in trials} == {(0, 0)}
    assert {piece.name for piece in trials} == {"8-pixels/lr-0.001", "8-pixels/lr-0.003"}
    assert all(set(piece.trials) == {trial.name for trial in trials} for piece in pieces if piece.scores)


def test_an_lr_that_is_set_is_not_tuned():
    pieces = make_plan(PATCHES, Choices(override=("lr=0.01",))).pieces
    assert not any(piece.trials or piece.trial or piece.tuned for piece in pieces)
    assert {piece.settings["lr"] for piece in pieces} == {0.01}


def test_the_subsets_of_a_seed_hold_out_what_they_do_not_train_on():
    study = STUDIES["data-size"]
    pieces = {p.name: p for p in make_plan(study, Choices()).pieces}
    piece = pieces["ViT-3/seed-2"]
    assert piece.settings["train"] == "train[:3% per class, seed 2]"
    assert piece.settings["val"] == "train[90%: per class, seed 2]"


def test_what_a_point_starts_from_is_planned_too():
    plan = make_plan(STUDIES["self-supervision"], Choices(points=("masked patches, pixels",), seeds=1))
    names = [piece.name for piece in plan.pieces]
    assert "pre-training-pixels/seed-1" in names and "pre-training-labels/seed-1" not in names
    starts = {piece.name: piece.start for piece in plan.pieces}
    assert starts["masked-patches-pixels/seed-1"] == "pre-training-pixels/seed-1"
    # lr is that of the family, tuned on its first point, which is therefore planned with its own start.
    assert starts["masked-patches-mean-colours/lr-0.001"] in names


def test_a_plan_is_read_as_it_was_written(tmp_path):
    plan = make_plan(STUDIES["scaling"], Choices(size="small", data="data"))
    plan.write(tmp_path)
    again = Plan.read(tmp_path)
    assert [piece.name for piece in again.pieces] == [piece.name for piece in plan.pieces]
    assert [piece.experiment() for piece in again.pieces] == [piece.experiment() for piece in plan.pieces]


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "a/../../b", "a/b/c", ".hidden/x"])
def test_a_plan_that_leads_out_of_its_folder_is_refused(tmp_path, name):
    make_plan(PATCHES, Choices()).write(tmp_path)
    file = Path(tmp_path / "plan.json")
    file.write_text(file.read_text().replace("8-pixels/seed-1", name))
    with pytest.raises(ConfigError, match="not the name of a folder"):
        Plan.read(tmp_path)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("steps=100", 100),
        ("lr=1e-3", 1e-3),
        ("resident=False", False),
        ("steps=30ep", "30ep"),
        ("val=train[5%:]", "train[5%:]"),
    ],
)
def test_overrides(text, value):
    assert parse_overrides([text]) == {text.partition("=")[0]: value}


def test_wrong_choices():
    for choices in (Choices(override=("steps",)), Choices(points=("no such point",)), Choices(size="small")):
        with pytest.raises(ConfigError):
            make_plan(PATCHES, choices)
    with pytest.raises(ConfigError, match="data-size"):
        find_study("data-sizes")
    with pytest.raises(ConfigError):
        Choices(seeds=0)
    with pytest.raises(ConfigError):
        Choices(length=0)


def test_lengths():
    experiment = override(Experiment(), {"steps": "30ep", "warmup": 500})
    assert lengthen(experiment, 0.1) == {"steps": "3ep", "warmup": 50}
    assert lengthen(override(experiment, {"steps": 1_000, "warmup": "5%"}), 2) == {
        "steps": 2000,
        "warmup": "5%",
    }
    assert lengthen(experiment, 1) == {}
