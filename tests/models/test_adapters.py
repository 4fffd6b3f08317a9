"""Adapters of low rank beside dense layers."""

import copy

import pytest
import torch

import vitrail
from tests.randomise import randomise
from vitrail.models.adapters import adapt, base_weights, merge


def pair(**fields):
    """Return a model, and the same with adapters that do something."""
    torch.manual_seed(0)
    plain = randomise(vitrail.create("mu/8", classes=5, image_size=16, depth=2, **fields)).eval()
    adapted = copy.deepcopy(plain)
    adapt(adapted, 3)
    return plain, adapted


def learn(model):
    for name, p in model.named_parameters():
        if name.endswith("up.weight"):
            torch.nn.init.normal_(p, std=0.05)


X = torch.randn(3, 3, 16, 16, generator=torch.Generator().manual_seed(1))


def test_at_first_nothing_changes():
    plain, adapted = pair()
    assert torch.equal(plain(X), adapted(X))
    assert base_weights(adapted.state_dict()).keys() == plain.state_dict().keys()


@pytest.mark.parametrize("pool", ["token", "mean"])
@pytest.mark.parametrize("block", ["standard", "axial"])
def test_merged_weights_are_what_the_adapted_model_computes(pool, block):
    """With a class token the last layer reads parts of its weight (few queries), the others call the layer."""
    if (pool, block) == ("token", "axial"):
        pytest.skip("axial blocks take no class token")
    plain, adapted = pair(pool=pool, block=block)
    learn(adapted)
    plain.load_state_dict(merge(adapted.state_dict()), strict=True)
    torch.testing.assert_close(plain(X), adapted(X), rtol=1e-5, atol=1e-5)
    before = pair(pool=pool, block=block)[0]
    assert not torch.allclose(before(X), plain(X), atol=1e-2)


def test_by_the_equation():
    _, adapted = pair()
    learn(adapted)
    layer, z = adapted.encoder.blocks[0].mlp.fc1, torch.randn(2, 32)
    A, B, W, b = layer.down.weight, layer.up.weight, layer.base.weight, layer.base.bias
    torch.testing.assert_close(layer(z), z @ W.T + b + 16 / 3 * (z @ A.T) @ B.T)
    torch.testing.assert_close(layer.weight, W + 16 / 3 * B @ A)


def test_every_adapter_gets_a_gradient():
    _, adapted = pair()
    learn(adapted)
    adapted(X).square().sum().backward()
    own = {name: p.grad for name, p in adapted.named_parameters() if ".down." in name or ".up." in name}
    assert len(own) == 2 * 2 * 4 and all(g is not None and g.any() for g in own.values())
