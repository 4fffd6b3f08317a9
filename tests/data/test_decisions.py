"""A file of decisions: how strictly it is read, and what each kind of data set is with it."""

import copy
import json
import pickle

import numpy as np
import pytest

from tests.data.test_sources import KINDS, NAMES, pixels
from vitrail.data.decisions import FORMAT, read_decisions
from vitrail.data.shard import shard
from vitrail.data.sources import DataSet, open_source
from vitrail.errors import ConfigError, DataError


def decisions_for(where, actions, split="train"):
    """The contents of a file: {index: (action, label)}."""
    source = open_source(where, split)
    rows = [
        {"key": source.key(index), "index": index, "action": action, "label": label}
        for index, (action, label) in actions.items()
    ]
    return {
        "format": FORMAT, "version": 1, "data": str(where), "split": split,
        "fingerprint": source.fingerprint(), "images": len(source), "decisions": rows,
    }  # fmt: skip


def write(contents, path):
    path.write_text(json.dumps(contents))
    return path


def decided(where, path):
    return f"{where}{'&' if '?' in str(where) else '?'}decisions={path}"


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_kind_of_data_set_follows_them(kind, tmp_path):
    where = KINDS[kind](tmp_path)
    before = open_source(where)
    other = (int(before.labels[5]) + 1) % len(before.class_names)
    actions = {
        3: ("keep", None), 5: ("relabel", before.class_names[other]), 0: ("drop", None), 39: ("drop", None),
    }  # fmt: skip
    path = write(decisions_for(where, actions), tmp_path / "decisions.json")
    source = open_source(decided(where, path))
    kept = [i for i in range(40) if i not in (0, 39)]
    assert [source.key(i) for i in range(len(source))] == [before.key(i) for i in kept]
    expected = before.labels.copy()
    expected[5] = other
    np.testing.assert_array_equal(source.labels, expected[kept])
    source = pickle.loads(pickle.dumps(source))
    for i, k in enumerate(kept):
        example = source.read(i)
        assert (example.label, example.key) == (expected[k], before.key(k))
        np.testing.assert_array_equal(pixels(example), pixels(before.read(k)))
    assert isinstance(source.read(0).label, int)
    with pytest.raises(IndexError):
        source.read(38)
    part = open_source(decided(where, path), "train[:50%]")
    np.testing.assert_array_equal(part.labels, source.labels[:19])
    assert source.class_names == before.class_names


def test_the_identity_of_the_data_depends_on_what_changes(tmp_path):
    where = KINDS["folder"](tmp_path)
    prints = set()
    for number, actions in enumerate(
        [{0: ("drop", None)}, {1: ("drop", None)}, {0: ("relabel", "dog")}, {0: ("relabel", "cat")}, {}]
    ):
        path = write(decisions_for(where, actions), tmp_path / f"{number}.json")
        prints.add(open_source(decided(where, path)).fingerprint())
    assert len(prints) == 5
    kept = write(decisions_for(where, {0: ("keep", None)}), tmp_path / "kept.json")
    assert open_source(decided(where, kept)).fingerprint() == open_source(where).fingerprint()


def test_each_split_has_its_own(tmp_path):
    """Decisions about several splits, or a part of one, go where they belong; the others stay."""
    where = KINDS["folder"](tmp_path).replace("/set", "/set/train")  # class folders: cut in three
    whole = {split: open_source(where, split) for split in ("train", "validation", "test")}
    split = "test+train[2:]"
    checked = open_source(where, split)
    place = len(whole["test"]) + 1  # the fourth of train
    label = NAMES[(int(checked.labels[place]) + 1) % 4]
    contents = decisions_for(where, {0: ("drop", None), place: ("relabel", label)}, split)
    data = DataSet(decided(where, write(contents, tmp_path / "decisions.json")))
    assert data.whole("validation").fingerprint() == whole["validation"].fingerprint()
    np.testing.assert_array_equal(data.part("test").labels, whole["test"].labels[1:])
    changed = np.flatnonzero(data.part("train").labels != whole["train"].labels)
    assert changed.tolist() == [3]
    assert data.part("train").labels[3] == NAMES.index(label)


def test_they_may_be_about_what_exclusions_left(tmp_path):
    where = KINDS["folder"](tmp_path)
    key = open_source(where).key(7)
    (tmp_path / "exclude.jsonl").write_text(
        json.dumps({"format": "vitrail exclusions 1"}) + "\n" + json.dumps({"train": key}) + "\n"
    )
    less = f"{where}?exclude={tmp_path / 'exclude.jsonl'}"
    path = write(decisions_for(less, {7: ("drop", None)}), tmp_path / "decisions.json")
    left = open_source(decided(less, path))
    assert [left.key(i) for i in range(38)] == [
        open_source(where).key(i) for i in range(40) if i not in (7, 8)
    ]


def test_other_data_is_refused(tmp_path):
    where = KINDS["folder"](tmp_path)
    path = write(decisions_for(where, {0: ("drop", None)}), tmp_path / "decisions.json")
    other = KINDS["arrays"](tmp_path)
    with pytest.raises(DataError, match="made for other data"):
        open_source(decided(other, path))
    file = tmp_path / "set" / "train" / "ant" / "00.png"
    content = file.read_bytes()
    file.write_bytes(content + b"\0")
    with pytest.raises(DataError, match=r"made for other data .*split train.*data check"):
        open_source(decided(where, path))
    file.unlink()
    with pytest.raises(DataError, match=r"made for 40 images .*has 39"):
        open_source(decided(where, path))
    with pytest.raises(DataError, match=r"nowhere\.json: decisions cannot be read"):
        open_source(decided(where, tmp_path / "nowhere.json"))


def test_other_data_is_refused_whichever_part_is_opened(tmp_path):
    where = KINDS["folder"](tmp_path).replace("/set", "/set/train")  # class folders: cut in three
    contents = decisions_for(where, {0: ("drop", None)})
    path = write(contents | {"fingerprint": "0"}, tmp_path / "decisions.json")
    with pytest.raises(DataError, match="made for other data"):
        open_source(decided(where, path), "test")
    path = write(contents | {"split": "unseen"}, tmp_path / "decisions.json")
    with pytest.raises(DataError, match="no split 'unseen'"):
        open_source(decided(where, path), "test")


def test_all_images_cannot_be_dropped(tmp_path):
    where = KINDS["arrays"](tmp_path)
    contents = decisions_for(where, dict.fromkeys(range(40), ("drop", None)))
    with pytest.raises(DataError, match="drops all 40 images"):
        open_source(decided(where, write(contents, tmp_path / "decisions.json")))


GOOD = {
    "format": FORMAT, "version": 1, "data": "photos", "split": "train", "fingerprint": "0", "images": 3,
    "decisions": [
        {"key": "cat/1.jpg", "index": 1, "action": "relabel", "label": "dog"},
        {"key": "cat/2.jpg", "index": 2, "action": "keep", "label": None},
    ],
}  # fmt: skip
WRONG = [
    (("format",), "another"),
    (("version",), 2),
    (("version",), True),
    (("version",), ...),
    (("data",), None),
    (("split",), "train["),
    (("images",), 2),
    (("images",), 3.0),
    (("more",), 1),
    (("decisions",), {}),
    (("decisions", 0), "drop"),
    (("decisions", 0, "key"), 1),
    (("decisions", 0, "index"), -1),
    (("decisions", 0, "index"), True),
    (("decisions", 0, "index"), 2),  # twice
    (("decisions", 0, "action"), "delete"),
    (("decisions", 0, "action"), "keep"),
    (("decisions", 0, "label"), None),
    (("decisions", 0, "label"), 3),
    (("decisions", 0, "label"), ...),
    (("decisions", 0, "more"), 1),
    (("decisions", 1, "label"), "dog"),
]


@pytest.mark.parametrize(("path", "value"), WRONG)
def test_other_contents_are_refused(tmp_path, path, value):
    contents = copy.deepcopy(GOOD)
    assert read_decisions(write(contents, tmp_path / "good.json")).counts == {
        "keep": 1, "relabel": 1, "drop": 0,
    }  # fmt: skip
    *parents, last = path
    inner = contents
    for name in parents:
        inner = inner[name]
    if value is ...:
        del inner[last]
    else:
        inner[last] = value
    with pytest.raises(DataError, match=r"wrong\.json"):
        read_decisions(write(contents, tmp_path / "wrong.json"))


@pytest.mark.parametrize("text", ["", "[]", "{", '{"format": 1, "format": 2}', "[" * 100_000, "\x00"])
def test_what_is_no_object_is_refused(tmp_path, text):
    (tmp_path / "wrong.json").write_text(text)
    with pytest.raises(DataError, match=r"wrong\.json"):
        read_decisions(tmp_path / "wrong.json")


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [("key", "ant/01.png", "is 'train/ant/00.png', not"), ("label", "eel", "classes")],
)
def test_keys_and_classes_are_those_of_the_data(tmp_path, field, value, message):
    where = KINDS["folder"](tmp_path)
    contents = decisions_for(where, {0: ("relabel", "dog")})
    contents["decisions"][0][field] = value
    with pytest.raises(DataError, match=message):
        open_source(decided(where, write(contents, tmp_path / "decisions.json")))


def test_shards_are_written_as_decided(tmp_path):
    where = KINDS["folder"](tmp_path)
    path = write(
        decisions_for(where, {0: ("relabel", "dog"), 1: ("drop", None)}), tmp_path / "decisions.json"
    )
    shard(decided(where, path), tmp_path / "shards")
    np.testing.assert_array_equal(
        open_source(tmp_path / "shards").labels, open_source(decided(where, path)).labels
    )


def test_the_option_needs_a_file(tmp_path):
    where = KINDS["folder"](tmp_path)
    with pytest.raises(ConfigError, match="twice"):
        open_source(f"{where}?decisions=a&decisions=b")
