"""The engine itself: one image through `transform`, many through the loader, any of them broken."""

import io
import pickle

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from tests.evaluators.split import Split, named, small_model
from vitrail.errors import ConfigError, ImageError
from vitrail.inference.engine import HELD, as_sources, evaluation_loader, image_outputs

PIXELS = np.random.default_rng(0).integers(0, 256, (30, 40, 3), np.uint8)


def encoded(pixels):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def test_transform_makes_of_any_kind_of_image_what_predict_sees(tmp_path):
    model = small_model()
    prepare = vitrail.transform(model)
    (tmp_path / "a.png").write_bytes(encoded(PIXELS))
    x = prepare(PIXELS)
    assert x.shape == (3, 16, 16) and x.dtype == torch.float32
    for image in (Image.fromarray(PIXELS), encoded(PIXELS), tmp_path / "a.png", str(tmp_path / "a.png")):
        torch.testing.assert_close(prepare(image), x, rtol=0, atol=0)
    seen = []
    list(image_outputs(model, [PIXELS], lambda batch: seen.append(batch) or model(batch)))
    torch.testing.assert_close(seen[0][0], x, rtol=0, atol=0)
    assert torch.equal(pickle.loads(pickle.dumps(prepare))(PIXELS), x)


def test_transform_for_training_draws_from_torchs_generator(tmp_path):
    model = small_model()
    vitrail.save(model, tmp_path / "model")
    prepare = vitrail.transform(tmp_path / "model", training=True)
    torch.manual_seed(0)
    one, other = prepare(PIXELS), prepare(PIXELS)
    assert one.shape == (3, 16, 16) and not torch.equal(one, other)
    torch.manual_seed(0)
    assert torch.equal(prepare(PIXELS), one)
    assert -1 <= one.min() < one.max() <= 1


def test_transform_refuses_what_is_no_image():
    with pytest.raises(ConfigError, match="NoneType"):
        vitrail.transform(small_model())(None)
    with pytest.raises(ImageError, match="float64"):
        vitrail.transform(small_model())(np.zeros((4, 4, 3)))


def test_an_iterator_is_taken_in_pieces():
    taken = []

    def images():
        for i in range(HELD + 2):
            taken.append(i)
            yield PIXELS

    sources = as_sources(images())
    assert len(next(sources)) == HELD == len(taken)
    assert len(next(sources)) == 2


def test_features_stop_at_an_image_that_cannot_be_read():
    for images in ([PIXELS, b"scribbled over"], Split(5, named(3), broken=[3])):
        with pytest.raises(ImageError, match=r"image 2|picture-004"):
            vitrail.features(small_model(), images)


@pytest.mark.parametrize(("n", "batch_size", "per_batch"), [(33, 32, 17), (3, 32, 3), (64, 32, 32)])
def test_a_list_of_images_is_hardly_padded(n, batch_size, per_batch):
    (source,) = as_sources([PIXELS] * n)
    model = small_model()
    sizes = []
    list(image_outputs(model, source.images, lambda x: sizes.append(len(x)) or model(x), batch_size))
    assert set(sizes) == {per_batch}


def test_batches_hold_something():
    with pytest.raises(ConfigError, match="batch_size must be at least 1, not 0"):
        evaluation_loader(Split(3, named(3)), None, 0)


def test_models_by_name():
    names = vitrail.list_models()
    assert "B/16" in names and "ti8-64" in names
    assert vitrail.list_models("r50x*") == ["R50x1", "R50x2", "R50x3"]
    assert vitrail.list_models("nothing*") == []
    vitrail.create("Ti/16", classes=2)
    assert vitrail.load("ti8-64").config.classes == 200
