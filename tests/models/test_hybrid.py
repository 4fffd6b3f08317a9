import pytest
import torch

from tests.randomise import randomise
from vitrail.errors import ConfigError
from vitrail.models.hybrid import HYBRIDS
from vitrail.models.names import build, make_config


@pytest.mark.parametrize(
    ("name", "tokens"), [("R+Ti/16", 50), ("R26+S/32", 50), ("R50+B/16", 197), ("R50+L/32", 50)]
)
def test_tokens_at_224(name, tokens):
    assert make_config(name).tokens == tokens


@pytest.mark.parametrize("name", HYBRIDS)
def test_the_stem_feeds_the_encoder(name):
    config = make_config(name, depth=1, image_size=(32, 64), classes=3)
    model = randomise(build(config)).eval()
    x = torch.randn(1, 3, 32, 64)
    assert model.stem(x).shape == (1, config.stem.width, 32 // config.stem.stride, 64 // config.stem.stride)
    assert model.patches(x).shape == (1, config.grid[0] * config.grid[1], config.width)
    assert model(x).shape == (1, 3)


def test_stage_3_is_extended_where_stage_4_is_left_out():
    assert make_config("R50+B/16").stem.units == (3, 4, 9)
    assert make_config("R50+B/32").stem.units == (3, 4, 6, 3)


def test_image_size_is_checked_against_the_whole_stride():
    with pytest.raises(ConfigError, match="multiple of 32"):
        make_config("R50+L/32", image_size=240)
