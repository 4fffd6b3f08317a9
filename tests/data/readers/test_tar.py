"""Tar shards as sources; the walk over an archive finds what tarfile finds, and trusts no header beyond the file."""

from __future__ import annotations

import io
import os
import pickle
import tarfile
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vitrail.data.readers import tar
from vitrail.data.readers.tar import Member, build_index, open_tar, read_index, walk
from vitrail.data.sources import list_splits, open_source
from vitrail.errors import ConfigError, DataError, ImageError


def put(path: Path, labels: list[object], first: int = 0) -> Path:
    """A shard whose images are the bytes of `image 0`, `image 1`, ... from `first` on; None: no image."""
    with tarfile.open(path, "w") as archive:
        for i, label in enumerate(labels, first):
            for extension, text in (("jpg", f"image {i}"), ("cls", str(label))):
                member = tarfile.TarInfo(f"{i:06d}.{extension}")
                member.size = len(text)
                archive.addfile(member, io.BytesIO(text.encode()))
    return path


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    put(tmp_path / "train-000000.tar", [0, 1, 2])
    put(tmp_path / "train-000001.tar", [1, 1], first=3)
    put(tmp_path / "val-000000.tar", [4])
    return tmp_path


def test_every_example_of_every_shard_in_order(shards: Path) -> None:
    assert list_splits(shards) == ["train", "validation"]
    source = open_tar(shards, "train")
    assert [source.read(i).image for i in range(5)] == [f"image {i}".encode() for i in range(5)]
    assert source.labels.tolist() == [0, 1, 2, 1, 1] == [source.read(i).label for i in range(5)]
    assert source.class_names == ["0", "1", "2", "3", "4"]  # numbers count over all splits
    assert (source.key(2), source.key(3)) == ("train-000000.tar:000002", "train-000001.tar:000003")
    with pytest.raises(IndexError):
        source.read(5)


def test_one_shard_by_itself(shards: Path) -> None:
    assert len(open_source(shards / "train-000001.tar")) == 2


def test_names_beside_and_names_as_labels(shards: Path, tmp_path: Path) -> None:
    (shards / "classes.txt").write_text("a\nb\nc\nd\ne\n")
    assert open_tar(shards, "train").class_names == ["a", "b", "c", "d", "e"]
    words = tmp_path / "words"
    words.mkdir()
    put(words / "train.tar", ["dog", "cat"])
    put(words / "test.tar", ["dog"])
    source = open_tar(words, "test")
    assert (source.class_names, source.labels.tolist()) == (["cat", "dog"], [1])
    put(words / "test.tar", ["cow"])
    with pytest.raises(DataError, match="not among the 2 classes: cow"):
        open_tar(words, "test")


def test_a_name_that_is_a_number_stays_a_name(tmp_path: Path) -> None:
    put(tmp_path / "train.tar", ["cat", "0", "2"])
    put(tmp_path / "test.tar", ["2", "0"])
    source = open_tar(tmp_path, "test")
    assert (source.class_names, source.labels.tolist()) == (["0", "2", "cat"], [1, 0])


def test_labels_beyond_the_names(shards: Path) -> None:
    (shards / "classes.txt").write_text("a\nb\n")
    with pytest.raises(DataError, match="1 of 5 labels are not among the 2 classes"):
        open_tar(shards, "train")


def test_an_empty_shard(tmp_path: Path) -> None:
    put(tmp_path / "train.tar", [])
    with pytest.raises(DataError, match="no examples"):
        open_tar(tmp_path, "train")


def test_broken_examples_keep_their_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shard = tmp_path / "train.tar"
    with tarfile.open(shard, "w") as archive:
        for name, data in {
            "0.cls": b"0",
            "1.cls": b"0",
            "1.jpg": b"",
            "2.cls": b"0",
            "2.jpg": b"x" * 100,
        }.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    source = open_tar(tmp_path, "train")
    with pytest.raises(DataError, match=r"train\.tar:0: the example has a label but no image"):
        source.read(0)
    with pytest.raises(ImageError, match=r"train\.tar:1: an image of 0 bytes"):
        source.read(1)
    assert source.read(2).image == b"x" * 100
    monkeypatch.setattr(tar, "MAX_FILE_BYTES", 99)
    with pytest.raises(ImageError, match="an image of 100 bytes; 1 to 99 are read"):
        source.read(2)
    monkeypatch.undo()
    shard.write_bytes(shard.read_bytes()[: int(source.indexes[0].offsets[2]) + 50])  # cut after it was opened
    with pytest.raises(DataError, match=r"train\.tar:2: cannot be read: it was changed since it was opened"):
        source.read(2)
    shard.unlink()
    with pytest.raises(DataError, match="cannot be read: No such file"):
        source.read(2)


def test_compressed_shards_and_options_are_refused(tmp_path: Path) -> None:
    (tmp_path / "train-0.tar.gz").touch()
    with pytest.raises(DataError, match="compressed tar shards have no random access"):
        open_source(tmp_path)
    with pytest.raises(ConfigError, match="has no option seed: it takes no options"):
        open_source(f"{put(tmp_path / 'a.tar', [0])}?seed=1")


def test_pickles_and_fingerprint(shards: Path) -> None:
    source = open_tar(shards, "train")
    again = pickle.loads(pickle.dumps(source))
    assert again.read(4) == source.read(4)
    before = source.fingerprint()
    assert again.fingerprint() == before
    put(shards / "train-000001.tar", [1, 1, 1], first=3)
    assert open_tar(shards, "train").fingerprint() != before


def put_members(path: Path, members: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w") as archive:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


def test_members_become_examples(tmp_path: Path) -> None:
    long = "deep/" * 40 + "x"  # beyond the 100 characters of the oldest format
    shard = put_members(
        tmp_path / "a.tar",
        {
            "0.cls": b"3\n", "0.jpg": b"zero", "1.JPG": b"one", "1.json": b'{"label": 4}', "notes.txt": b"?",
            "d/2.png": b"two", "d/2.json": b'{"caption": "?", "cls": "cat"}', "3.cls": b"5", f"{long}.webp": b"long",
            f"{long}.cls": b"6", "4.left.png": b"four", "4.cls": b"7", ".hidden": b"",
        },
    )  # fmt: skip
    index = build_index(shard)
    assert list(index.keys) == [b"0", b"1", b"d/2", b"3", long.encode(), b"4"]
    assert list(index.labels) == [b"3", b"4", b"cat", b"5", b"6", b"7"]
    data = shard.read_bytes()
    found = [data[o : o + s] if o >= 0 else None for o, s in zip(index.offsets, index.sizes, strict=True)]
    assert found == [b"zero", b"one", b"two", None, b"long", b"four"]


def test_links_and_folders_are_passed_over(tmp_path: Path) -> None:
    shard = tmp_path / "a.tar"
    with tarfile.open(shard, "w") as archive:
        for name, kind in (
            ("0.jpg", tarfile.SYMTYPE),
            ("1.jpg", tarfile.LNKTYPE),
            ("2.jpg", tarfile.DIRTYPE),
        ):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, "/etc/hostname"
            archive.addfile(member)
    assert list(build_index(shard).keys) == []


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ({"0.jpg": b"", "1.jpg": b"", "1.cls": b"1"}, "1 of 2 examples have no label, first '0'"),
        ({"0.jpg": b"", "0.png": b"", "0.cls": b"1"}, "two images for '0'"),
        ({"0.jpg": b"", "0.json": b'{"label": 2}', "0.cls": b"1"}, "two labels for '0': '2' and '1'"),
        ({"0.jpg": b"", "0.json": b"{"}, "the label in '0.json' cannot be read"),
        ({"0.jpg": b"", "0.cls": b"\xff"}, "the label in '0.cls' cannot be read"),
        ({"0.jpg": b"", "0.json": b"[" * 100_000}, "the label in '0.json' cannot be read"),
        ({"0.jpg": b"", "0.cls": b" " * (1 << 21)}, "too many for a label"),
    ],
)
def test_examples_that_are_not_whole(tmp_path: Path, members: dict[str, bytes], reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        build_index(put_members(tmp_path / "a.tar", members))


def test_a_file_that_ends_early_or_is_compressed(tmp_path: Path) -> None:
    shard = put_members(tmp_path / "a.tar", {"0.cls": b"1", "0.jpg": b"x" * 5000})
    whole = shard.read_bytes()
    shard.write_bytes(whole[:2500])
    with pytest.raises(DataError, match="not a whole, uncompressed tar file"):
        build_index(shard)
    with tarfile.open(shard, "w:gz"):
        pass
    with pytest.raises(DataError, match="not a whole, uncompressed tar file"):
        build_index(shard)


def test_the_index_is_kept_beside_and_built_again_when_the_shard_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    shard = put_members(tmp_path / "a.tar", {"0.jpg": b"x", "0.cls": b"1"})
    assert list(read_index(shard).keys) == [b"0"]
    assert (tmp_path / "a.tar.index.npz").exists()
    built: list[Path] = []
    monkeypatch.setattr(tar, "build_index", lambda shard: built.append(shard) or build_index(shard))
    assert list(read_index(shard).labels) == [b"1"]
    assert built == []
    put_members(shard, {"9.jpg": b"x", "9.cls": b"2"})
    os.utime(shard, ns=(7, 7))
    assert list(read_index(shard).keys) == [b"9"]
    assert built == [shard]
    (tmp_path / "a.tar.index.npz").write_bytes(b"broken")
    assert list(read_index(shard).keys) == [b"9"]
    assert built == [shard, shard]
    assert not (tmp_path / "cache").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tar", "a.tar.index.npz"]


def test_the_index_goes_to_the_cache_where_the_folder_is_read_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    shard = put_members(tmp_path / "a.tar", {"0.jpg": b"x", "0.cls": b"1"})
    plain_open = Path.open

    def read_only(path: Path, mode: str = "r", *args: object, **options: object) -> object:
        if "w" in mode and path.parent == tmp_path:
            raise OSError(30, "Read-only file system")
        return plain_open(path, mode, *args, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(Path, "open", read_only)
    assert list(read_index(shard).keys) == [b"0"]
    assert [path.suffix for path in (tmp_path / "cache/vitrail/tar").iterdir()] == [".npz"]
    monkeypatch.setattr(tar, "build_index", lambda shard: pytest.fail("the cached index was not used"))
    assert list(read_index(shard).keys) == [b"0"]


@pytest.mark.parametrize(
    "changed",
    [
        {"labels": np.frombuffer(b"\xff\xfe", np.uint8)},
        {"labels": np.frombuffer("é".encode(), np.uint8)},  # a character of two labels
        {"key_ends": np.array([0.0, 1, 2])},
        {"key_ends": np.zeros((2, 2), np.int64)},
        {"label_ends": np.array(0)},
        {"keys": np.array(5, np.uint8)},
        {"offsets": np.zeros((2, 2), np.int64)},
        {"offsets": np.array(["a", "b"])},
        {"offsets": np.array([np.nan, 1])},
        {"offsets": np.array([1e30, 1])},
        {"offsets": np.array([-5, 0])},
        {"offsets": np.array([0, 2**62])},
        {"sizes": np.array([2**62, 1])},
        {"sizes": np.array([1])},
        {"stamp": np.array([object()], dtype=object)},
        {"more": np.zeros(1 << 20, np.uint8)},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_an_index_that_is_not_sound_is_built_again(tmp_path: Path, changed: dict[str, np.ndarray]) -> None:
    shard = put_members(tmp_path / "a.tar", {"0.jpg": b"x", "0.cls": b"1", "1.jpg": b"x", "1.cls": b"2"})
    whole = read_index(shard)
    with np.load(tmp_path / "a.tar.index.npz") as stored:
        arrays = {**stored, **changed}
    np.savez_compressed(tmp_path / "a.tar.index.npz", **arrays)
    again = read_index(shard)
    assert (list(again.labels), again.offsets.tolist()) == ([b"1", b"2"], whole.offsets.tolist())
    assert again.sizes.tolist() == whole.sizes.tolist()
    with np.load(tmp_path / "a.tar.index.npz") as stored:
        assert sorted(stored) == sorted(tar.ARRAYS)


@pytest.mark.parametrize("damage", ["header", "deflate", "pipe"])
def test_an_index_file_that_is_broken_is_built_again(tmp_path: Path, damage: str) -> None:
    shard = put_members(tmp_path / "a.tar", {"0.jpg": b"x", "0.cls": b"1"})
    index = tmp_path / "a.tar.index.npz"
    if damage == "pipe":
        os.mkfifo(index)
    else:
        header = b"{'descr': '<i8', 'fortran_order': False, 'shape': (1000000000000,)}".ljust(117) + b"\n"
        with zipfile.ZipFile(index, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("stamp.npy", b"\x93NUMPY\x01\x00\x76\x00" + header)
        if damage == "deflate":
            index.write_bytes(index.read_bytes()[:45] + b"\xff" * 15 + index.read_bytes()[60:])
    assert list(read_index(shard).labels) == [b"1"]
    assert zipfile.is_zipfile(index)


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
    "pax size with an underscore": pax(record(b"size=0_3")) + FILE,
    "pax size with blanks": pax(record(b"size= 3 ")) + FILE,
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
    with pytest.raises(ValueError, match=r"empty|truncated|follow"):
        members((FILE * 2)[:at], tmp_path)


def test_members_behind_the_end_are_not_dropped_in_silence(tmp_path: Path) -> None:
    assert len(members(FILE + bytes(512), tmp_path)) == 1
    assert len(members(FILE + bytes(20 * 512), tmp_path)) == 1
    with pytest.raises(ValueError, match="other bytes than zeros follow"):
        members(FILE + END + FILE + END, tmp_path)
    with pytest.raises(ValueError, match="other bytes than zeros follow"):
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
