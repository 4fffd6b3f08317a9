import csv
import json
import os
import signal
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from tests.evaluators.split import Split, named, small_model
from tests.inference.test_predict import broken_and_whole, saved_pictures
from vitrail.errors import ConfigError, DataError, ImageError, Interrupted
from vitrail.inference import bulk
from vitrail.inference.bulk import predict_to
from vitrail.inference.features import features
from vitrail.inference.predict import predict_each
from vitrail.inference.prediction_job import list_pieces, unfinished
from vitrail.models.calibration import Calibration


@pytest.fixture
def model():
    return small_model(class_names=named(7))


def read(path):
    """Rows of a file as dicts, numbers as numbers; of a CSV file as text."""
    if path.suffix == ".parquet":
        return pq.read_table(path).to_pylist()
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text().splitlines()]
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_rows_are_what_predict_says(tmp_path, model):
    paths = broken_and_whole(tmp_path / "images")
    expected = list(predict_each(model, paths, 3))
    for kind in ("parquet", "jsonl"):
        written = predict_to(model, tmp_path / "images", tmp_path / f"p.{kind}", top=3)
        assert (written.rows, written.unreadable, sum(written.classes.values())) == (6, 3, 3)
        rows = read(*written.files)
        assert [row["path"] for row in rows] == [str(path) for path in paths]
        for row, there in zip(rows, expected, strict=True):
            if isinstance(there, ImageError):
                assert row.pop("error") == str(there) and not any(v for k, v in row.items() if k != "path")
                continue
            assert row["error"] is None and (row["class"], row["top_classes"]) == (
                there[0][0],
                [n for n, _ in there],
            )
            assert row["top_probabilities"] == pytest.approx([p for _, p in there], rel=1e-4)
            assert row["confidence"] == row["top_probabilities"][0]


def test_csv_has_a_column_for_every_entry_of_a_list(tmp_path, model):
    broken_and_whole(tmp_path / "images")
    settings = {"top": 2, "probabilities": True, "features": True}
    (lists,) = predict_to(model, tmp_path / "images", tmp_path / "p.parquet", **settings).files
    (flat,) = predict_to(model, tmp_path / "images", tmp_path / "p.csv", **settings).files
    for row, other in zip(read(flat), read(lists), strict=True):
        assert row["error"] == (other["error"] or "")
        if other["error"]:
            continue
        assert [row["class_1"], row["class_2"]] == other["top_classes"]
        columns = [
            *(f"probability of {name}" for name in model.class_names),
            *(f"feature_{i}" for i in range(32)),
        ]
        numbers = np.array([row[name] for name in columns], np.float32)
        np.testing.assert_array_equal(
            numbers, np.array(other["probabilities"] + other["features"], np.float32)
        )


def test_probabilities_and_features_are_the_models(tmp_path, model):
    paths = saved_pictures(tmp_path / "images", 5)
    rows = read(*predict_to(model, paths, tmp_path / "p.parquet", probabilities=True, features=True).files)
    np.testing.assert_allclose(
        [row["features"] for row in rows], features(model, paths), rtol=1e-4, atol=1e-5
    )
    for row, there in zip(rows, predict_each(model, paths, 7), strict=True):
        assert dict(zip(model.class_names, row["probabilities"], strict=True)) == pytest.approx(
            dict(there), rel=1e-4
        )


def test_a_model_without_classifier_gives_features(tmp_path):
    body, paths = small_model(classes=0), saved_pictures(tmp_path / "images", 3)
    rows = read(*predict_to(body, paths, tmp_path / "f.parquet", features=True).files)
    assert list(rows[0]) == ["path", "features", "error"]
    np.testing.assert_allclose([row["features"] for row in rows], features(body, paths), rtol=1e-4, atol=1e-5)
    for settings in (
        {},
        {"features": True, "probabilities": True},
        {"features": True, "sort_into": tmp_path / "s"},
    ):
        with pytest.raises(ConfigError, match="classifier"):
            predict_to(body, paths, tmp_path / "g.parquet", **settings)


def test_below_the_threshold_of_its_class_it_is_unsure(tmp_path, model):
    paths = saved_pictures(tmp_path / "images", 12)
    model.calibration = Calibration(2.0)
    middle = float(np.median([one[0][1] for one in predict_each(model, paths)]))
    model.calibration = Calibration(2.0, (middle,) * 7)
    expected = list(predict_each(model, paths))
    (file,) = predict_to(model, paths, tmp_path / "p.jsonl").files
    names = [row["class"] for row in read(file)]
    assert names == [one.answer[0] if one.answer else "unsure" for one in expected]
    assert 0 < names.count("unsure") < 12
    assert [row["confidence"] for row in read(file)] == pytest.approx(
        [one[0][1] for one in expected], rel=1e-4
    )
    (file,) = predict_to(model, paths, tmp_path / "q.jsonl", min_confidence=1.0).files
    assert {row["class"] for row in read(file)} == {"unsure"}
    model.calibration = Calibration(2.0)
    with pytest.raises(ConfigError, match="calibration"):
        predict_to(model, paths, tmp_path / "p.jsonl")


@pytest.mark.parametrize("kind", ["parquet", "csv", "jsonl"])
def test_of_several_labels_all_answers_are_in_one_column(tmp_path, model, kind):
    paths = saved_pictures(tmp_path / "images", 8)
    model.calibration = Calibration(3.0, (0.6,) * 7, multi_label=True)
    expected = list(predict_each(model, paths, 7))
    written = predict_to(model, paths, tmp_path / f"p.{kind}", top=2)
    rows = read(*written.files)
    for row, one in zip(rows, expected, strict=True):
        assert set(row["class"].split("|")) == set(one.answer or ["unsure"])
    with pytest.raises(ConfigError, match="one class"):
        predict_to(model, paths, tmp_path / f"q.{kind}", sort_into=tmp_path / "sorted")


def test_below_min_confidence_the_class_is_unsure(tmp_path, model):
    paths = saved_pictures(tmp_path / "images", 12)
    p = sorted(top[0][1] for top in predict_each(model, paths, 1))
    (file,) = predict_to(model, paths, tmp_path / "p.jsonl", min_confidence=(p[5] + p[6]) / 2).files
    rows = read(file)
    assert sum(row["class"] == "unsure" for row in rows) == 6
    assert all((row["class"] == "unsure") == (row["confidence"] <= p[5] + 1e-6) for row in rows)
    assert all(row["top_classes"][0] in model.class_names for row in rows)


def test_rows_may_be_shared_by_several_files(tmp_path, model):
    paths = saved_pictures(tmp_path / "images", 10)
    written = predict_to(model, map(str, paths), tmp_path / "p.csv", rows_per_file=4)
    assert [file.name for file in written.files] == [f"p-0000{i}-of-00003.csv" for i in range(3)]
    parts = [read(file) for file in written.files]
    assert [len(part) for part in parts] == [4, 4, 2]
    assert [row["path"] for part in parts for row in part] == [str(path) for path in paths]


def stopped(monkeypatch, after, model, *arguments, **settings):
    """Call predict_to; an error after some pieces is as good as a kill."""
    write, left = bulk.write_piece, [after]

    def failing(table, path):
        if not left[0]:
            raise ZeroDivisionError
        left[0] -= 1
        write(table, path)

    with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr(bulk, "write_piece", failing)
        predict_to(model, *arguments, **settings)


@pytest.fixture
def often(monkeypatch):
    """Pieces after every batch."""
    monkeypatch.setattr(bulk, "SAVE_SECONDS", 0.0)


@pytest.mark.usefixtures("often")
def test_a_stopped_job_is_resumed(tmp_path, model, monkeypatch, caplog):
    paths, out = saved_pictures(tmp_path / "images", 40), tmp_path / "p.parquet"
    for i in (0, 1, 2, 3, 17, 38, 39):
        paths[i].write_bytes(b"scribbled over")
    whole = read(*predict_to(model, tmp_path / "images", tmp_path / "whole.parquet", batch_size=4).files)
    for after in (2, 0, 3):
        stopped(monkeypatch, after, model, tmp_path / "images", out, batch_size=4)
        assert not out.exists()
    Image.new("RGB", (8, 8)).save(tmp_path / "images" / "00a.png")  # since then
    caplog.clear()
    written = predict_to(model, tmp_path / "images", out, batch_size=4)
    assert 0 < written.done_before < 40 and f"{written.done_before} of 40" in caplog.text
    for row, there in zip(read(out), whole, strict=True):
        assert (row["path"], row["class"], row["error"]) == (there["path"], there["class"], there["error"])
    assert sorted(path.name for path in tmp_path.glob("p.*")) == ["p.parquet", "p.parquet.json"]


@pytest.mark.usefixtures("often")
def test_damaged_pieces_and_rows_in_two_pieces(tmp_path, model, monkeypatch):
    paths, out = saved_pictures(tmp_path / "images", 24), tmp_path / "p.jsonl"
    stopped(monkeypatch, 3, model, paths, out, batch_size=4)
    first, second, third = list_pieces(unfinished(out))
    first.path.write_bytes(first.path.read_bytes()[:-20])
    # A process of a job that was killed may still be writing rows that others compute again.
    rows = pq.read_table(second.path).slice(1)
    pq.write_table(rows, second.path.with_name(f"rows-{second.start + 1:012}-{second.stop:012}.parquet"))
    third.path.with_name(f".{third.path.name}.abcdefgh").write_bytes(b"of a kill")
    assert [row["path"] for row in read(*predict_to(model, paths, out).files)] == [
        str(path) for path in paths
    ]


@pytest.mark.usefixtures("often")
def test_a_piece_that_is_damaged_inside_is_computed_again(tmp_path, model, monkeypatch):
    paths, out = saved_pictures(tmp_path / "images", 8), tmp_path / "p.parquet"
    stopped(monkeypatch, 1, model, paths, out, batch_size=4)
    (piece,) = list_pieces(unfinished(out))
    content = bytearray(piece.path.read_bytes())
    content[40] ^= 0xFF
    piece.path.write_bytes(content)
    with pytest.raises(DataError, match="same command again"):
        predict_to(model, paths, out)
    assert [row["path"] for row in read(*predict_to(model, paths, out).files)] == [
        str(path) for path in paths
    ]


@pytest.mark.usefixtures("often")
def test_an_interrupted_job_is_saved(tmp_path, model, monkeypatch):
    paths, out = saved_pictures(tmp_path / "images", 24), tmp_path / "p.csv"
    write = bulk.write_piece

    def terminated(table, path):
        write(table, path)
        os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch, pytest.raises(Interrupted, match=r"8 of 24 rows") as stop:
        patch.setattr(bulk, "write_piece", terminated)
        predict_to(model, paths, out, batch_size=8)
    assert stop.value.by == "SIGTERM"
    assert len(read(*predict_to(model, paths, out).files)) == 24


@pytest.mark.usefixtures("often")
def test_another_job_is_refused_by_name(tmp_path, model, monkeypatch):
    paths, out = saved_pictures(tmp_path / "images", 8), tmp_path / "p.csv"
    other = small_model(class_names=named(7))
    other.head.classifier.bias.data += 1
    changes = {
        "top": (model, paths, {"top": 2}),
        "model": (other, paths, {}),
        "images": (model, paths[:4], {}),
        "min_confidence": (model, paths, {"min_confidence": 0.5}),
    }
    stopped(monkeypatch, 1, model, paths, out, batch_size=4)
    for _ in ("begun", "complete"):
        for name, (changed, images, settings) in changes.items():
            with pytest.raises(ConfigError, match=name):
                predict_to(changed, images, out, **settings)
        predict_to(model, paths, out)
    again = predict_to(model, paths, out)
    assert (again.done_before, again.rows, again.files) == (8, 8, [out])
    paths[7].rename(tmp_path / "images" / "other.png")
    predict_to(model, tmp_path / "images", tmp_path / "q.csv")
    paths[6].unlink()
    with pytest.raises(ConfigError, match="other images"):
        predict_to(model, tmp_path / "images", tmp_path / "q.csv")


def test_nothing_is_overwritten(tmp_path, model):
    paths = saved_pictures(tmp_path / "images", 2)
    for name in ("p.csv", "p-00000-of-00002.csv"):
        (tmp_path / name).write_text("mine")
        with pytest.raises(ConfigError, match="exists"):
            predict_to(model, paths, tmp_path / "p.csv")
        assert (tmp_path / name).read_text() == "mine"
        (tmp_path / name).unlink()


def test_a_data_set_is_read_from_its_shards(tmp_path, model):
    source = Split(9, named(7), broken=(4,))
    rows = read(*predict_to(model, source, tmp_path / "p.jsonl").files)
    assert [row["path"] for row in rows] == [source.key(i) for i in range(9)]
    assert [i for i, row in enumerate(rows) if row["error"]] == [4]
    with pytest.raises(ConfigError, match="sort_into"):
        predict_to(model, source, tmp_path / "q.jsonl", sort_into=tmp_path / "sorted")


def test_names_that_are_not_utf8_are_written(tmp_path, model):
    (picture,) = saved_pictures(tmp_path / "images", 1)
    strange = picture.rename(Path(os.fsdecode(os.fsencode(picture.parent) + b"/caf\xe9\n.png")))
    for kind in ("parquet", "csv", "jsonl"):
        (row,) = read(*predict_to(model, [strange], tmp_path / f"p.{kind}").files)
        assert row["path"].endswith("caf\\xe9\n.png") and row["class"] in model.class_names


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"top": 0}, "top"),
        ({"min_confidence": 1.5}, "min_confidence"),
        ({"rows_per_file": 0}, "rows_per_file"),
        ({"sort_by": "move"}, "sort_by"),
        ({"split": "test"}, "split"),
        ({"batch_size": 0}, "batch_size"),
    ],
)
def test_what_is_refused(tmp_path, model, settings, name):
    paths = saved_pictures(tmp_path / "images", 2)
    with pytest.raises(ConfigError, match=name):
        predict_to(model, paths, tmp_path / "p.csv", **settings)


def test_names_that_are_refused(tmp_path, model):
    paths = saved_pictures(tmp_path / "images", 2)
    with pytest.raises(ConfigError, match=r"\.parquet, \.csv, \.jsonl"):
        predict_to(model, paths, tmp_path / "p.txt")
    with pytest.raises(ConfigError, match="not of type ndarray"):
        predict_to(model, [np.zeros((4, 4, 3), np.uint8)], tmp_path / "p.csv")
    with pytest.raises(OSError, match="Not a directory"):
        predict_to(model, paths, paths[0] / "p.csv")
    model.class_names[3] = "unsure"
    with pytest.raises(ConfigError, match="unsure"):
        predict_to(model, paths, tmp_path / "p.csv", min_confidence=0.1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["images"]
