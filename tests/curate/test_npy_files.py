import numpy as np
import pytest

from vitrail.curate.npy_files import GrowingArray, map_array
from vitrail.errors import DataError


def test_what_is_appended_is_read(tmp_path):
    path = tmp_path / "x.npy"
    array = GrowingArray(path, "<f2", (3,))
    array.append(np.ones((2, 3)))
    array.append(np.full((1, 3), 2))
    array.save()
    array.append(np.full((5, 3), 7))  # lost: not saved
    array.close()
    array = GrowingArray(path, "<f2", (3,), rows=3)
    array.append(np.full((1, 3), 3))
    array.save()
    array.close()
    expected = np.array([[1] * 3, [1] * 3, [2] * 3, [3] * 3], np.float16)
    np.testing.assert_array_equal(map_array(path, "float16", (4, 3)), expected)
    np.testing.assert_array_equal(np.load(path), expected)


def test_a_mapped_array_does_not_change_the_file(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros(4))
    map_array(tmp_path / "x.npy", "float64", (4,))[:] = 1
    assert not np.load(tmp_path / "x.npy").any()


@pytest.mark.parametrize(
    ("stored", "dtype", "shape"),
    [
        (np.zeros((2, 3)), "float32", (2, 3)),
        (np.zeros((2, 3)), "float64", (3, 3)),
        (np.zeros((2, 3)), "float64", (6,)),
        (np.asfortranarray(np.zeros((2, 3))), "float64", (2, 3)),
        (np.array([None]), "float64", (1,)),
    ],
)
def test_another_array_is_refused(tmp_path, stored, dtype, shape):
    np.save(tmp_path / "x.npy", stored, allow_pickle=True)
    with pytest.raises(DataError, match=r"x\.npy"):
        map_array(tmp_path / "x.npy", dtype, shape)


def test_damaged_files_are_refused(tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, np.zeros((20, 3)))
    whole = path.read_bytes()
    for damaged in (whole[:-1], whole + b"0", whole[:60], b"", b"\x93NUMPY\x09\x00" + whole[8:]):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=r"x\.npy"):
            map_array(path, "float64", (20, 3))
    path.unlink()
    with pytest.raises(DataError, match=r"x\.npy"):
        map_array(path, "float64", (20, 3))
