"""No entry of a config file, whoever wrote it, ends in a traceback."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vitrail
from vitrail.errors import VitrailError

JUNK: list[Any] = [
    None, "", "gelu", -1, 0, 1, 3, 10**400, 1e400, -1e400, float("nan"), 1e-320, 0.5, True, False, [], [[]], {},
    {"a": None}, [None], ["a"], [1], [1, 2], [0, 0, 0], [1e300, 1e300, 1e300], [-1, -1, -1], {"0": 1}, 10**18,
    "x" * 10_000, {"height": 16}, {"shortest_edge": None}, {"shortest_edge": "16"}, {"shortest_edge": -16},
    {"shortest_edge": 10**9}, {"longest_edge": 16}, {"height": None, "width": None}, {"height": 16.0, "width": 16},
    {"height": True, "width": True}, "\ud800", "\x1b[2J",
]  # fmt: skip
FIELDS = {"width": 24, "depth": 1, "mlp_dim": 40, "heads": 3, "image_size": 16, "classes": 3}
FILES = {
    "timm": ("config.json",),
    "huggingface": ("config.json", "preprocessor_config.json"),
    "bundle": ("model.json",),
}


def places(card: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all entries in a JSON object, the whole of it first."""
    yield path
    pairs = card.items() if isinstance(card, dict) else enumerate(card) if isinstance(card, list) else ()
    for key, value in pairs:
        yield from places(value, (*path, key))


def replaced(card: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    made = dict(card) if isinstance(card, dict) else list(card)
    made[path[0]] = replaced(made[path[0]], path[1:], value)
    return made


def model(folder: Path, to: str) -> Path:
    made = vitrail.create("B/8", **FIELDS)
    made.class_names, made.metrics = ["a", "b", "c"], {"test": {"top1": 0.5}}
    made.preprocess = "resize_small(18, pillow_bicubic, down)|central_crop(16)|uint8|normalize(0.5, 0.5)"
    vitrail.save(made, folder / to, to=to)
    return folder / to


FEW = [None, "", -1, {"shortest_edge": None}]


def use(made: Any, folder: Path) -> None:
    if made.preprocess and made.config.image_size[0] <= 64:
        vitrail.features(made, np.zeros((20, 30, 3), np.uint8))
    vitrail.save(made, folder)


@pytest.mark.parametrize("junk", [FEW, pytest.param(JUNK, marks=pytest.mark.long)], ids=["few", "all"])
@pytest.mark.parametrize("to", FILES)
def test_no_value_of_a_config_file_is_a_traceback(to: str, junk: list[Any], tmp_path: Path) -> None:
    """A VitrailError, or a model that runs and can be written."""
    folder = model(tmp_path, to)
    for name in FILES[to]:
        card = json.loads((folder / name).read_text())
        if to == "bundle":
            del card["sha256"]
            card["version"] = 1
        for path in places(card):
            for value in junk:
                (folder / name).write_text(json.dumps(replaced(card, path, value)))
                try:
                    made = vitrail.load(folder)
                    if junk is JUNK:
                        use(made, tmp_path / "again")
                except VitrailError:
                    continue
                except Exception as error:
                    raise AssertionError(f"{name}: {path} = {value!r:.100}") from error
        (folder / name).write_text(json.dumps(card))


@pytest.mark.parametrize("to", FILES)
def test_nor_is_a_missing_entry(to: str, tmp_path: Path) -> None:
    folder = model(tmp_path, to)
    for name in FILES[to]:
        card = json.loads((folder / name).read_text())
        for key in card:
            (folder / name).write_text(json.dumps({k: v for k, v in card.items() if k != key}))
            with suppress(VitrailError):
                vitrail.load(folder)
        (folder / name).write_text(json.dumps(card))
