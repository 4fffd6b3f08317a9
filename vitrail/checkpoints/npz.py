"""Reading and writing `.npz` files: a zip of `.npy` arrays, never with pickles.

Members that are stored without compression are mapped, not read: a checkpoint is copied once, straight into
the model's parameters. Every header is checked against the bytes that are there before anything is allocated.
"""

from __future__ import annotations

import io
import lzma
import math
import mmap
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.lib import format as npy

from vitrail.errors import CheckpointError
from vitrail.runtime.files import atomic_file

MAX_BYTES = 64 << 30  # of one file's arrays together, uncompressed
LOCAL_HEADER = struct.Struct("<4s5H3I2H")  # of a zip member
HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
# What broken bytes make of zipfile and of numpy's reader of headers.
DAMAGE = (
    zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, tokenize.TokenError, EOFError, OSError,
    ValueError, SyntaxError, RuntimeError, OverflowError,
)  # fmt: skip


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """name -> array. Arrays of stored members are views of the file, private to this process."""
    try:
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            if sum(m.file_size for m in members) > MAX_BYTES:
                raise CheckpointError(f"{path} unpacks to more than {MAX_BYTES >> 30} GiB; refused")
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            return {m.filename.removesuffix(".npy"): read_member(archive, m, mapped, path) for m in members}
    except FileNotFoundError as error:
        raise CheckpointError(f"no such file: {path}") from error
    except DAMAGE as error:
        raise CheckpointError(f"{path} is not a whole .npz file ({error})") from error


def read_member(
    archive: zipfile.ZipFile, member: zipfile.ZipInfo, mapped: mmap.mmap, path: Path
) -> np.ndarray:
    where = f"{path}: {member.filename}"
    if member.compress_type == zipfile.ZIP_STORED and not member.flag_bits & 1:
        header = LOCAL_HEADER.unpack_from(mapped, member.header_offset)
        start = member.header_offset + LOCAL_HEADER.size + header[9] + header[10]
        content = memoryview(mapped)[start : start + member.file_size]
        if zlib.crc32(content) != member.CRC:
            raise CheckpointError(f"{where} is damaged: its checksum is not the one written with it")
    else:
        content = memoryview(bytearray(archive.read(member)))  # zipfile checks the size and the CRC
    head = io.BytesIO(content[: 1 << 16])
    version = npy.read_magic(head)
    if version not in HEADERS:
        raise CheckpointError(f"{where} is .npy version {version}; known are {', '.join(map(str, HEADERS))}")
    shape, fortran, dtype = HEADERS[version](head)
    if dtype.hasobject:
        raise CheckpointError(f"{where} holds pickled Python objects, which are never loaded")
    count = math.prod(shape)
    if len(content) != head.tell() + count * dtype.itemsize:
        raise CheckpointError(f"{where} says {shape} of {dtype} but has {len(content)} bytes")
    flat = np.frombuffer(content, dtype, count, head.tell())
    return flat.reshape(shape, order="F" if fortran else "C")


def write_npz(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    with atomic_file(path) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        for name, array in arrays.items():
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                npy.write_array(member, array, allow_pickle=False)
