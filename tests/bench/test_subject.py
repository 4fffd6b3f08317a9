"""What is measured by default, and from a seed."""

from __future__ import annotations

import torch

import vitrail
from tests.randomise import randomise
from vitrail.bench import BenchSettings
from vitrail.bench.subject import CLASSES, Subject

CPU = torch.device("cpu")


def test_defaults_fit_the_device() -> None:
    here = Subject.choose(BenchSettings(), None, CPU)
    assert (here.name, here.batch_size, here.config.image_size) == ("Ti/16", 8, (224, 224))
    there = Subject.choose(BenchSettings(), None, torch.device("cuda"))
    assert (there.name, there.batch_size) == ("B/16", 256)


def test_everything_random_is_seeded() -> None:
    one, same, other = (
        Subject.choose(BenchSettings(model="mu/16", batch_size=4, seed=seed), 32, CPU) for seed in (0, 0, 1)
    )
    assert torch.equal(one.images(4), same.images(4)) and not torch.equal(one.images(4), other.images(4))
    assert torch.equal(one.labels(), same.labels())
    weights = [subject.model().embedding.weight for subject in (one, same, other)]
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])


def test_a_checkpoint(tmp_path) -> None:
    model = randomise(vitrail.create("mu/16", classes=5, image_size=32))
    vitrail.save(model, tmp_path / "five")
    vitrail.save(randomise(vitrail.create("mu/16", classes=0, image_size=32)), tmp_path / "none")
    five = Subject.choose(BenchSettings(model=str(tmp_path / "five"), batch_size=4), None, CPU)
    assert torch.equal(five.model().head.classifier.weight, model.head.classifier.weight)
    larger = Subject.choose(BenchSettings(model=str(tmp_path / "five")), 64, CPU)
    assert larger.model().config.image_size == (64, 64)
    headless = Subject.choose(BenchSettings(model=str(tmp_path / "none")), None, CPU)
    assert headless.config.classes == CLASSES == headless.model().config.classes
