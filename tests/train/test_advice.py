"""How long a run will take, measured before it starts."""

from dataclasses import replace

import pytest
import torch

from tests.train.small import experiment
from vitrail.train import estimate
from vitrail.train.assemble import assemble
from vitrail.train.estimate import advise, describe_seconds, seconds_per_image

CPU = torch.device("cpu")


@pytest.fixture
def parts(tmp_path):
    return lambda **settings: assemble(experiment(**settings), CPU, tmp_path)


@pytest.fixture
def slow(monkeypatch):
    """A machine on which an image takes a second."""
    monkeypatch.setattr(estimate, "seconds_per_image", lambda parts: 1.0)


def test_steps_times_batch_times_runs(parts, slow, caplog):
    """64 examples in batches of 8, 3 passes: 24 steps."""
    assert advise(parts(steps="3ep"), runs=5) == 24 * 8 * 5
    assert "24 steps of 8 images, 5 runs: about 16 minutes on cpu" in caplog.text
    assert "linear probe" not in caplog.text


def test_processes_share_the_batch(parts, slow, monkeypatch):
    monkeypatch.setattr("vitrail.train.estimate.world", lambda: 4)
    assert advise(parts(steps=10), runs=1) == 10 * 8 / 4


@pytest.mark.parametrize(("device", "said"), [("cpu", True), ("cuda", False)])
def test_over_half_an_hour_a_cpu_is_the_wrong_place(parts, slow, caplog, device, said):
    assert advise(replace(parts(steps=226), device=torch.device(device)), runs=1) == 1808
    assert f"226 steps of 8 images: about 30 minutes on {device}" in caplog.text
    assert ("vitrail linear mu/8@16 shapes?image_size=16&n=80" in caplog.text) == said
    assert ("--tune head" in caplog.text) == said


def test_measuring_takes_time_and_leaves_the_random_numbers_alone(parts):
    made = parts()
    assert seconds_per_image(made) > 0
    assert all(p.grad is None for p in made.objective.parameters())
    before = torch.get_rng_state()
    advise(made, runs=1)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.2, "0 seconds"),
        (89, "89 seconds"),
        (91, "2 minutes"),
        (3600, "60 minutes"),
        (7200, "2.0 hours"),
        (3e5, "3.5 days"),
    ],
)
def test_in_words(seconds, words):
    assert describe_seconds(seconds) == words
