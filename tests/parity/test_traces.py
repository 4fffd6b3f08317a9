"""Training, step by step, against traces of the published code."""

import numpy as np
import pytest
import torch

import vitrail
from vitrail.checkpoints.npz import read_npz
from vitrail.objectives.supervised import Supervised
from vitrail.train.fit import fit
from vitrail.train.optim import Optimization
from vitrail.train.plan import Plan
from vitrail.train.schedule import Schedule
from vitrail.train.state import TrainState

CPU = torch.device("cpu")
STEPS = 12


class Recorded:
    """The batches of a trace."""

    def __init__(self, images, labels):
        self.images, self.labels = images, labels

    def batches(self, start, stop, device):
        for t in range(start, stop):
            x = torch.from_numpy(self.images[t]).permute(0, 3, 1, 2).contiguous()
            label = torch.from_numpy(self.labels[t])
            yield {
                "image": x,
                "label": label,
                "weight": torch.ones(len(label)),
                "index": torch.arange(len(label)),
            }


class Rows:
    """Of a run: what it measured."""

    def __init__(self):
        self.rows, self.path = [], "nowhere"

    def restore(self, state):
        return None

    def rewind(self, step, **more):
        pass

    def append(self, row):
        self.rows.append(row)

    def save(self, *args, **more):
        pass


def trained(fixtures, loss, schedule, optimization, accumulate=1):
    with np.load(fixtures / "finetune_trace.npz") as trace:
        data = Recorded(trace["images_nhwc"], trace["labels"])
    model = vitrail.load(fixtures / "vit_token.npz", classes=5)
    objective = Supervised(model, loss)
    state = TrainState(objective, optimization, 0.0, CPU)
    rows = Rows()
    plan = Plan(schedule, log_every=1, accumulate=accumulate)
    fit(objective, data, state, plan, run=rows, device=CPU)
    return model, [row["loss"] for row in rows.rows], [row["norm"] for row in rows.rows]


def assert_weights(model, trace, path):
    vitrail.save(model, path, to="npz")
    got = read_npz(path)
    wanted = {name.removeprefix("final/"): trace[name] for name in trace.files if name.startswith("final/")}
    assert set(got) == set(wanted)
    for name, a in wanted.items():
        np.testing.assert_allclose(got[name], a, rtol=0, atol=1e-3, err_msg=name)


@pytest.mark.parametrize("accumulate", [1, 4])
def test_fine_tuning(fixtures, tmp_path, accumulate):
    with np.load(fixtures / "finetune_trace.npz") as trace:
        schedule = Schedule(float(trace["base_lr"]), STEPS, "cosine", int(trace["warmup"]))
        model, losses, norms = trained(fixtures, "softmax", schedule, Optimization("sgd"), accumulate)
        np.testing.assert_allclose(losses, trace["losses"], rtol=0, atol=1e-4)
        np.testing.assert_allclose(norms, trace["grad_norms"], rtol=1e-4)
        assert_weights(model, trace, tmp_path / "final.npz")


def test_pre_training(fixtures, tmp_path):
    with np.load(fixtures / "pretrain_trace.npz") as trace:
        schedule = Schedule(float(trace["base_lr"]), STEPS, "linear", int(trace["warmup"]))
        optimization = Optimization("adamw", weight_decay=float(trace["weight_decay"]))
        model, losses, _ = trained(fixtures, "sigmoid", schedule, optimization)
        np.testing.assert_allclose(losses, trace["losses"], rtol=0, atol=1e-4)
        assert_weights(model, trace, tmp_path / "final.npz")


@pytest.mark.parametrize("decay", ["linear", "cosine"])
def test_schedules(fixtures, decay):
    with np.load(fixtures / f"schedule_{decay}.npz") as file:
        schedule = Schedule(float(file["base"]), int(file["total"]), decay, int(file["warmup"]))
        rates = [schedule(int(step)) for step in file["steps"]]
        np.testing.assert_allclose(rates, file["lr"], rtol=0, atol=1e-7)
        assert min(file["lr"]) == pytest.approx(0, abs=1e-4)
