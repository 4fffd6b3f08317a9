"""One look at every kind of model: what there is, what is not there, and why."""

import dataclasses

import numpy as np
import pytest
from PIL import Image

import vitrail
from tests.inspection.looked_at import MODELS, bit, made, pictures
from vitrail.data.sources import open_source
from vitrail.inspection.attention import NOT_FOR_RESNETS, attention_distances
from vitrail.inspection.figures import draw_views
from vitrail.inspection.inspect import inspect, model_input


@pytest.mark.parametrize("kind", MODELS)
def test_every_model_with_attention_is_seen_whole(kind):
    model, images = made(kind), pictures(3)
    seen = inspect(model, images, name="it", closely=1)
    c = model.config
    assert list(seen.distances) == ["it"]
    np.testing.assert_allclose(seen.distances["it"], attention_distances(model, images), rtol=1e-5)
    assert [one.name for one in seen.subjects] == ["image 1"]
    for one, image in zip(seen.subjects, images, strict=False):
        assert one.picture.shape == (*c.image_size, 3)
        assert one.maps.shape == (len(seen.layers), c.heads, *c.grid)
        assert one.rollout.shape == c.grid
        assert dict(one.top) == pytest.approx(dict(vitrail.predict(model, image)[0]), rel=1e-4)
    assert (seen.positions is None) == (kind == "relative")
    assert bool(seen.notes) == (kind == "relative")


def test_a_resnet_has_filters_and_occlusion_and_a_sentence():
    seen = inspect(bit(), pictures(2), beside={"other": made("token")})
    assert seen.filters.components.shape[1:] == (7, 7, 3)
    assert seen.positions is None and seen.layers == [] and list(seen.distances) == ["other"]
    assert all(
        one.maps is None and one.rollout is None and one.occlusion.shape == (2, 2) for one in seen.subjects
    )
    assert seen.notes == [NOT_FOR_RESNETS]


def test_models_beside_each_other():
    seen = inspect(made("token"), pictures(2), name="a", beside={"b": made("hybrid"), "c": bit()}, closely=0)
    assert list(seen.distances) == list(seen.compared) == ["a", "b"]
    assert [c.image_size for c in seen.compared.values()] == [(32, 32), (64, 64)]
    assert seen.subjects == []
    assert seen.notes[0].startswith("c: a BiT ResNet")


def test_without_images_the_weights_alone():
    seen = inspect(made("token"))
    assert seen.distances == {} and seen.subjects == [] and seen.positions is not None
    assert "need images" in seen.notes[0]


def test_without_a_classifier_there_is_no_answer():
    seen = inspect(made("token", classes=0), pictures(1))
    assert seen.subjects[0].top == [] and seen.subjects[0].occlusion.max() > 0


@pytest.mark.parametrize(("classes", "what"), [(5, "probability"), (0, "features")])
def test_the_caption_of_occlusion_says_what_falls_and_by_how_much(classes, what):
    seen = inspect(made("token", classes=classes), pictures(1))
    falls = np.full((4, 4), -1.0)
    falls[1, 2] = 0.25
    *_, said = draw_views(dataclasses.replace(seen.subjects[0], occlusion=falls), seen.config)
    assert what in said and "0.25" in said and "8 x 8 pixels" in said
    *_, said = draw_views(dataclasses.replace(seen.subjects[0], occlusion=falls / 1000), seen.config)
    assert "< 0.01" in said


def test_a_small_fall_is_not_hot():
    """Colours have one scale for all images: what hardly matters is dark."""
    seen = inspect(made("token"), pictures(1))
    shown = {}
    for fall in (0.00014, 0.6):
        falls = np.zeros((4, 4))
        falls[1, 2] = fall
        *_, shown[fall] = draw_views(
            dataclasses.replace(seen.subjects[0], occlusion=falls), seen.config
        ).values()
    *_, nothing = draw_views(
        dataclasses.replace(seen.subjects[0], occlusion=np.zeros((4, 4))), seen.config
    ).values()
    assert np.abs(shown[0.00014].astype(int) - nothing).max() <= 1
    assert np.abs(shown[0.6].astype(int) - nothing).max() > 100


def test_a_path_a_folder_and_a_source(tmp_path):
    model = made("token")
    vitrail.save(model, tmp_path / "tabby")
    for i, image in enumerate(pictures(2)):
        (tmp_path / "data" / "cats").mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(tmp_path / "data" / "cats" / f"{i}.png")
    seen = vitrail.inspect(tmp_path / "tabby", tmp_path / "data", closely=1)
    assert seen.name == "tabby" and [one.name for one in seen.subjects] == ["0.png"]
    assert len(seen.distances["tabby"]) == 2
    (subject,) = vitrail.inspect(
        model, open_source(f"{tmp_path / 'data'}?validation=0&test=0"), closely=1
    ).subjects
    assert subject.true == "cats" and subject.name.endswith(".png")


@pytest.mark.parametrize("line", ["resize(32)|uint8|to_range(-1, 1)", "resize(32)|normalize(0.5, 0.2)"])
def test_the_picture_is_what_the_model_sees(line):
    model = made("token")
    model.preprocess = line
    image = np.full((32, 32, 3), (10, 128, 250), np.uint8)
    np.testing.assert_array_equal(model_input(model, image), image)


def test_a_look_changes_nothing():
    model = made("token")
    before = vitrail.features(model, pictures(2))
    config = dataclasses.asdict(model.config)
    inspect(model, pictures(2))
    np.testing.assert_array_equal(vitrail.features(model, pictures(2)), before)
    assert dataclasses.asdict(model.config) == config
