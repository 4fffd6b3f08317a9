"""What the demo is given: cut to size, with pictures from the right place; what is wrong with it is found at once."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import vitrail
from tests.demo.small import small, write_model
from vitrail.data.readers.class_names import readable
from vitrail.data.sources import open_source
from vitrail.data.splits import parse_split
from vitrail.demo.material import Material, few_split, read_some, share_split
from vitrail.demo.settings import Demo
from vitrail.errors import VitrailError


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model") / "mu")


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
