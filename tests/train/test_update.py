"""The update in one pass is that of torch.optim, clipping and averaging one after the other."""

import pytest
import torch
from torch import nn

from vitrail.train.optim import MOMENTS
from vitrail.train.settings import OptimizerSettings
from vitrail.train.update import corrections, global_norm, shrinkage, update_group

STEPS, N = 5, 100
SHARE = torch.tensor(0.1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_norm_is_that_of_all_gradients(dtype):
    gradients = [torch.randn(7).to(dtype), torch.randn(3).to(dtype)]
    torch.testing.assert_close(global_norm(gradients), torch.cat(gradients).double().norm().float())


@pytest.mark.parametrize(("norm", "largest", "factor"), [(5.0, 1.0, 0.2), (0.5, 1.0, 1.0), (5.0, 0.0, 1.0)])
def test_gradients_shrink_to_the_largest_norm(norm, largest, factor):
    assert shrinkage(torch.tensor(norm), largest).item() == pytest.approx(factor, rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_updates_are_those_of_torch(name, decay, dtype):
    settings = OptimizerSettings(name)
    start = torch.randn(N)
    p = nn.Parameter(start.clone())
    if name == "adamw":
        theirs = torch.optim.AdamW([p], betas=(settings.momentum, settings.beta2), weight_decay=decay)
    else:
        theirs = torch.optim.SGD([p], momentum=settings.momentum, weight_decay=decay)
    w, average, rounded = start.clone(), start.clone(), start.bfloat16()
    moments = {key: torch.zeros(N) for key in MOMENTS[name]} | {"step": torch.zeros(())}
    wanted = start.clone()
    for step in range(STEPS):
        lr, gradient = 0.1 * (step + 1), torch.randn(N).to(dtype)
        p.grad = gradient.float().clone()  # which is clipped
        norm = nn.utils.clip_grad_norm_([p], 0.5)
        theirs.param_groups[0]["lr"] = lr
        theirs.step()
        wanted.lerp_(p.detach(), SHARE)
        shrink = shrinkage(norm, 0.5)
        with torch.no_grad():
            update_group(
                settings, decay, w, gradient, shrink, moments, torch.tensor(lr), corrections(settings, moments),
                average, SHARE, rounded,
            )  # fmt: skip
    torch.testing.assert_close(w, p.detach(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(average, wanted, rtol=1e-5, atol=1e-6)
    assert torch.equal(rounded, w.bfloat16())
    assert (w - start).abs().min() > 0
