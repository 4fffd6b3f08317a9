"""What a checkpoint holds: names, all of it, and moments that are there before the first step."""

import pytest
import torch

import vitrail
from vitrail.checkpoints.run import Run
from vitrail.objectives.classification import Classification
from vitrail.train.settings import OptimizerSettings
from vitrail.train.state import TrainState
from vitrail.train.tuning import select

CPU = torch.device("cpu")
STEPS = 4


def objective(tune="all"):
    torch.manual_seed(0)
    model = vitrail.create("mu/8", classes=5, image_size=16)
    torch.nn.init.normal_(model.head.classifier.weight)  # a head of zeros would give the body no gradient
    select(model, tune)
    return Classification().build(model)


def batch(step, part=0):
    rng = torch.Generator().manual_seed(10 * step + part)
    return {
        "image": torch.randn(4, 3, 16, 16, generator=rng),
        "label": torch.randint(5, (4,), generator=rng),
        "weight": torch.ones(4),
    }


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
    plain = TrainState(lazy, optimization, CPU).optimizer
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
    ("optimizer", "moments"), [("sgd", {"momentum_buffer"}), ("adamw", {"exp_avg", "exp_avg_sq"})]
)
def test_the_names_of_everything(optimizer, moments):
    made = objective()
    made.model.cls.requires_grad_(False)
    named = TrainState(made, OptimizerSettings(optimizer, ema=0.9), CPU).tensors()
    parameters = {name for name, p in made.named_parameters() if p.requires_grad}
    assert {n.removeprefix("weights.") for n in named if n.startswith("weights.")} == set(made.state_dict())
    assert {n.removeprefix("ema.") for n in named if n.startswith("ema.")} == parameters
    of_all = {"optimizer.step"} if optimizer == "adamw" else set()
    assert {n for n in named if n.startswith("optimizer.")} == of_all | {
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
    state.schedule(0, 0.8)
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
    state.schedule(0, 1.0)
    state.update()
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


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize(("grad_accum", "tune"), [(1, "all"), (2, "all"), (1, "lora:2"), (2, "last:1")])
def test_flat_trains_as_plain(optimizer, grad_accum, tune):
    settings = OptimizerSettings(optimizer, weight_decay=0.1, layer_decay=0.5, ema=0.9)
    states = []
    for flat in (False, True):
        state = TrainState(objective(tune), settings, CPU, flat=flat)
        for step in range(STEPS):
            state.schedule(step, 0.1)
            for part in range(grad_accum):
                loss, _ = state.objective(batch(step, part))
                state.add_gradients(loss)
            state.clip(0.5)
            state.update()
        states.append(state.tensors())
    plain, flat = states
    assert plain.keys() == flat.keys()
    for name, t in plain.items():
        if (
            "qkv.bias" not in name
        ):  # the gradient of a key's bias is nothing but rounding, which AdamW scales up
            torch.testing.assert_close(flat[name], t, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("tune", ["all", "lora:2"])
def test_copies_follow_the_weights_which_stay_exact(tune):
    state = TrainState(objective(tune), OptimizerSettings("sgd"), CPU, flat=True, copies=True)
    before = {name: p.detach().clone() for name, p in state.objective.named_parameters()}
    trained = {name for name, p in state.objective.named_parameters() if p.requires_grad}
    for step in range(STEPS):
        state.schedule(step, 1e-3)
        with torch.autocast("cpu", torch.bfloat16):
            loss, _ = state.forward(batch(step))
        state.add_gradients(loss)
        state.update()
    moved = set()
    for name, p in state.objective.named_parameters():
        assert p.dtype == torch.float32
        if name in trained:
            assert state.copies[name].dtype == torch.bfloat16
            assert torch.equal(state.copies[name], p.to(torch.bfloat16))
        moved |= set() if torch.equal(p, before[name]) else {name}
    assert moved == trained == state.copies.keys()
    bias = "model.head.classifier.bias"
    with torch.no_grad():
        state.tensors()[f"weights.{bias}"].fill_(0.3)  # as a checkpoint that is restored
    state.restored()
    assert state.copies[bias].unique().tolist() == [torch.tensor(0.3).bfloat16().item()]


def test_flat_checkpoints_are_read_by_plain_states(tmp_path):
    settings = OptimizerSettings("adamw", ema=0.9)
    flat, plain = (TrainState(objective(), settings, CPU, flat=one) for one in (True, False))
    flat.schedule(0, 0.1)
    flat.add_gradients(flat.objective(batch(0))[0])
    flat.update()
    run = Run.open(tmp_path / "run", {}, keep=1)
    run.save(1, flat.tensors(), {})
    run.restore(plain.tensors())
    plain.restored()
    assert {moments["step"].item() for moments in plain.optimizer.state.values()} == {1}
    for name, t in flat.tensors().items():
        assert torch.equal(plain.tensors()[name], t)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_everything_that_a_step_changes_can_be_put_back(optimizer):
    """A step that is recorded as a CUDA graph is tried before: nothing of that may stay."""

    def everything(state):
        moments = [t for one in state.optimizer.state.values() for t in one.values()]
        return [*state.weights, *state.average, *state.rounded, *moments]

    settings = OptimizerSettings(optimizer, weight_decay=0.1, ema=0.9)
    state = TrainState(objective(), settings, CPU, flat=True, copies=True)
    before = [t.clone() for t in everything(state)]
    kept = {name: t.clone() for name, t in state.changed_by_update().items()}
    state.schedule(0, 0.1)
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        loss, _ = state.forward(batch(0))
    state.add_gradients(loss)
    state.update()
    assert not any(torch.equal(t, was) for t, was in zip(everything(state), before, strict=True))
    for name, t in state.changed_by_update().items():
        t.copy_(kept[name])
    assert all(torch.equal(t, was) for t, was in zip(everything(state), before, strict=True))
