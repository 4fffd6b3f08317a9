"""The walk over a tar archive: it finds what tarfile finds, and never trusts a header further than the file goes."""

from __future__ import annotations

import io
import os
import tarfile
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vitrail.data.readers.tar import build_index
from vitrail.data.readers.tar_headers import Member, walk
from vitrail.errors import DataError

END = bytes(1024)


def header(name: bytes, size: bytes = b"", kind: bytes = b"0", magic: bytes = b"ustar\x0000") -> bytes:
    """A header with the right checksum, whatever else is wrong with it."""
    block = bytearray(512)
    block[: len(name)] = name
    block[100:108] = b"0000644\0"
    block[124 : 124 + len(size)] = size
    block[156:157] = kind
    block[257 : 257 + len(magic)] = magic
    return summed(bytes(block))


def summed(block: bytes) -> bytes:
    block = block[:148] + b" " * 8 + block[156:]
    return block[:148] + b"%06o\0 " % sum(block) + block[156:]


def octal(size: int) -> bytes:
    return b"%011o\0" % size


def padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 512)


def pax(*records: bytes, size: bytes | None = None, kind: bytes = b"x") -> bytes:
    data = b"".join(records)
    return header(b"PaxHeader/x", octal(len(data)) if size is None else size, kind) + padded(data)


def record(text: bytes) -> bytes:
    """`path=x` with its length in front and the end of the line behind."""
    length = len(text) + 2
    while len(str(length)) + len(text) + 2 != length:
        length = len(str(length)) + len(text) + 2
    return b"%d %s\n" % (length, text)


def members(data: bytes, folder: Path) -> list[Member]:
    path = folder / "walked.tar"
    path.write_bytes(data)
    with path.open("rb") as file:
        return list(walk(file.fileno()))


FILE = header(b"0.jpg", octal(3)) + padded(b"abc")


@pytest.mark.parametrize("format_", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_it_finds_what_tarfile_finds(tmp_path: Path, format_: int) -> None:
    path = tmp_path / "a.tar"
    names = [
        "a.jpg",
        "/absolute/../b.jpg",
        "é.jpg",
        f"{'deep/' * 25}c.jpg",
        "a.jpg",
        "d.tar.gz",
        "e",
        "x" * 98 + "é",
    ]
    names += [] if format_ == tarfile.USTAR_FORMAT else [f"{'deeper/' * 60}d.jpg", "y" * 300]
    kinds = [
        tarfile.DIRTYPE,
        tarfile.SYMTYPE,
        tarfile.LNKTYPE,
        tarfile.FIFOTYPE,
        tarfile.CHRTYPE,
        tarfile.CONTTYPE,
    ]
    with tarfile.open(path, "w", format=format_, pax_headers={"comment": "of all"}) as archive:
        for number, name in enumerate(names):
            member = tarfile.TarInfo(name)
            member.size = number * 200
            member.mtime = 1.5  # which pax keeps in a record of its own
            archive.addfile(member, io.BytesIO(bytes(member.size)))
        for number, kind in enumerate(kinds):
            member = tarfile.TarInfo(f"special{number}")
            member.type, member.linkname = kind, "z" * (90 if format_ == tarfile.USTAR_FORMAT else 200)
            archive.addfile(member)
    with tarfile.open(path) as archive:
        expected = [Member(one.name, one.offset_data, one.size) for one in archive if one.isreg()]
    assert members(path.read_bytes(), tmp_path) == expected
    assert len(expected) == len(names) + 1


def test_sizes_in_binary_names_of_bytes_and_folders_of_old(tmp_path: Path) -> None:
    binary = header(b"\xff.jpg", b"\x80" + (3).to_bytes(11, "big")) + padded(b"abc")
    old_folder = header(b"folder/", octal(0), b"\0", magic=b"")
    no_prefix = bytearray(header(b"1.jpg", octal(0), magic=b"ustar  \0"))
    no_prefix[345:356] = octal(12)[:11]  # GNU has the time of the last access there
    again = pax(record(b"path=2.jpg"), record(b"size=3")) + header(b"?", octal(0)) + padded(b"abc")
    found = members(binary + old_folder + summed(bytes(no_prefix)) + again + END, tmp_path)
    assert [(member.name, member.size) for member in found] == [("\udcff.jpg", 3), ("1.jpg", 0), ("2.jpg", 3)]


def test_signed_checksums_of_old_tars(tmp_path: Path) -> None:
    block = header(b"\xff\xfe.jpg", octal(0))
    said = int(block[148:154], 8) - 2 * 256
    assert len(members(block[:148] + b"%06o\0 " % said + block[156:] + END, tmp_path)) == 1


ATTACKS = {
    "negative size, octal": header(b"0.jpg", b"-0000001000\0"),
    "negative size, binary": header(b"0.jpg", b"\xff" * 11 + b"\x00"),
    "negative size that leads back to itself": header(b"notes.txt", (-512 % 256**12).to_bytes(12, "big")),
    "size beyond the file": header(b"0.jpg", octal(1 << 20)),
    "size of 8 GiB": header(b"0.jpg", octal(0o77777777777)),
    "size beyond 64 bits": header(b"0.jpg", b"\x80" + b"\xff" * 11),
    "size in letters": header(b"0.jpg", b"abc"),
    "pax size 10^30": pax(record(b"size=1" + b"0" * 30)) + header(b"0.jpg"),
    "pax size of 100,000 digits": pax(record(b"size=" + b"9" * 100_000)) + header(b"0.jpg"),
    "pax size negative": pax(record(b"size=-512")) + header(b"0.jpg"),
    "pax size not a number": pax(record(b"size=1.5")) + header(b"0.jpg"),
    "pax size of all members": pax(record(b"size=512"), kind=b"g") + FILE,
    "pax path of all members": pax(record(b"path=x.jpg"), kind=b"g") + FILE,
    "pax header of 8 GiB": pax(record(b"path=1.jpg"), size=octal(0o77777777777)) + FILE,
    "pax header with negative size": pax(record(b"path=1.jpg"), size=b"\xff" * 12) + FILE,
    "pax record too long": pax(b"99 path=1.jpg\n") + FILE,
    "pax record too short": pax(b"3 path=1.jpg\n") + FILE,
    "pax record of no length": pax(b"0 path=1.jpg\n") + FILE,
    "pax record of negative length": pax(b"-4 path=1.jpg\n") + FILE,
    "pax record with a length of 5,000 digits": pax(b"1" * 5000 + b" path=1.jpg\n") + FILE,
    "pax record without =": pax(b"8 path1\n") + FILE,
    "pax record without an end": pax(b"13 path=1.jpg") + FILE,
    "pax path of 100,000 bytes": pax(record(b"path=" + b"x" * 100_000)) + FILE,
    "GNU name of 8 GiB": header(b"././@LongLink", octal(0o77777777777), b"L") + FILE,
    "GNU name of 1 MB": header(b"././@LongLink", octal(1 << 20), b"L") + bytes(1 << 20) + FILE,
    "GNU name with negative size": header(b"././@LongLink", b"\xff" * 12, b"L") + FILE,
    "GNU name and no member": header(b"././@LongLink", octal(3), b"L") + padded(b"abc"),
    "GNU sparse": header(b"0.jpg", octal(0), b"S"),
    "pax sparse": pax(record(b"GNU.sparse.major=1")) + FILE,
    "wrong checksum": b"1" + FILE[1:],
    "text": b"not a tar file " * 200,
    "gzip": b"\x1f\x8b\x08" + os.urandom(3000),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_what_no_sound_archive_has_is_refused_at_once(tmp_path: Path, attack: str) -> None:
    for data in (ATTACKS[attack] + END, FILE + ATTACKS[attack] + END):
        shard = tmp_path / "a.tar"
        shard.write_bytes(data)
        began = time.monotonic()
        with pytest.raises(DataError, match=r"a\.tar: not a whole, uncompressed tar file"):
            build_index(shard)
        assert time.monotonic() - began < 5


def test_a_long_chain_of_extension_headers_is_walked_without_recursion(tmp_path: Path) -> None:
    chain = pax(record(b"comment=x")) * 3000 + header(b"././@LongLink", octal(3), b"L") + padded(b"abc")
    assert [member.name for member in members(chain + FILE + END, tmp_path)] == ["abc"]


@pytest.mark.parametrize("at", range(0, 2 * 1024 + 1, 256))
def test_an_archive_that_was_cut_anywhere_is_refused(tmp_path: Path, at: int) -> None:
    with pytest.raises(ValueError, match=r"empty|cut off|follow"):
        members((FILE * 2)[:at], tmp_path)


def test_members_behind_the_end_are_not_dropped_in_silence(tmp_path: Path) -> None:
    assert len(members(FILE + bytes(512), tmp_path)) == 1
    assert len(members(FILE + bytes(20 * 512), tmp_path)) == 1
    with pytest.raises(ValueError, match="more than zeros follow"):
        members(FILE + END + FILE + END, tmp_path)
    with pytest.raises(ValueError, match="more than zeros follow"):
        members(FILE + bytes(512) + FILE[512:] + FILE + END, tmp_path)  # a header that was lost


WHOLE = (
    header(b"0.cls", octal(1)) + padded(b"1") + FILE + header(b"././@LongLink", octal(6), b"L") + padded(b"1.jpg\0")
    + header(b"?", octal(600)) + padded(b"x" * 600) + pax(record(b"path=1.cls"), record(b"size=1"))
    + header(b"1.cls", octal(1)) + padded(b"2") + END
)  # fmt: skip


@settings(max_examples=150)
@given(st.data())
def test_random_damage_ends_at_once_and_is_a_data_error(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    damaged = bytearray(WHOLE)
    fields = st.sampled_from([0, 124, 124, 124, 135, 148, 156, 156, 257, 345, 512, 513, 514])
    for _ in range(data.draw(st.integers(1, 4))):
        block = data.draw(st.integers(0, len(WHOLE) // 512 - 1)) * 512
        at = block + data.draw(st.one_of(fields, st.integers(0, 511)))
        damage = data.draw(
            st.one_of(st.binary(min_size=1, max_size=12), st.sampled_from([b"x", b"g", b"L", b"S"]))
        )
        damaged[at : at + len(damage)] = damage
        if data.draw(st.booleans()):  # as somebody would who means harm
            damaged[block : block + 512] = summed(bytes(damaged[block : block + 512]))
    damaged = damaged[: data.draw(st.one_of(st.just(len(damaged)), st.integers(0, len(damaged))))]
    shard = tmp_path_factory.getbasetemp() / "damaged.tar"
    shard.write_bytes(damaged)
    try:
        index = build_index(shard)
    except DataError:
        return
    assert (index.sizes >= 0).all() and (index.offsets + index.sizes <= len(damaged)).all()
