import pytest
import torch
from torch import nn

from vitrail.train.ema import EMA, ema_remark


def layer(*values):
    made = nn.Linear(1, len(values), bias=False)
    with torch.no_grad():
        made.weight.copy_(torch.tensor(values)[:, None])
    return made


def set_weights(module, *values):
    with torch.no_grad():
        module.weight.copy_(torch.tensor(values)[:, None])


def test_by_hand():
    """d = 0.9 from the first update on, as the paper's."""
    module = layer(0.0, 10.0)
    average = EMA(module, 0.9)
    set_weights(module, 1.0, 20.0)
    average.update(0)
    torch.testing.assert_close(average.tensors["weight"].flatten(), torch.tensor([0.1, 11.0]))
    set_weights(module, 2.0, 0.0)
    average.update(1)
    torch.testing.assert_close(average.tensors["weight"].flatten(), torch.tensor([0.29, 9.9]))
    assert module.weight.flatten().tolist() == [2.0, 0.0]  # the weights themselves are left alone


def test_the_papers_average():
    """By 0.9999 from the first update on; a ramp would have left where it began long before."""
    module = layer(0.0)
    average = EMA(module, 0.9999)
    set_weights(module, 1.0)
    for t in range(2000):
        average.update(t)
    assert 1 - average.tensors["weight"].item() == pytest.approx(0.9999**2000, abs=1e-4)


def test_a_ramp_by_hand():
    """d = 1/10, then 2/11."""
    module = layer(0.0, 10.0)
    average = EMA(module, 0.9, ramp=True)
    set_weights(module, 1.0, 20.0)
    average.update(0)
    wanted = torch.tensor([0.9, 0.1 * 10 + 0.9 * 20])
    torch.testing.assert_close(average.tensors["weight"].flatten(), wanted)
    set_weights(module, 2.0, 0.0)
    average.update(1)
    wanted = 2 / 11 * wanted + 9 / 11 * torch.tensor([2.0, 0.0])
    torch.testing.assert_close(average.tensors["weight"].flatten(), wanted)
    assert module.weight.flatten().tolist() == [2.0, 0.0]  # the weights themselves are left alone


def test_after_a_long_run_the_decay_is_the_one_that_was_asked_for():
    module = layer(0.0)
    average = EMA(module, 0.99, ramp=True)
    set_weights(module, 1.0)
    average.update(100_000)
    assert average.tensors["weight"].item() == pytest.approx(0.01)


def test_applied_and_taken_back():
    module = layer(1.0)
    average = EMA(module, 0.5)
    set_weights(module, 3.0)
    with average.applied():
        assert module.weight.item() == 1.0
    assert module.weight.item() == 3.0
    with pytest.raises(KeyError), average.applied():
        raise KeyError
    assert module.weight.item() == 3.0
    average.keep()
    assert module.weight.item() == 1.0


def test_what_is_frozen_has_no_average():
    module = nn.Sequential(layer(1.0), layer(2.0))
    module[0].requires_grad_(False)
    assert list(EMA(module, 0.9).tensors) == ["1.weight"]


def test_an_average_that_hardly_moves_is_said():
    assert "95% of the average" in ema_remark(0.9999, False, 500)
    assert ema_remark(0.9999, False, 20_000) == ""  # the paper's
    assert ema_remark(0.9999, True, 500) == ema_remark(0.0, False, 500) == ""
