import threading
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vitrail.checkpoints.run import Run
from vitrail.checkpoints.run.records import flatten
from vitrail.checkpoints.run.summary import differences, find_runs, summarize
from vitrail.errors import ConfigError

CONFIG = {"model": {"name": "Ti/8", "width": 192}, "data": "pets", "steps": 10, "optim": {"lr": 0.03}}


def trained(path, config, reached):
    run = Run.open(path, config, keep=1)
    for step in reached:
        run.append({"step": step, "loss": 1 / step, "lr": 0.01, "seconds": 2.0 * step})
        run.append({"step": step, "val_top1": step / 10, "val_loss": 0.5})
        run.save(step, {"w": torch.tensor(step)}, {}, score={4: 0.9}.get(step, 0.5))
    return run


def test_a_run_in_a_few_words(tmp_path):
    trained(tmp_path / "a", CONFIG, [2, 4, 6]).close()
    run = summarize(tmp_path / "a", "a")
    assert (run.name, run.parent, run.model, run.data) == ("a", None, "Ti/8", "pets")
    assert (run.state, run.step, run.steps) == ("interrupted", 6, 10)
    assert (run.lr, run.loss, run.seconds) == (0.03, 1 / 6, 12.0)
    assert (run.best, run.best_step) == (0.9, 4)
    assert run.scores == {"val_top1": 0.6, "val_loss": 0.5}


def test_a_run_that_a_process_writes_is_running_at_its_last_measured_step(tmp_path):
    run = trained(tmp_path / "a", CONFIG, [2])
    run.append({"step": 3, "loss": 1.0, "lr": 0.01})
    assert (summarize(run.path, "a").state, summarize(run.path, "a").step) == ("running", 3)
    run.close()
    assert (summarize(run.path, "a").state, summarize(run.path, "a").step) == ("interrupted", 2)


def test_looking_at_a_run_does_not_keep_it_from_starting(tmp_path):
    trained(tmp_path / "a", CONFIG, []).close()
    done = threading.Event()

    def look():
        while not done.is_set():
            summarize(tmp_path / "a", "a")

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        for _ in range(50):
            Run.open(tmp_path / "a", CONFIG, keep=1).close()
    finally:
        done.set()
        watcher.join()


def test_the_lr_that_was_chosen_and_a_loss_in_its_own_sign(tmp_path):
    run = Run.open(tmp_path / "a", {"training": {"lr": 0.01, "monitor": "val_loss"}})
    run.save(3, {}, {}, score=-2.25)
    run.save(4, {}, {}, score=-2.5)
    assert (summarize(run.path, "a").lr, summarize(run.path, "a").monitor) == (0.01, "val_loss")
    assert (summarize(run.path, "a").best, summarize(run.path, "a").best_step) == (2.25, 3)
    run.finish({"lr": 0.1, "sweep": {"0.001": {"val_top1": 0.5}}})
    assert summarize(run.path, "a").lr == 0.1
    run.close()


def test_states_of_a_run(tmp_path):
    run = trained(tmp_path / "a", {"model": "B/16", "seed": 1}, [])
    run.close()
    assert (summarize(run.path, "a").state, summarize(run.path, "a").step) == ("interrupted", None)
    run.save(1200, {}, {})
    assert summarize(run.path, "a").step == 1200
    run.finish({"test_top1": {"value": 0.75, "std": 0.01, "n": 100}, "val_top1": 0.8, "seconds": 90.0})
    done = summarize(run.path, "a")
    assert (done.state, done.seconds, done.model, done.data) == ("finished", 90.0, "B/16", None)
    assert done.results == {"test_top1.value": 0.75, "val_top1": 0.8}


def test_runs_are_found_once_at_any_depth_with_the_run_that_contains_them(tmp_path):
    for name in ("b", "a/deep", "b/sweep/0.1"):
        trained(tmp_path / name, {}, []).close()
    b = tmp_path / "b"
    assert find_runs(tmp_path) == [(tmp_path / "a/deep", None), (b, None), (b / "sweep/0.1", b)]
    assert find_runs(b / "sweep") == [(b / "sweep/0.1", None)]
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"run\.json"):
        find_runs(tmp_path / "empty")
    with pytest.raises(ConfigError, match="nowhere"):
        find_runs(Path("nowhere"))


def test_what_differs_is_what_is_not_the_same_in_all(tmp_path):
    configs = [CONFIG, {**CONFIG, "seed": 1}, {**CONFIG, "optim": {"lr": 0.1}, "seed": 1}]
    for i, config in enumerate(configs):
        trained(tmp_path / str(i), config, []).close()
    runs = [summarize(tmp_path / str(i), str(i)) for i in range(3)]
    assert differences(runs) == {"optim.lr": [0.03, 0.03, 0.1], "seed": [None, 1, 1]}
    assert differences(runs[:1]) == {}


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
