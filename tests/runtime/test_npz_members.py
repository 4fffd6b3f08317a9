"""Members of .npz files: read as numpy reads them, or refused before anything is allocated."""

from __future__ import annotations

import io
import zipfile
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from vitrail.runtime.npz_members import DAMAGE, read_member, read_member_header, read_npy_header


def opened(array: np.ndarray, *, packed: bool) -> zipfile.ZipFile:
    stream = io.BytesIO()
    (np.savez_compressed if packed else np.savez)(stream, a=array)
    return zipfile.ZipFile(stream)


@given(
    arrays.arrays(
        st.sampled_from(["u1", "<i8", ">i4", "f4", "U3", "?"]), arrays.array_shapes(min_dims=0, min_side=0)
    ),
    st.booleans(),
)
def test_an_array_is_what_was_saved(array: np.ndarray, packed: bool) -> None:
    with opened(array, packed=packed) as archive:
        member = archive.getinfo("a.npy")
        header, read = read_member_header(archive, member), read_member(archive, member)
    assert (header.shape, header.dtype) == (read.shape, read.dtype) == (array.shape, array.dtype)
    assert read.tobytes() == array.tobytes()


@given(st.binary(max_size=200), st.integers(0, 300))
def test_any_bytes_are_damage(data: bytes, size: int) -> None:
    for start in (b"", b"\x93NUMPY\x01\x00", b"\x93NUMPY\x02\x00"):
        with pytest.raises(DAMAGE):
            read_npy_header(io.BytesIO(start + data), size)


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("more", [-1, 0, 1])
def test_a_member_has_the_bytes_of_its_array(version: Any, more: int) -> None:
    stream = io.BytesIO()
    np.lib.format.write_array(stream, np.arange(5), version=(version, 0))
    size = len(stream.getvalue())
    stream.seek(0)
    if more:
        with pytest.raises(ValueError, match=rf"\(5,\) of int64.* {size + more:,} bytes"):
            read_npy_header(stream, size + more)
    else:
        assert read_npy_header(stream, size).start == size - 40
