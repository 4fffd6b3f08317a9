"""A list of names in flat arrays behaves as the list."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitrail.data.readers.names import Names, printable


@given(st.lists(st.binary(max_size=10)))
def test_as_the_list(words: list[bytes]) -> None:
    names = Names(words)
    assert list(names) == words
    assert len(names) == len(words)
    assert list(pickle.loads(pickle.dumps(names))) == words
    assert list(Names.from_arrays(names.bytes, names.ends)) == words
    for index in (-1, len(words)):
        with pytest.raises(IndexError):
            names[index]


def test_arrays_that_are_not_names() -> None:
    for ends in ([0, 5], [1, 3], [0, 2, 1, 3], []):
        with pytest.raises(ValueError, match="not the arrays"):
            Names.from_arrays(np.zeros(3, np.uint8), np.array(ends, np.int64))


@given(st.binary())
def test_printable_is_always_utf8(name: bytes) -> None:
    printable(name).encode()
    assert printable("é".encode()) == "é"
    assert printable(b"\xff") == "\\xff"
