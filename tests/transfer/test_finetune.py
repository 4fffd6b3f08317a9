"""Fine-tuning as a whole: what is chosen on which data, what is left behind, and what is refused."""

import json
import os
import shutil
import signal
import statistics
from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open

import vitrail
from tests.randomise import randomise
from vitrail.data.sources import open_source
from vitrail.errors import CheckpointError, ConfigError, DataError, Interrupted
from vitrail.objectives.classification import Classification, CrossEntropy
from vitrail.objectives.objective import training_view
from vitrail.recipes.names import find_finetuning_recipe
from vitrail.runtime import training_display
from vitrail.train import run as running
from vitrail.train.assemble import Inputs, assemble, default_folder
from vitrail.train.keywords import override
from vitrail.train.optim import lr_at
from vitrail.train.settings import Experiment
from vitrail.transfer import finetune
from vitrail.transfer.facts import Speed, gather_facts, sample_sizes
from vitrail.transfer.finetune import prepare
from vitrail.transfer.results_page import results_page

DATA = "shapes?image_size=16&n=80"
SWEEP = {"sweep": True, "lrs": (0.5, 0.001), "seeds": 2, "steps": 4}


def tune(model, out, **fields):
    return vitrail.finetune(DATA, model, out=out, device="cpu", **({"steps": 4} | fields))


def weights(folder):
    return vitrail.load(folder / "model").state_dict()


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def card(folder):
    return json.loads((folder / "run.json").read_text())


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    path = tmp_path_factory.mktemp("pretrained") / "model"
    vitrail.save(randomise(vitrail.create("mu/8", classes=7, image_size=16)), path)
    return path


@pytest.fixture(scope="module")
def swept(pretrained, tmp_path_factory):
    """A sweep over two rates and two seeds, and in what order it began runs and evaluated on the test split."""
    folder, told = tmp_path_factory.mktemp("swept") / "run", []

    def evaluating(model, source, **more):
        told.append(("evaluate", source.name))
        return evaluate(model, source, **more)

    def starting(experiment, out, **more):
        told.append(("run", str(out.relative_to(folder))))
        assert (experiment.data.test == "none") == out.parent.match("sweep")
        return running.run(experiment, out, **more)

    evaluate = running.evaluate
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running, "evaluate", evaluating)
        patch.setattr(finetune, "run", starting)
        return tune(pretrained, folder, **SWEEP), told


def models(folder):
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in folder.rglob("model/*")
        if file.parent.name == "model"
    }


@pytest.mark.parametrize(
    "broken",
    [["model"], ["seeds/1/model"], ["sweep/0.5/model"], ["model", "seeds/1/model"]],
    ids=" and ".join,
)
def test_models_of_a_finished_fine_tuning_that_are_gone_or_damaged_are_written_again(
    swept, pretrained, tmp_path, broken, caplog
):
    folder = shutil.copytree(swept[0].folder, tmp_path / "copy")
    before = models(folder)
    for name in broken:
        os.truncate(folder / name / "model.safetensors", 500)
        (folder / name / "model.json").unlink()
    again = tune(pretrained, folder, **SWEEP)
    assert again.results == swept[0].results
    assert models(folder) == before and len(before) == 8
    assert all(f"{folder / name} was missing or damaged" in caplog.text for name in broken)


def test_runs_inside_a_finished_fine_tuning_may_be_removed_but_not_all_of_its_models(
    swept, pretrained, tmp_path
):
    folder = shutil.copytree(swept[0].folder, tmp_path / "copy")
    shutil.rmtree(folder / "sweep")
    shutil.rmtree(folder / "seeds/1/checkpoints")
    shutil.rmtree(folder / "seeds/1/model")
    assert tune(pretrained, folder, **SWEEP).results == swept[0].results
    assert not (folder / "sweep").exists()
    shutil.rmtree(folder / "seeds")
    assert tune(pretrained, folder, **SWEEP).results == swept[0].results
    assert not (folder / "seeds").exists()
    shutil.rmtree(folder / "checkpoints")
    (folder / "model/model.json").unlink()
    with pytest.raises(CheckpointError, match="is missing or damaged"):
        tune(pretrained, folder, **SWEEP)


def test_an_average_is_plain_unless_a_ramp_is_asked_for(pretrained, tmp_path, caplog):
    """A new head is zeros: four steps by 0.99 leave it near them."""
    plain = tune(pretrained, tmp_path / "plain", ema=0.99, test="none")
    assert "96% of the average" in caplog.text
    ramped = tune(pretrained, tmp_path / "ramped", ema=0.99, ema_ramp=True, test="none")
    a, b = (tuned.model().head.classifier.weight.abs().max().item() for tuned in (plain, ramped))
    assert 0 < 5 * a < b


def test_the_test_split_is_evaluated_once_for_each_seed_and_not_while_anything_is_chosen(swept):
    test = ("evaluate", "shapes:shape:test")
    assert swept[1] == [
        ("run", "sweep/0.001"), ("run", "sweep/0.5"), ("run", "seeds/1"), test, test
    ]  # fmt: skip


def test_a_sweep_looks_at_a_part_held_out_of_train(swept):
    for rate in ("0.001", "0.5"):
        there = card(swept[0].folder / "sweep" / rate)
        assert there["results"]["test"] is None
        assert there["results"]["train_examples"] + 10 == 80
        found = swept[0].results["sweep"][rate]
        assert found == {name: there["results"]["val"][name] for name in ("val_top1", "val_loss")}
        assert there["config"]["optimizer"]["lr"] == float(rate)


@pytest.mark.parametrize(
    ("scores", "chosen", "said"),
    [
        ([(0.5, 0.9), (0.75, 2.0), (0.5, 0.1)], 0.01, ""),
        ([(0.5, 0.9), (0.75, 0.4), (0.75, 0.3)], 0.1, "lr 0.01, 0.1 have the same val_top1"),
        ([(0.5, 0.9), (0.5, 0.9), (0.25, 0.1)], 0.001, "lr 0.001, 0.01 have the same val_top1"),
    ],
)
def test_the_best_rate_is_taken_of_equal_ones_that_of_the_lowest_loss(scores, chosen, said, caplog, tmp_path):
    given = dict(zip((0.001, 0.01, 0.1), scores, strict=True))

    def run(experiment, folder, **more):
        top1, loss = given[experiment.optimizer.lr]
        return running.Trained(folder, {"val": {"val_top1": top1, "val_loss": loss, "val_ece": 0.5}})

    prepared = prepare(DATA, "mu/8@16", device="cpu", sweep=True, lrs=tuple(given))
    sweep = finetune.sweep_runs(prepared.finetuning)
    lr, swept = finetune.choose_lr(
        prepared.finetuning, sweep, lambda place, made: run(made, tmp_path / place)
    )
    assert lr == chosen
    assert swept["0.1"] == {"val_top1": scores[2][0], "val_loss": scores[2][1]}
    assert (said in caplog.text) if said else "same val_top1" not in caplog.text


def test_the_rate_that_a_sweep_chose_is_the_best_of_it(swept):
    scores = {float(rate): s["val_top1"] for rate, s in swept[0].results["sweep"].items()}
    assert scores[swept[0].results["lr"]] == max(scores.values())
    assert swept[0].results["dev"] == 0.1


def test_the_final_runs_use_all_of_train(swept):
    places = [swept[0].folder, swept[0].folder / "seeds" / "1"]
    seeds = [vitrail.load(place / "model").provenance["experiment"] for place in places]
    assert [settings["seed"] for settings in seeds] == [0, 1]
    for place, settings in zip(places, seeds, strict=True):
        assert card(place)["results"]["train_examples"] == 80
        assert (settings["data"]["train"], settings["data"]["val"]) == ("train", "none")
        assert settings["optimizer"]["lr"] == swept[0].results["lr"]


def test_mean_and_spread_over_seeds(swept):
    results = swept[0].results
    seeds = [card(swept[0].folder / place)["results"]["test"] for place in (".", "seeds/1")]
    assert seeds[0]["loss"] != seeds[1]["loss"]
    for name, score in results["scores"].items():
        assert score["values"] == [seed[name] for seed in seeds]
        assert score["mean"] == pytest.approx(statistics.mean(score["values"]))
        assert score["std"] == pytest.approx(statistics.stdev(score["values"]))
    assert (results["test_split"], results["test_examples"]) == ("shapes:shape:test", 20)


def test_what_is_left_behind(swept):
    folder, results = swept[0].folder, swept[0].results
    assert card(folder)["results"] == json.loads(json.dumps(results))
    model = swept[0].model()
    assert model.class_names == open_source(DATA).class_names
    figures = {path.name for path in (folder / "figures").iterdir()}
    assert {"loss.png", "confusion.png", "wrong.png"} <= figures
    said = (folder / "results.md").read_text()
    assert said == results_page(results)
    assert f"{results['scores']['top1']['mean']:.1%}" in said and "shapes:shape:test" in said


def test_the_mistakes_are_named_and_each_class_has_its_accuracy(swept):
    folder, results = swept[0].folder, swept[0].results
    mistakes = [json.loads(line) for line in (folder / "mistakes.jsonl").read_text().splitlines()]
    test = open_source(DATA, "test")
    truth = {test.key(i): test.class_names[label] for i, label in enumerate(test.labels)}
    assert len(mistakes) == results["wrong"] == round(20 * (1 - results["scores"]["top1"]["values"][0])) > 0
    assert all(truth[one["key"]] == one["true"] != one["predicted"] for one in mistakes)
    sure = [one["probability"] for one in mistakes]
    assert sure == sorted(sure, reverse=True) and 0 < sure[-1] <= sure[0] <= 1
    assert {one["name"]: one["n"] for one in results["per_class"]} == Counter(truth.values())
    right = sum(one["accuracy"] * one["n"] for one in results["per_class"])
    assert right / 20 == pytest.approx(results["scores"]["top1"]["mean"])
    assert set(results["untested"]) == set(test.class_names) - set(truth.values())


def test_what_is_finished_is_not_done_again(swept, pretrained, monkeypatch):
    monkeypatch.setattr(running, "train", None)
    assert tune(pretrained, swept[0].folder, **SWEEP).results == json.loads(json.dumps(swept[0].results))


def test_a_finished_one_is_not_that_of_other_weights_under_the_same_name(pretrained, tmp_path):
    start = shutil.copytree(pretrained, tmp_path / "start")
    tune(start, tmp_path / "run", steps=1)
    vitrail.save(randomise(vitrail.create("mu/8", classes=7, image_size=16), seed=1), start)
    with pytest.raises(ConfigError, match="other weights"):
        tune(start, tmp_path / "run", steps=1)


def test_a_finished_one_says_that_its_data_changed_and_refuses_other_classes(tmp_path, caplog):
    folder = photos(tmp_path / "photos", {"ant": 3, "bee": 3})

    def again(**fields):
        caplog.clear()
        return vitrail.finetune(
            str(folder), "mu/8@16", out=tmp_path / "run", device="cpu", steps=1, test="none", **fields
        )

    first = again(batch_size=2)
    assert again(batch_size=2).results == first.results and "other data" not in caplog.text
    shutil.copyfile(folder / "train/ant/0.png", folder / "train/ant/new.png")
    with pytest.raises(ConfigError, match="another run"):
        again(batch_size=2)
    with pytest.raises(ConfigError, match=r"another run|is 2 there, 4 here"):
        again(batch_size=4)
    (folder / "train/ant").rename(folder / "train/asp")
    with pytest.raises(ConfigError, match="other classes"):
        again(batch_size=2)


def test_another_class_is_not_taken_for_other_weights(pretrained, tmp_path):
    folder = photos(tmp_path / "photos", {"ant": 3, "bee": 3})
    fields = {"out": tmp_path / "run", "device": "cpu", "steps": 1, "test": "none", "batch_size": 2}
    vitrail.finetune(str(folder), str(pretrained), **fields)
    photos(folder, {"cat": 3})
    with pytest.raises(ConfigError, match="other classes"):
        vitrail.finetune(str(folder), str(pretrained), **fields)


def test_another_config_is_refused_and_nothing_is_overwritten(swept, pretrained):
    before = {path: path.read_bytes() for path in swept[0].folder.rglob("*") if path.is_file()}
    with pytest.raises(ConfigError, match=r"steps.* 4 .* 5 "):
        tune(pretrained, swept[0].folder, **SWEEP | {"steps": 5})
    assert {path: path.read_bytes() for path in swept[0].folder.rglob("*") if path.is_file()} == before


def test_stopped_and_continued_is_the_same_and_a_sweep_chooses_nothing_but_the_rate(
    swept, pretrained, tmp_path, monkeypatch
):
    """The rate of the sweep, given by hand, and stopped in the second seed: its runs are those of the sweep."""
    fields = {"lr": swept[0].results["lr"], "seeds": 2}
    began = []

    def step(self, row):
        began.append(row["step"])
        if len(began) == 6:
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(training_display.TrainingDisplay, "step", step)
        with pytest.raises(Interrupted, match="step 3 of 4"):
            tune(pretrained, tmp_path / "run", **fields)
    assert not (tmp_path / "run/model").exists()
    again = tune(pretrained, tmp_path / "run", **fields)
    for seed in (".", "seeds/1"):
        assert same(weights(again.folder / seed), weights(swept[0].folder / seed))
    assert again.results["scores"] == swept[0].results["scores"]
    assert (again.results["sweep"], again.results["dev"]) == ({}, None)


def test_it_begins_from_the_body_with_a_head_of_zeros_at_the_new_size(pretrained, tmp_path):
    """At rate 0 nothing is learned: what comes out is what training began from."""
    made = tune(pretrained, tmp_path / "run", lr=0.0, steps=1, image_size=24, test="none").model()
    assert made.config.image_size == (24, 24) and made.config.classes == 10
    wanted = vitrail.load(pretrained, classes=10, image_size=24).state_dict()
    assert same(made.state_dict(), wanted)
    own = vitrail.load(pretrained).state_dict()
    body = [name for name in own if not name.startswith(("head.", "positions."))]
    assert all(torch.equal(made.state_dict()[name], own[name]) for name in body)
    assert not any(made.state_dict()[name].any() for name in own if name.startswith("head."))


def test_a_frozen_body_stays_as_it_is(pretrained, tmp_path):
    made = tune(pretrained, tmp_path / "run", tune="head", test="none")
    assert card(made.folder)["config"]["optimizer"]["tune"] == "head"
    before, after = vitrail.load(pretrained, classes=10).state_dict(), made.model().state_dict()
    assert {name for name in after if not torch.equal(before[name], after[name])} == {
        "head.classifier.weight",
        "head.classifier.bias",
    }
    assert made.results["scores"] == {} and "test_split" not in made.results
    assert (tmp_path / "run" / "results.md").read_text().count("not tested") == 1


def test_more_broken_files_may_be_allowed_when_it_is_continued(pretrained, tmp_path):
    steps = {"steps": 1, "test": "none"}
    first = tune(pretrained, tmp_path / "run", **steps)
    assert tune(pretrained, tmp_path / "run", max_bad=0.5, **steps).results == first.results


def ask(data=DATA, model="mu/8@16", **settings):
    return prepare(data, model, device="cpu", **settings).finetuning


@pytest.mark.parametrize("by", [{"protocol": "augreg"}, {"protocol": find_finetuning_recipe("augreg").make}])
def test_augregs_preset_as_a_protocol_and_as_a_recipe(by):
    made = ask("shapes?image_size=16&n=4000", **by)
    settings = made.experiment.resolve(4000, cuda=False)
    optimizer = settings.optimizer
    assert (settings.training.steps, optimizer.warmup, optimizer.lr) == (500, 100, 0.03)
    assert (optimizer.schedule, settings.data.batch_size, made.sweep.sweep) == ("cosine", 512, False)
    assert (settings.model.dropout, settings.model.drop_path) == (0.0, 0.0)


def test_bits_milestones_move_with_the_steps():
    """Step 12 of 30 still has the first lr."""
    made = ask(protocol="bit", steps=30).experiment.resolve(80, cuda=False).optimizer
    assert (made.warmup, made.milestones) == (6, (12, 18, 24))
    assert [lr_at(t, 30, made) / 0.003 for t in (6, 12, 13, 18, 19, 24, 25)] == pytest.approx(
        [1, 1, 0.1, 0.1, 0.01, 0.01, 0.001]
    )
    assert ask(protocol="bit", schedule="cosine").experiment.optimizer.milestones == ()


def test_what_the_person_says_goes_before_the_protocol():
    made = ask(protocol="paper", steps="3ep", lr=0.7, image_size=32, monitor="", positions=None)
    settings = made.experiment
    assert (settings.training.steps, settings.optimizer.lr, settings.model.image_size) == ("3ep", 0.7, 32)
    assert (settings.optimizer.optimizer, settings.optimizer.grad_clip, made.sweep.dev) == ("sgd", 1.0, 0.1)
    assert settings.data.preprocess == "inception_crop(32)|flip_lr|to_range(-1, 1)"


def test_adamw_has_learning_rates_of_its_own():
    made = ask(optimizer="adamw", sweep=True)
    assert made.experiment.optimizer.lr < 0.01 and max(made.sweep.lrs) < 0.01
    assert ask(optimizer="adamw", lr=0.5).experiment.optimizer.lr == 0.5


def test_whatever_can_be_set_for_pretraining_can_be_set_here():
    made = ask(
        cutmix=0.5, momentum=0.5, monitor="val_top1", val="test", test="none", patience=2, tensorboard=True
    )
    assert (made.experiment.data.cutmix, made.experiment.optimizer.momentum) == (0.5, 0.5)
    assert (made.experiment.training.monitor, made.experiment.training.patience) == ("val_top1", 2)


def test_a_published_batch_is_made_to_fit_the_data():
    assert ask(protocol="paper").experiment.data.batch_size == 64
    assert ask(protocol="paper", batch_size=16).experiment.data.batch_size == 16
    assert ask("shapes?image_size=16&n=4000", protocol="bit").experiment.data.batch_size == 512


def test_a_published_batch_fits_what_a_sweep_trains_on():
    """64 of 66 examples, but a sweep holds a tenth of them out."""
    data = "shapes?image_size=16&n=66"
    made = ask(data, protocol="paper", sweep=True)
    part = open_source(data, f"train[:{100 * (1 - made.sweep.dev):g}% per class]")
    assert made.experiment.data.batch_size <= len(part)


def test_a_model_object_is_saved_into_the_run_and_resumes(pretrained, tmp_path, monkeypatch):
    by_path = tune(pretrained, tmp_path / "path")
    model = vitrail.load(pretrained)

    def step(self, row):
        os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(training_display.TrainingDisplay, "step", step)
        with pytest.raises(Interrupted):
            tune(model, tmp_path / "object")
    by_object = tune(model, tmp_path / "object")
    assert same(weights(by_object.folder), weights(by_path.folder))
    assert tune(model, tmp_path / "object").results == by_object.results
    other = randomise(vitrail.create("mu/8", classes=7, image_size=16), seed=5)
    with pytest.raises(ConfigError, match="another model"):
        tune(other, tmp_path / "object")
    with pytest.raises(ConfigError, match=str(tmp_path / "path")):
        tune(model, tmp_path / "path")


def test_a_model_object_needs_no_new_folder_only_one_without_anything_else(pretrained, tmp_path):
    model = vitrail.load(pretrained)
    with pytest.raises(ConfigError):
        tune(model, tmp_path, batch_size=1000)  # an empty folder
    other = randomise(vitrail.create("mu/8", classes=7, image_size=16), seed=5)
    trained = tune(other, tmp_path)  # the first call trained nothing, so that another model may follow
    assert trained.model().provenance["start"] is not None
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.txt").touch()
    with pytest.raises(ConfigError, match=r"a\.txt"):
        tune(model, tmp_path / "photos")
    assert not (tmp_path / "photos" / "start").exists()


def test_weights_of_one_run_at_a_time_are_on_the_device(pretrained, tmp_path, monkeypatch):
    moves = []
    move = torch.nn.Module._apply

    def record(self, *args, **kwargs):
        if isinstance(self, CrossEntropy):
            moves.append(self)
        return move(self, *args, **kwargs)

    monkeypatch.setattr(torch.nn.Module, "_apply", record)
    tune(pretrained, tmp_path / "run", seeds=2)
    first, other, *_ = dict.fromkeys(moves)
    assert moves == [first, first, other, first]  # to the device, to the CPU, another's, to the device again


@dataclass(frozen=True)
class Counting(Classification):
    """Classification that keeps a state, and draws what a view of its own needs."""

    def views(self, model, data):
        view = training_view(model, data)
        return {"image": view, "second": view}

    def build(self, model):
        return Counted(model, self)


class Counted(CrossEntropy):
    def __init__(self, model, settings):
        super().__init__(model, settings)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, batch):
        self.count += len(batch["second"])
        return super().forward(batch)


def test_an_objective_of_ones_own_sees_nothing_but_its_batches(tmp_path):
    tune("mu/8@16", tmp_path / "run", objective=Counting(), steps=3, batch_size=16)
    (checkpoint,) = (tmp_path / "run/checkpoints").glob("step-*3")
    with safe_open(checkpoint / "state.safetensors", "pt") as state:
        assert state.get_tensor("weights.count") == 3 * 16


def test_an_objective_without_labels_is_not_for_fine_tuning(tmp_path):
    with pytest.raises(ConfigError, match="masked-patches"):
        tune("mu/8@16", tmp_path / "run", objective="masked-patches")
    assert not (tmp_path / "run").exists()


def photos(folder, counts, size=(20, 30)):
    rng = np.random.default_rng(0)
    for name, count in counts.items():
        (folder / "train" / name).mkdir(parents=True)
        for i in range(count):
            pixels = rng.integers(0, 256, (*size, 3), np.uint8)
            Image.fromarray(pixels).save(folder / "train" / name / f"{i}.png")
    return folder


def test_a_model_of_rectangles_asks_for_the_side_of_a_square():
    with pytest.raises(ConfigError, match=r"16 x 32 pixels, .* --image-size 16 resamples"):
        ask(model="mu/8@16x32")
    assert ask(model="mu/8@16x32", image_size=16).experiment.model.image_size == 16


def test_the_size_of_a_typical_image(tmp_path):
    folder = photos(tmp_path / "photos", {"ant": 3, "bee": 3})
    Image.new("RGB", (900, 800)).save(folder / "train/ant/large.png")
    (folder / "train/bee/broken.png").write_bytes(b"no picture")
    inputs = Inputs.read(override(Experiment(), {"data": folder, "model": "mu/8@16"}))
    facts = gather_facts(inputs, "mu/8@16", "train", gpu=False)
    assert (facts.short_side, facts.area) == (20, 600)  # the median: the large one does not count
    for path in folder.rglob("*.png"):
        path.write_bytes(b"no picture")
    with pytest.raises(DataError, match="can be read"):
        sample_sizes(open_source(folder))


def described(caplog, tmp_path, data, **fields):
    prepared = prepare(data, "mu/8@16", device="cpu", batch_size=2, steps=1, **fields)
    assembled = assemble(prepared.finetuning.experiment, torch.device("cpu"), tmp_path, prepared.inputs)
    caplog.clear()
    finetune.describe_finetuning(prepared.finetuning, assembled, prepared.inputs)
    return [record.getMessage().removeprefix("note: ") for record in caplog.records]


def test_how_the_images_are_used_is_said(tmp_path, caplog):
    cut = photos(tmp_path / "photos", {"ant": 10, "bee": 10}) / "train"

    def said(data, **fields):
        (line,) = described(caplog, tmp_path, data, **fields)
        return line

    line = said(cut)
    assert "16 images (train:train)" in line and "2 (train:test)" in line and "2 (train:validation)" in line
    assert "train+validation" in line and "folder" in line
    assert "train+validation" not in said(cut, sweep=True)
    assert "18 images" in said(cut, train="train+val") and "unused" not in said(cut, train="train+val")
    assert "18 images" in said(f"{cut}?validation=0")
    line = said(tmp_path / "photos")
    assert "20 images (photos:train)" in line and "folder" not in line


def test_it_is_said_before_training_that_nothing_will_be_tested(tmp_path, caplog):
    (line,) = described(
        caplog, tmp_path, photos(tmp_path / "a", {"ant": 10, "bee": 10}) / "train", test="none"
    )
    assert "nothing will be tested: --train" in line


def test_copies_on_both_sides_of_a_split_are_said(tmp_path, caplog):
    folder = photos(tmp_path / "a", {"ant": 10, "bee": 10}) / "train"
    held = open_source(folder, "test").key(0)
    (folder / held).write_bytes((folder / open_source(folder, "train").key(3)).read_bytes())
    said = described(caplog, tmp_path, folder)
    assert any("1 of " in line and "?group=copies" in line for line in said)


def test_classes_that_will_not_be_tested_are_named(tmp_path, caplog):
    folder = photos(tmp_path / "photos", {f"class {i}": 8 for i in range(8)})
    said = described(caplog, tmp_path, folder, train="train[:90%]", test="train[90%:]")
    assert "7 of 8 classes" in said[1] and "class 0, class 1, class 2, class 3, class 4 and 2 more" in said[1]
    per_class = {"train": "train[:70% per class]", "test": "train[70%: per class]"}
    assert len(described(caplog, tmp_path, folder, **per_class)) == 1


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ({"ant": 4}, "one class, ant"),
        ({"ant": 4, "bee": 1, "cat": 1}, "2 classes have fewer than 2 images to train on: bee, cat"),
    ],
)
def test_too_little_to_learn_from(tmp_path, counts, words):
    folder = photos(tmp_path / "photos", counts)
    with pytest.raises(DataError, match=words):
        ask(data=str(folder))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"data": ""}, "no data"),
        ({"model": ""}, "no model"),
        ({"model": "X/99"}, "X/99"),
        ({"seeds": 0}, "seeds 0"),
        ({"protocol": "papers"}, "papers"),
        ({"sweep": True, "lrs": ()}, "lrs"),
        ({"sweep": True, "dev": 1.5}, "dev"),
        ({"sweep": True, "dev": 0.0}, "dev"),
    ],
    ids=str,
)
def test_refused_before_anything_is_computed(fields, words):
    with pytest.raises(ConfigError, match=words):
        ask(**fields)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"train": 3}, "train must be text"),
        ({"data": None}, "data must be text, not of type NoneType"),
        ({"batch_size": "4"}, "batch_size must be a whole number, not of type str '4'"),
        ({"weight_decay": "0.1"}, "weight_decay must be a number, not of type str '0.1'"),
    ],
)
def test_what_is_of_another_type_is_refused_in_words(asked, words, tmp_path):
    with pytest.raises(ConfigError, match=words):
        vitrail.finetune(**({"data": "shapes", "model": "mu/8@16", "out": tmp_path / "out"} | asked))


def test_a_field_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match=r"learning_rate.*\blr\b"):
        tune("mu/8@16", tmp_path / "run", learning_rate=0.1)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "fields",
    [{"image_size": 20}, {"batch_size": 1000}, {"freeze": ("tail",)}, {"freeze": "head"}, {"lr": -1.0}],
    ids=str,
)
def test_a_mistake_leaves_no_folder_that_would_refuse_the_corrected_call(tmp_path, fields):
    with pytest.raises(ConfigError):
        tune("mu/8@16", tmp_path / "run", **fields)
    assert not (tmp_path / "run").exists()


def test_where_results_go_when_nothing_is_said():
    def place(data, model):
        return default_folder(data, model).as_posix()

    assert place("photos/pets", "models/ViT-B_16.npz") == "runs/photos-pets-models-vit-b-16.npz"
    assert place(DATA, "B/16").startswith("runs/shapes-")
    assert place("pets", "B/16") != place("pets", "L/16")
    assert place("pets", "runs/one/model") != place("pets", "runs/two/model")


def test_a_temperature_is_fitted_on_images_that_are_neither_trained_nor_tested_on(pretrained, tmp_path):
    """shapes has a validation split, which nothing else uses."""
    run = tune(pretrained, tmp_path / "run", wanted_precision=0.2)
    calibration = run.model().calibration
    assert (
        calibration.fitted["data"] == card(tmp_path / "run")["used"]["calibrate"] == "shapes:shape:validation"
    )
    assert calibration.temperature != 1 and len(calibration.thresholds) == len(run.model().class_names)
    assert calibration.as_json() == run.results["calibration"]
    before = run.model()
    before.calibration = type(calibration)()
    plain, measured = (vitrail.evaluate(one, DATA, split="test") for one in (before, run.model()))
    assert plain.top1 == measured.top1 == run.results["test"]["top1"]
    assert measured.loss == pytest.approx(run.results["test"]["loss"], rel=1e-6)
    assert measured.loss != pytest.approx(plain.loss, rel=1e-6)
    for page in ("README.md", "results.md"):
        assert f"temperature {calibration.temperature:.3g}" in (tmp_path / "run" / page).read_text()
    shutil.rmtree(tmp_path / "run" / "model")
    again = tune(pretrained, tmp_path / "run", wanted_precision=0.2)
    assert again.model().calibration == calibration and again.results == run.results


def test_the_run_may_name_the_images_or_have_none(pretrained, tmp_path):
    none = tune(pretrained, tmp_path / "none", calibrate="none")
    assert none.results["calibration"] == {} and none.model().calibration.temperature == 1
    named = {"train": "train[:75%]", "calibrate": "train[75%:]"}
    run = tune(pretrained, tmp_path / "named", **named)
    assert run.model().calibration.fitted["data"] == "shapes:shape:train[75%:]"
    with pytest.raises(ConfigError, match="are in"):
        tune(pretrained, tmp_path / "same", calibrate="train[:50%]")
    with pytest.raises(ConfigError, match="are in"):
        tune(pretrained, tmp_path / "tested", calibrate="test")
    with pytest.raises(ConfigError, match=r"wanted_precision 1"):
        tune(pretrained, tmp_path / "all", wanted_precision=1.0)


def test_a_sweep_gives_its_temperature_where_no_images_are_left(pretrained, tmp_path):
    run = tune(
        pretrained, tmp_path / "run", sweep=True, lrs=(0.1,), dev=0.3, train="train", test="validation"
    )
    swept = vitrail.load(tmp_path / "run/sweep/0.1/model").calibration
    assert swept.temperature != 1 and run.model().calibration == swept


def test_a_run_with_a_budget_keeps_its_choices_whatever_the_machine_does_later(
    pretrained, tmp_path, monkeypatch, caplog
):
    """Killed and resumed on a machine that became a thousand times slower: the same weights, nothing measured."""
    settings = {"budget": "1h", "steps": 4}
    whole = tune(pretrained, tmp_path / "whole", **settings)
    chosen = card(whole.folder)["config"]
    assert "Within 1h: training all layers at 16 px" in caplog.text
    assert set(chosen["speed"]) == {"flops", "reading"} and chosen["sweep"]["budget"] == "1h"

    def step(self, row):
        os.kill(os.getpid(), signal.SIGTERM)

    shutil.copytree(whole.folder, tmp_path / "run")
    for name in ("checkpoints", "model", "metrics.jsonl"):  # as if it had just begun
        place = tmp_path / "run" / name
        shutil.rmtree(place) if place.is_dir() else place.unlink()
    started = {k: v for k, v in card(whole.folder).items() if k not in ("results", "first_checkpoint")}
    (tmp_path / "run" / "run.json").write_text(json.dumps(started))
    monkeypatch.setattr("vitrail.transfer.speed.measure_speed", None)  # would fail
    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        patch.setattr(training_display.TrainingDisplay, "step", step)
        tune(pretrained, tmp_path / "run", **settings)
    again = tune(pretrained, tmp_path / "run", **settings)
    assert same(weights(again.folder), weights(whole.folder))
    assert card(again.folder)["config"] == chosen
    assert tune(pretrained, tmp_path / "run", **settings).results == again.results
    monkeypatch.undo()
    with pytest.raises(ConfigError, match="budget"):
        tune(pretrained, tmp_path / "run", budget="2h", steps=4)


def test_a_speed_in_a_damaged_run_json_is_refused(pretrained, tmp_path):
    trained = tune(pretrained, tmp_path / "run", budget="1h", steps=1)
    content = card(trained.folder)
    content["config"]["speed"] = {"flops": "fast"}
    (trained.folder / "run.json").write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match="speed"):
        tune(pretrained, tmp_path / "run", budget="1h", steps=1)


@pytest.mark.parametrize("protocol", ["plain", "paper"])
def test_a_budget_is_for_the_default_protocol(pretrained, tmp_path, protocol):
    with pytest.raises(ConfigError, match="budget 1h is for protocol default"):
        tune(pretrained, tmp_path / "run", protocol=protocol, budget="1h")
    assert not (tmp_path / "run").exists()


def test_a_validation_split_is_watched_unless_splits_are_named():
    data = "shapes?image_size=16&n=4000"
    made = ask(data, "mu/8@16").experiment
    assert made.data.val == "validation" and made.training.monitor == "val_top1"
    for named in ({"val": "none"}, {"test": "validation"}, {"train": "train+validation"}):
        other = ask(data, "mu/8@16", **named).experiment
        assert other.training.monitor == "" and other.data.val == "none"


@pytest.mark.parametrize(
    "fields", [{"image_size": "any"}, {"tune": "lora:2"}, {"sweep": True}, {"train": "train[:50%]"}]
)
def test_a_budget_together_with_other_settings(fields):
    made = ask(budget="1h", **fields)
    assert made.speed.flops > 0 and made.speed.reading > 0
    assert made.remarks[0].startswith("Within 1h: training ")


def test_all_runs_share_the_budget(monkeypatch):
    """The four of a sweep and three seeds take seven times as long as one."""
    seen = []
    monkeypatch.setattr(
        finetune, "find_speed", lambda out, budget, facts, *more: seen.append(facts) or Speed(1e9, 0.0)
    )
    ask(budget="1h")
    ask(budget="1h", sweep=True, seeds=3)
    assert [facts.runs for facts in seen] == [1, 7]
    assert [facts.test_examples for facts in seen] == [20, 20]
