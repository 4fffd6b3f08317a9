"""What a checkpoint holds: names, all of it, and moments that are there before the first step."""

import pytest
import torch

import vitrail
from vitrail.objectives.classification import Classification
from vitrail.train.optim import TrainState, build_optimizer
from vitrail.train.settings import OptimizerSettings

CPU = torch.device("cpu")
STEPS = 4


def objective():
    torch.manual_seed(0)
    made = Classification().build(vitrail.create("mu/8", classes=5, image_size=16))
    torch.nn.init.normal_(
        made.model.head.classifier.weight
    )  # a head of zeros would give the body no gradient
    return made


def learn(module, optimizer):
    """By the same gradients each time: an update is element by element, and the same to the bit."""
    rng = torch.Generator().manual_seed(1)
    for t in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = 0.1 * (t + 1) * group["scale"]
        for p in module.parameters():
            p.grad = torch.randn(p.shape, generator=rng)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return [p.detach().clone() for p in module.parameters()]


@pytest.mark.parametrize(
    "optimization", [OptimizerSettings("sgd"), OptimizerSettings("adamw", weight_decay=0.1)]
)
def test_moments_that_begin_at_zero_are_those_that_torch_would_make(optimization):
    lazy = objective()
    plain = build_optimizer(lazy, optimization, CPU)
    plain.state.clear()  # torch makes them at the first step
    wanted = learn(lazy, plain)
    eager = objective()
    state = TrainState(eager, optimization, CPU)
    got = learn(eager, state.optimizer)
    assert all(torch.equal(a, b) for a, b in zip(wanted, got, strict=True))
    assert not torch.equal(wanted[0], next(objective().parameters()))  # they did learn
    for p, q in zip(lazy.parameters(), eager.parameters(), strict=True):
        there, here = plain.state[p], state.optimizer.state[q]
        assert there.keys() == here.keys()
        assert all(
            torch.equal(there[key], here[key]) and there[key].dtype == here[key].dtype for key in there
        )


@pytest.mark.parametrize(
    ("optimizer", "moments"), [("sgd", {"momentum_buffer"}), ("adamw", {"exp_avg", "exp_avg_sq", "step"})]
)
def test_the_names_of_everything(optimizer, moments):
    made = objective()
    made.model.cls.requires_grad_(False)
    named = TrainState(made, OptimizerSettings(optimizer, ema=0.9), CPU).tensors()
    parameters = {name for name, p in made.named_parameters() if p.requires_grad}
    assert {n.removeprefix("weights.") for n in named if n.startswith("weights.")} == set(made.state_dict())
    assert {n.removeprefix("ema.") for n in named if n.startswith("ema.")} == parameters
    assert {n for n in named if n.startswith("optimizer.")} == {
        f"optimizer.{name}.{moment}" for name in parameters for moment in moments
    }


def test_they_are_the_tensors_themselves():
    made = objective()
    state = TrainState(made, OptimizerSettings(), CPU)
    assert not any(name.startswith("ema.") for name in state.tensors())
    with torch.no_grad():
        state.tensors()["weights.model.head.classifier.bias"].fill_(7.0)
        state.tensors()["optimizer.model.head.classifier.bias.exp_avg"].fill_(8.0)
    assert (made.model.head.classifier.bias == 7).all()
    assert (state.optimizer.state[made.model.head.classifier.bias]["exp_avg"] == 8).all()


def test_the_rate_reaches_every_group_by_its_scale():
    state = TrainState(objective(), OptimizerSettings(layer_decay=0.5), CPU)
    state.set_lr(0.8)
    assert {group["lr"] for group in state.optimizer.param_groups} == {0.8, 0.4, 0.2}


@pytest.mark.parametrize(("largest", "after"), [(0.0, 5.0), (1.0, 1.0), (10.0, 5.0)])
def test_clipping(largest, after):
    made = objective()
    state = TrainState(made, OptimizerSettings(), CPU)
    for p in made.parameters():
        p.grad = torch.zeros_like(p)
    made.model.head.classifier.bias.grad[:2] = torch.tensor([3.0, 4.0])
    assert state.clip(largest).item() == pytest.approx(5.0)
    assert made.model.head.classifier.bias.grad.norm().item() == pytest.approx(after, rel=1e-4)


@pytest.mark.parametrize(("ramp", "moved"), [(False, 0.1), (True, 0.9)])
def test_averaged_inside_and_kept_at_the_end(ramp, moved):
    made = objective()
    state = TrainState(made, OptimizerSettings("sgd", ema=0.9, ema_ramp=ramp), CPU)
    start = made.model.head.classifier.bias.detach().clone()
    made.model.head.classifier.bias.grad = torch.ones(5)
    state.set_lr(1.0)
    state.update(0)
    assert torch.equal(made.model.head.classifier.bias, start - 1)
    with state.averaged():
        torch.testing.assert_close(made.model.head.classifier.bias.detach(), start - moved)
    assert torch.equal(made.model.head.classifier.bias, start - 1)
    state.keep_average()
    torch.testing.assert_close(made.model.head.classifier.bias.detach(), start - moved)


def test_without_an_average_the_weights_are_what_they_are():
    made = objective()
    state = TrainState(made, OptimizerSettings("sgd"), CPU)
    before = made.model.head.classifier.weight.detach().clone()
    with state.averaged():
        assert torch.equal(made.model.head.classifier.weight, before)
    state.keep_average()
    assert torch.equal(made.model.head.classifier.weight, before)
