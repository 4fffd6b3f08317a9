"""One L2 for all data sets: the published rule, and what is shown of it."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import vitrail
from tests.evaluators.split import small_model
from vitrail.evaluators.fewshot import SWEEP
from vitrail.transfer.settings import Suite
from vitrail.transfer.suite import transfer
from vitrail.transfer.suite_fewshot import best_by_mean_rank, remark, with_one_l2

DATA = ["shapes:colour?n=60&image_size=16", "shapes?n=60&image_size=16", "shapes:count?n=60&image_size=16"]


def as_scenic_chooses(accuracies):
    """accuracies[data set][l2], as its run_all reads."""
    ranks = [np.argsort(np.argsort(its)) for its in accuracies]
    return SWEEP[np.argmax(np.mean(ranks, axis=0))]


def table(accuracies):
    return [{"l2": l2, "values": [value]} for l2, value in zip(SWEEP, accuracies, strict=True)]


@given(st.integers(1, 6), st.integers(2, 200), st.integers(0, 2**32))
def test_the_published_rule(data_sets, test_examples, seed):
    """Few test examples: accuracies are often equal."""
    right = np.random.default_rng(seed).integers(0, test_examples, (data_sets, len(SWEEP)))
    accuracies = (right / test_examples).astype(np.float32)
    assert best_by_mean_rank([table(its.tolist()) for its in accuracies]) == as_scenic_chooses(accuracies)


def test_ranks_and_not_accuracies_are_averaged():
    steep, flat = np.zeros((2, len(SWEEP)))
    steep[3], steep[4] = 0.9, 0.1
    flat[5:] = np.linspace(0.50, 0.51, len(SWEEP) - 5)
    flat[4] = 0.505
    best = best_by_mean_rank([table(steep), table(flat), table(flat)])
    assert best == SWEEP[-1] == as_scenic_chooses([steep, flat, flat])
    assert np.argmax(steep + 2 * flat) == 4


def entry(score, best):
    return {"score": score, "test_examples": 10, "by_l2": table(np.arange(30) == best)}


def test_until_every_data_set_is_done_none_has_a_number():
    done, other = [entry("5-shot", 4)], [{"score": "knn", "mean": 0.5}]
    scores = {("a", "fewshot"): done, ("a", "knn"): other, ("b", "fewshot"): None}
    assert with_one_l2(scores) == ({**scores, ("a", "fewshot"): None}, None)


def test_each_number_of_shots_is_chosen_by_the_data_sets_that_have_it():
    few = {"a": [entry("1-shot", 4), entry("5-shot", 7)], "b": [entry("1-shot", 4)]}
    scores, chosen = with_one_l2({(name, "fewshot"): its for name, its in few.items()})
    assert chosen == {"1-shot": SWEEP[4], "5-shot": SWEEP[7]}
    assert [one["mean"] for one in scores["a", "fewshot"]] == [1.0, 1.0]


def test_what_is_said():
    said = remark({"1-shot": 2.0**19, "5-shot": 64.0}, 3)
    assert "chosen on the TEST accuracies" in said and "1-shot 524288, 5-shot 64" in said


@pytest.fixture
def bundle(tmp_path):
    vitrail.save(small_model(), tmp_path / "model")
    return str(tmp_path / "model")


def test_a_suite(bundle, tmp_path):
    """Over seeds the means are ranked; one more data set may change the choice for all."""
    suite = Suite(seeds=2, shots=(1, 4), draws="big_vision", fewshot_l2="test-rank")
    given = {"methods": ("fewshot",), "suite": suite, "device": "cpu"}
    for data in (DATA[:2], DATA):
        made = transfer(bundle, data, tmp_path / "out", **given)
        assert json.loads((tmp_path / "out" / "results.json").read_text()) == json.loads(json.dumps(made))
        for shots in ("1-shot", "4-shot"):
            rows = [row for row in made["rows"] if row["score"] == shots]
            accuracies = [[np.mean(one["values"]) for one in row["by_l2"]] for row in rows]
            assert made["fewshot_l2"][shots] == as_scenic_chooses(np.array(accuracies, np.float32))
            for row, its in zip(rows, accuracies, strict=True):
                assert row["mean"] == pytest.approx(its[SWEEP.index(row["l2"])])
                assert len(row["values"]) == row["n"] == 2


def test_by_default_nothing_is_chosen(bundle, tmp_path):
    given = {"methods": ("fewshot",), "suite": Suite(seeds=2, shots=(1,)), "device": "cpu"}
    made = transfer(bundle, DATA[:1], tmp_path / "out", **given)
    assert made["fewshot_l2"] is None and [row["l2"] for row in made["rows"]] == [1024.0]
    assert "TEST" not in (tmp_path / "out" / "results.md").read_text()
