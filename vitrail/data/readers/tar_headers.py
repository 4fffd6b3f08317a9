"""The files in an uncompressed tar archive: where each lies, by a walk over the headers alone.

    archive ──512-byte headers──► Member(name, offset, size) of each regular file

Single headers are parsed by Python's tarfile. The walk is our own, because that of tarfile trusts a size before it
is checked (a negative one leads back, for ever), reads as many bytes as a name claims to have, and stops without an
error at a damaged header. Here a header is believed only when its checksum is right and its data lie inside the
archive, so every step leads forward and the walk ends after at most one step per 512 bytes.

Supported are ustar, the older V7, GNU's long names (L), and pax records (x) for names and sizes; folders, links and
devices are skipped. The walk goes to the end of the archive, a block of zeros. Without one the archive was cut;
other bytes after it mean that a header was lost, or that two archives were concatenated. Each of these is a
ValueError.
"""

from __future__ import annotations

import os
import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass

BLOCK = tarfile.BLOCKSIZE
MAX_NAME_BYTES = 4096  # of a path, on Linux
MAX_PAX_BYTES = 1 << 20  # of the pax records of one member, extended attributes included
END_CHUNK = 1 << 20  # read at a time after the end

NO_DATA = b"123456"  # links, devices, folders, pipes: nothing follows their header, whatever its size
PAX = (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.XGLTYPE)
EXTENSIONS = (
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
    *PAX,
)  # these describe the member that follows


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
        try:
            info = tarfile.TarInfo.frombuf(header, "utf-8", "surrogateescape")
        except tarfile.HeaderError as error:
            raise ValueError(f"no header at byte {at:,}: {error}") from error
        kind, data = info.type, at + BLOCK
        size = 0 if header[156] in NO_DATA else info.size
        if kind not in EXTENSIONS and b"size" in records:
            size = int(records[b"size"])
        if not 0 <= size <= end - data:
            raise ValueError(f"the header at byte {at:,} claims {size:,} bytes, and {end - data:,} follow")
        if kind == tarfile.GNUTYPE_LONGNAME:
            long_name = _read(descriptor, data, size, MAX_NAME_BYTES, "a name").partition(b"\0")[0]
        elif kind in PAX:
            more = _pax_records(_read(descriptor, data, size, MAX_PAX_BYTES, "pax records"), at)
            if more and kind == tarfile.XGLTYPE:
                raise ValueError(f"the pax header at byte {at:,} gives all members one path or size")
            records |= more
        elif kind not in EXTENSIONS:
            if kind == tarfile.GNUTYPE_SPARSE:
                raise ValueError(f"the member at byte {at:,} is sparse: pack the files without --sparse")
            # GNU's headers, whose magic is b"ustar ", have times in the place of the prefix of a name.
            name = records.get(b"path", long_name)
            if name is None and header[257:263] != b"ustar\0":
                name = header[:100].partition(b"\0")[0]
            if info.isreg():
                text = info.name if name is None else name.decode("utf-8", "surrogateescape")
                yield Member(text, data, size)
            long_name, records = None, {}
        at = data + -(-size // BLOCK) * BLOCK
    if long_name is not None or records:
        raise ValueError(f"ends at byte {at:,} with a name or records of a member that does not follow")
    while rest := os.pread(descriptor, END_CHUNK, at):
        if rest.strip(b"\0"):
            raise ValueError(f"the archive ends at byte {at:,}, and more than zeros follow")
        at += len(rest)


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
        value = data[head.end() : stop - 1]
        if head[2].startswith(b"GNU.sparse."):
            raise ValueError(f"the member at byte {at:,} is sparse: pack the files without --sparse")
        if head[2] == b"path" and len(value) > MAX_NAME_BYTES:
            raise ValueError(
                f"a name of {len(value):,} bytes at byte {at:,}; at most {MAX_NAME_BYTES:,} are read"
            )
        if head[2] == b"size" and not re.fullmatch(rb"[0-9]{1,20}", value):
            raise ValueError(f"the member at byte {at:,} has the pax size {value[:40]!r}")
        if head[2] in (b"path", b"size"):
            records[head[2]] = value
        start = stop
    return records
