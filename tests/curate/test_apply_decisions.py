"""Corrected lists and copies: what they hold, that they are read as they were decided, and what is never touched."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.data.test_decisions import decided, decisions_for, write
from tests.data.test_sources import KINDS, NAMES, as_folder, pixels, png
from vitrail.curate import apply_decisions as module
from vitrail.curate.apply_decisions import MARK, apply_decisions
from vitrail.data.sources import DataSet, open_source
from vitrail.errors import ConfigError, DataError

ACTIONS = {0: ("drop", None), 2: ("keep", None), 1: ("relabel", "dog"), 10: ("relabel", "ant")}
EVIL = ["../../etc", "<b>=1+1</b>", "a,\"b\"\n'c'", "CON", ".hidden", "x" * 200]


@pytest.fixture
def photos(tmp_path):
    """Class folders of one split, train."""
    return as_folder(tmp_path)


def decide(where, tmp_path, actions=ACTIONS, split="train"):
    return write(decisions_for(where, actions, split), tmp_path / "decisions.json")


def contents(where):
    """Return {split: {(pixels, class)}} of a data set."""
    data = DataSet(where)
    return {
        name: sorted(
            (pixels(part.read(i)).tobytes(), part.class_names[part.labels[i]]) for i in range(len(part))
        )
        for name, part in ((name, data.whole(name)) for name in data.splits)
    }


def together(splits):
    return sorted(example for split in splits.values() for example in split)


def state(folder):
    return {path: (path.lstat().st_mtime_ns, path.lstat().st_size) for path in Path(folder).rglob("*")}


@pytest.mark.parametrize("name", ["new.csv", "new.jsonl"])
def test_a_list_is_what_was_decided(tmp_path, photos, name):
    path, before = decide(photos, tmp_path), state(photos)
    applied = apply_decisions(path, photos, tmp_path / "lists" / name)
    assert applied.counts == {"keep": 1, "relabel": 2, "drop": 1}
    assert (applied.images, applied.emptied) == ({"train": 39}, [])
    assert contents(applied.use) == contents(decided(photos, path))
    assert state(photos) == before


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_copy_is_what_was_decided(tmp_path, kind):
    where = KINDS[kind](tmp_path)
    names = open_source(where).class_names
    path = decide(where, tmp_path, {0: ("drop", None), 1: ("relabel", names[-1])})
    applied = apply_decisions(path, where, tmp_path / "copy", copy=True)
    assert contents(applied.use) == contents(decided(where, path))
    assert not (tmp_path / "copy" / MARK).exists()
    if kind == "folder":
        assert (tmp_path / "copy/train/dog/04.png").read_bytes() == Path(
            photo := f"{where}/train/ant/04.png"
        ).read_bytes()
        assert Path(photo).exists()
    else:
        with pytest.raises(ConfigError, match="--copy"):
            apply_decisions(path, where, tmp_path / "list.csv")


@pytest.mark.parametrize("copy", [True, False])
def test_what_vitrail_cuts_stays_in_one_piece(tmp_path, photos, copy):
    whole = f"{photos}/train"  # class folders without splits
    path = decide(whole, tmp_path, {0: ("drop", None), 1: ("relabel", "dog")}, "train+validation+test")
    applied = apply_decisions(path, whole, tmp_path / ("copy" if copy else "list.csv"), copy=copy)
    assert together(contents(applied.use)) == together(contents(decided(whole, path)))
    if copy:
        assert sorted(one.name for one in (tmp_path / "copy").iterdir()) == NAMES
    else:
        assert (tmp_path / "list.csv").read_text().startswith("file_name,label\n")


def test_hostile_names_stay_in_their_folder(tmp_path):
    pictures = np.random.default_rng(0).integers(0, 256, (12, 8, 8, 3), np.uint8)
    np.savez(tmp_path / "set.npz", x_train=pictures, y_train=np.arange(12) % 6, class_names=np.array(EVIL))
    where = str(tmp_path / "set.npz")
    path = decide(where, tmp_path, {0: ("relabel", EVIL[2])})
    applied = apply_decisions(path, where, tmp_path / "inside/copy", copy=True)
    assert contents(applied.use) == contents(decided(where, path))
    outside = {"set.npz", "decisions.json", "inside"}
    assert {one.name for one in tmp_path.iterdir()} == outside
    assert [one.name for one in (tmp_path / "inside").iterdir()] == ["copy"]


def test_names_that_meet_in_one_folder_are_told_apart(tmp_path, photos):
    (Path(photos) / "train/bee/00.png").write_bytes(png(np.zeros((8, 8, 3), np.uint8)))
    path = decide(photos, tmp_path, {0: ("relabel", "bee")})
    applied = apply_decisions(path, photos, tmp_path / "copy", copy=True)
    assert len(list((tmp_path / "copy/train/bee").iterdir())) == 12
    assert contents(applied.use) == contents(decided(photos, path))


@pytest.mark.parametrize("copy", [True, False])
def test_nothing_is_overwritten_and_the_data_is_left_alone(tmp_path, photos, copy):
    path = decide(photos, tmp_path)
    (tmp_path / "mine.csv").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "mine").write_text("mine")
    (tmp_path / "link.csv").symlink_to(tmp_path / "nowhere")
    before = state(tmp_path)
    for out in (
        "mine.csv",
        "folder",
        "link.csv",
        "set/new.csv",
        "set/train/ant/new.csv",
        "folder/../set/new",
    ):
        with pytest.raises(ConfigError):
            apply_decisions(path, photos, tmp_path / out, copy=copy)
    assert state(tmp_path) == before


def test_a_list_has_one_of_two_endings(tmp_path, photos):
    with pytest.raises(ConfigError, match=r"\.csv or \.jsonl; with --copy"):
        apply_decisions(decide(photos, tmp_path), photos, tmp_path / "new")


def test_a_copy_that_was_interrupted_is_completed(tmp_path, photos, monkeypatch):
    path, out, count = decide(photos, tmp_path), tmp_path / "copy", iter(range(20))

    def stopped(image):
        if next(count, None) is None:
            raise KeyboardInterrupt
        return image

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(module, "encoded", stopped)
        apply_decisions(path, photos, out, copy=True)
    there = {file: file.stat().st_mtime_ns for file in out.rglob("*.png")}
    assert len(there) == 20
    other = write(decisions_for(photos, {5: ("drop", None)}), tmp_path / "other.json")
    with pytest.raises(ConfigError, match="other files"):
        apply_decisions(other, photos, out, copy=True)
    applied = apply_decisions(path, photos, out, copy=True)
    assert contents(applied.use) == contents(decided(photos, path))
    assert {file: file.stat().st_mtime_ns for file in there} == there
    with pytest.raises(ConfigError, match="overwritten"):  # it is complete
        apply_decisions(path, photos, out, copy=True)


def test_a_changed_file_in_a_copy_that_was_begun_is_left(tmp_path, photos, monkeypatch):
    path, out = decide(photos, tmp_path), tmp_path / "copy"
    monkeypatch.setattr(module, "check_copy", lambda *_: pytest.fail("stop"))
    with pytest.raises(pytest.fail.Exception):
        apply_decisions(path, photos, out, copy=True)
    monkeypatch.undo()
    (out / "train/bee/05.png").write_bytes(b"mine")
    with pytest.raises(DataError, match="was changed"):
        apply_decisions(path, photos, out, copy=True)
    assert (out / "train/bee/05.png").read_bytes() == b"mine"


def test_names_that_a_list_cannot_hold_are_said(tmp_path):
    for name in ("a", " b "):
        for i in range(12):
            file = tmp_path / "set" / name / f"{i}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(png(np.full((8, 8, 3), 9 * i, np.uint8)))
    where = str(tmp_path / "set")
    path = decide(where, tmp_path, {0: ("drop", None)})
    with pytest.raises(DataError, match="Try --copy"):
        apply_decisions(path, where, tmp_path / "new.csv")
    assert not (tmp_path / "new.csv").exists()


def test_the_verb(tmp_path, photos, vitrail_command):
    path = decide(photos, tmp_path, dict.fromkeys(range(10), ("relabel", "dog")) | {20: ("drop", None)})
    words = ("data", "apply", path, "--data", photos, "--out")
    code, out, err = vitrail_command(*words, tmp_path / "new.csv")
    assert (code, err) == (0, "")
    assert "0 kept, 10 relabelled, 1 dropped. Listed in" in out
    assert "No image of ant is left" in out
    assert f"--data '{photos}?labels={tmp_path / 'new.csv'}'" in out
    code, out, _ = vitrail_command(*words, tmp_path / "new.jsonl", "--json")
    assert code == 0 and json.loads(out)["emptied"] == ["ant"]
    code, out, err = vitrail_command(*words, tmp_path / "new.csv")
    assert code == 2 and "nothing is overwritten" in err
    (Path(photos) / "train/bee/05.png").unlink()
    code, out, err = vitrail_command(*words, tmp_path / "newer.csv")
    assert code == 2 and "decisions.json was made for 40 images" in err
    assert not (tmp_path / "newer.csv").exists()


def test_unreadable_images_are_named_and_left_out(tmp_path, photos, vitrail_command):
    (Path(photos) / "train/bee/05.png").write_bytes(b"")
    path = decide(photos, tmp_path)
    words = ("data", "apply", path, "--data", photos, "--out", tmp_path / "copy", "--copy")
    code, out, err = vitrail_command(*words)
    assert code == 2
    assert "1 unreadable and not copied" in err and "bee/05.png" in err
    assert len(open_source(tmp_path / "copy")) == 38
    assert "38" in out


def test_data_that_was_decided_before_is_decided_again(tmp_path, photos):
    first = decide(photos, tmp_path)
    once = decided(photos, first)
    second = write(decisions_for(once, {0: ("drop", None), 1: ("relabel", "cat")}), tmp_path / "second.json")
    applied = apply_decisions(second, once, tmp_path / "new.csv")
    assert contents(applied.use) == contents(f"{once},{second}")
    assert applied.images == {"train": 38}
    with pytest.raises(DataError, match=r"second\.json was made for 39 images"):
        open_source(decided(photos, second))
