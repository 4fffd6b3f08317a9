"""A small model on disk, and the application that serves it."""

import pytest

import vitrail
from tests.randomise import randomise
from vitrail.serve.app import create_app
from vitrail.serve.start import make_state

CLASSES = ["n02085620 Chihuahua", "cat", "fish"]


def save_model(folder, seed=0, **overrides):
    model = vitrail.create("mu/8", image_size=32, classes=len(CLASSES), **overrides)
    randomise(model, seed)
    model.class_names = CLASSES
    vitrail.save(model, folder)
    return folder


@pytest.fixture(scope="session")
def small_model(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("serve") / "small")


@pytest.fixture
def state(small_model, tmp_path):
    opened = make_state([f"small={small_model}"], learn=str(tmp_path / "learn"), device="cpu", seconds=60)
    yield opened
    opened.close()


@pytest.fixture
def app(state):
    return create_app(state)
