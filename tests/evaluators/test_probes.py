"""Probes by one call: a model, a path or a name; the data by name."""

import pytest

import vitrail
from tests.evaluators.split import small_model
from vitrail.errors import ConfigError

DATA = "shapes?image_size=16&n=60"


def test_a_model_or_its_path(tmp_path):
    model = small_model()
    vitrail.save(model, tmp_path / "model")
    for call, settings in (
        (vitrail.knn, {"k": (3,)}),
        (vitrail.fewshot, {"shots": (2,), "seeds": 2}),
        (vitrail.linear, {"l2": (0.1,)}),
    ):
        here = call(model, DATA, **settings, batch_size=16)
        there = call(tmp_path / "model", DATA, **settings, cache=tmp_path / "features")
        scores = here if isinstance(here, list) else [here]
        assert all(0 <= score.value <= 1 and score.n > 0 for score in scores)
        assert [s.n for s in scores] == [s.n for s in (there if isinstance(there, list) else [there])]


def test_splits_that_share_examples_are_refused():
    with pytest.raises(ConfigError, match="10 of the 10"):
        vitrail.knn(small_model(), DATA, train_split="train", test_split="train[:10]")
