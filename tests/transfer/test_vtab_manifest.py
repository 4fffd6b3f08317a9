import hashlib
from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from tests.evaluators.split import Split, named
from vitrail.data.sources import Example
from vitrail.errors import DataError
from vitrail.transfer import vtab_manifest
from vitrail.transfer.vtab_manifest import check_same, digest, manifest_of, read


class Encoded(Split):
    """The same pictures as files."""

    kind = "PNG"

    def read(self, index):
        example = super().read(index)
        stream = BytesIO()
        Image.fromarray(example.image).save(stream, self.kind, lossless=True)
        return Example(stream.getvalue(), example.label, example.key)


def test_a_line_is_a_hash_of_pixels_whatever_the_format():
    plain = manifest_of({"train": Split(5, named(3))})
    assert plain == manifest_of({"train": Encoded(5, named(3))})
    webp = Encoded(5, named(3))
    webp.kind = "WEBP"
    assert plain == manifest_of({"train": webp})
    pixels = np.ascontiguousarray(Split(5, named(3)).read(0).image)
    assert plain[0] == ("train", hashlib.sha256(b"16 16\n" + pixels.tobytes()).hexdigest()[:16], 0)


def test_what_is_written_can_be_read(tmp_path):
    manifest = manifest_of({"train": Split(5, named(3)), "test": Split(4, named(3))})
    vtab_manifest.write(manifest, tmp_path / "task.csv")
    assert read(tmp_path / "task.csv") == manifest
    assert (tmp_path / "task.csv").read_text().startswith("split,pixels,label\ntrain,")


def test_the_order_does_not_matter(tmp_path):
    manifest = manifest_of({"train": Split(5, named(3))})
    check_same(manifest, manifest[::-1], tmp_path)
    assert digest(manifest) == digest(manifest[::-1]) != digest(manifest[1:])


def test_other_examples_are_counted(tmp_path):
    manifest = manifest_of({"train": Split(5, named(3)), "val": Split(4, named(3))})
    (split, h, label), *rest = manifest
    with pytest.raises(DataError, match=r"train is not that of .*: 1 of 5 images are not there"):
        check_same(manifest, [(split, "0" * 16, label), *rest], tmp_path)
    with pytest.raises(DataError, match="the same images have other labels"):
        check_same(manifest, [(split, h, label + 1), *rest], tmp_path)
    with pytest.raises(DataError, match=r"val .*: 1 of its 4 images are missing here"):
        check_same(manifest[:-1], manifest, tmp_path)
    with pytest.raises(DataError, match=r"val .*: 4 of 4 images are not there"):
        check_same(manifest, manifest[:5], tmp_path)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "not a manifest"),
        (b"a,b\n", "not a manifest"),
        (b"split,pixels,label\ntrain,00,x\n", "not a manifest"),
        (b"split,pixels,label\ntrain\n", "not a manifest"),
        (b"split,pixels,label\ntrain," + b"0" * 200_000 + b",1\n", "not a manifest"),
        (b"split,pixels,label\ncaf\xe9,00,1\n", "not UTF-8: 'utf-8' codec"),
    ],
)
def test_a_file_that_is_no_manifest(data, said, tmp_path):
    (tmp_path / "task.csv").write_bytes(data)
    with pytest.raises(DataError, match=said):
        read(tmp_path / "task.csv")


def test_a_file_too_large_for_a_manifest(tmp_path):
    with (tmp_path / "task.csv").open("wb") as file:
        file.truncate(1 << 40)  # a hole: nothing is on the disk
    with pytest.raises(DataError, match="at most"):
        read(tmp_path / "task.csv")
