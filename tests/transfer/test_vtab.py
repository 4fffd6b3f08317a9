import csv
import json
import os
import shutil
import subprocess
import sys

import pytest

import vitrail
from tests.transfer.stand_in import SIZES, N, write_all
from vitrail.errors import ConfigError, DataError
from vitrail.transfer.vtab import vtab
from vitrail.transfer.vtab_tasks import TASKS

TINY = {"image_size": 16, "steps": 2, "batch_size": 8, "num_workers": 0, "device": "cpu", **SIZES}
TWO = """
import sys
from vitrail.transfer.vtab import vtab
tiny = {"image_size": 16, "steps": 2, "batch_size": 8, "num_workers": 0}
vtab("mu/8@16", sys.argv[1], sys.argv[2], device="cpu", train_examples=16, val_examples=4, **tiny)
"""
LINE = "resize(16)|flip_lr|to_range(-1, 1)"
PAIR = ("oxford_iiit_pet", "svhn_cropped")


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return write_all(tmp_path_factory.mktemp("pair"), PAIR)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "model"
    vitrail.save(vitrail.create("mu/8@16", classes=3), path)
    return str(path)


def rows(result):
    return {row["task"]: row for row in result["rows"]}


def test_all_19_tasks(tmp_path):
    write_all(tmp_path / "data")
    out = tmp_path / "out"
    result = vtab("mu/8@16", tmp_path / "data", out, paper="L/16 i21k", **TINY)
    made = rows(result)
    assert list(made) == list(TASKS)
    assert all(row["status"] == "done" and 0 <= row["accuracy"] <= 1 for row in made.values())
    assert made["eurosat"]["test_examples"] == 8 and made["cifar100"]["test_examples"] == N
    accuracies = [row["accuracy"] for row in made.values()]
    assert result["vtab"] == {"mean": pytest.approx(sum(accuracies) / 19), "done": 19, "of": 19}
    assert result["groups"]["specialized"]["mean"] == pytest.approx(sum(accuracies[7:11]) / 4)
    assert made["dmlab"]["paper"] == pytest.approx(0.419)
    assert result["normalisation"] == "to_range(-1, 1)"
    assert made["svhn"]["preprocess"] == "resize(19)|random_crop(16)|to_range(-1, 1)"
    assert made["pets"]["preprocess"] == "resize(19)|random_crop(16)|flip_lr|to_range(-1, 1)"
    assert made["clevr_count"]["preprocess"] == "resize(16)|to_range(-1, 1)"
    assert json.loads((out / "results.json").read_text())["vtab"]["done"] == 19
    with (out / "results.csv").open() as file:
        assert [line["task"] for line in csv.DictReader(file)] == list(TASKS)
    said = (out / "results.md").read_text()
    assert "| mean of 19 |" in said and "normalisation to_range(-1, 1)" in said and "Not VTAB-1k" in said
    assert len(list((out / "manifests").iterdir())) == 19
    assert not list(out.glob("tasks/*/final/0/checkpoints")) and not list(out.glob("tasks/*/final/0/model"))


def test_absent_tasks_enter_no_mean(pair, tmp_path):
    result = vtab("mu/8@16", pair, tmp_path, tasks=("natural", "dmlab"), **TINY)
    made = rows(result)
    assert {name for name, row in made.items() if row["status"] == "done"} == {"pets", "svhn"}
    assert made["dmlab"]["status"] == "absent" and made["dmlab"]["accuracy"] is None
    assert result["groups"]["natural"] == {"mean": None, "done": 2, "of": 7}
    assert result["vtab"] == {"mean": None, "done": 2, "of": 19}
    said = (tmp_path / "results.md").read_text()
    assert "| dmlab | structured | absent |" in said and "| mean of 19 |  | - (2 of 19) |" in said


def test_the_same_call_continues(pair, bundle, tmp_path):
    first = vtab(bundle, pair, tmp_path, tasks=("pets",), **TINY)
    card = tmp_path / "tasks" / "pets" / "run.json"
    before = card.stat().st_mtime_ns
    again = vtab(bundle, pair, tmp_path, tasks=("pets", "svhn"), **TINY)
    assert card.stat().st_mtime_ns == before
    assert rows(again)["pets"] == rows(first)["pets"]
    assert rows(again)["svhn"]["status"] == "done"
    vitrail.save(vitrail.create("mu/8@16", classes=4), bundle)
    with pytest.raises(ConfigError, match="weights is"):
        vtab(bundle, pair, tmp_path, tasks=("pets",), **TINY)


def test_a_model_that_was_kept_and_is_damaged_is_said(pair, tmp_path, caplog):
    given = {"tasks": ("pets",), **TINY, "keep_models": True}
    first = vtab("mu/8@16", pair, tmp_path, **given)
    assert vtab("mu/8@16", pair, tmp_path, **given) == first and "damaged" not in caplog.text
    os.truncate(tmp_path / "tasks/pets/final/0/model/model.safetensors", 500)
    assert vtab("mu/8@16", pair, tmp_path, **given) == first
    assert "final/0/model is missing or damaged" in caplog.text


def test_other_data_under_the_same_name_is_refused(pair, tmp_path):
    given = {"tasks": ("pets",), **TINY}
    data = shutil.copytree(pair / "oxford_iiit_pet", tmp_path / "data" / "pets")
    vtab("mu/8@16", tmp_path / "data", tmp_path / "out", **given)
    os.utime(next(data.rglob("*.parquet")), (1, 1))
    with pytest.raises(ConfigError, match="fingerprint is"):
        vtab("mu/8@16", tmp_path / "data", tmp_path / "out", **given)


def test_the_lr_is_chosen_on_val_and_seeds_have_a_spread(pair, tmp_path):
    sweep = {"lrs": (0.01, 1e-9), "seeds": 2, "augment": "none", "keep_models": True}
    result = vtab("mu/8@16", pair, tmp_path, tasks=("svhn",), **TINY, **sweep)
    row = rows(result)["svhn"]
    assert set(row["val"]) == {"0.01", "1e-09"}
    best = max(row["val"].values())
    assert row["val"][f"{row['lr']:g}"] == best
    assert len(row["values"]) == 2 and row["std"] is not None
    assert row["preprocess"] == "resize(16)|to_range(-1, 1)"
    trained = json.loads((tmp_path / "tasks/svhn/final/1/run.json").read_text())
    assert trained["config"]["data"]["train"] == "train[0:16]+train[36:40]"
    assert trained["config"]["data"]["val"] == "none"
    assert trained["config"]["model"]["dropout"] == trained["config"]["model"]["drop_path"] == 0.0
    chosen = json.loads((tmp_path / "tasks/svhn/choices/0.01/run.json").read_text())
    assert chosen["config"]["data"]["train"] == "train[0:16]" and chosen["config"]["data"]["test"] == "none"
    assert (tmp_path / "tasks/svhn/final/0/model").exists()


def test_a_manifest_that_another_wrote(pair, tmp_path):
    vtab("mu/8@16", pair, tmp_path / "a", tasks=("pets",), **TINY)
    manifests = tmp_path / "a" / "manifests"
    again = {"tasks": ("pets",), **TINY, "manifests": manifests}
    assert rows(vtab("mu/8@16", pair, tmp_path / "b", **again))["pets"]["status"] == "done"
    text = (manifests / "pets.csv").read_text().splitlines()
    text[1] = "train,0000000000000000,0"
    (manifests / "pets.csv").write_text("\n".join(text))
    for out in ("b", "c"):  # where the task is done already, and where it is not
        with pytest.raises(DataError, match=r"train .*pets.csv .* 1 of 16 examples"):
            vtab("mu/8@16", pair, tmp_path / out, **again)
    with pytest.raises(DataError, match=r"svhn.csv: no such manifest"):
        vtab("mu/8@16", pair, tmp_path / "d", **{**again, "tasks": ("pets", "svhn")})
    assert not (tmp_path / "d").exists()


def test_a_manifest_beside_the_data(pair, tmp_path):
    shutil.copytree(pair / "oxford_iiit_pet", tmp_path / "data" / "pets")
    (tmp_path / "data" / "pets" / "manifest.csv").write_text("split,pixels,label\ntrain,0000000000000000,0\n")
    with pytest.raises(DataError, match=r"train .*manifest.csv .* 16 of 16 examples"):
        vtab("mu/8@16", tmp_path / "data", tmp_path / "out", tasks=("pets",), **TINY)


@pytest.mark.long
def test_two_processes_share_the_tasks(tmp_path):
    write_all(tmp_path / "data", (*PAIR, "dtd", "cifar100"))
    command = [sys.executable, "-c", TWO, str(tmp_path / "data"), str(tmp_path / "out")]
    processes = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate()[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    for task in ("cifar100", "dtd", "pets", "svhn"):  # each was done, and by one of them only
        assert sum(f"{task}: task" in text for text in said) == 1, said
    result = json.loads((tmp_path / "out" / "results.json").read_text())
    assert [row["task"] for row in result["rows"] if row["status"] == "done"] == [
        "cifar100",
        "dtd",
        "pets",
        "svhn",
    ]


def test_what_is_wrong_is_said_before_anything_is_computed(pair, tmp_path):
    with pytest.raises(DataError, match="has the data of none of the tasks; their folders are called: dtd"):
        vtab("mu/8@16", pair, tmp_path / "out", tasks=("dtd",), **TINY)
    shutil.copytree(pair / "oxford_iiit_pet", tmp_path / "data" / "pets")
    shutil.copytree(pair / "svhn_cropped", tmp_path / "data" / "clevr")
    with pytest.raises(DataError, match="no column objects; columns: image, label"):
        vtab("mu/8@16", tmp_path / "data", tmp_path / "out", **TINY)
    assert not (tmp_path / "out").exists()


def test_a_mistake_can_be_corrected(pair, tmp_path):
    with pytest.raises(ConfigError, match=r"1000 .* 20 examples"):
        vtab("mu/8@16", pair, tmp_path, tasks=("pets",), **{**TINY, "batch_size": 1000})
    result = vtab("mu/8@16", pair, tmp_path, tasks=("pets",), **TINY)
    assert rows(result)["pets"]["status"] == "done"


def test_a_model_object(pair, tmp_path):
    model = vitrail.create("mu/8@16", classes=3)
    first = vtab(model, pair, tmp_path, tasks=("pets",), **TINY)
    assert rows(first)["pets"]["status"] == "done" and first["model"] == str(tmp_path / "start")
    assert vtab(model, pair, tmp_path, tasks=("pets",), **TINY) == first
    with pytest.raises(ConfigError, match="another model"):
        vtab(vitrail.create("mu/8@16", classes=4), pair, tmp_path, tasks=("pets",), **TINY)


def test_any_setting_of_training(pair, tmp_path):
    changes = {"optimizer": "adamw", "weight_decay": 0.1, "label_smoothing": 0.2, "preprocess": LINE}
    vtab("mu/8@16", pair, tmp_path, tasks=("pets",), **TINY, **changes, dropout=0.5, seed=3)
    config = json.loads((tmp_path / "tasks/pets/final/3/run.json").read_text())["config"]
    assert (config["optimizer"]["optimizer"], config["optimizer"]["weight_decay"]) == ("adamw", 0.1)
    assert config["objective"]["label_smoothing"] == 0.2
    assert (config["model"]["dropout"], config["model"]["drop_path"]) == (0.5, 0.0)
    assert config["data"]["preprocess"] == LINE and config["seed"] == 3
    with pytest.raises(ConfigError, match=r"weight_decay is 0\.1"):
        vtab("mu/8@16", pair, tmp_path, tasks=("pets",), **TINY, **{**changes, "weight_decay": 0.2})


@pytest.mark.parametrize("wrong", [{"seeds": 0}, {"lr": -1.0}, {"learning_rate": 1.0}, {"steps": 0.5}])
def test_settings_that_make_no_sense(wrong, pair, tmp_path):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        vtab("mu/8@16", pair, tmp_path / "out", **{**TINY, **wrong})
    assert not (tmp_path / "out").exists()
