"""The files in an uncompressed tar archive: where each lies, by a walk over the headers alone.

    archive ──512-byte headers──► Member(name, offset, size) of each regular file

Supported are ustar, the older V7, GNU's long names (L), and pax records (x) for names and sizes; folders, links and
devices are skipped. A header is believed only when its checksum is right and its data lie inside the archive, so
every step leads forward and the walk ends after at most one step per 512 bytes. That is why this walk is written
out: Python's tarfile trusts a size before it is checked (a negative one leads back, for ever), reads as many bytes
as a name claims to have, and stops without an error at a damaged header.

The walk goes to the end of the archive, a block of zeros. Without one the archive was cut; other bytes after it mean
that a header was lost, or that two archives were concatenated. Each of these is a ValueError.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass

BLOCK = 512
MAX_NAME_BYTES = 4096  # of a path, on Linux
MAX_PAX_BYTES = 1 << 20  # of the pax records of one member, extended attributes included
END_CHUNK = 1 << 20  # read at a time of what follows the end

FILES = b"0\x007"  # regular files: of ustar, of V7, contiguous
NO_DATA = b"123456"  # links, devices, folders, pipes: nothing follows their header, whatever size it says
LONG_NAME, LONG_LINK, PAX, PAX_GLOBAL, SPARSE = b"LKxgS"
PAX_OF_SUN = ord("X")
EXTENSIONS = (LONG_NAME, LONG_LINK, PAX, PAX_OF_SUN, PAX_GLOBAL)  # which describe the member that follows
SPARSE_HINT = "pack the files without --sparse"


@dataclass(frozen=True)
class Member:
    """A regular file in the archive."""

    name: str  # bytes that are not UTF-8 become surrogates
    offset: int  # of its first byte in the archive
    size: int


def walk(descriptor: int) -> Iterator[Member]:
    """Yield each regular file of the archive that is open as `descriptor`, in order; ValueError or OSError."""
    end = os.fstat(descriptor).st_size
    if not end:
        raise ValueError("the file is empty")
    at, long_name, records = 0, None, dict[bytes, bytes]()
    while True:
        header = os.pread(descriptor, BLOCK, at)
        if len(header) < BLOCK:
            raise ValueError(f"cut off at byte {end:,}, where a header should be")
        if not any(header):
            break
        _check_sum(header, at)
        kind, data = header[156], at + BLOCK
        own = kind not in EXTENSIONS
        size = 0 if kind in NO_DATA else _size(header, records if own else {}, at)
        if size > end - data:
            raise ValueError(f"the header at byte {at:,} says {size:,} bytes, and {end - data:,} follow")
        if kind == LONG_NAME:
            long_name = _read(descriptor, data, size, MAX_NAME_BYTES, "a name").partition(b"\0")[0]
        elif kind in (PAX, PAX_OF_SUN, PAX_GLOBAL):
            more = _pax_records(_read(descriptor, data, size, MAX_PAX_BYTES, "pax records"), at)
            if more and kind == PAX_GLOBAL:
                raise ValueError(f"the pax header at byte {at:,} gives all members one path or size")
            records |= more
        elif own:
            if kind == SPARSE:
                raise ValueError(f"the member at byte {at:,} is sparse: {SPARSE_HINT}")
            name = records.get(b"path", _name(header) if long_name is None else long_name)
            if kind in FILES and not (kind == 0 and name.endswith(b"/")):  # which in V7 is a folder
                yield Member(name.decode("utf-8", "surrogateescape"), data, size)
            long_name, records = None, {}
        at = data + -(-size // BLOCK) * BLOCK
    if long_name is not None or records:
        raise ValueError(f"ends at byte {at:,} with a name or records of a member that does not follow")
    while rest := os.pread(descriptor, END_CHUNK, at):
        if rest.strip(b"\0"):
            raise ValueError(f"the archive ends at byte {at:,}, and more than zeros follow")
        at += len(rest)


def _check_sum(header: bytes, at: int) -> None:
    """Compare the sum of the bytes, its own field counted as blanks; old tars summed signed bytes."""
    summed = header[:148] + b" " * 8 + header[156:]
    more = sum(summed) - _octal(header[148:156], at)
    if more and more != 256 * sum(byte > 127 for byte in summed):
        raise ValueError(f"the checksum of the header at byte {at:,} is wrong")


def _size(header: bytes, records: dict[bytes, bytes], at: int) -> int:
    if b"size" in records:
        if not re.fullmatch(rb"[0-9]{1,20}", records[b"size"]):
            raise ValueError(f"the member at byte {at:,} has the pax size {records[b'size'][:40]!r}")
        return int(records[b"size"])
    if header[124] & 0x80:  # a binary number, GNU's for sizes from 8 GiB on
        if header[124] != 0x80:
            raise ValueError(f"the header at byte {at:,} says a size that is negative or beyond all files")
        return int.from_bytes(header[125:136], "big")
    return _octal(header[124:136], at)


def _octal(field: bytes, at: int) -> int:
    digits = field.partition(b"\0")[0].strip(b" ")
    if not re.fullmatch(rb"[0-7]*", digits):
        raise ValueError(f"no header at byte {at:,}: {bytes(field)!r} is no number")
    return int(digits or b"0", 8)


def _name(header: bytes) -> bytes:
    name, prefix = (field.partition(b"\0")[0] for field in (header[:100], header[345:500]))
    # GNU's headers, whose magic is b"ustar ", have times in the place of the prefix.
    return prefix + b"/" + name if prefix and header[257:263] == b"ustar\0" else name


def _read(descriptor: int, offset: int, size: int, most: int, what: str) -> bytes:
    if size > most:
        raise ValueError(f"{what} of {size:,} bytes at byte {offset:,}; at most {most:,} are read")
    data = os.pread(descriptor, size, offset)
    if len(data) < size:
        raise ValueError(f"cut off in {what} at byte {offset:,}")
    return data


_RECORD = re.compile(rb"([0-9]{1,7}) ([^=\n]+)=")


def _pax_records(data: bytes, at: int) -> dict[bytes, bytes]:
    """Return the path and the size in records `30 path=folder/name.jpg\\n`; the number is the length of it all."""
    records: dict[bytes, bytes] = {}
    start = 0
    while start < len(data) and data[start]:  # some pad with zeros
        head = _RECORD.match(data, start)
        stop = start + int(head[1]) if head else 0
        if head is None or not head.end() < stop <= len(data) or data[stop - 1] != ord("\n"):
            raise ValueError(f"the pax records at byte {at:,} are broken")
        if head[2].startswith(b"GNU.sparse."):
            raise ValueError(f"the member at byte {at:,} is sparse: {SPARSE_HINT}")
        if head[2] in (b"path", b"size"):
            records[head[2]] = data[head.end() : stop - 1]
        start = stop
    if (length := len(records.get(b"path", b""))) > MAX_NAME_BYTES:
        raise ValueError(f"a name of {length:,} bytes at byte {at:,}; at most {MAX_NAME_BYTES:,} are read")
    return records
