"""vtab and transfer, as the command line calls them."""

import json

import pytest

import vitrail
from tests.evaluators.split import small_model
from tests.transfer.stand_in import SIZES, write_all
from vitrail.cli import run
from vitrail.cli.verb import show
from vitrail.errors import ConfigError, DataError

DATA = "shapes:colour?n=60&image_size=16"


def command(*words):
    return run([str(word) for word in words])


@pytest.fixture
def bundle(tmp_path):
    vitrail.save(small_model(), tmp_path / "pets" / "model")
    return tmp_path / "pets" / "model"


def test_vtab(tmp_path, capsys):
    write_all(tmp_path / "data", ("oxford_iiit_pet",))
    shown = command(
        "vtab", "mu/8@16", "--data", tmp_path / "data", "--out", tmp_path / "out", "--tasks", "pets", "dmlab",
        "--image-size", 16, "--steps", 2, "--batch-size", 8, "--train-examples", SIZES["train_examples"],
        "--val-examples", SIZES["val_examples"], "--paper", "H/14 JFT", "--device", "cpu", "--json",
    )  # fmt: skip
    show(shown)
    made = json.loads(capsys.readouterr().out)
    assert [row["status"] for row in made["rows"]] == ["done", "absent"]
    assert made["vtab"] == {"mean": None, "done": 1, "of": 19}
    assert all(len(row) == len(shown.columns) for row in shown.rows)
    assert [row[0] for row in shown.rows][-1] == "mean of 19"
    assert "normalisation to_range(-1, 1)" in shown.after[0]


def test_transfer_as_scenic(bundle, tmp_path, capsys):
    """Whoever reads the table, a file or the JSON is told that l2 was chosen on the test sets."""
    words = (
        "transfer",
        bundle,
        "--data",
        DATA,
        "shapes?n=60&image_size=16",
        "--methods",
        "fewshot",
        "--shots",
        1,
        4,
    )
    words = (
        *words,
        "--draws",
        "scenic",
        "--fewshot-l2",
        "test-rank",
        "--out",
        tmp_path / "out",
        "--device",
        "cpu",
    )
    shown = command(*words)
    show(shown)
    for said in (capsys.readouterr().out, (tmp_path / "out" / "results.md").read_text()):
        assert "chosen on the TEST accuracies, one for all data sets (2)" in said
        assert "the examples that scenic draws" in said
    made = json.loads((tmp_path / "out" / "results.json").read_text())
    assert made["fewshot_l2"].keys() == {"1-shot", "4-shot"}
    for row in made["rows"]:
        assert (row["l2"], row["n"], len(row["by_l2"])) == (made["fewshot_l2"][row["score"]], 1, 30)


def test_transfer(bundle, tmp_path):
    shown = command(
        "transfer", bundle, "--data", DATA, "--methods", "fewshot", "knn", "--seeds", 2, "--shots", 1, "--k", 1,
        "--out", tmp_path / "out", "--device", "cpu",
    )  # fmt: skip
    assert [row[1] for row in shown.rows] == ["1-shot", "knn"]
    assert all(len(row) == len(shown.columns) for row in shown.rows)
    assert str(tmp_path / "out" / "results.md") in shown.after[-1]


@pytest.mark.parametrize(
    ("words", "error", "said"),
    [
        (("vtab", "mu/8@16", "--data", ".", "--tasks", "cifar"), ConfigError, "did you mean cifar100"),
        (("vtab", "mu/8@16", "--data", "nowhere"), DataError, "nowhere: no such folder"),
        (("transfer", "nowhere", "--data", DATA, "--shots", "11"), DataError, "11-shot"),
    ],
)
def test_bad_input(words, error, said, tmp_path):
    with pytest.raises(error, match=said):
        command(*words, "--out", tmp_path / "out", "--device", "cpu")


def test_where_results_go_when_nothing_is_said(bundle, monkeypatch):
    asked = []

    def work(model, data, out, **named):
        asked.append(str(out))
        raise DataError("enough")

    monkeypatch.setattr("vitrail.transfer.vtab.vtab", work)
    monkeypatch.setattr("vitrail.transfer.suite.transfer", work)
    for words in (("vtab", "B/16"), ("vtab", "L/16"), ("transfer", bundle), ("transfer", "ti8-64")):
        with pytest.raises(DataError, match="enough"):
            command(*words, "--data", "anything")
    folders = ("vtab-b-16", "vtab-l-16", "transfer-pets", "transfer-ti8-64")
    assert asked == [f"runs/{folder}" for folder in folders]
