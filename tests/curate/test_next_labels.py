import csv

import numpy as np
import pytest
import torch
from PIL import Image

from tests.evaluators.split import named, small_model
from vitrail.curate import next_labels
from vitrail.curate.next_labels import choose_next, reduce_variance, unit_rows
from vitrail.data.sources import DataSet
from vitrail.errors import ConfigError, DataError, ImageError
from vitrail.inference.features import Features


def clusters(n, seed, width=12, classes=6, spread=0.3):
    rng = np.random.default_rng([seed, 1])
    centres = np.random.default_rng(0).standard_normal((classes, width))
    labels = rng.integers(0, classes, n)
    x = centres[labels] + spread * rng.standard_normal((n, width))
    return Features(x.astype(np.float16), labels, named(classes), "clusters")


def test_choices_are_those_of_the_definition():
    """Each lowers the weighted sum of all variances most, computed anew for every candidate."""
    own, pool = clusters(8, 0), clusters(40, 1)
    X, Z = unit_rows(own.x, pool.x)
    w = np.random.default_rng(2).random(40)
    taken = reduce_variance(X, Z, w, 6)
    rows, z = X.double(), Z.double()
    for i in taken:
        sums = []
        for candidate in range(40):
            A = torch.cat([rows, z[candidate : candidate + 1]])
            P = torch.linalg.inv(A.T @ A + next_labels.NOISE * torch.eye(12).double())
            sums.append(float((torch.from_numpy(w) * ((z @ P) * z).sum(1)).sum()))
        assert sums[i] == pytest.approx(min(sums), rel=1e-5)
        rows = torch.cat([rows, z[i : i + 1]])
    assert len(set(taken.tolist())) == 6


def test_what_no_label_covers_comes_first():
    """Classes without any labelled image, and not one of them alone."""
    own, pool = clusters(40, 0), clusters(200, 1)
    own = own.part(np.flatnonzero(own.labels < 3))
    chosen = pool.labels[choose_next(own, pool.x, 12).rows]
    assert (chosen >= 3).mean() > 0.6
    assert {3, 4, 5} <= set(chosen.tolist())


def test_the_same_images_give_the_same_choice_and_labelled_ones_are_left_out():
    own, pool = clusters(20, 0), clusters(50, 1)
    x = np.concatenate([own.x[:5], pool.x])
    choice = choose_next(own, x, 10)
    assert choice.known == 5 and choice.rows.min() >= 5
    np.testing.assert_array_equal(choice.rows, choose_next(own, x, 10).rows)
    assert len(choose_next(own, pool.x[:4], 10).rows) == 4
    with pytest.raises(DataError, match="none is left"):
        choose_next(own, own.x, 1)
    with pytest.raises(ConfigError):
        choose_next(own, pool.x, 0)


@pytest.fixture
def photos(tmp_path, monkeypatch):
    """Two classes, and a folder without labels; one image of it is broken, one is labelled."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for name in ("cat", "dog", "more/deep"):
        folder = tmp_path / ("unlabelled" if "more" in name else "photos") / name
        folder.mkdir(parents=True)
        for i in range(10):
            Image.fromarray(rng.integers(0, 255, (16, 16, 3), np.uint8)).save(folder / f"{i}, {name[:1]}.png")
    (tmp_path / "unlabelled" / "broken.png").write_bytes(b"scribbled over")
    (tmp_path / "unlabelled" / "again.png").write_bytes((tmp_path / "photos/cat/3, c.png").read_bytes())
    return tmp_path


def test_the_list_is_a_file_of_labels(photos, vitrail_command):
    import vitrail

    vitrail.save(small_model(), "m")
    words = (
        "data",
        "next",
        "photos",
        "--unlabelled",
        "unlabelled",
        "-n",
        4,
        "--model",
        "m",
        "--device",
        "cpu",
    )
    code, out, err = vitrail_command(*words, "--sheet", "s.png")
    assert code == 0, err
    assert "next.csv" in out
    with open("next.csv", newline="") as file:  # noqa: PTH123
        rows = list(csv.DictReader(file))
    assert len(rows) == 4 and {row["predicted"] for row in rows} <= {"cat", "dog"}
    assert all((photos / "unlabelled" / row["file_name"]).is_file() for row in rows)
    assert not {"again.png", "broken.png"} & {row["file_name"] for row in rows}
    with Image.open("s.png") as sheet:
        assert sheet.width > 96
    text = (photos / "next.csv").read_text().replace(",,", ",cat,", 2).replace(",,", ",dog,", 1)
    (photos / "next.csv").write_text(text)
    source = DataSet("unlabelled?labels=next.csv&skip=unlabelled&validation=0&test=0").part("train")
    assert sorted(source.class_names[k] for k in source.labels) == ["cat", "cat", "dog"]
    code, _, err = vitrail_command(*words)  # its own file is replaced
    assert code == 0, err


def test_other_files_are_not_replaced(photos, vitrail_command):
    (photos / "mine.csv").write_text("a,b\n")
    code, _, err = vitrail_command(
        "data", "next", "photos", "--unlabelled", "unlabelled", "--out", "mine.csv"
    )
    assert code == 2 and "mine.csv" in err
    assert (photos / "mine.csv").read_text() == "a,b\n"


def test_folders_without_readable_images(photos):
    for path in (photos / "unlabelled").rglob("*.png"):
        if path.name != "broken.png":
            path.unlink()
    with pytest.raises((ImageError, DataError)):
        next_labels.suggest(small_model(), DataSet("photos").part("train"), "unlabelled", 3)
