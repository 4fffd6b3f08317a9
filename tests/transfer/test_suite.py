import csv
import json
import shutil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import vitrail
from tests.evaluators.split import small_model
from vitrail.data.shard import shard
from vitrail.errors import CheckpointError, ConfigError, DataError
from vitrail.evaluators.fewshot import SWEEP
from vitrail.transfer.suite import SuiteSettings, best_by_mean_rank, choose_l2, name_data, transfer
from vitrail.transfer.vtab import vtab

COLOURS = "shapes:colour?n=60&image_size=16"  # 8 classes, of which the fewest has 7 images to train on
SHAPES = "shapes?n=60&image_size=16"
TINY = {
    "seeds": 2, "image_size": 16, "steps": 2, "batch_size": 8, "l2": (10.0, 1.0), "k": (1, 3), "device": "cpu",
}  # fmt: skip


@pytest.fixture
def bundle(tmp_path):
    path = tmp_path / "vit-b16-i21k"
    vitrail.save(small_model(), path)
    return str(path)


def scores(result, data):
    return {row["score"]: row for row in result["rows"] if row["data"] == data}


def test_every_method_on_every_data_set(bundle, tmp_path):
    out = tmp_path / "out"
    result = transfer(bundle, [COLOURS, SHAPES], out, **TINY)
    made = scores(result, "shapes-colour")
    assert list(made) == ["1-shot", "5-shot", "linear", "knn", "finetune"]
    assert all(0 <= row["mean"] <= 1 and row["test_examples"] == 15 for row in made.values())
    assert made["5-shot"]["n"] == made["finetune"]["n"] == 2
    examples = {name: row["train_examples"] for name, row in made.items()}
    assert examples == {"1-shot": 8, "5-shot": 40, "linear": 60, "knn": 60, "finetune": 60}
    assert made["5-shot"]["std"] is not None and made["finetune"]["std"] is not None
    assert (made["linear"]["n"], made["linear"]["std"]) == (1, None)
    assert made["knn"]["k"] in (1, 3) and made["linear"]["l2"] > 0
    assert {row["data"] for row in result["rows"]} == {"shapes-colour", "shapes"}
    assert json.loads((out / "results.json").read_text()) == json.loads(json.dumps(result))
    with (out / "results.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert [line["score"] for line in lines] == [row["score"] for row in result["rows"]]
    assert float(lines[0]["mean"]) == result["rows"][0]["mean"]
    said = (out / "results.md").read_text()
    assert said.count("\n| ") == len(lines)
    assert "B/16 i21k, fine-tuned on the whole data set" in said


def test_what_is_done_is_not_done_again(bundle, tmp_path, monkeypatch):
    out, given = tmp_path / "out", {**TINY}
    first = transfer(bundle, [COLOURS], out, methods=("fewshot",), **given)
    monkeypatch.setattr("vitrail.transfer.suite.FewShot.runs", None)  # would fail if it were called
    again = transfer(bundle, [COLOURS], out, methods=("fewshot", "knn"), **given)
    assert again["rows"][:2] == first["rows"]
    assert again["rows"][2]["score"] == "knn"
    vitrail.save(small_model(classes=5), bundle)
    with pytest.raises(ConfigError, match="weights is"):
        transfer(bundle, [COLOURS], out, methods=("fewshot",), **given)


def test_the_model_of_a_finished_fine_tuning_is_written_again(bundle, tmp_path):
    given = {"methods": ("finetune",), **TINY}
    first = transfer(bundle, [COLOURS], tmp_path / "out", **given)
    run = tmp_path / "out/shapes-colour/finetune/run"
    before = (run / "model/model.safetensors").read_bytes()
    shutil.rmtree(run / "model")
    assert transfer(bundle, [COLOURS], tmp_path / "out", **given) == first
    assert (run / "model/model.safetensors").read_bytes() == before
    shutil.rmtree(run)
    assert transfer(bundle, [COLOURS], tmp_path / "out", **given) == first
    assert not run.exists()


@pytest.mark.parametrize("scores", [[], "x", [{}], [{"score": "knn"}], None, {"a": 1}])
def test_results_that_were_changed_by_hand_are_an_error_in_words(bundle, tmp_path, scores):
    given = {"methods": ("knn",), **TINY}
    transfer(bundle, [COLOURS], tmp_path / "out", **given)
    path = tmp_path / "out/shapes-colour/knn/run.json"
    card = json.loads(path.read_text())
    path.write_text(json.dumps(card | {"results": {"scores": scores}}))
    with pytest.raises(CheckpointError, match="scores"):
        transfer(bundle, [COLOURS], tmp_path / "out", **given)


@pytest.mark.parametrize("name", ["features", "shapes-colour", "shapes-colour/knn", ".results.lock"])
def test_links_inside_the_results_are_not_followed(bundle, tmp_path, name):
    (tmp_path / "mine").mkdir()
    place = tmp_path / "out" / name
    place.parent.mkdir(parents=True)
    place.symlink_to(tmp_path / "mine")
    with pytest.raises(ConfigError, match="is a link"):
        transfer(bundle, [COLOURS], tmp_path / "out", methods=("knn",), **TINY)
    assert not list((tmp_path / "mine").iterdir())


def test_another_preprocessing_line_is_not_the_same_piece(bundle, tmp_path):
    given = {"methods": ("knn",), **TINY}
    transfer(bundle, [COLOURS], tmp_path / "out", **given)
    model = vitrail.load(bundle)
    model.preprocess = model.preprocess.replace("|", "|flip_lr(0)|", 1)
    vitrail.save(model, bundle)
    with pytest.raises(ConfigError, match="preprocess is"):
        transfer(bundle, [COLOURS], tmp_path / "out", **given)


def test_other_test_images_are_not_the_same_piece(bundle, tmp_path):
    data, given = tmp_path / "data", {"methods": ("knn",), **TINY}
    for split in ("train", "test"):
        shard(COLOURS, data, split=split)
    transfer(bundle, [str(data)], tmp_path / "out", **given)
    shard(f"{COLOURS}&seed=1", tmp_path / "other", split="test")
    for file in data.glob("test-*.parquet"):
        (tmp_path / "other" / file.name).replace(file)
    with pytest.raises(ConfigError, match="fingerprint is"):
        transfer(bundle, [str(data)], tmp_path / "out", **given)


def test_every_data_set_has_a_folder_of_its_own(tmp_path, monkeypatch):
    (tmp_path / "photos" / "train").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "photos" / "train")
    assert name_data(["..", ".", "hf:owner/flowers", "pets/?seed=1"]) == {
        "photos": "..", "train": ".", "flowers": "hf:owner/flowers", "pets": "pets/?seed=1"
    }  # fmt: skip


def test_the_papers_number_stands_beside_fine_tuning(bundle, tmp_path):
    data = tmp_path / "cifar100"
    for split in ("train", "test"):
        shard(COLOURS, data, split=split)
    given = {"methods": ("knn", "finetune"), **TINY}
    made = scores(transfer(bundle, [str(data)], tmp_path / "out", **given), "cifar100")
    assert made["finetune"]["paper"] == pytest.approx(0.9167)
    assert made["knn"]["paper"] is None
    made = scores(transfer(bundle, [str(data)], tmp_path / "out", paper="H/14 JFT", **given), "cifar100")
    assert made["finetune"]["paper"] == pytest.approx(0.9455)


def test_fewer_examples_in_a_class_than_shots(bundle, tmp_path):
    with pytest.raises(DataError, match=r"11-shot: class .* at most 7 shots are possible"):
        transfer(bundle, [COLOURS], tmp_path / "out", shots=(1, 11), device="cpu")
    assert not (tmp_path / "out").exists()


def test_the_k_of_knn_are_those_that_the_data_has_examples_for(bundle, tmp_path):
    given = {"methods": ("knn",), "device": "cpu"}
    made = scores(transfer(bundle, [COLOURS], tmp_path / "out", **given), "shapes-colour")
    assert made["knn"]["k"] in (1, 5, 10, 20, 50)
    card = json.loads((tmp_path / "out/shapes-colour/knn/run.json").read_text())
    assert card["config"]["k"] == [1, 5, 10, 20]
    for k in ((1, 60), (0, 1)):
        with pytest.raises(ConfigError, match=r"k .*(60|0)"):
            transfer(bundle, [COLOURS], tmp_path / "other", k=k, device="cpu")
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("data", "given", "said"),
    [
        ([], {}, "no data"),
        ([COLOURS, COLOURS], {}, "are both called 'shapes-colour'"),
        (["nowhere"], {}, "no data set 'nowhere'"),
        (
            [COLOURS],
            {"train_split": "train+val+test"},
            r"beside train\+val\+test; name one of",
        ),
        ([COLOURS], {"methods": ("guess",)}, "unknown method guess; methods: fewshot, linear, knn, finetune"),
        ([COLOURS], {"paper": "B/99"}, "no 'B/99'"),
    ],
)
def test_bad_input(bundle, tmp_path, data, given, said):
    with pytest.raises((ConfigError, DataError), match=said):
        transfer(bundle, data, tmp_path / "out", device="cpu", **given)


@pytest.mark.parametrize(
    "wrong", [{"seeds": 0}, {"fewshot_l2": "best"}, {"learning_rate": 1.0}, {"train": "all"}]
)
def test_settings_that_make_no_sense(wrong, bundle, tmp_path):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        transfer(bundle, [COLOURS], tmp_path / "out", **wrong)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("wrong", [{"seeds": 0}, {"fewshot_l2": "best"}])
def test_settings_that_were_made_before_are_checked_too(wrong, bundle, tmp_path):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        transfer(bundle, [COLOURS], tmp_path / "out", settings=SuiteSettings(**wrong))
    assert not (tmp_path / "out").exists()


def test_a_model_object(bundle, tmp_path):
    given = {"methods": ("knn", "finetune"), **TINY}
    by_path = transfer(bundle, [COLOURS], tmp_path / "a", **given)
    by_object = transfer(vitrail.load(bundle), [COLOURS], tmp_path / "b", **given)
    assert [row["mean"] for row in by_object["rows"]] == [row["mean"] for row in by_path["rows"]]


def test_any_setting_of_fine_tuning(bundle, tmp_path):
    changes = {"optimizer": "adamw", "weight_decay": 0.1, "cutmix": 1.0}
    given = {"methods": ("finetune",), **TINY, "seeds": 1, **changes}
    transfer(bundle, [COLOURS], tmp_path / "out", **given)
    config = json.loads((tmp_path / "out/shapes-colour/finetune/run/run.json").read_text())["config"]
    assert (config["optimizer"]["optimizer"], config["optimizer"]["weight_decay"]) == ("adamw", 0.1)
    assert config["data"]["cutmix"] == 1.0
    with pytest.raises(ConfigError, match=r"cutmix is 1\.0"):
        transfer(bundle, [COLOURS], tmp_path / "out", **{**given, "cutmix": 0.5})


def test_results_of_the_users_are_not_replaced(tmp_path):
    """Said before anything is opened."""
    (tmp_path / "results.csv").write_text("mine")
    with pytest.raises(ConfigError, match=r"results\.csv of another program"):
        transfer("nothing", ["nowhere"], tmp_path)
    with pytest.raises(ConfigError, match=r"results\.csv of another program"):
        vtab("nothing", "nowhere", tmp_path)
    assert (tmp_path / "results.csv").read_text() == "mine"


THREE = ["shapes:colour?n=60&image_size=16", "shapes?n=60&image_size=16", "shapes:count?n=60&image_size=16"]


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
    assert choose_l2(scores) == ({**scores, ("a", "fewshot"): None}, None)


def test_each_number_of_shots_is_chosen_by_the_data_sets_that_have_it():
    few = {"a": [entry("1-shot", 4), entry("5-shot", 7)], "b": [entry("1-shot", 4)]}
    scores, chosen = choose_l2({(name, "fewshot"): its for name, its in few.items()})
    assert chosen == {"1-shot": SWEEP[4], "5-shot": SWEEP[7]}
    assert [one["mean"] for one in scores["a", "fewshot"]] == [1.0, 1.0]


def test_one_l2_for_all_data_sets(bundle, tmp_path):
    """Over seeds the means are ranked; one more data set may change the choice for all."""
    rule = {"seeds": 2, "shots": (1, 4), "draws": "big_vision", "fewshot_l2": "test-rank"}
    given = {"methods": ("fewshot",), **rule, "device": "cpu"}
    for data in (THREE[:2], THREE):
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
    given = {"methods": ("fewshot",), "seeds": 2, "shots": (1,), "device": "cpu"}
    made = transfer(bundle, THREE[:1], tmp_path / "out", **given)
    assert made["fewshot_l2"] is None and [row["l2"] for row in made["rows"]] == [1024.0]
    assert "TEST" not in (tmp_path / "out" / "results.md").read_text()
