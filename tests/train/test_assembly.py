"""An experiment's parts, before anything runs."""

import pytest
import torch
from vitrail.train.assembly import assemble, model_of

import vitrail
from tests.randomise import randomise
from tests.train.small import DATA, experiment
from vitrail.data.bad_files import BadExample, BadFiles
from vitrail.data.sources import open_source
from vitrail.errors import ConfigError

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
    made = model_of(experiment(model={"model": str(tmp_path / "old")} | given), source)
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
        choice = {"model": str(tmp_path / "old"), "dropout": given}
        assert model_of(experiment(model=choice), open_source(DATA, "train")).config.attention_dropout == left


def test_training_and_the_model_see_images_of_the_same_values(tmp_path):
    with pytest.raises(ConfigError, match=r"normalize.*to_range\(-1, 1\)' end in different values"):
        assemble(experiment(data=NORMALIZED), CPU, tmp_path)
    both = NORMALIZED | {"evaluate_preprocess": "resize(16)|normalize(0.2, 0.1)"}
    assert assemble(experiment(data=both), CPU, tmp_path).model.preprocess.endswith("|normalize(0.2, 0.1)")
    with pytest.raises(ConfigError, match=r"masked patch prediction takes images in \[-1, 1\]"):
        assemble(experiment(data=both, objective={"objective": "masked"}), CPU, tmp_path)


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        (
            {"objective": {"objective": "masked", "smoothing": 0.5}},
            "masked does not use smoothing 0.5: set smoothing 0.0",
        ),
        ({"objective": {"objective": "masked"}, "data": {"cutmix": 1.0}}, "masked does not use cutmix 1.0"),
        (
            {"objective": {"corrupted": 0.9, "target": "grid"}},
            "softmax does not use target grid, corrupted 0.9",
        ),
    ],
)
def test_a_setting_that_would_do_nothing_is_refused(tmp_path, parts, said):
    with pytest.raises(ConfigError, match=said):
        assemble(experiment(**parts), CPU, tmp_path)


def test_each_process_may_meet_every_broken_example_and_the_first_counts_those_of_others(
    tmp_path, monkeypatch
):
    BadFiles(1000, path=tmp_path / "bad_files.5.jsonl").add([BadExample(0, "a", "a: broken")])
    for rank, known in ((0, {"a"}), (1, set())):
        monkeypatch.setattr("vitrail.train.assembly.rank", lambda rank=rank: rank)
        monkeypatch.setattr("vitrail.train.assembly.world", lambda: 2)
        found = assemble(experiment(), CPU, tmp_path).loader.bad_files
        assert (found.n, set(found.examples)) == (64, known)
