"""Other libraries: which model is ours, and why one does not take part."""

from __future__ import annotations

import importlib
import sys

import pytest
import torch

from tests.peers import torchvision_or_skip
from vitrail.bench import BenchSettings, peers
from vitrail.bench.subject import Subject
from vitrail.models.cost import cost
from vitrail.models.names import make_config

CPU = torch.device("cpu")


def subject(model: str = "Ti/16", image_size: int = 32, batch_size: int = 2) -> Subject:
    return Subject.choose(BenchSettings(model=model, batch_size=batch_size), image_size, CPU)


@pytest.mark.parametrize("find", [peers.find_timm, peers.find_torchvision])
@pytest.mark.parametrize(("name", "size"), [("Ti/16", 32), ("S/32", 64), ("Ti/16", 48)])
def test_their_model_is_ours(find, name: str, size: int) -> None:
    """As many parameters, and outputs of the same shape."""
    torchvision_or_skip()
    config = make_config(name, image_size=size, classes=7)
    build = find(config)
    assert not isinstance(build, str), build
    model = build()
    assert sum(p.numel() for p in model.parameters()) == cost(config).parameters
    assert model(torch.zeros(2, 3, size, size)).shape == (2, 7)


@pytest.mark.parametrize(
    ("config", "timm", "torchvision"),
    [
        (make_config("mu/16"), "does not have this architecture", None),
        (make_config("Ti/8@64"), "has no vit_tiny_patch8_224", None),
        (
            make_config("B/16", pool="mean"),
            "does not have this architecture",
            "does not have this architecture",
        ),
        (make_config("B/16", drop_path=0.1), "does not have", "does not have"),
        (make_config("R50x1"), "does not have", "does not have"),
        (make_config("R50+B/16"), "does not have", "does not have"),
        (make_config("B/16@32x64"), None, "takes square images only, not 32x64"),
    ],
    ids=lambda value: "" if value is None or isinstance(value, str) else type(value).__name__,
)
def test_a_model_that_they_do_not_have(config, timm: str | None, torchvision: str | None) -> None:
    torchvision_or_skip()
    for find, reason in ((peers.find_timm, timm), (peers.find_torchvision, torchvision)):
        answer = find(config)
        assert callable(answer) if reason is None else str(answer).startswith(reason)


def test_a_library_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("timm", "torchvision"):
        monkeypatch.setitem(sys.modules, name, None)
    contestants, missing = peers.inference_contestants(subject(), 2, "float32")
    assert not contestants
    assert missing == {"timm": "needs torchvision, which is not installed", "torchvision": "is not installed"}
    contestants, missing = peers.loader_contestants(subject(), None, 0, 0)
    assert not contestants and set(missing) == {"timm", "torchvision, PIL", "torchvision, tensors"}


def test_a_library_that_cannot_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    torchvision_or_skip()
    import_module = importlib.import_module

    def fail(name: str):
        if name == "timm":
            raise RuntimeError("built for another torch\nat length")
        return import_module(name)

    monkeypatch.setattr(importlib, "import_module", fail)
    assert peers.reason_without("timm") == "cannot be imported: built for another torch"
    assert peers.reason_without("torchvision") == ""


def test_versions_are_of_installed_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "PACKAGES", ("torch", "no-such-library"))
    assert list(peers.installed_versions()) == ["torch"]


def test_compiled_on_cuda_only() -> None:
    torchvision_or_skip()
    contestants, _ = peers.training_contestants(
        subject(), "float32", lr=1e-3, weight_decay=0.1, grad_clip=1.0
    )
    assert [one.name for one in contestants] == ["timm", "torchvision"]
    on_cuda = Subject.choose(BenchSettings(model="Ti/16", batch_size=2), 32, torch.device("cuda"))
    contestants, _ = peers.training_contestants(
        on_cuda, "bf16", lr=1e-3, weight_decay=0.1, grad_clip=1.0
    )  # nothing is built yet
    assert [(one.name, one.graphs) for one in contestants] == [
        ("timm", False),
        ("timm, compiled (default)", False),
        ("timm, compiled (reduce-overhead)", True),
        ("timm, compiled (max-autotune)", True),
        ("torchvision", False),
        ("torchvision, compiled (default)", False),
    ]


def test_their_training_step_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    torchvision_or_skip()
    built: list[torch.nn.Module] = []
    find = peers.find_timm

    def keep(config):
        build = find(config)
        return lambda: built.append(build()) or built[-1]

    monkeypatch.setattr(peers, "find_timm", keep)
    contestants, _ = peers.training_contestants(
        subject(), "float32", lr=1e-3, weight_decay=0.1, grad_clip=1.0
    )
    step = contestants[0].build()
    before = {name: p.detach().clone() for name, p in built[0].named_parameters()}
    step()
    assert all(not torch.equal(p, before[name]) for name, p in built[0].named_parameters() if p.ndim > 1)
    assert all(p.grad is None for p in built[0].parameters())
