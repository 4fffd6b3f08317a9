import json
import shutil

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.evaluators.split import named
from vitrail.curate import index as index_module
from vitrail.curate.build_index import append, arrays_of
from vitrail.curate.index import Index, code_product, open_index, to_codes
from vitrail.errors import ConfigError, DataError
from vitrail.evaluators.knn import neighbours

CLASSES = 4


class Vectors:
    """A source of which only labels and keys are asked for."""

    def __init__(self, n):
        self.labels, self.class_names = np.arange(n) % CLASSES, named(CLASSES)

    def key(self, row):
        return f"photos/{row:04}.jpg"


def written(folder, x, precision="float16"):
    """An index of given features."""
    folder.mkdir()
    about = {"class_names": named(CLASSES), "thumbnails": 0}
    reached = {"rows": 0, "key_bytes": 0, "thumbnail_bytes": 0}
    with arrays_of(folder, precision, 0, x.shape[1], reached) as arrays:
        half = len(x) // 2
        for places in (np.arange(half), np.arange(half, len(x))):
            append(arrays, x[places].astype(np.float16), places, Vectors(len(x)), about)
        for array in arrays.values():
            array.save()
    card = {
        "format": "vitrail index", "version": 1, "model": "ti8-64", "fingerprint": "0", "preprocess": "",
        "which": "pre_logits", "precision": precision, "data": "photos", "split": "photos:train",
        "data_fingerprint": "1", "folder": "/photos", "images": len(x), "broken": 0, "width": x.shape[1],
        "thumbnails": 0, "class_names": named(CLASSES),
    }  # fmt: skip
    (folder / "index.json").write_text(json.dumps(card))
    return folder


def clustered(n, width, seed, spread=0.2):
    """Features in clusters, some coordinates far larger than others, as those of transformers are."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((20, width)) * np.where(np.arange(width) % 17 == 0, 6, 1)
    rows = centres[rng.integers(0, 20, n)] + spread * rng.standard_normal((n, width))
    return rows.astype(np.float32)


@pytest.mark.parametrize("precision", ["float16", "int8"])
@pytest.mark.parametrize("queries", [1, 70])
def test_neighbours_are_those_of_an_exact_search(tmp_path, precision, queries):
    x, q = clustered(3000, 48, 0), clustered(queries, 48, 1)
    index = open_index(written(tmp_path / "index", x, precision))
    s, rows = index.nearest(q, 12)
    expected_s, expected = neighbours(x.astype(np.float16), q, 12)
    np.testing.assert_array_equal(rows, expected)
    np.testing.assert_allclose(s, expected_s, rtol=1e-12)


@pytest.mark.parametrize("precision", ["float16", "int8"])
@pytest.mark.parametrize("queries", [1, 40, 70])
def test_processors_without_the_instructions_find_the_same(tmp_path, monkeypatch, precision, queries):
    """More rows than are converted at a time, and fewer candidates than the bound of 8 bits asks for."""
    monkeypatch.setattr(index_module, "whole_products_work", lambda: False)
    monkeypatch.setattr(index_module, "SPARE", 1)
    x, q = clustered(2 * index_module.FEW + 100, 32, 0), clustered(queries, 32, 1)
    index = open_index(written(tmp_path / "index", x, precision))
    np.testing.assert_array_equal(index.nearest(q, 9)[1], neighbours(x.astype(np.float16), q, 9)[1])


@pytest.mark.parametrize("precision", ["float16", "int8"])
def test_rows_that_are_alike_and_rows_of_zeros(tmp_path, precision):
    """As many copies of a row as no shortlist holds: of equals, the first rows."""
    x = clustered(600, 16, 0)
    x[100:400] = x[100]
    x[500:] = 0
    index = open_index(written(tmp_path / "index", x, precision))
    assert index.nearest(x[100:101], 5)[1].tolist() == [[100, 101, 102, 103, 104]]
    assert index.nearest(np.zeros((1, 16)), 3)[1].tolist() == [[0, 1, 2]]


@settings(max_examples=40)
@given(st.integers(1, 40), st.integers(1, 60), st.integers(0, 1000))
def test_products_of_codes_are_exact_and_codes_near(n, width, seed):
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal((n, width)) * 10.0 ** rng.integers(-3, 4)).astype(np.float32)
    codes, scales = to_codes(x)
    lengths = np.linalg.norm(x, axis=1, keepdims=True)
    assert (np.abs(codes * scales[:, None] - x / lengths) <= 0.501 * scales[:, None]).all()
    q = torch.from_numpy(codes[: n // 2 + 1])
    whole = q.double() @ torch.from_numpy(codes).double().T
    for works in (lambda: True, lambda: False):
        with pytest.MonkeyPatch.context() as patch:
            if not works():
                patch.setattr(index_module, "whole_products_work", works)
            assert torch.equal(code_product(q, torch.from_numpy(codes)).double(), whole)


def test_a_neighbour_says_what_and_where_it_is(tmp_path):
    x = clustered(50, 8, 0)
    (found,) = open_index(written(tmp_path / "index", x)).search(x[7:8], 3)
    assert len(found) == 3
    assert found[0][:2] == ("photos/0007.jpg", "class 3")
    assert found[0].path == "/photos/photos/0007.jpg"
    assert found[0].similarity == pytest.approx(1, abs=1e-3)
    assert [one.similarity for one in found] == sorted((one.similarity for one in found), reverse=True)


def test_more_than_there_are_and_none_at_all(tmp_path):
    x = clustered(5, 8, 0)
    index = open_index(written(tmp_path / "index", x))
    assert len(index.search(x[:1], 10)[0]) == 5
    assert index.search(x[:0], 10) == []


@pytest.mark.parametrize(
    ("features", "top"),
    [(np.zeros((1, 7)), 1), (np.zeros(8), 1), (np.full((1, 8), np.nan), 1), (np.zeros((1, 8)), 0)],
)
def test_what_cannot_be_searched_for(tmp_path, features, top):
    index = open_index(written(tmp_path / "index", clustered(5, 8, 0)))
    with pytest.raises(ConfigError):
        index.search(features, top)


CHANGES = {
    "format": "something",
    "version": 2,
    "precision": "int4",
    "images": 51,
    "width": 4,
    "class_names": ["one"],
    "thumbnails": 9,
    "unknown": 1,
}


@pytest.mark.parametrize("field", CHANGES)
def test_a_card_that_does_not_fit_is_refused(tmp_path, field):
    folder = written(tmp_path / "index", clustered(50, 8, 0))
    card = json.loads((folder / "index.json").read_text())
    (folder / "index.json").write_text(json.dumps(card | {field: CHANGES[field]}))
    if field == "unknown":
        assert len(open_index(folder)) == 50  # a later version may add to it
    else:
        with pytest.raises(DataError):
            open_index(folder)


def change(folder, name, function):
    array = np.load(folder / f"{name}.npy")
    np.save(folder / f"{name}.npy", function(array))


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("labels", lambda a: a + 1),
        ("labels", lambda a: a - 2),
        ("key_ends", lambda a: a[::-1]),
        ("key_ends", lambda a: a + 1),
        ("lengths", lambda a: a * np.nan),
        ("lengths", lambda a: -a),
        ("scales", lambda a: -a),
        ("codes", lambda a: a.astype(np.uint8)),
        ("features", lambda a: a[1:]),
    ],
)
def test_arrays_that_do_not_fit_are_refused(tmp_path, name, function):
    folder = written(tmp_path / "index", clustered(50, 8, 0), "int8")
    change(folder, name, function)
    with pytest.raises(DataError):
        open_index(folder)


def test_features_that_are_not_finite_are_found_when_they_are_searched(tmp_path):
    folder = written(tmp_path / "index", clustered(50, 8, 0))
    change(folder, "features", lambda a: np.where(np.arange(50)[:, None] == 9, np.float16(np.nan), a))
    with pytest.raises(DataError, match="finite"):
        open_index(folder).search(np.ones((1, 8)), 50)


def test_files_that_are_missing_and_folders_that_are_none(tmp_path):
    folder = written(tmp_path / "index", clustered(50, 8, 0), "int8")
    assert isinstance(open_index(folder), Index)
    for name in ("features", "lengths", "codes", "scales", "labels", "keys", "key_ends"):
        broken = shutil.copytree(folder, tmp_path / name)
        (broken / f"{name}.npy").unlink()
        with pytest.raises(DataError, match=name):
            open_index(broken)
    for none in (tmp_path / "nothing", tmp_path):
        with pytest.raises(DataError):
            open_index(none)
