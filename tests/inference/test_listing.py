import os
import pickle

import numpy as np
import pytest

from tests.inference.test_predict import saved_pictures
from vitrail.data.sources import open_source
from vitrail.errors import ConfigError, DataError
from vitrail.inference.listing import Paths, list_images


def test_paths_come_back_from_a_file(tmp_path):
    names = ["a.png", "", "caf\udce9.png", "two\nlines"]
    paths = Paths.of(names)
    paths.save(tmp_path / "images.npz")
    for other in (paths, Paths.restore(tmp_path / "images.npz"), pickle.loads(pickle.dumps(paths))):
        assert list(other) == names and other.digest() == paths.digest()
    assert Paths.of(["a.pn", "g"]).digest() != Paths.of(["a.p", "ng"]).digest()
    whole = (tmp_path / "images.npz").read_bytes()
    (tmp_path / "images.npz").write_bytes(whole[:60])
    with pytest.raises(DataError, match="damaged"):
        Paths.restore(tmp_path / "images.npz")


def test_a_million_paths_fit_into_their_bytes():
    paths = Paths.of(f"photos/{i:09}.jpg" for i in range(1000))
    assert (
        paths.names.bytes.nbytes + paths.names.ends.nbytes < 1000 * 30
        and len(pickle.dumps(paths)) < 1000 * 32
    )


def test_folders_files_and_patterns_are_files(tmp_path):
    pictures = saved_pictures(tmp_path / "images", 3)
    for names in (tmp_path / "images", str(tmp_path / "images" / "*.png"), pictures, map(str, pictures)):
        listing = list_images(names, None)
        assert list(listing.files) == [*map(str, pictures)] and listing.source.key(2) == str(pictures[2])
    with pytest.raises(ConfigError, match="split"):
        list_images(pictures, "test")
    for nothing in ([], tmp_path / "nowhere.parquet"):
        with pytest.raises((DataError, ConfigError)):
            len(list_images(nothing, None).source.read(0).image)


def test_a_data_set_has_splits(tmp_path):
    arrays = {f"x_{part}": np.zeros((n, 4, 4, 3), np.uint8) for part, n in (("train", 5), ("test", 3))}
    arrays |= {f"y_{part}": np.arange(n) % 2 for part, n in (("train", 5), ("test", 3))}
    np.savez(tmp_path / "digits.npz", **arrays)
    with pytest.raises(ConfigError, match="train, test"):
        list_images(tmp_path / "digits.npz", None)
    listing = list_images([str(tmp_path / "digits.npz")], "test[:2]")
    assert len(listing.source) == 2 and listing.files is None
    assert listing.digest == open_source(tmp_path / "digits.npz", "test[:2]").fingerprint()
    assert len(list_images("shapes", "train[:7]").source) == 7
    os.utime(tmp_path / "digits.npz", (1, 1))
    assert list_images(tmp_path / "digits.npz", "test[:2]").digest != listing.digest
