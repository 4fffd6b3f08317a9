"""Images that int8 is calibrated on where none are given: the training split that the model records, unchanged."""

import numpy as np
import pytest
from PIL import Image

import vitrail
from tests.exporting.small import small_model
from vitrail.data.sources import DataSet
from vitrail.errors import ConfigError, DataError
from vitrail.exporting.calibration_images import calibration_inputs, given_images, training_images
from vitrail.exporting.settings import ExportSettings
from vitrail.inference.images import Pictures

SPLIT = "train[:80% per class, seed 0]"


@pytest.fixture
def data(tmp_path):
    """A folder of 20 images, each of one level of its own."""
    for i in range(20):
        place = tmp_path / "data" / "train" / f"class {i % 2}"
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((32, 32, 3), 12 * i, np.uint8)).save(place / f"{i:02}.png")
    return tmp_path / "data"


@pytest.fixture
def model(data):
    """A model with the provenance of a run on a part of them."""
    model, train = small_model(), DataSet(data).part(SPLIT)
    model.provenance = {
        "experiment": {"data": {"data": str(data), "train": "auto"}},
        "used": {"train": train.name},
        "data": f"{train.fingerprint()} {DataSet(data).part('train[80%: per class]').fingerprint()} -",
    }
    return model


def test_the_images_are_those_that_the_model_was_trained_on(model, data):
    source, settings = training_images(model), ExportSettings(precision="int8")
    assert len(source) == 16 and source.name.endswith(SPLIT)
    levels = sorted(int(x[0, 0, 0, 0]) for x in calibration_inputs(model, settings, source))
    held_out = DataSet(data).part("train[80%: per class]")
    assert len(levels) == 16 and not set(levels) & {int(held_out.read(i).key[-6:-4]) * 12 for i in range(4)}


def test_images_are_given_with_or_without_labels(data, tmp_path):
    assert len(given_images(data, "train")) == 20
    alone = data / "train" / "class 0"
    (alone / "notes.txt").write_text("no image")
    settings = ExportSettings(precision="int8")
    levels = [
        int(x[0, 0, 0, 0]) for x in calibration_inputs(small_model(), settings, given_images(alone, "train"))
    ]
    assert sorted(levels) == [24 * i for i in range(10)]
    (tmp_path / "empty").mkdir()
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "notes.txt").write_text("no image")
    for i in range(9):  # an image beside a folder: nothing says what it is
        (tmp_path / "both" / f"{i}").mkdir(parents=True)
        (tmp_path / "both" / f"{i}.png").write_bytes(b"")
    assert not isinstance(given_images(data / "train", "train"), Pictures)
    for name in ("empty", "text", "both", "nowhere"):
        with pytest.raises((DataError, ConfigError), match=r"no class folder|no data set"):
            given_images(tmp_path / name, "train")
    with pytest.raises((DataError, ConfigError), match="no split 'validation'"):
        given_images(data, "validation")


def test_without_them_calibration_is_refused(model, data, tmp_path):
    image = next((data / "train" / "class 0").iterdir())
    image.write_bytes(image.read_bytes() + b"more")
    with pytest.raises(ConfigError, match="has changed since"):
        training_images(model)
    data.rename(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="cannot be opened"):
        vitrail.export(model, tmp_path / "out", precision="int8")
    model.provenance = {"format": "created"}
    with pytest.raises(ConfigError, match="does not record its own: --calibrate DATA"):
        vitrail.export(model, tmp_path / "out", precision="int8")
    assert not (tmp_path / "out").exists()


def test_a_trained_model_records_them(data, tmp_path):
    """The provenance above is that of a run."""
    vitrail.pretrain(data, model="mu/8", image_size=16, out=tmp_path / "run", device="cpu", steps=1, batch_size=4,
                     warmup=0, num_workers=0, train=SPLIT, val="train[80%: per class, seed 0]")  # fmt: skip
    assert len(training_images(vitrail.load(tmp_path / "run"))) == 16
