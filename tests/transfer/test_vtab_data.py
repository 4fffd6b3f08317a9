import hashlib
import json
from io import BytesIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from tests.evaluators.split import Split, named
from tests.transfer.stand_in import N, write_all
from vitrail.data.decode import decode
from vitrail.data.sources import Example, open_source
from vitrail.errors import ConfigError, DataError
from vitrail.transfer.vtab_data import (
    check_manifest,
    digest_manifest,
    find_task_folder,
    list_examples,
    open_task,
    read_manifest,
    slice_splits,
    write_cut,
    write_manifest,
)
from vitrail.transfer.vtab_tasks import TASKS, clevr_count, dsprites_orientation

SMALL, FULL = (16, 4), (800, 200)
# As the definitions give them, for TFDS's numbers of examples: train, val, test as (split, first, last).
OFFICIAL = {
    "caltech101": (
        {"train": 3059, "test": 6084},
        [("train", 0, 800), ("train", 2753, 2953), ("test", 0, 6084)],
    ),
    "cifar100": (
        {"train": 50_000, "test": 10_000},
        [("train", 0, 800), ("train", 45_000, 45_200), ("test", 0, 10_000)],
    ),
    "pets": ({"train": 3680, "test": 3669}, [("train", 0, 800), ("train", 2944, 3144), ("test", 0, 3669)]),
    "dtd": (
        {"train": 1880, "validation": 1880, "test": 1880},
        [("train", 0, 800), ("validation", 0, 200), ("test", 0, 1880)],
    ),
    "eurosat": (
        {"train": 27_000},
        [("train", 0, 800), ("train", 16_200, 16_400), ("train", 21_600, 27_000)],
    ),
    "clevr_count": (
        {"train": 70_000, "validation": 15_000},
        [("train", 0, 800), ("train", 63_000, 63_200), ("validation", 0, 15_000)],
    ),
    "dsprites_location": (
        {"train": 737_280},
        [("train", 0, 800), ("train", 589_824, 590_024), ("train", 663_552, 737_280)],
    ),
    "smallnorb_azimuth": (
        {"train": 24_300, "test": 24_300},
        [("train", 0, 800), ("test", 0, 200), ("test", 12_150, 24_300)],
    ),
}


@pytest.mark.parametrize("name", OFFICIAL)
def test_the_examples_are_those_of_the_definitions(name, tmp_path):
    lengths, wanted = OFFICIAL[name]
    assert slice_splits(TASKS[name], lengths, tmp_path, FULL) == wanted


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folders = ("cifar100", "oxford_iiit_pet", "clevr", "dsprites", "smallnorb")
    return write_all(tmp_path_factory.mktemp("vtab"), folders)


def test_folders_by_the_name_of_the_task_or_of_the_data_set(root):
    assert find_task_folder(root, "pets") == root / "oxford_iiit_pet"
    assert find_task_folder(root, "clevr_distance") == root / "clevr"
    assert find_task_folder(root, "dmlab") is None


def test_a_task_with_labels_is_a_slice_of_its_data_set(root):
    data = open_task(root / "cifar100", "cifar100", SMALL)
    assert (data.train, data.val, data.test) == ("train[0:16]", "train[36:40]", f"test[0:{N}]")
    whole = open_source(root / "cifar100", "train")
    assert data.sources()["val"].labels.tolist() == whole.labels[36:40].tolist()


def test_a_task_of_another_column(root):
    data = open_task(root / "smallnorb", "smallnorb_elevation", SMALL)
    assert data.sources()["train"].labels.tolist() == [i % 9 for i in range(16)]
    assert len(data.sources()["test"].class_names) == 9


def test_labels_that_are_computed(root, tmp_path):
    assert open_task(root / "clevr", "clevr_count", SMALL) is None
    to = tmp_path / "clevr_count"
    made = open_task(root / "clevr", "clevr_count", SMALL, to).sources()
    assert open_task(to, "clevr_count", SMALL).where == str(to)
    rows = pq.read_table(root / "clevr" / "train-00000-of-00001.parquet").to_pylist()
    assert made["train"].labels.tolist() == [clevr_count(row["objects"]) for row in rows[:16]]
    assert made["val"].labels.tolist() == [clevr_count(row["objects"]) for row in rows[36:40]]
    assert made["train"].read(3).image == rows[3]["image"]["bytes"]
    assert len(made["test"]) == N


def test_dsprites_pixels_of_0_and_1_become_black_and_white(root, tmp_path):
    to = tmp_path / "made"
    write_cut(root / "dsprites", "dsprites_orientation", SMALL, to)
    source = open_task(to, "dsprites_orientation", SMALL).sources()["test"]
    rows = pq.read_table(root / "dsprites" / "train-00000-of-00001.parquet").to_pylist()[36:]
    assert source.labels.tolist() == [dsprites_orientation(row["label_orientation"]) for row in rows]
    stored = decode(rows[0]["image"]["bytes"])
    assert stored.max() == 1
    assert np.array_equal(decode(source.read(0).image), stored * 255)


def test_the_cut_form_is_read_as_it_is(root, tmp_path):
    to = tmp_path / "clevr_distance"
    write_cut(root / "clevr", "clevr_distance", SMALL, to)
    assert find_task_folder(tmp_path, "clevr_distance") == to
    assert open_task(to, "clevr_distance", SMALL).train == "train16"


def rewritten(root, tmp_path, folder, **changes):
    """A copy of a data set with columns replaced, or without them where they are None."""
    (tmp_path / folder).mkdir()
    for file in (root / folder).iterdir():
        rows = pq.read_table(file).to_pylist()
        for row in rows:
            row.update(changes)
            for name in [name for name, value in changes.items() if value is None]:
                del row[name]
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / folder / file.name)
    return tmp_path / folder


def test_missing_columns(root, tmp_path):
    folder = rewritten(root, tmp_path, "clevr", objects=None)
    with pytest.raises(DataError, match=r"no column objects; columns: image"):
        open_task(folder, "clevr_count", SMALL)
    folder = rewritten(root, tmp_path, "smallnorb", label_azimuth=None)
    with pytest.raises(
        ConfigError, match="no column 'label_azimuth' for the label; columns: image, label_elev"
    ):
        open_task(folder, "smallnorb_azimuth", SMALL)


def test_annotations_out_of_range_are_named(root, tmp_path):
    folder = rewritten(root, tmp_path, "dsprites", label_x_position=77)
    with pytest.raises(DataError, match=r"dsprites:train: row 0, column 'label_x_position': .* 77"):
        write_cut(folder, "dsprites_location", SMALL, tmp_path / "made")
    (tmp_path / "b").mkdir()
    crowd = {"size": [1] * 11, "pixel_coords": [[0.0, 0.0, 9.0]] * 11}
    folder = rewritten(root, tmp_path / "b", "clevr", objects=crowd)
    with pytest.raises(DataError, match="labels are not among the 8 classes: 8 at example 0"):
        write_cut(folder, "clevr_count", SMALL, tmp_path / "more")


def test_too_few_examples(root, tmp_path):
    with pytest.raises(DataError, match=r"cifar100: train has 40 examples; the task takes 800"):
        open_task(root / "cifar100", "cifar100", FULL)
    with pytest.raises(DataError, match=r"clevr: train\[90%:\] has 4 examples; the task takes 5"):
        write_cut(root / "clevr", "clevr_count", (16, 5), tmp_path / "made")


def test_another_number_of_classes(root, tmp_path):
    folder = rewritten(root, tmp_path, "cifar100", label=3)
    with pytest.raises(DataError, match=r"4 classes; cifar100 has 100"):
        open_task(folder, "cifar100", SMALL)


def test_a_folder_without_parquet_files(tmp_path):
    (tmp_path / "dtd").mkdir()
    with pytest.raises(DataError, match=r"no Parquet files.* train800"):
        open_task(tmp_path / "dtd", "dtd", FULL)
    with pytest.raises(DataError, match="no such folder"):
        find_task_folder(tmp_path / "nowhere", "dtd")


def test_hugging_face_names_its_classes(root):
    note = json.loads(
        pq.read_schema(root / "cifar100" / "test-00000-of-00001.parquet").metadata[b"huggingface"]
    )
    source = open_task(root / "cifar100", "cifar100", SMALL).sources()["test"]
    assert source.class_names == note["info"]["features"]["label"]["names"]


class Encoded(Split):
    """The same pictures as files."""

    kind = "PNG"

    def read(self, index):
        example = super().read(index)
        stream = BytesIO()
        Image.fromarray(example.image).save(stream, self.kind, lossless=True)
        return Example(stream.getvalue(), example.label, example.key)


def test_a_line_is_a_hash_of_pixels_whatever_the_format():
    plain = list_examples({"train": Split(5, named(3))})
    assert plain == list_examples({"train": Encoded(5, named(3))})
    webp = Encoded(5, named(3))
    webp.kind = "WEBP"
    assert plain == list_examples({"train": webp})
    pixels = np.ascontiguousarray(Split(5, named(3)).read(0).image)
    assert plain[0] == ("train", hashlib.sha256(b"16 16\n" + pixels.tobytes()).hexdigest()[:16], 0)


def test_what_is_written_can_be_read_manifest(tmp_path):
    manifest = list_examples({"train": Split(5, named(3)), "test": Split(4, named(3))})
    write_manifest(manifest, tmp_path / "task.csv")
    assert read_manifest(tmp_path / "task.csv") == manifest
    assert (tmp_path / "task.csv").read_text().startswith("split,pixels,label\ntrain,")


def test_the_order_does_not_matter(tmp_path):
    manifest = list_examples({"train": Split(5, named(3))})
    write_manifest(manifest[::-1], tmp_path / "task.csv")
    check_manifest(manifest, tmp_path / "task.csv")
    assert digest_manifest(manifest) == digest_manifest(manifest[::-1]) != digest_manifest(manifest[1:])


def test_other_examples_are_counted(tmp_path):
    manifest = list_examples({"train": Split(5, named(3)), "val": Split(4, named(3))})
    (split, h, label), *rest = manifest
    cases = [
        (manifest, [(split, "0" * 16, label), *rest], "train .* 1 of 5 examples .* 1 of its 5"),
        (manifest, [(split, h, label + 1), *rest], "train .* 1 of 5 examples .* 1 of its 5"),
        (manifest[:-1], manifest, "val .* 0 of 3 examples .* 1 of its 4"),
        (manifest, manifest[:5], "val .* 4 of 4 examples .* 0 of its 0"),
    ]
    for ours, theirs, counts in cases:
        write_manifest(theirs, tmp_path / "task.csv")
        with pytest.raises(DataError, match=counts):
            check_manifest(ours, tmp_path / "task.csv")


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
        read_manifest(tmp_path / "task.csv")


def test_a_file_too_large_for_a_manifest(tmp_path):
    with (tmp_path / "task.csv").open("wb") as file:
        file.truncate(1 << 40)  # a hole: nothing is on the disk
    with pytest.raises(DataError, match="at most"):
        read_manifest(tmp_path / "task.csv")
