"""The module that is traced gives the numbers of the model, for any size where it should."""

import numpy as np
import pytest
import torch
from torch import nn

from tests.exporting.small import KINDS, photographs, small_model
from vitrail.exporting.graph import PlainGroupNorm, stride_of, traceable
from vitrail.exporting.settings import ExportSettings
from vitrail.inspection.attention import rollout
from vitrail.models.calibration import Calibration


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_outputs_are_those_of_the_model(kind):
    model = small_model(kind)
    dynamic = kind != "relative"
    outputs = traceable(model, ExportSettings(input="tensor", dynamic_size=dynamic))
    H, W = model.config.image_size
    for h, w in ((H, W), (H + stride_of(model), W + 3 * stride_of(model))) if dynamic else ((H, W),):
        x = torch.randn(3, 3, h, w)
        named, y = outputs(x), model.features(x)
        torch.testing.assert_close(named["features"], model.head.representation(y), rtol=1e-4, atol=1e-4)
        if model.config.classes:
            logits = model(x)
            assert logits.std() > 0.1
            torch.testing.assert_close(named["logits"], logits, rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(named["probabilities"], logits.softmax(1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("multi_label", [False, True])
@torch.no_grad()
def test_the_graph_divides_by_the_temperature(multi_label):
    model, x = small_model(), torch.randn(3, 3, 32, 32)
    model.calibration = Calibration(2.5, multi_label=multi_label)
    named = traceable(model, ExportSettings(input="tensor"))(x)
    expected = model.calibration.probabilities(model(x))
    torch.testing.assert_close(named["logits"], model(x), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(named["probabilities"], expected, rtol=1e-4, atol=1e-5)


def test_the_model_itself_stays_as_it_is():
    model = small_model()
    before = {name: w.clone() for name, w in model.state_dict().items()}
    model.train()
    traceable(model, ExportSettings(input="tensor"))
    assert model.training
    assert all(torch.equal(w, before[name]) for name, w in model.state_dict().items())


@pytest.mark.parametrize(
    ("to", "precision", "plain"),
    [("openvino", "float32", True), ("openvino", "int8", False), ("torch", "float32", False)],
)
@torch.no_grad()
def test_norms_of_a_resnet_are_taken_apart_where_that_is_better(to, precision, plain):
    model = small_model("BiT")
    module = traceable(model, ExportSettings(to, precision, "tensor"))
    assert any(isinstance(part, PlainGroupNorm) for part in module.modules()) == plain
    assert any(isinstance(part, nn.GroupNorm) for part in module.modules()) != plain
    x = torch.randn(2, 3, 64, 96)
    torch.testing.assert_close(module(x)["logits"], model(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["ViT", "attention pool, sincos", "mean pool, 2d, hidden layer"])
@torch.no_grad()
def test_rollout_is_that_of_inspection(kind):
    model, images = small_model(kind), photographs()
    outputs = traceable(model, ExportSettings(rollout=True))
    ours = rollout(model, images)
    for image, R in zip(images, ours, strict=True):
        seen = outputs(torch.from_numpy(image)[None])["rollout"][0]
        np.testing.assert_allclose(seen, R, atol=1e-4)
