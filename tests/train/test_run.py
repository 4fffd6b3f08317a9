"""Whole runs: what they leave behind, what they refuse, and that stopping and going on changes nothing."""

import json
import os
import shutil
import signal
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from tests.train.small import experiment, measured
from vitrail.checkpoints.run import Run
from vitrail.errors import CheckpointError, ConfigError, DataError, Interrupted, TrainingError
from vitrail.inspection import figures
from vitrail.objectives.classification import CrossEntropy
from vitrail.runtime import training_display
from vitrail.train import run as running
from vitrail.train.run import run


def weights(folder):
    return {name: w.clone() for name, w in vitrail.load(folder / "model").state_dict().items()}


def same_weights(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def rows(folder):
    return measured([json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()])


def without_time(results):
    return {name: value for name, value in results.items() if name != "seconds"}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that nothing interrupted."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    return run(experiment(), folder, device="cpu", figures=figures)


def test_what_a_run_leaves_behind(whole):
    names = {p.name for p in whole.folder.iterdir()}
    assert {"run.json", "metrics.jsonl", "checkpoints", "model", "figures", "README.md"} <= names
    told = (whole.folder / "README.md").read_text()
    assert f"{whole.results['test']['top1']:.2%}" in told and all(
        name in told for name in whole.model().class_names
    )
    card = json.loads((whole.folder / "run.json").read_text())
    assert card["results"] == whole.results
    assert card["config"]["model"]["model"] == "mu/8@16"
    used = card["used"]  # what was left open
    assert (used["train"], used["test"]) == ("shapes:shape:train[:80%]", "shapes:shape:test")
    assert used["preprocess"] == "inception_crop(16)|flip_lr|uint8|to_range(-1, 1)"
    assert used["evaluate_preprocess"] == whole.model().preprocess
    assert (used["config"]["dropout"], used["config"]["depth"]) == (0.1, whole.model().config.depth)
    assert whole.model().provenance["used"] == used
    assert whole.results["val_split"] == "shapes:shape:train[80%:]"
    assert whole.results["test_examples"] == len(vitrail_source("test"))
    assert {p.name for p in (whole.folder / "figures").iterdir()} >= {"loss.png", "confusion.png"}
    model = whole.model()
    assert model.class_names == vitrail_source("test").class_names
    recorded = {**whole.results["test"], "n": whole.results["test_examples"]}
    assert model.metrics["test"] == recorded | {"interval": whole.results["interval"]}
    assert [row["step"] for row in rows(whole.folder) if "loss" in row] == list(range(1, 13))


def test_a_model_says_by_what_code_and_on_what_it_was_made(whole):
    card, origin = json.loads((whole.folder / "run.json").read_text()), whole.model().provenance
    assert origin["versions"]["torch"] == str(torch.__version__)
    assert {name: origin[name] for name in ("versions", "git", "data")} == {
        name: card[name] for name in ("versions", "git", "data")
    }
    assert origin["computed"] == whole.results["computed"] == "float32, not compiled, 1 x cpu"


def vitrail_source(split):
    from vitrail.data.sources import open_source

    return open_source(experiment().data.data, split)


def test_the_bundle_is_the_average_and_evaluates_as_stated(whole):
    measured = vitrail.evaluate(whole.folder / "model", experiment().data.data, split="test", progress=False)
    assert measured.top1 == whole.results["test"]["top1"]
    assert measured.loss == pytest.approx(whole.results["test"]["loss"], rel=1e-5)


def test_a_finished_run_is_not_run_again(whole, monkeypatch):
    monkeypatch.setattr(running, "train", None)
    assert run(experiment(), whole.folder, device="cpu").results == whole.results


def flip(path):
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)


MODEL_DAMAGES = {
    "no folder": shutil.rmtree,
    "an empty folder": lambda model: [file.unlink() for file in model.iterdir()],
    "no weights": lambda model: (model / "model.safetensors").unlink(),
    "no card": lambda model: (model / "model.json").unlink(),
    "weights that were cut": lambda model: os.truncate(model / "model.safetensors", 1000),
    "a bit of a weight": lambda model: flip(model / "model.safetensors"),
    "a card that was cut": lambda model: os.truncate(model / "model.json", 100),
    "another card": lambda model: (model / "model.json").write_text("{}"),
}


@pytest.fixture
def copy(whole, tmp_path, caplog):
    caplog.clear()
    return shutil.copytree(whole.folder, tmp_path / "copy")


def content(model):
    return {file.name: file.read_bytes() for file in model.iterdir()}


@pytest.mark.parametrize("damage", MODEL_DAMAGES)
def test_a_finished_run_writes_a_model_again_that_is_missing_or_damaged(whole, copy, caplog, damage):
    MODEL_DAMAGES[damage](copy / "model")
    again = run(experiment(), copy, device="cpu")
    assert content(copy / "model") == content(whole.folder / "model")
    assert again.results == whole.results
    assert "checkpoint of step 12" in caplog.text
    assert same_weights(weights(copy), weights(whole.folder))


def test_also_the_best_one_that_was_kept(tmp_path):
    made = experiment(monitor="val_top1", patience=2, evaluate_every=2, steps=60, lr=0.0)
    stopped = run(made, tmp_path / "run", device="cpu")
    before = content(tmp_path / "run/model")
    shutil.rmtree(tmp_path / "run/model")
    assert run(made, tmp_path / "run", device="cpu").results == stopped.results
    assert content(tmp_path / "run/model") == before and stopped.results["kept_step"] == 2


def test_without_its_checkpoint_a_model_that_is_gone_is_an_error(copy):
    shutil.rmtree(copy / "checkpoints")
    run(experiment(), copy, device="cpu")  # the model is whole, and that is all that is wanted
    shutil.rmtree(copy / "model")
    with pytest.raises(CheckpointError, match="missing or damaged"):
        run(experiment(), copy, device="cpu")
    assert not (copy / "model").exists()


def test_files_of_the_users_in_the_folder_of_a_model_stay(copy):
    (copy / "model/notes.txt").write_text("mine")
    run(experiment(), copy, device="cpu")
    (copy / "model/model.json").unlink()
    with pytest.raises(CheckpointError, match=r"also holds notes\.txt"):
        run(experiment(), copy, device="cpu")
    assert (copy / "model/notes.txt").read_text() == "mine"


def test_checkpoints_that_are_gone_stop_the_run_and_its_metrics_stay(tmp_path, monkeypatch):
    stop_after(monkeypatch, 7)
    with pytest.raises(Interrupted):
        run(experiment(), tmp_path / "run", device="cpu")
    monkeypatch.undo()
    before = (tmp_path / "run/metrics.jsonl").read_bytes()
    shutil.rmtree(tmp_path / "run/checkpoints")
    with pytest.raises(CheckpointError, match="since step 3"):
        run(experiment(), tmp_path / "run", device="cpu")
    assert (tmp_path / "run/metrics.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    "at", [2, *(pytest.param(step, marks=pytest.mark.long) for step in (1, 3, 9))]
)  # after 2, and 9, an evaluation is due when it stops
def test_stopped_and_continued_is_bit_for_bit_the_same(whole, tmp_path, monkeypatch, caplog, at):
    stop_after(monkeypatch, at)
    with pytest.raises(Interrupted, match="SIGTERM: saved at step"):
        run(experiment(), tmp_path / "run", device="cpu")
    monkeypatch.undo()
    assert "Resuming" not in caplog.text
    again = run(experiment(), tmp_path / "run", device="cpu")
    assert "Resuming at step" in caplog.text
    assert same_weights(weights(again.folder), weights(whole.folder))
    assert rows(again.folder) == rows(whole.folder)
    assert without_time(again.results) == without_time(whole.results)


def test_adapters_stopped_and_continued_are_bit_for_bit_the_same(whole, tmp_path, monkeypatch):
    settings = experiment(model=str(whole.folder / "model"), tune="lora:2")
    straight = run(settings, tmp_path / "straight", device="cpu")
    stop_after(monkeypatch, 5)
    with pytest.raises(Interrupted):
        run(settings, tmp_path / "run", device="cpu")
    monkeypatch.undo()
    again = run(settings, tmp_path / "run", device="cpu")
    assert same_weights(weights(again.folder), weights(straight.folder))
    assert rows(again.folder) == rows(straight.folder)
    assert without_time(again.results) == without_time(straight.results)


def stop_after(monkeypatch, steps):
    def step(self, row):
        if row["step"] == steps:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(training_display.TrainingDisplay, "step", step)


def test_a_damaged_newest_checkpoint_costs_nothing_but_time(whole, tmp_path, monkeypatch, caplog):
    stop_after(monkeypatch, 7)
    with pytest.raises(Interrupted):
        run(experiment(), tmp_path / "run", device="cpu")
    monkeypatch.undo()
    newest = sorted((tmp_path / "run/checkpoints").iterdir())[-1] / "state.safetensors"
    newest.write_bytes(newest.read_bytes()[:-100])
    again = run(experiment(), tmp_path / "run", device="cpu")
    assert "damaged" in caplog.text
    assert same_weights(weights(again.folder), weights(whole.folder))
    assert rows(again.folder) == rows(whole.folder)


def test_another_config_is_refused_and_nothing_is_overwritten(whole):
    before = weights(whole.folder)
    with pytest.raises(ConfigError, match=r"optimizer\.lr"):
        run(experiment(lr=0.5), whole.folder, device="cpu")
    assert same_weights(before, weights(whole.folder))


def test_a_class_that_was_renamed_is_refused_and_other_files_are_said(tmp_path, caplog):
    """In the order of names its label is another one's now."""
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for k in range(6):
            Image.new("RGB", (16, 16), (40 * k, 0, 0)).save(tmp_path / "photos" / name / f"{k}.png")
    data = {"data": str(tmp_path / "photos"), "train": "train", "val": "none", "test": "none"}
    made = experiment(**data, steps=3, evaluate_every=0)
    run(made, tmp_path / "run", device="cpu")
    before = (tmp_path / "run/run.json").read_bytes()
    (tmp_path / "photos/cat").rename(tmp_path / "photos/tabby")
    with pytest.raises(ConfigError, match="other classes"):
        run(made, tmp_path / "run", device="cpu")
    assert (tmp_path / "run/run.json").read_bytes() == before
    (tmp_path / "photos/tabby").rename(tmp_path / "photos/cat")
    run(made, tmp_path / "run", device="cpu")
    assert "other data" not in caplog.text
    (tmp_path / "photos/cat/0.png").write_bytes((tmp_path / "photos/dog/5.png").read_bytes())
    with pytest.raises(ConfigError, match="another run"):
        run(made, tmp_path / "run", device="cpu")


def test_what_an_unfinished_run_went_on_with_is_recorded_and_too_little_is_refused(tmp_path, monkeypatch):
    x, y = np.zeros((48, 16, 16, 3), np.uint8), np.arange(48) % 2
    data = {"data": str(tmp_path / "some.npz"), "train": "train", "val": "none", "test": "none"}
    made = experiment(**data, steps="2ep", evaluate_every=0)

    def goes_on(examples):
        np.savez(tmp_path / "some.npz", x_train=x[:examples], y_train=y[:examples])
        return run(made, tmp_path / "run", device="cpu")

    stop_after(monkeypatch, 5)
    with pytest.raises(Interrupted):
        goes_on(48)
    monkeypatch.undo()
    with pytest.raises(TrainingError, match=r"step \d.* 6 steps"):
        goes_on(24)
    done, card = goes_on(40), json.loads((tmp_path / "run/run.json").read_text())
    assert len({card["data"], *card["later_data"]}) == 3
    assert done.model().provenance["later_data"] == card["later_data"]


def test_where_it_is_computed_may_change(whole):
    assert (
        run(experiment(save_every=5, **{"num_workers": 1}), whole.folder, device="cpu").results
        == whole.results
    )


def test_masked_patches_then_fine_tuning(tmp_path):
    made = run(experiment(objective="masked-patches"), tmp_path / "masked", device="cpu", figures=figures)
    assert made.results["test"] is None
    assert set(made.results["val"]) == {"val_loss", "prior_loss"}
    assert (tmp_path / "masked/figures/patches.png").exists()
    model = made.model()
    assert model.config.classes == 0
    tuned = run(
        experiment(**{"model": str(tmp_path / "masked/model")}, steps=3), tmp_path / "tuned", device="cpu"
    )
    assert tuned.model().config.classes == len(vitrail_source("test").class_names)


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path):
    with pytest.raises(
        TrainingError, match=r"step \d+: .*not finite; the batch contained the examples \d+, "
    ):
        run(experiment(lr=1e30, grad_clip=0.0), tmp_path / "run", device="cpu")
    saved = Run.open(tmp_path / "run", experiment(lr=1e30, grad_clip=0.0).identity()).steps()
    for step in saved:
        state = tmp_path / f"run/checkpoints/step-{step:08d}/state.safetensors"
        from safetensors.torch import load_file

        assert all(t.isfinite().all() for t in load_file(state).values())


def poisoned(monkeypatch, steps):
    """The loss of these steps is NaN."""
    count, real = iter(range(1000)), CrossEntropy.forward

    def forward(self, batch):
        loss, metrics = real(self, batch)
        return (loss * float("nan") if next(count) in steps else loss), metrics

    monkeypatch.setattr(CrossEntropy, "forward", forward)


def test_bad_batches_are_skipped_and_counted(tmp_path, monkeypatch):
    poisoned(monkeypatch, {3, 4})
    made = run(experiment(on_nonfinite="skip", ema=0.0), tmp_path / "run", device="cpu")
    skipped = [row for row in rows(made.folder) if "skipped" in row]
    assert [(row["step"], row["skipped"]) for row in skipped] == [(4, 1), (5, 2)]
    assert all(torch.isfinite(w).all() for w in weights(made.folder).values())


def test_skipped_batches_are_listed_in_their_turn_stopped_or_not(tmp_path, monkeypatch):
    made = experiment(on_nonfinite="skip", ema=0.0, save_every=0, evaluate_every=0, **{"test": "none"})
    for name, at in (("straight", None), ("stopped", 3)):
        poisoned(monkeypatch, {3, 5})
        if at is not None:
            stop_after(monkeypatch, at)
            with pytest.raises(Interrupted):
                run(made, tmp_path / name, device="cpu")
        run(made, tmp_path / name, device="cpu")
        monkeypatch.undo()
    assert rows(tmp_path / "stopped") == rows(tmp_path / "straight")
    assert [row["step"] for row in rows(tmp_path / "stopped")] == sorted([*range(1, 13), 4, 6, 12])


def test_too_many_bad_batches_give_up(tmp_path, monkeypatch):
    poisoned(monkeypatch, {3, 4, 5})
    with pytest.raises(
        TrainingError, match=r"3 batches .* more than max_skipped 2.*: step 6: loss nan, (?!.*interrupted)"
    ):
        run(experiment(on_nonfinite="skip", max_skipped=2), tmp_path / "run", device="cpu")


def test_early_stopping_keeps_the_best(tmp_path):
    stopped = run(
        experiment(monitor="val_top1", patience=2, evaluate_every=2, steps=60, lr=0.0),
        tmp_path / "run",
        device="cpu",
    )
    assert stopped.results["stopped_early"]
    assert stopped.results["steps"] == 6  # the first is the best; two that are not better follow
    assert stopped.results["kept_step"] == stopped.model().provenance["step"] == 2
    assert stopped.results["val_examples"] == 16


def test_other_weights_under_the_same_name_are_refused(tmp_path):
    for seed in (0, 1):
        torch.manual_seed(seed)
        vitrail.save(vitrail.create("mu/8@16", classes=10), tmp_path / "start")
        with pytest.raises(ConfigError, match="other weights") if seed else nullcontext():
            run(experiment(**{"model": str(tmp_path / "start")}), tmp_path / "run", device="cpu")


def test_watching_a_score_that_does_not_exist(tmp_path):
    with pytest.raises(ConfigError, match=r"'val_f1' .*: val_top1"):
        run(experiment(monitor="val_f1"), tmp_path / "run", device="cpu")


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"data": ""}, ConfigError, "no data"),
        ({"data": "/nowhere/at/all"}, DataError, "no such path"),
        ({"batch_size": 1000}, ConfigError, "1000 .* 64 examples"),
        ({"image_size": 20}, ConfigError, "not a multiple of 8"),
        ({"model": "X/99"}, ConfigError, "X/99"),
        ({"steps": "3 weeks"}, ConfigError, "not a duration"),
        ({"grad_accum": 3}, ConfigError, "3 .*grad_accum"),
        ({"preprocess": "resize(32)|to_range(-1, 1)"}, ConfigError, "the model takes"),
    ],
)
def test_refused_in_words(tmp_path, changes, error, words):
    with pytest.raises(error, match=words):
        run(experiment(**changes), tmp_path / "run", device="cpu")


def test_accumulation_changes_nothing_but_rounding(tmp_path):
    plain = {"dropout": 0.0, "drop_path": 0.0}
    one = run(experiment(**plain), tmp_path / "one", device="cpu")
    four = run(experiment(**plain, grad_accum=4), tmp_path / "four", device="cpu")
    losses = [[row["loss"] for row in rows(r.folder) if "loss" in row] for r in (one, four)]
    np.testing.assert_allclose(losses[0], losses[1], atol=1e-5)


def test_recomputed_activations_change_nothing(whole, tmp_path):
    again = run(experiment(activation_checkpointing=True), tmp_path / "run", device="cpu")
    torch.testing.assert_close(weights(again.folder), weights(whole.folder))
