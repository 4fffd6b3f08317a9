"""The demo in small: what it leaves behind, that no finished stage is repeated, and what it refuses."""

import json
import shutil

import pytest
import torch
from PIL import Image

import vitrail
from tests.demo.small import DATA, small, write_model
from vitrail.demo.demo import RANDOM, STAGES, run_demo, with_random_weights
from vitrail.errors import CheckpointError, ConfigError


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model") / "mu")


@pytest.fixture(scope="module")
def made(model, tmp_path_factory):
    return run_demo(small(model), tmp_path_factory.mktemp("demo") / "out", device="cpu")


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_every_stage_has_its_results(made, model):
    results = made.results
    assert list(results) == list(STAGES) and not made.finished_before
    assert all(results[name]["seconds"] > 0 for name in STAGES)
    first, second = results["pictures"]["pictures"]
    assert (first["name"], first["label"], second["name"]) == ("orange", "orange", "banana")
    assert len(first["top"]) == 3 and results["pictures"]["classes"] == 12
    few = results["fewshot"]["scores"]
    assert list(few) == [RANDOM, str(model)] and few[RANDOM] != few[str(model)]
    for scores in few.values():
        assert [one["name"] for one in scores] == ["1-shot", "5-shot"]
        assert all(0 <= one["value"] <= 1 and one["n"] == 20 for one in scores)
    tuned = results["finetune"]
    assert (tuned["steps"], tuned["train_examples"], tuned["test_examples"]) == (3, 80, 20)


def test_the_fine_tuned_model_is_as_good_as_was_said(made):
    tuned = vitrail.load(made.folder / "finetuned" / "model")
    assert "purple" in tuned.class_names
    assert vitrail.evaluate(tuned, DATA).top1 == made.results["finetune"]["top1"]


def test_the_page_and_the_summary(made):
    files = made.results["report"]["files"]
    assert files == {"report": "report/report.html", "summary": "demo.png"}  # in a folder that can be moved
    assert "orange" in (made.folder / files["report"]).read_text()
    with Image.open(made.folder / files["summary"]) as picture:
        assert picture.width > 2 * 160 and picture.height > 4 * 160  # two columns, four rows


def test_a_finished_demo_is_shown_and_nothing_is_done(made, model):
    before = contents(made.folder)
    again = run_demo(small(model), made.folder, device="cpu")
    assert again.finished_before and again.results == made.results
    assert contents(made.folder) == before


def test_the_model_of_a_finished_demo_is_written_again(made, model, tmp_path):
    folder = shutil.copytree(made.folder, tmp_path / "out")
    shutil.rmtree(folder / "finetuned/model")
    assert run_demo(small(model), folder, device="cpu").results == made.results
    assert contents(folder / "finetuned/model").keys() == {
        folder / "finetuned/model" / name for name in ("model.json", "model.safetensors")
    }


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("content", [5, None, {}, {"seconds": "x"}, {"pictures": []}, []])
def test_results_that_were_changed_by_hand_are_an_error_in_words(made, model, tmp_path, stage, content):
    folder = shutil.copytree(made.folder, tmp_path / "out")
    card = json.loads((folder / "run.json").read_text())
    for results in ({**card["results"], stage: content}, None):
        kept = {name: value for name, value in card.items() if name != "results"}
        (folder / "run.json").write_text(json.dumps(kept | ({"results": results} if results else {})))
        (folder / f"{stage}.json").write_text(json.dumps(content))
        with pytest.raises(CheckpointError):
            run_demo(small(model), folder, device="cpu")


def test_a_stage_that_is_finished_is_not_repeated(made, model, tmp_path):
    """As if it had been killed in the last stage: what stands in the files of the others is believed."""
    folder = shutil.copytree(made.folder, tmp_path / "out")
    card = json.loads((folder / "run.json").read_text())
    del card["results"]
    (folder / "run.json").write_text(json.dumps(card))
    for path in (folder / "report.json", folder / "demo.png", folder / "report/report.html"):
        path.unlink()
    marked = {}
    for name in ("pictures", "fewshot", "finetune"):
        marked[name] = json.loads((folder / f"{name}.json").read_text()) | {"marked": name}
        (folder / f"{name}.json").write_text(json.dumps(marked[name]))
    again = run_demo(small(model), folder, device="cpu")
    assert not again.finished_before
    assert {name: again.results[name] for name in marked} == marked
    assert (folder / "demo.png").is_file() and (folder / "report/report.html").is_file()


@pytest.mark.parametrize(
    "fields",
    [{"data": "shapes:shape?n=80"}, {"images": ("orange.png",)}, {"steps": 4}],
    ids=lambda f: next(iter(f)),
)
def test_a_folder_of_another_demo_is_refused(made, model, fields, monkeypatch):
    monkeypatch.chdir(made.folder / "pictures")
    before = contents(made.folder)
    with pytest.raises(ConfigError, match=f"never overwritten.*{next(iter(fields))}"):
        run_demo(small(model, **fields), made.folder, device="cpu")
    assert contents(made.folder) == before


def test_random_weights_are_always_the_same_and_leave_the_dice_alone(model):
    loaded = vitrail.load(model)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    one = with_random_weights(loaded)
    assert torch.equal(torch.rand(3), expected)
    torch.manual_seed(6)
    other = with_random_weights(loaded)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    assert one.config == loaded.config and one.preprocess == loaded.preprocess
    pairs = zip(one.parameters(), loaded.parameters(), strict=True)
    assert not any(torch.equal(a, b) for a, b in pairs)
