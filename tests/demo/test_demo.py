"""The demo in small: what it leaves behind, that no finished stage is repeated, and what it refuses."""

import json
import shutil
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import vitrail
from tests.demo.small import DATA, small, write_model
from vitrail.data.readers.class_names import readable
from vitrail.data.sources import open_source
from vitrail.data.splits import parse_split
from vitrail.demo import Demo
from vitrail.demo.demo import (
    RANDOM,
    STAGES,
    Material,
    captions,
    few_split,
    read_some,
    run_demo,
    share_split,
    with_random_weights,
)
from vitrail.errors import CheckpointError, ConfigError, VitrailError


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


@pytest.fixture
def photos(tmp_path):
    """train: 6 of each class; val: 3."""
    rng = np.random.default_rng(0)
    for split, count in (("train", 6), ("val", 3)):
        for name in ("ant", "bee"):
            folder = tmp_path / "photos" / split / name
            folder.mkdir(parents=True)
            for i in range(count):
                Image.fromarray(rng.integers(0, 256, (20, 30, 3), np.uint8)).save(folder / f"{i}.png")
    return tmp_path / "photos"


def opened(settings, tmp_path):
    return Material.open(settings, tmp_path / "out", "cpu")


def test_a_folder_of_photographs(model, photos, tmp_path):
    material = opened(small(model, data=str(photos), shots=(1, 5, 10), pictures=4), tmp_path)
    assert material.shots == (1, 5) and material.test_split == "validation"
    assert [one.label for one in material.pictures] == ["ant", "bee", "ant", "bee"]
    assert [one.path.name for one in material.pictures] == ["01.png", "02.png", "03.png", "04.png"]
    assert not (tmp_path / "out").exists()


def test_a_broken_image_of_the_data_is_passed_over(model, photos, tmp_path):
    for i in range(3):
        (photos / "val/ant" / f"{i}.png").write_text("not an image")
    material = opened(small(model, data=str(photos), pictures=6), tmp_path)
    assert [one.label for one in material.pictures] == ["bee"] * 3


def test_images_that_are_named(model, photos, tmp_path):
    material = opened(small(model, images=(str(photos),), pictures=3), tmp_path)
    assert len(material.pictures) == 3 and all(one.path.is_file() for one in material.pictures)
    assert material.pictures[0].pixels.shape == (20, 30, 3)


def test_the_included_model_names_most_of_the_rendered_pictures(tmp_path):
    pictures = opened(Demo(), tmp_path).pictures
    model = vitrail.load("ti8-64")
    assert len(pictures) == 8 and all(one.pixels.shape == (128, 128, 3) for one in pictures)
    assert {one.label for one in pictures} <= {readable(name) for name in model.class_names}
    answers = vitrail.predict(model, [one.pixels for one in pictures], top=1)
    right = [
        one.name for one, [(name, _)] in zip(pictures, answers, strict=True) if readable(name) == one.label
    ]
    assert len(right) >= 6, right


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"data": "nowhere"}, "no data set 'nowhere'"),
        ({"data": "shapes:sound"}, "no question 'sound'"),
        ({"images": ("nothing.png",)}, "nothing.png"),
        ({"model": "nothing"}, "no such file or folder: nothing"),
        ({"shots": (11,)}, "allows at most 10"),
        ({"shots": ()}, "shots"),
        ({"pictures": 13}, "at most 12"),
        ({"lr": 0.0}, "lr"),
        *(({name: 0}, name) for name in ("steps", "batch_size", "seeds", "max_images", "pictures")),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_written(model, tmp_path, fields, said):
    with pytest.raises(VitrailError, match=said):
        opened(small(**{"model": model} | fields), tmp_path)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["mu/8", "BiT"])
def test_a_model_that_cannot_classify_or_attend(tmp_path, name):
    made = (
        vitrail.create("mu/8", classes=0, image_size=16)
        if name == "mu/8"
        else vitrail.create("R50x1", classes=3, image_size=32, units=(1,), width_factor=1)
    )
    vitrail.save(made, tmp_path / "model")
    with pytest.raises(VitrailError, match="needs a ViT with a classifier"):
        opened(small(tmp_path / "model"), tmp_path)


@dataclass
class Labelled:
    """As much of a source as splits look at."""

    labels: np.ndarray
    name: str = "stub"

    def __len__(self):
        return len(self.labels)

    @property
    def class_names(self):
        return [str(k) for k in range(int(self.labels.max()) + 1)]


COUNTS = st.lists(st.integers(1, 40), min_size=2, max_size=30)  # images of each class


def taken(split, source):
    (part,) = parse_split(split)
    return part.indices(source)


@given(COUNTS, st.integers(1, 200), st.lists(st.integers(1, 50), min_size=1).map(tuple))
def test_few_shot_draws_from_as_many_of_each_class(counts, most, shots):
    source = Labelled(np.repeat(np.arange(len(counts)), counts))
    split = few_split(source, Demo(max_images=most, shots=shots))
    found = np.bincount(source.labels[taken(split, source)], minlength=len(counts))
    assert len(set(found)) == 1
    assert found[0] == min(counts) or found[0] >= max(shots)  # no shot is lost that the data has
    assert found[0] <= max(*shots, most // len(counts))


@given(COUNTS, st.integers(1, 200))
def test_a_part_of_the_test_split_has_every_class_in_proportion(counts, most):
    source = Labelled(np.repeat(np.arange(len(counts)), counts))
    index = taken(share_split("test", source, most), source)
    assert len(index) >= 1
    if len(source) <= most:
        assert len(index) == len(source)
        return
    share = max(most / len(source), 1 / max(counts))
    found = np.bincount(source.labels[index], minlength=len(counts))
    assert (np.abs(found - share * np.array(counts)) <= 0.6).all()


@given(COUNTS, st.integers(1, 60))
def test_pictures_are_of_as_many_classes_as_there_are_places(counts, most):
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(len(counts)), counts))
    source = open_source("shapes:colour?n=80", "train")

    class Shown(Labelled):
        def read(self, index):
            return source.read(0)

    shown = Shown(labels)
    chosen = list(read_some(shown, most))
    assert len(set(chosen)) == len(chosen) == min(most, len(labels))
    assert len({labels[i] for i in chosen}) == min(most, len(counts))


def test_names_are_shortened_to_the_width_of_a_picture():
    first, second, empty = captions(["n02165456 ladybug", "x" * 40], [[("a" * 40, 0.5)], [("bee", 1.0)]], 3)
    assert first == f"ladybug\n→ {'a' * 5}…{'a' * 5} 50%"
    assert [len(line) for line in second.split("\n")] == [18, 10] and second.endswith("→ bee 100%")
    assert empty == ""
