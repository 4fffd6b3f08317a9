"""The arrays of a `.npz` file, a zip of `.npy` members: their headers, checked before anything is allocated.

    path ──zipfile──► member ──read_member_header──► Header(shape, dtype, ..)
                             └─read_member──► array

Whatever is wrong with a file is one of DAMAGE; who reads it says so in an error of its own.
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
# The third has UTF-8 in the names of fields, which no array has here.
HEADERS = {
    (1, 0): npy.read_array_header_1_0,
    (2, 0): npy.read_array_header_2_0,
    (3, 0): npy.read_array_header_2_0,
}
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # what numpy writes; others unpack without a bound
# What broken bytes make of zipfile and of numpy's reader of headers.
DAMAGE = (
    zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, tokenize.TokenError, EOFError, OSError, KeyError,
    ValueError, TypeError, SyntaxError, RuntimeError, OverflowError, MemoryError,
)  # fmt: skip


@dataclass(frozen=True)
class Header:
    """What a `.npy` member says of its array."""

    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype[Any]
    start: int  # of the values, in bytes from the beginning of the member


def read_header(stream: IO[bytes], size: int) -> Header:
    """The header at the beginning of a member of `size` bytes; ValueError where it does not fit these."""
    head = io.BytesIO(stream.read(HEADER_BYTES))
    version = npy.read_magic(head)
    if version not in HEADERS:
        raise ValueError(f"is .npy version {version}; known are {', '.join(map(str, HEADERS))}")
    shape, fortran, dtype = HEADERS[version](head)
    if dtype.hasobject:
        raise ValueError("holds pickled Python objects, which are never loaded; store numbers or strings")
    if any(type(side) is not int or side < 0 for side in shape):
        raise ValueError(f"says {shape} of {dtype}, which is no shape")
    count = math.prod(shape)
    if size != head.tell() + count * dtype.itemsize or (count and not dtype.itemsize):
        raise ValueError(f"says {shape} of {dtype} but has {size:,} bytes")
    return Header(shape, fortran, dtype, head.tell())


def read_member_header(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Header:
    if member.compress_type not in METHODS:
        raise ValueError(f"is compressed by method {member.compress_type}; numpy's is deflate")
    with archive.open(member) as stream:
        return read_header(stream, member.file_size)


def read_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    """The array, copied into memory: it has `member.file_size` bytes, for the caller to bound."""
    read_member_header(archive, member)
    with archive.open(member) as stream:  # which checks the size and the CRC
        array: np.ndarray = npy.read_array(stream, allow_pickle=False)
    return array
