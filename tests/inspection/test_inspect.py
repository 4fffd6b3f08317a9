"""One look at every kind of model: what there is, what is not there, and why."""

import dataclasses

import numpy as np
import pytest

import vitrail
from tests.inspection.looked_at import MODELS, bit, made, pictures
from vitrail.inspection.attention import attention_distances
from vitrail.inspection.figures import views_of
from vitrail.inspection.inspect import inspect, picture_of


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
    assert seen.notes == [
        "a BiT ResNet has neither attention nor position embeddings: of the figures only the filters and the "
        "occlusion map exist for it"
    ]


def test_models_beside_each_other():
    seen = inspect(made("token"), pictures(2), name="a", beside={"b": made("hybrid"), "c": bit()}, closely=0)
    assert list(seen.distances) == list(seen.compared) == ["a", "b"]
    assert [c.image_size for c in seen.compared.values()] == [(32, 32), (64, 64)]
    assert seen.subjects == []
    assert seen.notes[0].startswith("c: a BiT ResNet")


def test_without_images_the_weights_alone():
    seen = inspect(made("token"))
    assert seen.distances == {} and seen.subjects == [] and seen.positions is not None
    assert "no images were given" in seen.notes[0]


def test_without_a_classifier_there_is_no_answer():
    seen = inspect(made("token", classes=0), pictures(1))
    assert seen.subjects[0].top == [] and seen.subjects[0].occlusion.max() > 0


@pytest.mark.parametrize(("classes", "what"), [(5, "probability falls"), (0, "features turn")])
def test_the_caption_of_occlusion_says_what_falls_and_by_how_much(classes, what):
    seen = inspect(made("token", classes=classes), pictures(1))
    falls = np.full((4, 4), -1.0)
    falls[1, 2] = 0.25
    captions = views_of(dataclasses.replace(seen.subjects[0], occlusion=falls), seen.config)
    assert f"occlusion: {what} by up to 0.25" in captions


@pytest.mark.parametrize("line", ["resize(32)|uint8|to_range(-1, 1)", "resize(32)|normalize(0.5, 0.2)"])
def test_the_picture_is_what_the_model_sees(line):
    model = made("token")
    model.preprocess = line
    image = np.full((32, 32, 3), (10, 128, 250), np.uint8)
    np.testing.assert_array_equal(picture_of(model, image), image)


def test_a_look_changes_nothing():
    model = made("token")
    before = vitrail.features(model, pictures(2))
    config = dataclasses.asdict(model.config)
    inspect(model, pictures(2))
    np.testing.assert_array_equal(vitrail.features(model, pictures(2)), before)
    assert dataclasses.asdict(model.config) == config
