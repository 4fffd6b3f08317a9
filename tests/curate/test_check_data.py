"""`vitrail data check` on a folder with one of each thing that may be wrong."""

import json

import numpy as np
import pytest
from PIL import Image

import vitrail
from tests.evaluators.split import small_model
from vitrail.curate.check_data import check_data, source_groups
from vitrail.curate.findings import read_findings
from vitrail.data.sources import DataSet
from vitrail.errors import ConfigError, DataError
from vitrail.inference.features import Extraction

COLOURS = {"blue": (20, 40, 230), "green": (30, 220, 40), "red": (230, 30, 20)}


def picture(colour, seed, side=32):
    """A coloured noise, so that the classes are easy and no two pictures are copies."""
    rng = np.random.default_rng(seed)
    noise = rng.integers(-20, 20, (side // 4, side // 4, 3)).repeat(4, axis=0).repeat(4, axis=1)
    return Image.fromarray(np.clip(np.array(colour) + 3 * noise, 0, 255).astype(np.uint8))


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "photos"
    for k, (name, colour) in enumerate(COLOURS.items()):
        (folder / "train" / name).mkdir(parents=True)
        for i in range(14):
            picture(colour, 100 * k + i).save(folder / "train" / name / f"{i}.png")
        (folder / "test" / name).mkdir(parents=True)
        picture(colour, 100 * k + 50).save(folder / "test" / name / "a.png")
    train = folder / "train"
    (folder / "test" / "blue" / "leak.png").write_bytes((train / "blue" / "5.png").read_bytes())
    picture(COLOURS["red"], 901).save(train / "blue" / "wrong.png")
    (train / "green" / "same.png").write_bytes((train / "green" / "3.png").read_bytes())
    (train / "red" / "conflict.png").write_bytes((train / "green" / "4.png").read_bytes())
    (train / "red" / "broken.png").write_bytes(b"scribbled over")
    picture((4, 4, 4), 902).point(lambda v: v // 8).save(train / "red" / "dark.png")
    Image.new("RGB", (400, 32), COLOURS["red"]).save(train / "red" / "long.png")
    return folder


@pytest.fixture(scope="module")
def model():
    return small_model(classes=0)


@pytest.fixture(scope="module")
def checked(photos, model, tmp_path_factory):
    before = {path: path.read_bytes() for path in photos.rglob("*.png")}
    folder = tmp_path_factory.mktemp("checked") / "out"
    findings = check_data(
        model, photos, folder, name="mu", extraction=Extraction(cache=folder.parent / "cache")
    )
    assert {path: path.read_bytes() for path in photos.rglob("*.png")} == before
    return folder, findings


def of_kind(findings, kind):
    return {one["key"].rpartition("/")[2]: one for one in findings["findings"] if one["kind"] == kind}


def test_each_thing_is_found(checked, photos):
    folder, findings = checked
    assert read_findings(folder) == findings
    assert findings["fingerprint"] == DataSet(photos).part("train").fingerprint()
    assert (findings["split"], findings["model"], findings["images"]) == ("train", "mu", 48)
    labels = of_kind(findings, "label")
    assert labels["wrong.png"]["suggested"] == "red" and labels["wrong.png"]["label"] == "blue"
    assert {one["label"] for one in labels["wrong.png"]["neighbours"]} == {"red"}
    copies = of_kind(findings, "duplicate")
    assert {(one["copy_of"].rpartition("/")[2], one["suggested"]) for one in copies.values()} >= {
        ("3.png", None), ("4.png", "green"),
    }  # fmt: skip
    assert copies["5.png"]["copy_of"].endswith("leak.png") and "of test" in copies["5.png"]["reason"]
    assert next(iter(copies.values()))["suggested"] == "green"  # different labels come first
    assert copies["conflict.png"]["neighbours"][0]["key"] == copies["conflict.png"]["copy_of"]
    assert set(of_kind(findings, "unreadable")) == {"broken.png"}
    assert "dark.png" in of_kind(findings, "dark") and "long.png" in of_kind(findings, "odd_size")


def test_every_image_that_is_named_has_a_thumbnail(checked):
    folder, findings = checked
    named = {one["index"] for one in findings["findings"] if one["kind"] != "unreadable"}
    named |= {near["index"] for one in findings["findings"] for near in one["neighbours"]}
    written = {int(path.stem) for path in (folder / "thumbnails").iterdir()}
    assert written == named
    for one in findings["findings"]:
        assert (one["thumbnail"] is None) == (one["kind"] == "unreadable")
        if one["thumbnail"] is not None:
            with Image.open(folder / one["thumbnail"]) as image:
                assert max(image.size) <= 256


def test_a_second_check_takes_the_features_from_the_cache(checked, photos, model, monkeypatch):
    folder, findings = checked
    cache = folder.parent / "cache"
    monkeypatch.setattr("vitrail.inference.features.extract_rows", None)  # would fail
    again = check_data(model, photos, folder, name="mu", extraction=Extraction(cache=cache), max_findings=1)
    assert [one["kind"] for one in again["findings"]].count("duplicate") == 1
    assert again["findings"][0] == findings["findings"][0]


def test_features_are_kept_in_parts(photos, model, tmp_path, monkeypatch):
    monkeypatch.setattr("vitrail.curate.check_data.ENTRY", 20)
    check_data(model, photos, tmp_path / "out", extraction=Extraction(cache=tmp_path / "cache"))
    assert len(list((tmp_path / "cache").iterdir())) == 3


def test_groups_stay_together(photos, model, checked, tmp_path):
    """Were all red images of one group, no other would know what red is: nothing can be said of their labels."""
    folder, _ = checked
    labels = DataSet(photos).part("train").labels
    groups = np.where(labels == 2, -1, np.arange(len(labels)))
    extraction = Extraction(cache=folder.parent / "cache")
    findings = check_data(model, photos, tmp_path / "out", groups=groups, extraction=extraction)
    assert not [one for one in findings["findings"] if one["kind"] == "label" and one["label"] == "red"]


def test_groups_are_those_of_the_data(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for i in range(12):
            picture(COLOURS["red"], ord(name) * 99 + i).save(tmp_path / name / f"{i // 4}_{i}.png")
    data = DataSet(f"{tmp_path}?group={{group}}_{{number}}")
    together = source_groups(data.part("train+validation+test"))
    keys = [data.part("train+validation+test").key(i).rpartition("_")[0] for i in range(24)]
    assert len(np.unique(together)) == 6
    assert (
        len({*zip(keys, together.tolist(), strict=True)}) == 6
    )  # each group has one number, and no other has it
    assert source_groups(DataSet(tmp_path).part("train+validation+test")) is None
    assert len(np.unique(source_groups(data.part("train")))) < 6


def test_other_folders_are_refused(photos, model, tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(ConfigError, match=r"mine\.txt"):
        check_data(model, photos, tmp_path)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "findings.json").write_text("{}")
    with pytest.raises(DataError, match="vitrail findings"):
        check_data(model, photos, tmp_path / "other")
    with pytest.raises(ConfigError, match="inside of the data"):
        check_data(model, photos, photos / "checked")
    assert not (photos / "checked").exists()
    with pytest.raises(ConfigError, match="max_findings"):
        check_data(model, photos, tmp_path / "new", max_findings=0)
    assert not (tmp_path / "new").exists()


def test_data_without_a_readable_image_is_an_error(model, tmp_path):
    for name in ("a", "b"):
        (tmp_path / "photos" / "train" / name).mkdir(parents=True)
        (tmp_path / "photos" / "train" / name / "1.png").write_bytes(b"no image")
    with pytest.raises(DataError, match="none of its 2 images can be read"):
        check_data(model, tmp_path / "photos", tmp_path / "out")


def test_one_class_has_no_label_errors(model, tmp_path):
    (tmp_path / "photos" / "train" / "a").mkdir(parents=True)
    for i in range(5):
        picture(COLOURS["red"], i).save(tmp_path / "photos" / "train" / "a" / f"{i}.png")
    findings = check_data(
        model, tmp_path / "photos", tmp_path / "out", extraction=Extraction(cache=tmp_path / "cache")
    )
    assert not of_kind(findings, "label") and findings["curve"] is None and findings["pairs"] == []


def test_all_of_a_folder_without_splits_is_checked(photos, model, checked, tmp_path):
    folder, _ = checked
    extraction = Extraction(cache=folder.parent / "cache")
    findings = check_data(model, photos / "train", tmp_path / "out", extraction=extraction)
    assert findings["split"] == "train+validation+test" and findings["images"] == 48
    whole = DataSet(photos / "train").part(findings["split"])
    assert findings["fingerprint"] == whole.fingerprint()
    assert all(whole.key(one["index"]) == one["key"] for one in findings["findings"])
    assert {"wrong.png"} <= set(of_kind(findings, "label")) and of_kind(findings, "duplicate")


def test_two_copies_with_different_labels_are_all_that_is_there(model, tmp_path):
    for name in ("a", "b"):
        (tmp_path / "photos" / "train" / name).mkdir(parents=True)
        picture(COLOURS["red"], 1).save(tmp_path / "photos" / "train" / name / "1.png")
    findings = check_data(
        model, tmp_path / "photos", tmp_path / "out", extraction=Extraction(cache=tmp_path / "cache")
    )
    (one,) = findings["findings"]
    assert one["kind"] == "duplicate" and one["suggested"] == "a" and one["label"] == "b"


def test_the_command(vitrail_command, photos, model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    vitrail.save(small_model(), "m")
    words = ("data", "check", photos, "--model", "m", "--out", "out", "--cache", "cache", "--device", "cpu")
    code, out, err = vitrail_command(*words)
    assert code == 0, err
    assert "copy of another image" in out and "Next: open out/review.html" in out
    assert "wrong.png" in (tmp_path / "out" / "review.html").read_text()
    code, out, err = vitrail_command(*words, "--json")
    assert code == 0, err
    result = json.loads(out)
    assert result["out"] == "out" and result["findings"] == read_findings("out")["findings"]
    code, out, err = vitrail_command(
        "data", "check", photos, "--model", "m", "--out", photos, "--device", "cpu"
    )
    assert code == 2 and "inside of the data" in err
    code, _, err = vitrail_command("data", "check", photos, "--model", "m", "--out", "o", "--split", "extra")
    assert code == 2 and "no split 'extra'" in err
