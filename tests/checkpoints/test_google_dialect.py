"""A dialect that came with someone's model decides nothing but what files can have."""

import numpy as np
import pytest

import vitrail
from vitrail.checkpoints.google_dialect import Dialect
from vitrail.checkpoints.npz import read_npz
from vitrail.errors import CheckpointError, ConfigError


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"prefix": "opt/target/", "names": "linen", "scan": True, "top": True},
        {
            "prefix": "params/img/",
            "odd": {"cls": ["|V2", "F", None], "norm/scale": ["<f2", "C", [1, 1, 1, 8]]},
        },
    ],
)
def test_what_files_have(given):
    assert Dialect(**given).prefix == given.get("prefix", "")


WRONG = [
    {"prefix": "../../.."},
    {"prefix": "/"},
    {"prefix": "params"},
    {"prefix": 5},
    {"names": "zz"},
    {"names": ["linen"]},
    {"scan": 2},
    {"top": "no"},
    {"odd": 5},
    {"odd": [["cls", ["<f4", "C", None]]]},
    {"odd": {"cls": ["<f4"]}},
    {"odd": {"cls": ["O", "C", None]}},
    {"odd": {"cls": ["zzz", "C", None]}},
    {"odd": {"cls": [["<f4"], "C", None]}},
    {"odd": {"cls": ["<f4", "Q", None]}},
    {"odd": {"cls": ["<f4", "C", 5]}},
    {"odd": {"cls": ["<f4", "C", [-1, 1, 1, -32]]}},
    {"odd": {"embedding/kernel": ["<U100000", "C", None]}},
    {"odd": {"x" * 1000: ["<f4", "C", None]}},
]


@pytest.mark.parametrize("given", WRONG, ids=lambda given: str(given)[:40])
def test_what_no_file_has(given):
    with pytest.raises(ConfigError, match=f"no file has {next(iter(given))}="):
        Dialect(**given)


@pytest.mark.parametrize(
    "dialect", [*WRONG[:1], *WRONG[-3:], {"strange": 1}, [1], None], ids=lambda d: str(d)[:40]
)
def test_nothing_is_written_by_such_a_one(tmp_path, dialect):
    model = vitrail.create("mu/8", image_size=16, classes=3)
    model.provenance = {"format": "npz", "dialect": dialect}
    with pytest.raises(CheckpointError, match="does not tell its npz dialect"):
        vitrail.save(model, tmp_path / "m.npz", to="npz")
    assert not list(tmp_path.iterdir())


def test_a_prefix_of_plain_words_is_kept(tmp_path):
    vitrail.save(vitrail.create("mu/8", image_size=16, classes=3), tmp_path / "a.npz", to="npz")
    arrays = {f"my-run/ema/{key}": a for key, a in read_npz(tmp_path / "a.npz").items()}
    np.savez(tmp_path / "b.npz", **arrays)
    vitrail.save(vitrail.load(tmp_path / "b.npz"), tmp_path / "c.npz", to="npz")
    assert set(read_npz(tmp_path / "c.npz")) == set(arrays)
