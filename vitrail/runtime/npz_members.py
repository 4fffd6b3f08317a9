"""Arrays of a `.npz` file, a zip of `.npy` members, whose headers are checked before anything is allocated.

    path ──zipfile──► member ──read_member_header──► Header(shape, dtype, ..)
                             └─read_member──► array

A damaged file raises one of DAMAGE, which the caller turns into its own error.
"""

from __future__ import annotations

import io
import lzma
import math
import struct
import tokenize
import zipfile
import zlib
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy

HEADER_BYTES = 1 << 16  # at most; numpy reads 10,000 itself
# Version 3 has UTF-8 in the names of fields, which no array has here.
HEADERS = {
    (1, 0): npy.read_array_header_1_0,
    (2, 0): npy.read_array_header_2_0,
    (3, 0): npy.read_array_header_2_0,
}
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # numpy writes these; others unpack without a bound
# Exceptions of zipfile and numpy's header reader for damaged files.
DAMAGE = (
    zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, tokenize.TokenError, EOFError, OSError, KeyError,
    ValueError, TypeError, SyntaxError, RuntimeError, OverflowError, MemoryError,
)  # fmt: skip


@dataclass(frozen=True)
class Header:
    """Header of a `.npy` member."""

    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype[Any]
    start: int  # of the values, in bytes from the beginning of the member


def read_npy_header(stream: IO[bytes], size: int) -> Header:
    """Read the header of a member of `size` bytes; raise ValueError if it is invalid or does not fit that size."""
    head = io.BytesIO(stream.read(HEADER_BYTES))
    version = npy.read_magic(head)
    if version not in HEADERS:
        raise ValueError(f"is .npy version {version}; known are {', '.join(map(str, HEADERS))}")
    shape, fortran, dtype = HEADERS[version](head)
    if dtype.hasobject:
        raise ValueError("holds pickled Python objects, which are never loaded; store numbers or strings")
    if any(type(side) is not int or side < 0 for side in shape):
        raise ValueError(f"has a header with the invalid shape {shape} of {dtype}")
    count = math.prod(shape)
    if size != head.tell() + count * dtype.itemsize or (count and not dtype.itemsize):
        raise ValueError(f"has a header for {shape} of {dtype} but {size:,} bytes")
    return Header(shape, fortran, dtype, head.tell())


def read_member_header(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Header:
    if member.compress_type not in METHODS:
        raise ValueError(f"is compressed by method {member.compress_type}; use deflate, as numpy does")
    with archive.open(member) as stream:
        return read_npy_header(stream, member.file_size)


def read_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    """Read an array of `member.file_size` bytes into memory; the caller bounds that size."""
    read_member_header(archive, member)
    with archive.open(member) as stream:  # which checks the size and the CRC
        array: np.ndarray = npy.read_array(stream, allow_pickle=False)
    return array
