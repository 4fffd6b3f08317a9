from __future__ import annotations

import pytest
import torch

from tests.randomise import randomise
from vitrail.checkpoints.checkpoint import from_model, to_model
from vitrail.checkpoints.formats import create
from vitrail.checkpoints.mapping import make_plain
from vitrail.errors import CheckpointError

TINY = {"width": 32, "depth": 2, "mlp_dim": 48, "heads": 4, "image_size": (32, 48), "classes": 5}


@pytest.mark.parametrize(
    "overrides",
    [
        {"positions": "2d"},
        {"positions": "sincos"},
        {"positions": "none"},
        {"positions": "2d", "pool": "mean"},
        {"norm_at": "pooled"},
        {},
    ],
)
@torch.no_grad()
def test_the_same_function_in_a_plainer_form(overrides):
    model = randomise(create("B/16", **TINY, **overrides)).eval()
    x = torch.randn(2, 3, 32, 48)
    checkpoint, config = make_plain(from_model(model), "timm", with_positions=True)
    assert checkpoint.config == config
    assert (config.positions, config.norm_at) == ("1d", "encoder")
    assert float(model(x).std()) > 0.05
    torch.testing.assert_close(to_model(checkpoint)(x), model(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        ({"positions": "relative"}, "positions='relative'"),
        ({"positions_at": "every"}, "positions_at='every'"),
        ({"positions": "2d", "positions_at": "shared"}, "positions_at='shared'"),
        ({"block": "axial", "pool": "mean"}, "block=axial"),
    ],
)
def test_what_computes_something_else_is_refused(overrides, problem):
    with pytest.raises(CheckpointError, match=f"timm has no counterpart for .*{problem}"):
        make_plain(from_model(create("B/16", **TINY, **overrides)), "timm")
