"""One process, alone and as torchrun would start it. tests/train/test_parallel.py has several."""

import socket

import pytest
import torch
import torch.distributed as dist

from vitrail.runtime import distributed
from vitrail.runtime.distributed import all_sum, barrier, gather, group, launched, local_rank, rank, world

CPU = torch.device("cpu")


@pytest.fixture
def not_launched(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def as_by_torchrun(monkeypatch):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for name, value in {
        "RANK": 0, "WORLD_SIZE": 1, "LOCAL_RANK": 0, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
    }.items():  # fmt: skip
        monkeypatch.setenv(name, str(value))


def test_alone_nothing_is_joined(not_launched):
    assert not launched()
    with group(CPU) as device:
        assert device == CPU and not dist.is_initialized()
        assert (rank(), world(), local_rank()) == (0, 1, 0)
        t = torch.tensor([1.0, 2.0])
        assert torch.equal(all_sum(t), t)
        assert gather({"a": 1}) == [{"a": 1}]
        barrier()


@pytest.mark.parametrize("missing", ["RANK", "WORLD_SIZE", "LOCAL_RANK"])
def test_a_part_of_the_environment_is_not_torchrun(as_by_torchrun, monkeypatch, missing):
    """Schedulers set some of these names for reasons of their own."""
    assert launched()
    monkeypatch.delenv(missing)
    assert not launched()


def test_joined_nested_left_and_joined_again(as_by_torchrun):
    for _ in range(2):
        with group(CPU) as device:
            assert device == CPU and dist.get_backend() == "gloo"
            with group(CPU):
                assert (rank(), world()) == (0, 1)
            assert dist.is_initialized()  # the inner one leaves the group to the outer one
            assert gather(3) == [3]
        assert not dist.is_initialized()


def test_the_group_is_left_after_an_error(as_by_torchrun):
    with pytest.raises(KeyError), group(CPU):
        raise KeyError
    assert not dist.is_initialized()


def test_the_local_rank_is_torchruns(monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert local_rank() == 3


def test_of_several_the_sum_is_a_new_tensor(monkeypatch):
    """The process's own part is not changed under its hands."""
    monkeypatch.setattr(distributed, "world", lambda: 2)
    monkeypatch.setattr(dist, "all_reduce", lambda t: t.mul_(2))
    own = torch.tensor([1.0, 5.0])
    assert all_sum(own).tolist() == [2.0, 10.0]
    assert own.tolist() == [1.0, 5.0]


@pytest.mark.parametrize(("kept", "name"), [("True", "3"), ("False", "0"), (None, "0")])
def test_restarts_are_counted_only_where_the_store_outlives_them(monkeypatch, kept, name):
    """Each node counts its own: in a store that is new to all, one that came back has to find the others."""
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "3")
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    if kept is not None:
        monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", kept)
    assert distributed.attempt() == name
