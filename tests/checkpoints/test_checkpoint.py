"""Loading into another number of classes and another image size: the two exceptions from strictness."""

import pytest
import torch

import vitrail
from tests.randomise import randomise
from vitrail.errors import ConfigError
from vitrail.models.positions import resample

FIELDS = {"width": 24, "depth": 2, "mlp_dim": 40, "heads": 3}


@pytest.fixture
def saved(tmp_path):
    model = randomise(vitrail.create("B/8", **FIELDS, image_size=(16, 24), classes=4, pre_logits=10))
    model.class_names = list("abcd")
    vitrail.save(model, tmp_path / "m")
    return tmp_path / "m"


def test_another_number_of_classes_gives_one_linear_layer_of_zeros(saved):
    old, new = vitrail.load(saved), vitrail.load(saved, classes=7)
    assert new.config.classes == 7
    assert new.config.pre_logits == 0
    assert new.class_names is None
    assert not new.head.classifier.weight.any() and not new.head.classifier.bias.any()
    x = torch.randn(2, 3, 16, 24)
    torch.testing.assert_close(new.features(x), old.features(x), rtol=1e-4, atol=1e-4)
    assert new(x).shape == (2, 7)


def test_what_was_measured_is_of_the_model_as_it_was(tmp_path):
    model = vitrail.create("B/8", **FIELDS, image_size=16, classes=4)
    model.metrics = {"test": {"top1": 0.9}}
    vitrail.save(model, tmp_path / "m")
    assert vitrail.load(tmp_path / "m", classes=4, image_size=16).metrics == model.metrics
    assert vitrail.load(tmp_path / "m", classes=7).metrics == {}
    assert vitrail.load(tmp_path / "m", image_size=32).metrics == {}


def test_the_same_number_of_classes_keeps_the_head(saved):
    assert vitrail.load(saved, classes=4).class_names == list("abcd")


def test_no_classes_gives_the_features(saved):
    model, x = vitrail.load(saved, classes=0), torch.randn(2, 3, 16, 24)
    torch.testing.assert_close(model(x), model.features(x), rtol=1e-4, atol=1e-4)


def test_another_image_size_resamples_positions_and_the_line(saved):
    old, new = vitrail.load(saved), vitrail.load(saved, image_size=(32, 40))
    assert new.config.grid == (4, 5)
    torch.testing.assert_close(
        new.positions.table.detach(), resample(old.positions.table.detach(), (2, 3), (4, 5))
    )
    assert "32" in new.preprocess and "40" in new.preprocess
    assert new(torch.randn(1, 3, 32, 40)).shape == (1, 4)


def test_the_method_can_be_chosen(saved):
    official, cubic = (vitrail.load(saved, image_size=32, resample=m) for m in ("official", "bicubic"))
    assert not torch.equal(official.positions.table, cubic.positions.table)
    with pytest.raises(ConfigError, match="resample='cubic' is not one of official"):
        vitrail.load(saved, image_size=32, resample="cubic")


def test_there_and_back_is_close(saved):
    """Doubling the grid and halving it again is nearly the identity for corners."""
    table = vitrail.load(saved).positions.table.detach()
    there = resample(table, (2, 3), (3, 5))
    assert torch.allclose(resample(there, (3, 5), (2, 3)), table, atol=1e-6)


@pytest.mark.parametrize("fields", [{"positions": "2d"}, {"positions": "1d", "positions_at": "every"},
                                    {"positions": "sincos"}, {"positions": "none"}], ids=str)  # fmt: skip
def test_every_kind_of_positions_but_relative_goes_to_another_size(tmp_path, fields):
    vitrail.save(randomise(vitrail.create("B/8", **FIELDS, image_size=16, **fields)), tmp_path / "m")
    model = vitrail.load(tmp_path / "m", image_size=(24, 40))
    assert model(torch.randn(1, 3, 24, 40)).shape == (1, 1000)


def test_relative_positions_are_refused(tmp_path):
    vitrail.save(vitrail.create("B/8", **FIELDS, image_size=16, positions="relative"), tmp_path / "m")
    with pytest.raises(ConfigError, match="load this model at its own image size"):
        vitrail.load(tmp_path / "m", image_size=24)


def test_an_image_size_that_does_not_fit(saved):
    with pytest.raises(ConfigError, match="not a multiple of 8"):
        vitrail.load(saved, image_size=33)


def test_a_resnet_takes_any_size(tmp_path):
    vitrail.save(vitrail.create("R50x1", units=(1,), width_factor=0.5, image_size=32), tmp_path / "m")
    assert vitrail.load(tmp_path / "m", image_size=(48, 64)).config.image_size == (48, 64)


def test_a_head_bias_does_not_need_a_head(tmp_path):
    vitrail.save(vitrail.create("B/8", **FIELDS, image_size=16, head_bias=-10.0), tmp_path / "m")
    assert vitrail.load(tmp_path / "m", classes=0).head.classifier is None


def test_class_names_must_be_as_many_as_the_classes(tmp_path):
    model = vitrail.create("B/8", **FIELDS, image_size=16, classes=3)
    model.class_names = ["only one"]
    with pytest.raises(ConfigError, match="1 class names for a model of 3"):
        vitrail.save(model, tmp_path / "m")


def test_another_patch_size(tmp_path):
    """The grid follows from both sizes; larger patches of resized images give what the old ones gave."""
    import torch.nn.functional as F

    from tests.randomise import randomise
    from vitrail.checkpoints.formats import create, load, save

    model = randomise(create("mu/8", depth=1, classes=3, image_size=32)).eval()
    save(model, tmp_path / "m")
    larger = load(tmp_path / "m", patch_size=16, image_size=64)
    assert (larger.config.grid, larger.config.patch_size) == ((4, 4), 16)
    x = torch.randn(2, 3, 4, 8, 4, 8)  # patches apart, so that the resize stays within them
    resized = x.permute(0, 2, 4, 1, 3, 5).flatten(0, 2)
    resized = F.interpolate(resized, size=(16, 16), mode="bilinear", align_corners=False)
    resized = resized.unflatten(0, (2, 4, 4)).permute(0, 3, 1, 4, 2, 5).reshape(2, 3, 64, 64)
    with torch.no_grad():
        assert torch.allclose(larger(resized), model(x.reshape(2, 3, 32, 32)), atol=1e-4)
    assert load(tmp_path / "m", patch_size=4).config.grid == (8, 8)
    with pytest.raises(ConfigError, match="not a multiple of 5"):
        load(tmp_path / "m", patch_size=5)
    assert "resize" in larger.preprocess and "64" in larger.preprocess
