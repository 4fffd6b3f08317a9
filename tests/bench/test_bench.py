"""Each kind does the real work; nothing of it stays behind."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.peers import torchvision_or_skip
from vitrail.bench import BenchSettings, bench, peers
from vitrail.bench.bench import run_bench
from vitrail.bench.infer import build_step as build_pass
from vitrail.bench.loader import loader_task
from vitrail.bench.photographs import HEIGHT, WIDTH, write_photographs
from vitrail.bench.subject import Subject
from vitrail.bench.train import training_task
from vitrail.data.sources import open_source
from vitrail.errors import ConfigError, DataError
from vitrail.inference.engine import evaluation_mode

CPU = torch.device("cpu")
QUICK = BenchSettings(model="mu/16", batch_size=4, rounds=2, round_seconds=0.01)


@pytest.fixture
def few_photographs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Fewer photographs, in a temporary folder that only this test uses."""
    monkeypatch.setattr(bench, "write_photographs", partial(write_photographs, count=4))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def subject() -> Subject:
    return Subject.choose(QUICK, 32, CPU)


def test_all_kinds(few_photographs: Path) -> None:
    report = run_bench(("train", "infer", "loader"), QUICK, 32, "cpu")
    assert [(one.task.kind, one.task.batch_size) for one in report.measured] == [
        ("train", 4),
        ("infer", 4),
        ("latency", 1),
        ("loader", 4),
    ]
    for one in report.measured:
        (ours,) = one.speeds
        assert len(ours.seconds) == 2 and min(ours.seconds) > 0
        assert len(ours.p95) == (2 if one.task.latency else 0)
    assert not list(few_photographs.glob("vitrail-bench-*"))


def test_the_training_step_is_the_loops(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    model = subject.model()
    monkeypatch.setattr(Subject, "model", lambda self: model)
    task = training_task(subject)
    assert task.facts == {"precision": "float32", "compile": "off", "optimizer": "adamw", "grad_clip": 1.0}
    step = task.contestants[0].build()
    before = model.head.classifier.weight.detach().clone()
    step()
    assert torch.equal(model.head.classifier.weight, before)  # the warmup begins at lr 0
    step()
    assert not torch.equal(model.head.classifier.weight, before)


def test_the_pass_is_the_engines(subject: Subject) -> None:
    y = build_pass(subject, 4, "float32")()
    model = subject.model()
    with torch.no_grad(), evaluation_mode(model):
        torch.testing.assert_close(y, model(subject.images(4)))


def test_fp8_is_for_inference() -> None:
    settings = BenchSettings(model="mu/8", precision="fp8", batch_size=2, rounds=1, round_seconds=0.01)
    report = run_bench(["infer"], settings, 16, "cpu")
    assert {one.task.facts["precision"] for one in report.measured} == {"fp8"}
    with pytest.raises(ConfigError, match="fp8"):
        run_bench(["train"], settings, 16, "cpu")


def test_the_loader_is_that_of_a_run(subject: Subject, tmp_path: Path) -> None:
    source = open_source(write_photographs(tmp_path / "photographs", seed=0, count=4), "train")
    task = loader_task(subject, source, tmp_path)
    batch = task.contestants[0].build()()
    assert batch["image"].shape == (4, 3, 32, 32) and batch["image"].dtype == torch.uint8
    assert task.facts["line"] == "inception_crop(32)|flip_lr|uint8|to_range(-1, 1)"
    assert task.facts["num_workers"] == 0 and task.contestants[0].ready == 0  # the model needs the cores
    chosen = replace(subject, settings=replace(QUICK, num_workers=3))
    assert loader_task(chosen, source, tmp_path).contestants[0].ready == 8
    cuda = Subject(subject.name, False, subject.config, 4, QUICK, torch.device("cuda"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.cpu_count", lambda: 4)
        model = subject.model()
        patch.setattr(Subject, "model", lambda self: model)
        there = loader_task(cuda, source, tmp_path)  # nothing is started yet
    assert there.facts["num_workers"] == 4 and there.contestants[0].ready == 10


def test_photographs_are_like_real_ones(tmp_path: Path) -> None:
    one, same = (write_photographs(tmp_path / name, seed=0, count=2) for name in ("one", "same"))
    files = sorted(one.rglob("*.jpg"))
    assert [file.relative_to(one) for file in files] == [
        Path("train/class0/0000.jpg"),
        Path("train/class1/0001.jpg"),
    ]
    for file in files:
        assert file.read_bytes() == (same / file.relative_to(one)).read_bytes()
        assert 60_000 < file.stat().st_size < 140_000
        with Image.open(file) as image:
            assert image.size == (WIDTH, HEIGHT)
            assert np.asarray(image).std() > 30
    assert len({file.read_bytes() for file in files}) == 2


def test_ctrl_c_leaves_no_folder(few_photographs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_):
        assert list(few_photographs.glob("vitrail-bench-*/photographs/train/*/*.jpg"))
        raise KeyboardInterrupt

    monkeypatch.setattr(bench, "measure", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run_bench(("loader",), QUICK, 32, "cpu")
    assert not list(few_photographs.glob("vitrail-bench-*"))


def test_data_is_opened_before_anything_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "measure", None)
    with pytest.raises(ConfigError, match="--data photos is for the loader"):
        run_bench(("train",), BenchSettings(model="mu/16", data="photos"), 32, "cpu")
    with pytest.raises(DataError, match="nowhere"):
        run_bench(("train", "loader"), BenchSettings(model="mu/16", data="nowhere"), 32, "cpu")


@pytest.mark.parametrize(
    "field",
    [
        {"batch_size": 0},
        {"rounds": 0},
        {"round_seconds": 0.0},
        {"round_seconds": float("nan")},
        {"seed": -1},
        {"num_workers": -1},
    ],
)
def test_settings_that_cannot_be(field: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(field))} must"):
        BenchSettings(**field)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.filterwarnings("ignore")  # of the compiler and its libraries
def test_on_a_gpu(few_photographs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled, in bf16, with memory; others in every mode that needs no minutes."""
    torchvision_or_skip()
    monkeypatch.setattr(peers, "MODES", {"timm": ("", "default", "reduce-overhead"), "torchvision": ("",)})
    settings = replace(QUICK, model="Ti/16", batch_size=16, peers=True, num_workers=1)
    train, infer, latency, loader = run_bench(("train", "infer", "loader"), settings, 32, "cuda").measured
    assert train.task.facts["precision"] == infer.task.facts["precision"] == "bf16"
    assert train.task.facts["compile"] == "on"
    for one in (train, infer, latency):
        assert not one.missing and len(one.speeds) == 5
        assert [speed.memory_bytes is None for speed in one.speeds] == [False, False, False, True, False]
    assert {speed.memory_bytes for speed in loader.speeds} == {None}
    assert not list(few_photographs.glob("vitrail-bench-*"))
