"""Random damage to the files of a run: what is restored is what was saved, or there is an error in words."""

import random
import shutil
from contextlib import closing

import pytest
import torch

from vitrail.checkpoints.run import Run
from vitrail.checkpoints.run.summary import summarize
from vitrail.errors import VitrailError

CONFIG = {"model": {"name": "Ti/8", "width": 192}, "data": "pets", "steps": 100, "rate": 0.1}


def state_of(value):
    return {"w": torch.full((40, 5), float(value)), "half": torch.full((7,), float(value)).half()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "run"
    with closing(Run.open(path, CONFIG)) as run:
        for step in (1, 2):
            run.append({"step": step, "loss": 1 / step, "rate": 0.1})
            run.save(step, state_of(step), {"seen": step}, score=-step)
        run.finish({"test": {"top1": 0.5}})
    return path


def flip(content, chance):
    at = chance.randrange(len(content))
    return content[:at] + bytes([content[at] ^ 1 << chance.randrange(8)]) + content[at + 1 :]


def overwrite(content, chance):
    at, n = chance.randrange(len(content)), chance.randint(1, 64)
    return (content[:at] + chance.randbytes(n) + content[at + n :])[: len(content)]


DAMAGES = [
    flip,
    overwrite,
    lambda content, chance: content[: chance.randrange(len(content))],
    lambda content, chance: content + chance.randbytes(chance.randint(1, 100)),
    lambda content, chance: content[chance.randrange(len(content)) :],
    lambda content, chance: bytes(len(content)),
    lambda content, chance: b"",
]


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 11))])
def test_damage(whole, tmp_path, seed):
    """50 times; with the long ones 550."""
    chance = random.Random(seed)
    files = sorted(p.relative_to(whole) for p in whole.rglob("*") if p.is_file() and p.stat().st_size)
    for attempt in range(50):
        path = shutil.copytree(whole, tmp_path / str(attempt))
        for file in chance.sample(files, chance.choice([1, 1, 2])):
            damage = chance.choice(DAMAGES)
            (path / file).write_bytes(damage((path / file).read_bytes(), chance))
        try:
            assert summarize(path, "name").name == "name"
        except VitrailError as error:
            assert len(str(error)) < 1000
        try:
            with closing(Run.open(path, CONFIG)) as run:
                state = state_of(0)
                step, facts = run.restore(state)
                assert facts == {"seen": step}
                assert all(torch.equal(t, state_of(step)[name]) for name, t in state.items())
                run.rewind(step)
                run.results()
        except VitrailError as error:
            assert len(str(error)) < 1000
        shutil.rmtree(path)
