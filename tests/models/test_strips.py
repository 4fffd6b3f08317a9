"""Images of any shape in one batch are computed as each by itself."""

import pytest
import torch

import vitrail
from tests.randomise import randomise
from vitrail.data.ops.fit_patches import FitPatches
from vitrail.errors import ConfigError

GRIDS = ((4, 4), (2, 8), (5, 3), (1, 1), (16, 1))
OP = FitPatches(16, 8)


def model(**fields):
    return randomise(vitrail.create("mu/8", classes=5, image_size=32, depth=3, **fields)).eval()


def batch():
    rng = torch.Generator().manual_seed(0)
    images = [torch.randn(3, 8 * rows, 8 * columns, generator=rng) for rows, columns in GRIDS]
    strips, grids = zip(*(OP.strip(x) for x in images), strict=True)
    return images, torch.stack(strips), torch.stack(grids)


@pytest.mark.parametrize("pool", ["token", "mean", "attention"])
@pytest.mark.parametrize("positions", ["1d", "2d", "sincos", "none"])
def test_logits_of_a_batch_are_those_of_single_images(pool, positions):
    net = model(pool=pool, positions=positions)
    images, strips, grids = batch()
    assert grids.tolist() == [list(grid) for grid in GRIDS]
    with torch.no_grad():
        together, each = net(strips, grids), torch.cat([net(x[None]) for x in images])
    torch.testing.assert_close(together, each, rtol=1e-5, atol=1e-5)
    assert (each[0] - each[1]).abs().max() > 0.01


def test_parts_of_later_vits_too():
    later = {
        "registers": 2,
        "pre_norm": True,
        "mlp": "gated",
        "norm": "rms",
        "layer_scale": 0.1,
        "qk_norm": True,
    }
    net = model(**later)
    images, strips, grids = batch()
    with torch.no_grad():
        together, each = net(strips, grids), torch.cat([net(x[None]) for x in images])
    torch.testing.assert_close(together, each, rtol=1e-5, atol=1e-5)


def test_padding_is_no_matter():
    net = model(pool="mean")
    _, strips, grids = batch()
    other = strips.clone()
    for strip, (rows, columns) in zip(other, grids.tolist(), strict=True):
        strip[..., 8 * rows * columns :] = 100.0
    with torch.no_grad():
        assert torch.equal(net(strips, grids), net(other, grids))


def test_gradients_reach_the_positions_of_every_grid():
    net = model()
    _, strips, grids = batch()
    net(strips, grids).square().sum().backward()
    assert net.positions.table.grad.abs().sum(dim=2).min() > 0


@pytest.mark.parametrize(
    "fields",
    [
        {"positions": "relative"},
        {"positions_at": "every"},
        {"rotary": "grid"},
        {"block": "axial", "pool": "mean"},
    ],
)
def test_models_that_need_one_grid_are_refused(fields):
    _, strips, grids = batch()
    with pytest.raises(ConfigError, match="any shape need"):
        model(**fields)(strips, grids)
