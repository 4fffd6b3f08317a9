from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vitrail.checkpoints.run import Run
from vitrail.checkpoints.run.run_json import flatten
from vitrail.checkpoints.run.summary import differences, run_folders, summary
from vitrail.errors import ConfigError

CONFIG = {"model": {"name": "Ti/8", "width": 192}, "data": "pets", "steps": 10, "optim": {"rate": 0.03}}


def trained(path, config, reached):
    run = Run.open(path, config, keep=1)
    for step in reached:
        run.append({"step": step, "loss": 1 / step, "rate": 0.01, "seconds": 2.0 * step})
        run.save(step, {"w": torch.tensor(step)}, {}, score={4: 0.9}.get(step, 0.5))
    return run


def test_a_run_in_a_few_words(tmp_path):
    trained(tmp_path / "a", CONFIG, [2, 4, 6]).close()
    made = summary(tmp_path / "a", "a")
    assert (made.name, made.state, made.model, made.data) == ("a", "at step 6 of 10", "Ti/8", "pets")
    assert (made.steps, made.rate, made.loss, made.seconds) == (10, 0.03, 1 / 6, 12.0)
    assert (made.best, made.best_step) == (0.9, 4)


def test_the_rate_that_was_chosen_and_a_loss_in_its_own_sign(tmp_path):
    run = Run.open(tmp_path / "a", {"training": {"rate": 0.01, "watch": "val_loss"}})
    run.save(3, {}, {}, score=-2.25)
    run.save(4, {}, {}, score=-2.5)
    assert (summary(run.path, "a").rate, summary(run.path, "a").watch) == (0.01, "val_loss")
    assert (summary(run.path, "a").best, summary(run.path, "a").best_step) == (2.25, 3)
    run.finish({"rate": 0.1, "sweep": {"0.001": {"val_top1": 0.5}}})
    assert summary(run.path, "a").rate == 0.1
    run.close()


def test_states_of_a_run(tmp_path):
    run = trained(tmp_path / "a", {"model": "B/16", "seed": 1}, [])
    assert summary(run.path, "a").state == "no checkpoint"
    run.save(1200, {}, {})
    assert summary(run.path, "a").state == "at step 1,200"
    run.finish({"test_top1": {"value": 0.75, "std": 0.01, "n": 100}, "val_top1": 0.8, "seconds": 90.0})
    made = summary(run.path, "a")
    assert (made.state, made.seconds, made.model, made.data) == ("finished", 90.0, "B/16", None)
    assert made.results == {"test_top1.value": 0.75, "val_top1": 0.8}
    run.close()


def test_runs_are_found_at_any_depth(tmp_path):
    for name in ("b", "a/deep"):
        trained(tmp_path / name, {}, []).close()
    assert run_folders(tmp_path) == [tmp_path / "a/deep", tmp_path / "b"]
    assert run_folders(tmp_path / "b") == [tmp_path / "b"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"run\.json"):
        run_folders(tmp_path / "empty")
    with pytest.raises(ConfigError, match="no such folder"):
        run_folders(Path("nowhere"))


def test_what_differs_is_what_is_not_the_same_in_all(tmp_path):
    configs = [CONFIG, {**CONFIG, "seed": 1}, {**CONFIG, "optim": {"rate": 0.1}, "seed": 1}]
    for i, config in enumerate(configs):
        trained(tmp_path / str(i), config, []).close()
    made = [summary(tmp_path / str(i), str(i)) for i in range(3)]
    assert differences(made) == {"optim.rate": [0.03, 0.03, 0.1], "seed": [None, 1, 1]}
    assert differences(made[:1]) == {}


LEAVES = st.none() | st.integers() | st.text(max_size=3) | st.lists(st.integers(), max_size=2)
NAMES = st.text("abc", min_size=1, max_size=3)


@given(st.recursive(LEAVES, lambda inner: st.dictionaries(NAMES, inner, max_size=3), max_leaves=8))
def test_dotted_names_lead_to_every_value(value):
    config = {"top": value}
    made = flatten(config)
    for name, leaf in made.items():
        there = config
        for part in name.split("."):
            there = there[part]
        assert there == leaf
        assert not isinstance(leaf, dict) or leaf == {}
    assert len(made) == count(config)


def count(value):
    return sum(map(count, value.values())) if isinstance(value, dict) and value else 1
