"""Training, step by step, against traces of the published code."""

import numpy as np
import pytest
import torch

import vitrail
from vitrail.checkpoints.npz import read_npz
from vitrail.runtime.training_display import TrainingDisplay, Work
from vitrail.train.fit import Loop
from vitrail.train.keywords import override
from vitrail.train.optim import lr_at
from vitrail.train.settings import Experiment, OptimizerSettings
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
    """A run that keeps what it measured."""

    def __init__(self):
        self.rows, self.path = [], "nowhere"

    def restore(self, state, **more):
        return None

    def rewind(self, step, **more):
        pass

    def append(self, row):
        self.rows.append(row)

    def save(self, *args, **more):
        pass


def train(fixtures, **settings):
    with np.load(fixtures / "finetune_trace.npz") as trace:
        data = Recorded(trace["images_nhwc"], trace["labels"])
    chosen = {"steps": STEPS, "log_every": 1, "evaluate_every": 0, "save_every": 0, **settings}
    experiment = override(Experiment(), chosen).resolve(STEPS, cuda=False)
    model = vitrail.load(fixtures / "vit_token.npz", classes=5)
    module = experiment.objective.build(model)
    state = TrainState(module, experiment.optimizer, CPU)
    rows = Rows()
    display = TrainingDisplay(Work(STEPS, experiment.data.batch_size), shown=False)
    Loop(state, module, data, experiment, CPU, display, rows).fit()
    return model, [row["loss"] for row in rows.rows], [row["norm"] for row in rows.rows]


def assert_weights(model, trace, path):
    vitrail.save(model, path, to="npz")
    got = read_npz(path)
    wanted = {name.removeprefix("final/"): trace[name] for name in trace.files if name.startswith("final/")}
    assert set(got) == set(wanted)
    for name, a in wanted.items():
        np.testing.assert_allclose(got[name], a, rtol=0, atol=1e-3, err_msg=name)


@pytest.mark.parametrize("grad_accum", [1, 4])
def test_fine_tuning(fixtures, tmp_path, grad_accum):
    with np.load(fixtures / "finetune_trace.npz") as trace:
        schedule = {"lr": float(trace["base_lr"]), "schedule": "cosine", "warmup": int(trace["warmup"])}
        model, losses, norms = train(fixtures, optimizer="sgd", grad_accum=grad_accum, **schedule)
        np.testing.assert_allclose(losses, trace["losses"], rtol=0, atol=1e-4)
        np.testing.assert_allclose(norms, trace["grad_norms"], rtol=1e-4)
        assert_weights(model, trace, tmp_path / "final.npz")


def test_pre_training(fixtures, tmp_path):
    with np.load(fixtures / "pretrain_trace.npz") as trace:
        schedule = {"lr": float(trace["base_lr"]), "schedule": "linear", "warmup": int(trace["warmup"])}
        decay = float(trace["weight_decay"])
        model, losses, _ = train(fixtures, loss="sigmoid", optimizer="adamw", weight_decay=decay, **schedule)
        np.testing.assert_allclose(losses, trace["losses"], rtol=0, atol=1e-4)
        assert_weights(model, trace, tmp_path / "final.npz")


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_schedules(fixtures, schedule):
    with np.load(fixtures / f"schedule_{schedule}.npz") as file:
        settings = OptimizerSettings(lr=float(file["base"]), schedule=schedule, warmup=int(file["warmup"]))
        lrs = [lr_at(int(step), int(file["total"]), settings) for step in file["steps"]]
        np.testing.assert_allclose(lrs, file["lr"], rtol=0, atol=1e-7)
        assert min(file["lr"]) == pytest.approx(0, abs=1e-4)
