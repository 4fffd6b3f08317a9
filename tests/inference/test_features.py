import numpy as np
import pytest
import torch

import vitrail
from tests.evaluators.split import Split
from tests.randomise import randomise
from vitrail.errors import ConfigError
from vitrail.inference.engine import image_outputs
from vitrail.inference.feature_cache import EXTRACTION, extract_rows
from vitrail.inference.features import representation
from vitrail.models.encoder import Layout


@pytest.fixture
def x():
    return torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def model():
    return randomise(vitrail.create("mu/8", image_size=16, depth=3, classes=4, pre_logits=5)).eval()


def test_pre_logits_are_what_the_classifier_sees(model, x):
    y = representation(model)(x)
    assert y.shape == (2, 5)
    torch.testing.assert_close(model.head.classifier(y), model(x))


def test_token_and_mean_are_of_what_the_encoder_makes(model, x):
    z = model.encode(model.tokens(model.patches(x)))
    torch.testing.assert_close(representation(model, "token")(x), z[:, 0])
    torch.testing.assert_close(representation(model, "mean")(x), z[:, 1:].mean(dim=1))
    torch.testing.assert_close(representation(model, "token")(x), model.features(x))


@pytest.mark.parametrize("layer", [0, 1, 2, 3])
def test_a_layer_is_what_goes_into_the_next(model, x, layer):
    z = model.tokens(model.patches(x))
    for block in model.encoder.blocks[:layer]:
        z = block(z, Layout(model.config.grid))
    torch.testing.assert_close(representation(model, f"layer{layer}")(x), z[:, 0])
    torch.testing.assert_close(representation(model, f"layer{layer}.token")(x), z[:, 0])
    torch.testing.assert_close(representation(model, f"layer{layer}.mean")(x), z[:, 1:].mean(dim=1))


def test_without_a_class_token_the_mean_is_of_all_tokens(x):
    model = randomise(vitrail.create("mu/8", image_size=16, pool="mean")).eval()
    z = model.tokens(model.patches(x))
    torch.testing.assert_close(representation(model, "layer0")(x), z.mean(dim=1))
    with pytest.raises(ConfigError, match="no class token"):
        representation(model, "layer0.token")


@pytest.mark.parametrize(
    "which", ["", "layer", "layer4", "layer1.", "layer1.max", "tokens", "layer-1", "pre_logits.mean"]
)
def test_what_there_is_not(model, which):
    with pytest.raises(ConfigError, match=r"pre_logits, token, mean|layers 0 to 3"):
        representation(model, which)


def test_a_resnet_has_one_representation():
    model = vitrail.create("R50x1", image_size=32, classes=3, units=(1,))
    x = torch.zeros(1, 3, 32, 32)
    assert representation(model)(x).shape == (1, model.config.width)
    with pytest.raises(ConfigError, match="no tokens"):
        representation(model, "mean")


def test_public_features_are_what_the_classifier_sees(model):
    image = np.random.default_rng(0).integers(0, 256, (16, 16, 3), np.uint8)
    made = vitrail.features(model, [image, image])
    assert made.shape == (2, 5) and vitrail.features(model, []).shape == (0, 5)
    logits = torch.cat(list(image_outputs(model, [image, image])))
    torch.testing.assert_close(model.head.classifier(torch.from_numpy(made)), logits)


def test_every_part_is_in_the_mode_in_which_it_was(model):
    model.train()
    model.encoder.eval()  # frozen, say
    image = np.zeros((16, 16, 3), np.uint8)
    vitrail.features(model, [image])
    list(extract_rows(model, Split(3, ["a"]), EXTRACTION))
    assert model.training and model.head.training
    assert not any(part.training for part in model.encoder.modules())
