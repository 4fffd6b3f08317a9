"""A function over all images of a source, in threads: results in order, failures in their places."""

import threading
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitrail.data.bad_files import BadExample
from vitrail.data.decode import decode
from vitrail.data.map_images import map_images
from vitrail.data.sources import open_source


@pytest.fixture
def source(tmp_path: Path):
    (tmp_path / "train" / "a").mkdir(parents=True)
    for k in range(7):
        Image.new("RGB", (4 + k, 5)).save(tmp_path / "train" / "a" / f"{k}.png")
    (tmp_path / "train" / "a" / "3.png").write_bytes(b"")  # cannot be read
    (tmp_path / "train" / "a" / "5.png").write_bytes(b"no picture")  # cannot be decoded
    return open_source(tmp_path)


def width(image, key):
    return decode(image, name=key).shape[1]


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("at_once", [1, 2, 64])
def test_results_are_in_order_and_failures_have_a_reason(source, threads, at_once):
    results = list(map_images(source, width, threads=threads, at_once=at_once))
    assert [r for r in results if not isinstance(r, BadExample)] == [4, 5, 6, 8, 10]
    assert [(r.index, r.key, r.key in r.reason) for r in results if isinstance(r, BadExample)] == [
        (k, source.key(k), True) for k in (3, 5)
    ]
    assert list(map_images(source, width, indices=range(1, 3), threads=threads)) == [5, 6]


def test_one_thread_reads(source, monkeypatch):
    readers, read = set(), type(source).read

    def noted(self, index):
        readers.add(threading.get_ident())
        return read(self, index)

    monkeypatch.setattr(type(source), "read", noted)
    assert len(list(map_images(source, width, threads=4))) == 7
    assert readers == {threading.get_ident()}


def test_other_errors_are_raised(source):
    def fail(image, key):
        raise ZeroDivisionError(np.size(image))

    with pytest.raises(ZeroDivisionError):
        list(map_images(source, fail, threads=2))
