import pytest
import torch
from torch import nn

from vitrail.train.settings import OptimizerSettings
from vitrail.train.state import TrainState


def layer(*values):
    made = nn.Linear(1, len(values), bias=False)
    with torch.no_grad():
        made.weight.copy_(torch.tensor(values)[:, None])
    return made


def averaged(module, ema, *, ramp=False):
    """Without gradients an update moves nothing but the average."""
    return TrainState(module, OptimizerSettings("sgd", ema=ema, ema_ramp=ramp), torch.device("cpu"))


def set_weights(module, *values):
    with torch.no_grad():
        module.weight.copy_(torch.tensor(values)[:, None])


def test_by_hand():
    """d = 0.9 from the first update on, as the paper's."""
    module = layer(0.0, 10.0)
    state = averaged(module, 0.9)
    set_weights(module, 1.0, 20.0)
    state.schedule(0, 0.0)
    state.update()
    torch.testing.assert_close(state.tensors()["ema.weight"].flatten(), torch.tensor([0.1, 11.0]))
    set_weights(module, 2.0, 0.0)
    state.schedule(1, 0.0)
    state.update()
    torch.testing.assert_close(state.tensors()["ema.weight"].flatten(), torch.tensor([0.29, 9.9]))
    assert module.weight.flatten().tolist() == [2.0, 0.0]  # the weights themselves are left alone


def test_the_papers_average():
    """By 0.9999 from the first update on; a ramp would have left where it began long before."""
    module = layer(0.0)
    state = averaged(module, 0.9999)
    set_weights(module, 1.0)
    for t in range(2000):
        state.schedule(t, 0.0)
        state.update()
    assert 1 - state.tensors()["ema.weight"].item() == pytest.approx(0.9999**2000, abs=1e-4)


def test_a_ramp_by_hand():
    """d = 1/10, then 2/11."""
    module = layer(0.0, 10.0)
    state = averaged(module, 0.9, ramp=True)
    set_weights(module, 1.0, 20.0)
    state.schedule(0, 0.0)
    state.update()
    wanted = torch.tensor([0.9, 0.1 * 10 + 0.9 * 20])
    torch.testing.assert_close(state.tensors()["ema.weight"].flatten(), wanted)
    set_weights(module, 2.0, 0.0)
    state.schedule(1, 0.0)
    state.update()
    wanted = 2 / 11 * wanted + 9 / 11 * torch.tensor([2.0, 0.0])
    torch.testing.assert_close(state.tensors()["ema.weight"].flatten(), wanted)
    assert module.weight.flatten().tolist() == [2.0, 0.0]  # the weights themselves are left alone


def test_after_a_long_run_the_decay_is_the_one_that_was_asked_for():
    module = layer(0.0)
    state = averaged(module, 0.99, ramp=True)
    set_weights(module, 1.0)
    state.schedule(100_000, 0.0)
    state.update()
    assert state.tensors()["ema.weight"].item() == pytest.approx(0.01)


def test_applied_and_taken_back():
    module = layer(1.0)
    state = averaged(module, 0.5)
    set_weights(module, 3.0)
    with state.averaged():
        assert module.weight.item() == 1.0
    assert module.weight.item() == 3.0
    with pytest.raises(KeyError), state.averaged():
        raise KeyError
    assert module.weight.item() == 3.0
    state.keep_average()
    assert module.weight.item() == 1.0


def test_what_is_frozen_has_no_average():
    module = nn.Sequential(layer(1.0), layer(2.0))
    module[0].requires_grad_(False)
    named = averaged(module, 0.9).tensors()
    assert [name for name in named if name.startswith("ema.")] == ["ema.1.weight"]
