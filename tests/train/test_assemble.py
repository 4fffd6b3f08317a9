"""An experiment's parts, before anything runs."""

import numpy as np
import pytest
import torch

import vitrail
from tests.randomise import randomise
from tests.train.small import DATA, experiment
from vitrail.data.bad_files import BadExample, BadFiles
from vitrail.data.settings import DataSettings
from vitrail.data.sources import open_source
from vitrail.errors import ConfigError
from vitrail.objectives import objective_named
from vitrail.train import assemble as assembling
from vitrail.train.assemble import Inputs, assemble, build_model, is_worth_compiling, remarks
from vitrail.train.data_splits import Sources
from vitrail.train.settings import Experiment

CPU = torch.device("cpu")
NORMALIZED = {"preprocess": "inception_crop(16)|flip_lr|normalize(0.2, 0.1)"}


@pytest.mark.parametrize("more", [0, 2], ids=["as many classes", "more classes"])
@pytest.mark.parametrize("given", [{}, {"drop_path": 0.0}])
def test_loaded_weights_get_a_new_head_of_zeros(tmp_path, more, given):
    source = open_source(DATA, "train")
    K = len(source.class_names)
    old = randomise(vitrail.create("mu/8@16", classes=K + more, pre_logits=24))
    old.class_names = [f"old {k}" for k in range(K + more)]
    vitrail.save(old, tmp_path / "old")
    chosen = experiment(model=str(tmp_path / "old"), **given)
    made = build_model(chosen, source, Inputs.read(chosen).start)
    assert made.class_names == source.class_names
    assert sorted(dict(made.head.named_parameters())) == ["classifier.bias", "classifier.weight"]
    assert made.head.classifier.weight.shape[0] == K
    assert not any(p.any() for p in made.head.parameters())
    before = old.state_dict()
    assert all(torch.equal(w, before[name]) for name, w in made.state_dict().items() if "head." not in name)


def test_no_dropout_is_none_of_attention_either(tmp_path):
    old = vitrail.create("mu/8@16", classes=3, dropout=0.1, attention_dropout=0.3)
    vitrail.save(old, tmp_path / "old")
    for given, left in ((0.0, 0.0), (0.2, 0.3), (None, 0.3)):
        chosen = experiment(model=str(tmp_path / "old"), dropout=given)
        made = build_model(chosen, open_source(DATA, "train"), Inputs.read(chosen).start)
        assert made.config.attention_dropout == left


def test_training_and_the_model_see_images_of_the_same_values(tmp_path):
    with pytest.raises(ConfigError, match=r"normalize.*to_range\(-1, 1\)' end in different ranges"):
        assemble(experiment(**NORMALIZED), CPU, tmp_path)
    both = NORMALIZED | {"evaluate_preprocess": "resize(16)|normalize(0.2, 0.1)"}
    assert assemble(experiment(**both), CPU, tmp_path).model.preprocess.endswith("|normalize(0.2, 0.1)")
    with pytest.raises(ConfigError, match=r"masked patch prediction takes images in \[-1, 1\]"):
        assemble(experiment(**both, objective="masked-patches"), CPU, tmp_path)


def test_weights_are_read_once_and_each_run_has_its_own_copy(tmp_path, monkeypatch):
    vitrail.save(vitrail.create("mu/8@16", classes=3), tmp_path / "old")
    chosen = experiment(model=str(tmp_path / "old"))
    inputs = Inputs.read(chosen)
    monkeypatch.setattr("vitrail.train.assemble.read", None)
    first, second = (assemble(chosen, CPU, tmp_path, inputs).model for _ in range(2))
    with torch.no_grad():
        for p in first.parameters():
            p.zero_()
    assert second.embedding.weight.any()


def test_mixing_of_labels_is_refused_for_an_objective_without_any(tmp_path):
    with pytest.raises(ConfigError, match="cutmix 1"):
        assemble(experiment(objective="masked-patches", cutmix=1.0), CPU, tmp_path)


def test_settings_of_another_objective_are_unknown():
    with pytest.raises(ConfigError, match="label_smoothing"):
        experiment(objective="masked-patches", label_smoothing=0.5)
    with pytest.raises(ConfigError, match="corrupted"):
        experiment(corrupted=0.9)


@pytest.mark.parametrize("given", [{"pool": "mean"}, {"depth": 3}, {"pre_logits": True}, {"positions": "2d"}])
def test_what_needs_other_weights_is_refused_for_those_that_are_loaded(tmp_path, given):
    vitrail.save(vitrail.create("mu/8@16", classes=3), tmp_path / "old")
    with pytest.raises(ConfigError, match=next(iter(given))):
        assemble(experiment(model=str(tmp_path / "old"), **given), CPU, tmp_path)


def test_every_field_of_the_architecture_can_be_set(tmp_path):
    given = {"width": 48, "depth": 3, "heads": 4, "mlp_dim": 96, "patch_size": 4, "pool": "mean"}
    given |= {"positions": "2d", "positions_at": "every", "activation": "gelu", "norm_eps": 1e-5}
    config = assemble(experiment(**given, pre_logits=True), CPU, tmp_path).model.config
    assert {name: getattr(config, name) for name in given} == given
    assert config.pre_logits == 48


def test_each_process_may_meet_every_broken_example_and_the_first_counts_those_of_others(
    tmp_path, monkeypatch
):
    BadFiles(1000, path=tmp_path / "bad_files.5.jsonl").add([BadExample(0, "a", "a: broken")])
    for rank, known in ((0, {"a"}), (1, set())):
        monkeypatch.setattr("vitrail.train.assemble.rank", lambda rank=rank: rank)
        monkeypatch.setattr("vitrail.train.assemble.world", lambda: 2)
        bad_files = assemble(experiment(), CPU, tmp_path).loader.bad_files
        assert (bad_files.n, set(bad_files.examples)) == (64, known)


def test_what_may_not_be_meant_is_said(tmp_path):
    """A slice of data in the order of its classes; a label that nothing has; a train split without another."""
    x, y = np.zeros((80, 4, 4, 3), np.uint8), np.arange(80) // 8
    np.savez(tmp_path / "ordered.npz", x_train=x, y_train=y)

    def said(data, objective="classification", **parts):
        made = Experiment(data=DataSettings(data, **parts), objective=objective_named(objective))
        return remarks(made, Sources.open(made.data))

    ordered = str(tmp_path / "ordered.npz")
    assert said(ordered, train="train[:25%]", val="train[25%:]") == [
        "ordered:train[:25%] has no image of 7 of 10 classes, which cannot be learned: 3, 4, 5, 6, 7 and 2 more "
        "(`train[:25% per class]` takes a part of each)"
    ]
    assert (
        said(ordered, "masked-patches", train="train[:25%]", val="train[25%:]") == []
    )  # that looks at no label
    assert said(ordered) == said(ordered, train="train", val="none") == []
    (held,) = said(ordered, train="train")
    assert held.startswith("--train without --val")


@pytest.mark.parametrize(
    ("ema", "ramp", "steps", "said"),
    [
        (0.9999, False, 500, True),
        (0.9999, False, 20_000, False),
        (0.9999, True, 500, False),
        (0.0, False, 9, False),
    ],
)
def test_an_average_that_hardly_moves_is_said(ema, ramp, steps, said):
    """20,000 steps are the paper's."""
    made = experiment(ema=ema, ema_ramp=ramp, steps=steps)
    texts = remarks(made, Sources.open(made.data))
    assert [("95% of the average" in text) for text in texts] == [True] * said


@pytest.mark.parametrize(
    ("model", "batch_size", "steps", "worth"),
    [
        ("Ti/8@64", 64, 250, False),  # seconds
        ("Ti/8@64", 64, 20_000, True),
        ("B/16@384", 64, 200, False),
        ("B/16@384", 512, 500, True),
    ],
)
def test_only_runs_of_minutes_are_compiled(monkeypatch, model, batch_size, steps, worth):
    monkeypatch.setattr(assembling, "computing_seconds", lambda flops, device: flops / 300e12)
    chosen = experiment(model=model, batch_size=batch_size, steps=steps, warmup=0)
    config = assembling.make_config(model)
    assert is_worth_compiling(chosen, config, torch.device("cuda")) == worth
    assert not is_worth_compiling(chosen, config, CPU)
