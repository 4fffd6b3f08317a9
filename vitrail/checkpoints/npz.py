"""Reading and writing `.npz` files: a zip of `.npy` arrays, never with pickles.

Members that are stored without compression are mapped, not read: a checkpoint is copied once, straight into
the model's parameters. Every header is checked against the bytes that are there before anything is allocated,
and the unpacked size is bounded by a multiple of the file's own: weights hardly compress.
"""

from __future__ import annotations

import io
import math
import mmap
import struct
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.lib import format as npy

from vitrail.errors import CheckpointError
from vitrail.runtime.files import atomic_file, check_regular
from vitrail.runtime.npz_members import DAMAGE, HEADER_BYTES, read_npy_header
from vitrail.runtime.npz_members import read_member as unpack_member

MAX_BYTES = 64 << 30  # of all arrays together, uncompressed
MAX_RATIO = 20  # how many times its own size a file may unpack to
FREE_BYTES = 64 << 20  # that a file of any size may unpack to
LOCAL_HEADER = struct.Struct("<4s5H3I2H")  # of a zip member


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """Return name -> array. Arrays of stored members are private views of the file."""
    try:
        check_regular(path)
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            members, size = archive.infolist(), path.stat().st_size
            unpacked = sum(m.file_size for m in members)
            if unpacked > min(MAX_BYTES, max(FREE_BYTES, MAX_RATIO * size)):
                raise CheckpointError(
                    f"{path} of {size:,} bytes unpacks to {unpacked:,}; refused: more than {MAX_RATIO} times its "
                    f"size, or more than {MAX_BYTES >> 30} GiB"
                )
            if len({m.filename.removesuffix(".npy") for m in members}) < len(members):
                raise ValueError("two of its arrays have the same name")
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            return {m.filename.removesuffix(".npy"): read_member(archive, m, mapped, path) for m in members}
    except FileNotFoundError as error:
        raise CheckpointError(f"no such file: {path}") from error
    except MemoryError as error:
        raise CheckpointError(f"{path} does not fit into memory") from error
    except DAMAGE as error:
        raise CheckpointError(f"{path} is not a whole .npz file ({error})") from error


def read_member(
    archive: zipfile.ZipFile, member: zipfile.ZipInfo, mapped: mmap.mmap, path: Path
) -> np.ndarray:
    try:
        if member.compress_type != zipfile.ZIP_STORED or member.flag_bits & 1:
            return unpack_member(archive, member)
        content = stored_bytes(mapped, member)
        header = read_npy_header(io.BytesIO(content[:HEADER_BYTES]), len(content))
    except ValueError as error:
        raise CheckpointError(f"{path}: {member.filename} {error}") from error
    flat = np.frombuffer(content, header.dtype, math.prod(header.shape), header.start)
    return flat.reshape(header.shape, order="F" if header.fortran else "C")


def stored_bytes(mapped: mmap.mmap, member: zipfile.ZipInfo, *, check_sum: bool = True) -> memoryview:
    """Return the bytes of a member that is not compressed; raise ValueError if they are damaged."""
    local = LOCAL_HEADER.unpack_from(mapped, member.header_offset)
    start = member.header_offset + LOCAL_HEADER.size + local[9] + local[10]
    content = memoryview(mapped)[start : start + member.file_size]
    if len(content) != member.file_size:
        raise ValueError(f"has {len(content):,} of its {member.file_size:,} bytes")
    if check_sum and zlib.crc32(content) != member.CRC:
        raise ValueError("is damaged: its checksum is not the one written with it")
    return content


def write_npz(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    with atomic_file(path) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        for name, array in arrays.items():
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                npy.write_array(member, array, allow_pickle=False)
