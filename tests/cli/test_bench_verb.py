"""bench: the table, the JSON, the file; mistakes are one line and exit code 2."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.peers import torchvision_or_skip
from vitrail.bench import bench
from vitrail.bench.photographs import write_photographs

QUICK = (
    "--batch-size",
    "2",
    "--image-size",
    "32",
    "--rounds",
    "2",
    "--round-seconds",
    "0.01",
    "--device",
    "cpu",
)


@pytest.fixture(autouse=True)
def few_photographs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "write_photographs", partial(write_photographs, count=2))


def test_the_table_has_a_row_for_each(vitrail_command: Any, tmp_path: Path, caplog: Any) -> None:
    torchvision_or_skip()
    file = tmp_path / "new" / "speed.json"
    code, out, err = vitrail_command("bench", *QUICK, "--model", "Ti/16", "--peers", "--out", file)
    assert code == 0, err
    rows = [line.split() for line in out.splitlines()]
    for kind in ("train", "infer", "latency", "loader"):
        assert [kind, "vitrail"] in [row[:2] for row in rows]
        assert any(row[:5] == [f"{kind}:", "the", "fastest", "other", "is"] for row in rows)
    assert sum(row[:1] == ["timm"] for row in rows) == 4
    assert sum(row[:1] == ["torchvision"] for row in rows) == 3
    assert "vitrail / this" in out and "p95 ms" in out and "memory" not in out  # no empty columns
    assert "Measuring train, infer, loader of Ti/16 at 32x32" in caplog.text
    assert [one["kind"] for one in json.loads(file.read_text())["measurements"]] == [
        "train",
        "infer",
        "latency",
        "loader",
    ]


def test_the_json_is_complete(vitrail_command: Any) -> None:
    code, out, err = vitrail_command("bench", "infer", *QUICK, "--model", "mu/16", "--json")
    assert code == 0, err
    result = json.loads(out)
    assert {"model", "device_name", "cores", "threads", "platform", "parameters"} <= set(result)
    assert {"vitrail", "torch", "python"} <= set(result["versions"])
    assert result["settings"]["batch_size"] == 2 and result["settings"]["rounds"] == 2
    infer, latency = result["measurements"]
    assert infer["precision"] == "float32" and infer["missing"] == {} and infer["fastest_peer"] is None
    (ours,) = infer["contestants"]
    assert ours["name"] == "vitrail" and len(ours["images_per_second"]["rounds"]) == 2
    assert ours["startup_seconds"] > 0 and ours["p95_milliseconds"] is None
    assert len(latency["contestants"][0]["p95_milliseconds"]["rounds"]) == 2


def test_a_library_that_is_not_there_is_listed(vitrail_command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    torchvision_or_skip()
    monkeypatch.setitem(sys.modules, "timm", None)
    code, out, err = vitrail_command("bench", "train", *QUICK, "--model", "Ti/16", "--peers")
    assert code == 0, err
    assert "train: timm is not installed." in out
    assert any(line.split()[:3] == ["timm", "-", "not"] for line in out.splitlines())
    assert "the fastest other is torchvision" in out


def test_ones_own_images(vitrail_command: Any, tmp_path: Path) -> None:
    write_photographs(tmp_path / "mine", seed=1, count=3)
    words = ("bench", "loader", *QUICK, "--model", "mu/16", "--data", tmp_path / "mine", "--json")
    code, out, err = vitrail_command(*words)
    assert code == 0, err
    (loader,) = json.loads(out)["measurements"]
    assert loader["images"] == 3 and loader["data"] == "mine:train" and loader["median_bytes"] > 50_000


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("bench", "everything"), "train"),
        (("bench", "--rounds", "0"), "rounds must be at least 1, not 0"),
        (("bench", "--batch-size", "-1"), "batch_size must be at least 1, not -1"),
        (("bench", "--model", "Q/16"), "unknown model 'Q/16'"),
        (("bench", "--model", "mu/16", "--image-size", "30"), "not a multiple of 16"),
        (("bench", "--image-size", "1", "2", "3"), "--image-size takes one number, or height and width"),
        (("bench", "--model", "mu/16", "--data", "nowhere"), "nowhere"),
        (("bench", "train", "--model", "mu/16", "--data", "photos"), "--data photos is for the loader"),
        (("bench", "--precision", "int4"), "bf16"),
    ],
    ids=lambda value: value[1] + value[-1] if isinstance(value, tuple) else "",
)
def test_mistakes(words: tuple[str, ...], message: str, vitrail_command: Any) -> None:
    code, out, err = vitrail_command(*words, "--device", "cpu")
    assert code == 2 and message in " ".join((out + err).split()), out + err


def test_nothing_is_overwritten(vitrail_command: Any, tmp_path: Path) -> None:
    (tmp_path / "speed.json").write_text("mine")
    code, _, err = vitrail_command("bench", *QUICK, "--out", tmp_path / "speed.json")
    assert code == 2 and "exists; nothing is overwritten" in err
    assert (tmp_path / "speed.json").read_text() == "mine"


def test_the_papers_figures(vitrail_command: Any, tmp_path: Path) -> None:
    out = tmp_path / "speed.json"
    words = ("--model", "mu/16", "--image-size", "30", "64", "--batch-size", "2", *QUICK[4:])
    code, printed, err = vitrail_command("bench", "--paper", *words, "--out", out)
    assert code == 0, err
    assert "not measured" in printed  # on a CPU the memory is not filled
    cells = json.loads(out.read_text())["cells"]
    assert [cell["image_size"] for cell in cells] == [32, 64]  # the nearest that patches of 16 divide
    assert all(list(cell["speeds"]) == ["1", "2"] and cell["images_per_second"] > 0 for cell in cells)
    assert [path.name for path in tmp_path.glob("*.png")] == ["speed-speed.png"]
