"""Several labels for an image: every way to write them, and what takes one label refuses them by name."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import vitrail
from vitrail.data.audit import inspect_data
from vitrail.data.several_labels import class_counts, make_targets, targets_of
from vitrail.data.sources import DataSet, open_source
from vitrail.errors import ConfigError, DataError

LABELS = {
    "a": ["red"],
    "b": ["red", "small"],
    "c": ["small", "blue"],
    "d": [],
    "e": ["blue"],
    "f": ["red", "blue"],
}
NAMES = ["blue", "red", "small"]


@pytest.fixture
def photos(tmp_path):
    for i, name in enumerate(LABELS):
        Image.new("RGB", (16, 16), (40 * i, 0, 90)).save(tmp_path / f"{name}.png")
    return tmp_path


def written(photos, kind):
    """The labels in a file, and the options that read it."""
    some = {
        name: labels for name, labels in LABELS.items() if labels or kind in ("jsonl", "parquet", "columns")
    }
    if kind == "jsonl":
        lines = (json.dumps({"file_name": f"{n}.png", "tags": labels}) for n, labels in some.items())
        (photos / "labels.jsonl").write_text("\n".join(lines))
        return "labels=labels.jsonl", some
    if kind == "parquet":
        table = pa.table({"image": [f"{n}.png" for n in some], "labels": list(some.values())})
        pq.write_table(table, photos / "labels.parquet")
        return "labels=labels.parquet", some
    if kind == "columns":
        rows = [",".join([f"{n}.png", *(str(int(k in labels)) for k in NAMES)]) for n, labels in some.items()]
        (photos / "labels.csv").write_text("\n".join([",".join(["image", *NAMES]), *rows]))
        return "labels=labels.csv&several=columns", some
    if kind == "rows":
        rows = [f"{n}.png,{label}" for n, labels in some.items() for label in labels]
        (photos / "labels.csv").write_text("\n".join(["image,label", *rows]))
        return "labels=labels.csv&several=rows", some
    rows = [f"{n}.png,{' | '.join(labels)}" for n, labels in some.items()]
    (photos / "labels.csv").write_text("\n".join(["image,label", *rows]))
    return "labels=labels.csv&several=|", some


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "columns", "rows", "mark"])
def test_every_way_to_write_them_gives_the_same(photos, kind):
    options, expected = written(photos, kind)
    source = open_source(f"{photos}?{options}&validation=0&test=0", "train")
    assert source.class_names == NAMES and len(source) == len(expected)
    targets = targets_of(source)
    for i in range(len(source)):
        names = [NAMES[k] for k in np.flatnonzero(targets[i])]
        assert names == sorted(expected[source.key(i).removesuffix(".png")])
        assert not names or NAMES[source.labels[i]] in names
    assert class_counts(source).tolist() == [3, 3, 2]


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_each_cut_of_a_folder_has_its_own(tmp_path, split):
    for i in range(40):
        Image.new("RGB", (8, 8)).save(tmp_path / f"{i:02}.png")
    rows = [f"{i:02}.png,{i % 2},{i // 2 % 2},{int(i > 30)}" for i in range(40)]
    (tmp_path / "labels.csv").write_text("\n".join(["image,odd,even,late", *rows]))
    source = open_source(f"{tmp_path}?labels=labels.csv&several=columns&validation=0.3&test=0.3", split)
    for i in range(len(source)):
        number = int(source.key(i).removesuffix(".png"))
        expected = {"odd": number % 2, "even": number // 2 % 2, "late": int(number > 30)}
        assert dict(zip(source.class_names, targets_of(source)[i].tolist(), strict=True)) == expected


def test_a_split_of_them_keeps_their_labels(photos):
    options, _ = written(photos, "columns")
    data = DataSet(f"{photos}?{options}&validation=0&test=0")
    whole, joined = data.whole("train"), data.part("train[3:]+train[:3]")
    order = [[whole.key(i) for i in range(6)].index(joined.key(i)) for i in range(6)]
    assert np.array_equal(targets_of(joined), targets_of(whole)[order])
    assert whole.fingerprint() != joined.fingerprint()


def test_one_label_is_no_list(photos):
    (photos / "labels.csv").write_text("image,label\na.png,red|small\nb.png,blue")
    source = open_source(f"{photos}?labels=labels.csv&validation=0&test=0", "train")
    assert targets_of(source) is None and source.class_names == ["blue", "red|small"]


@pytest.mark.parametrize(
    ("text", "options", "problem"),
    [
        ("image,red,blue\na.png,1,maybe", "several=columns", "'blue' is 'maybe', not 0 or 1"),
        ("image,red\na.png,1", "several=columns&label=green", "no column 'green'"),
        ("image,label\na.png,red\nb.png,", "several=|", "1 images without a label"),
        ("image,red,blue\na.png,0,0\nb.png,0,0", "several=columns", "no image has a label"),
    ],
)
def test_what_is_wrong_is_named(photos, text, options, problem):
    (photos / "labels.csv").write_text(text)
    with pytest.raises((DataError, ConfigError), match=problem):
        open_source(f"{photos}?labels=labels.csv&{options}&validation=0&test=0", "train")


def test_the_rarest_label_stands_for_an_image():
    targets, labels = make_targets([[0, 1], [0], [0, 2], []], 3, "here")
    assert labels.tolist() == [1, 0, 2, 0] and targets.tolist() == [
        [1, 1, 0],
        [1, 0, 0],
        [1, 0, 1],
        [0, 0, 0],
    ]


def test_inspect_counts_all_labels(photos):
    options, _ = written(photos, "columns")
    (report,) = inspect_data(f"{photos}?{options}&validation=0&test=0", splits=["train"]).splits
    assert dict(zip(report.class_names, report.counts, strict=True)) == {"blue": 3, "red": 3, "small": 2}


def test_what_takes_one_label_refuses_them(photos):
    options, _ = written(photos, "columns")
    where = f"{photos}?{options}&validation=0&test=0"
    model = vitrail.create("mu/8", classes=3, image_size=16)
    for probe in (vitrail.knn, vitrail.linear, vitrail.fewshot):
        with pytest.raises(ConfigError, match="several labels for an image"):
            probe(model, where, train_split="train[1:3]", test_split="train[3:]")
    with pytest.raises(ConfigError, match="several labels for an image"):
        vitrail.evaluate(model, where, split="train")
