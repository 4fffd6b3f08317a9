import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.transfer.stand_in import N, write_all
from vitrail.data.decode import decode
from vitrail.data.sources import open_source
from vitrail.errors import ConfigError, DataError
from vitrail.transfer.settings import Sizes
from vitrail.transfer.vtab_data import check_columns, find, labelled, needs_labels, opened, ranges
from vitrail.transfer.vtab_labels import clevr_count, dsprites_orientation
from vitrail.transfer.vtab_tasks import TASKS

SMALL = Sizes(16, 4)
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
    assert ranges(TASKS[name], lengths, tmp_path, Sizes()) == wanted


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folders = ("cifar100", "oxford_iiit_pet", "clevr", "dsprites", "smallnorb")
    return write_all(tmp_path_factory.mktemp("vtab"), folders)


def test_folders_by_the_name_of_the_task_or_of_the_data_set(root):
    assert find(root, "pets") == root / "oxford_iiit_pet"
    assert find(root, "clevr_distance") == root / "clevr"
    assert find(root, "dmlab") is None


def test_a_task_with_labels_is_a_slice_of_its_data_set(root):
    data = opened(root / "cifar100", "cifar100", SMALL)
    assert (data.train, data.val, data.test) == ("train[0:16]", "train[36:40]", f"test[0:{N}]")
    whole = open_source(root / "cifar100", "train")
    assert data.sources()["val"].labels.tolist() == whole.labels[36:40].tolist()


def test_a_task_of_another_column(root):
    data = opened(root / "smallnorb", "smallnorb_elevation", SMALL)
    assert data.sources()["train"].labels.tolist() == [i % 9 for i in range(16)]
    assert len(data.sources()["test"].class_names) == 9


def test_labels_that_are_computed(root, tmp_path):
    assert needs_labels(root / "clevr", "clevr_count", SMALL)
    to = labelled(root / "clevr", "clevr_count", SMALL, tmp_path / "clevr_count")
    assert not needs_labels(to, "clevr_count", SMALL)
    made = opened(to, "clevr_count", SMALL).sources()
    rows = pq.read_table(root / "clevr" / "train-00000-of-00001.parquet").to_pylist()
    assert made["train"].labels.tolist() == [clevr_count(row["objects"]) for row in rows[:16]]
    assert made["val"].labels.tolist() == [clevr_count(row["objects"]) for row in rows[36:40]]
    assert made["train"].read(3).image == rows[3]["image"]["bytes"]
    assert len(made["test"]) == N


def test_dsprites_pixels_of_0_and_1_become_black_and_white(root, tmp_path):
    to = labelled(root / "dsprites", "dsprites_orientation", SMALL, tmp_path / "made")
    source = opened(to, "dsprites_orientation", SMALL).sources()["test"]
    rows = pq.read_table(root / "dsprites" / "train-00000-of-00001.parquet").to_pylist()[36:]
    assert source.labels.tolist() == [dsprites_orientation(row["label_orientation"]) for row in rows]
    stored = decode(rows[0]["image"]["bytes"])
    assert stored.max() == 1
    assert np.array_equal(decode(source.read(0).image), stored * 255)


def test_the_cut_form_is_read_as_it_is(root, tmp_path):
    to = labelled(root / "clevr", "clevr_distance", SMALL, tmp_path / "clevr_distance")
    assert find(tmp_path, "clevr_distance") == to
    assert opened(to, "clevr_distance", SMALL).train == "train16"


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
    with pytest.raises(DataError, match=r"parquet: no column objects; columns: image"):
        check_columns(folder, "clevr_count")
    folder = rewritten(root, tmp_path, "smallnorb", label_azimuth=None)
    with pytest.raises(
        ConfigError, match="no column 'label_azimuth' for the label; columns: image, label_elev"
    ):
        opened(folder, "smallnorb_azimuth", SMALL)


def test_annotations_out_of_range_are_named(root, tmp_path):
    folder = rewritten(root, tmp_path, "dsprites", label_x_position=77)
    with pytest.raises(DataError, match=r"dsprites:train: row 0, column 'label_x_position': the value 77"):
        labelled(folder, "dsprites_location", SMALL, tmp_path / "made")
    (tmp_path / "b").mkdir()
    crowd = {"size": [1] * 11, "pixel_coords": [[0.0, 0.0, 9.0]] * 11}
    folder = rewritten(root, tmp_path / "b", "clevr", objects=crowd)
    with pytest.raises(DataError, match="labels are none of the 8 classes: 8 at example 0"):
        labelled(folder, "clevr_count", SMALL, tmp_path / "more")


def test_too_few_examples(root, tmp_path):
    with pytest.raises(DataError, match=r"cifar100: train has 40 examples; the task takes 800"):
        opened(root / "cifar100", "cifar100", Sizes())
    with pytest.raises(DataError, match=r"clevr: train\[90%:\] has 4 examples; the task takes 5"):
        labelled(root / "clevr", "clevr_count", Sizes(16, 5), tmp_path / "made")


def test_another_number_of_classes(root, tmp_path):
    folder = rewritten(root, tmp_path, "cifar100", label=3)
    with pytest.raises(DataError, match=r"4 classes; cifar100 has 100\. Class names stand in"):
        opened(folder, "cifar100", SMALL)


def test_a_folder_without_parquet_files(tmp_path):
    (tmp_path / "dtd").mkdir()
    with pytest.raises(
        DataError, match="no Parquet files; a task's folder holds train, validation and test, or tr"
    ):
        opened(tmp_path / "dtd", "dtd", Sizes())
    with pytest.raises(DataError, match="no such folder"):
        find(tmp_path / "nowhere", "dtd")


def test_hugging_face_names_its_classes(root):
    note = json.loads(
        pq.read_schema(root / "cifar100" / "test-00000-of-00001.parquet").metadata[b"huggingface"]
    )
    source = opened(root / "cifar100", "cifar100", SMALL).sources()["test"]
    assert source.class_names == note["info"]["features"]["label"]["names"]
