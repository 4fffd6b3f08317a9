import io
import tracemalloc
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from vitrail.checkpoints import npz
from vitrail.checkpoints.npz import read_npz, write_npz
from vitrail.errors import CheckpointError

ARRAYS = {
    "a/kernel": np.arange(12, dtype=np.float32).reshape(3, 4),
    "b": np.asfortranarray(np.ones((2, 3), np.float16)),
}


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_reads_what_numpy_writes(tmp_path, save):
    save(tmp_path / "x.npz", **ARRAYS)
    got = read_npz(tmp_path / "x.npz")
    assert list(got) == list(ARRAYS)
    for key, a in ARRAYS.items():
        np.testing.assert_array_equal(got[key], a)
        assert got[key].dtype == a.dtype


def test_numpy_reads_what_we_write(tmp_path):
    write_npz(tmp_path / "x.npz", ARRAYS)
    with np.load(tmp_path / "x.npz") as got:
        for key, a in ARRAYS.items():
            np.testing.assert_array_equal(got[key], a)


def test_writing_is_deterministic_and_leaves_nothing_beside(tmp_path):
    write_npz(tmp_path / "x.npz", ARRAYS)
    write_npz(tmp_path / "y.npz", ARRAYS)
    assert (tmp_path / "x.npz").read_bytes() == (tmp_path / "y.npz").read_bytes()
    assert len(list(tmp_path.iterdir())) == 2


def test_a_write_that_fails_leaves_the_old_file(tmp_path):
    write_npz(tmp_path / "x.npz", ARRAYS)
    before = (tmp_path / "x.npz").read_bytes()
    with pytest.raises(ValueError, match="pickle"):
        write_npz(tmp_path / "x.npz", {"a": np.array([object()])})
    assert (tmp_path / "x.npz").read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1


def test_changing_an_array_does_not_change_the_file(tmp_path):
    np.savez(tmp_path / "x.npz", **ARRAYS)
    before = (tmp_path / "x.npz").read_bytes()
    read_npz(tmp_path / "x.npz")["a/kernel"][:] = 7
    assert (tmp_path / "x.npz").read_bytes() == before


@pytest.mark.parametrize("compressed", [False, True])
def test_pickled_objects_are_never_loaded(tmp_path, compressed):
    save = np.savez_compressed if compressed else np.savez
    save(tmp_path / "x.npz", a=np.array([{"x": 1}], dtype=object))
    with pytest.raises(CheckpointError, match="pickled Python objects"):
        read_npz(tmp_path / "x.npz")


def test_a_missing_file(tmp_path):
    with pytest.raises(CheckpointError, match="no such file"):
        read_npz(tmp_path / "x.npz")


@pytest.mark.parametrize("compressed", [False, True])
@settings(max_examples=60)
@given(data=st.data())
def test_a_damaged_file_is_an_error_or_the_same_arrays(tmp_path_factory, compressed, data):
    """Cut anywhere, or one byte changed anywhere: never other values."""
    folder = tmp_path_factory.mktemp("damage")
    (np.savez_compressed if compressed else np.savez)(folder / "x.npz", **ARRAYS)
    whole = (folder / "x.npz").read_bytes()
    at = data.draw(st.integers(0, len(whole) - 1))
    if data.draw(st.booleans()):
        damaged = whole[:at]
    else:
        damaged = whole[:at] + bytes([whole[at] ^ data.draw(st.integers(1, 255))]) + whole[at + 1 :]
    (folder / "x.npz").write_bytes(damaged)
    try:
        got = read_npz(folder / "x.npz")
    except CheckpointError:
        return
    for key in set(got) & set(ARRAYS):
        np.testing.assert_array_equal(got[key], ARRAYS[key])


def test_a_header_that_promises_more_than_is_there(tmp_path):
    np.savez(tmp_path / "x.npz", a=np.zeros(4, np.float32))
    with zipfile.ZipFile(tmp_path / "x.npz") as archive:
        member = archive.read("a.npy").replace(b"(4,)", b"(9,)")
    with zipfile.ZipFile(tmp_path / "y.npz", "w") as archive:
        archive.writestr("a.npy", member)
    with pytest.raises(CheckpointError, match=r"\(9,\) of float32"):
        read_npz(tmp_path / "y.npz")


@given(hnp.arrays(np.float32, hnp.array_shapes(min_dims=0, max_dims=4), elements=st.floats(width=32)))
def test_any_array_comes_back_bit_by_bit(tmp_path_factory, a):
    path = tmp_path_factory.mktemp("any") / "x.npz"
    write_npz(path, {"a": a})
    assert read_npz(path)["a"].tobytes() == a.tobytes()


def zipped(path, content, method=zipfile.ZIP_DEFLATED):
    """A file of one member."""
    with zipfile.ZipFile(path, "w", method, compresslevel=1) as archive:
        archive.writestr("a.npy", content)
    return path


def npy(a):
    file = io.BytesIO()
    np.save(file, a)
    return file.getvalue()


def test_a_small_file_does_not_unpack_to_a_large_one(tmp_path):
    path = zipped(tmp_path / "x.npz", npy(np.zeros(17 << 20, np.float32)))
    assert path.stat().st_size < 1 << 20
    tracemalloc.start()
    try:
        with pytest.raises(
            CheckpointError, match="unpacks to 71,303,296; refused: more than 20 times its size"
        ):
            read_npz(path)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_a_header_is_read_before_what_follows_it(tmp_path):
    path = zipped(tmp_path / "x.npz", npy(np.zeros(4, np.float32)) + bytes(32 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError, match=r"\(4,\) of float32.* 33,554,576 bytes"):
            read_npz(path)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_arrays_of_several_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(np.lib.format, "BUFFER_SIZE", 1000)
    a = np.random.default_rng(0).standard_normal(5000)
    np.testing.assert_array_equal(read_npz(zipped(tmp_path / "x.npz", npy(a)))["a"], a)


def test_no_memory_for_an_array(tmp_path, monkeypatch):
    def full(*_):
        raise MemoryError

    monkeypatch.setattr(npz, "unpack_member", full)
    with pytest.raises(CheckpointError, match=r"x\.npz does not fit into memory"):
        read_npz(zipped(tmp_path / "x.npz", npy(np.zeros(4))))


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_shape_of_truths(tmp_path, method):
    content = npy(np.zeros((1, 32), np.float32)).replace(b"(1, 32), }   ", b"(True, 32), }")
    with pytest.raises(CheckpointError, match=r"\(True, 32\) of float32"):
        read_npz(zipped(tmp_path / "x.npz", content, method))


def test_compressed_as_numpy_does_not(tmp_path):
    with pytest.raises(CheckpointError, match="method 12"):
        read_npz(zipped(tmp_path / "x.npz", npy(np.zeros(4)), zipfile.ZIP_BZIP2))


def test_two_arrays_that_differ_in_their_suffix(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        for name in ("a", "a.npy"):
            archive.writestr(name, npy(np.zeros(3)))
    with pytest.raises(CheckpointError, match="same name"):
        read_npz(tmp_path / "x.npz")


def test_two_arrays_of_one_name(tmp_path):
    np.savez(tmp_path / "x.npz", a=np.zeros(3))
    with (
        zipfile.ZipFile(tmp_path / "x.npz", "a") as archive,
        pytest.warns(UserWarning, match="Duplicate name"),
    ):
        archive.writestr("a.npy", archive.read("a.npy"))
    with pytest.raises(CheckpointError, match="same name"):
        read_npz(tmp_path / "x.npz")
