"""Groups of images that stay on one side of every split."""

import itertools
import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from vitrail.data.audit import inspect_data
from vitrail.data.groups import connect, copies_across, shuffled_groups, stratified_groups
from vitrail.data.sources import DataSet, open_source
from vitrail.data.splits import SPLITS, stratified
from vitrail.errors import ConfigError, DataError


@st.composite
def grouped(draw):
    """Labels and groups of some images: of a group most have one class."""
    sizes = draw(st.lists(st.integers(1, 9), min_size=1, max_size=30))
    groups = np.repeat(np.arange(len(sizes)), sizes)
    labels = groups % draw(st.integers(1, 3))
    order = np.random.default_rng(draw(st.integers(0, 99))).permutation(len(groups))
    return labels[order], groups[order]


@settings(max_examples=60)
@given(grouped(), st.integers(0, 5), st.floats(0, 0.4), st.floats(0, 0.4))
def test_no_group_is_in_two_splits_and_every_class_is_in_train(both, seed, validation, test):
    labels, groups = both
    keys = [f"{i:04}.jpg".encode() for i in range(len(labels))]
    parts = stratified_groups(keys, labels, groups, seed=seed, validation=validation, test=test)
    assert sorted(np.concatenate([*parts.values()]).tolist()) == list(range(len(labels)))
    for a in SPLITS:
        for b in SPLITS:
            assert a == b or not set(groups[parts[a]]) & set(groups[parts[b]])
    assert set(labels[parts["train"]]) == set(labels)
    order = np.random.default_rng(0).permutation(len(labels))  # of the files does not matter
    again = stratified_groups(
        [keys[i] for i in order], labels[order], groups[order], seed=seed, validation=validation, test=test
    )
    assert all(sorted(order[again[name]].tolist()) == parts[name].tolist() for name in SPLITS)


def test_shares_are_kept_as_nearly_as_groups_allow():
    labels, groups = np.repeat([0, 1], 500), np.repeat(np.arange(100), 10)
    keys = [str(i).encode() for i in range(1000)]
    parts = stratified_groups(keys, labels, groups, seed=0, validation=0.1, test=0.2)
    counts = [np.bincount(labels[parts[name]]).tolist() for name in SPLITS]
    assert counts == [[350, 350], [50, 50], [100, 100]]
    single = stratified_groups(keys, labels, np.arange(1000), seed=0, validation=0.1, test=0.2)
    usual = stratified(keys, labels, seed=0, validation=0.1, test=0.2)
    assert all(len(single[name]) == len(usual[name]) for name in SPLITS)


@settings(max_examples=40)
@given(grouped(), st.integers(0, 3))
def test_a_class_has_its_groups_one_after_the_other(both, seed):
    labels, groups = both
    classes = int(labels.max()) + 1
    for members, ends in shuffled_groups(labels, groups, classes, seed):
        assert ends[0] == 0 and ends[-1] == len(members)
        runs = [set(groups[members[a:b]]) for a, b in itertools.pairwise(ends)]
        assert all(len(run) == 1 for run in runs) and len(set().union(*runs)) == len(runs)


def test_pairs_connect_at_several_removes():
    assert connect(7, [(3, 5), (1, 5), (0, 4)]).tolist() == [0, 1, 2, 1, 0, 1, 6]
    groups = np.array([0, 1, 2, 3, 4, 5, 3])
    assert connect(7, [(4, 2), (2, 5), (1, 6)], groups).tolist() == [
        0,
        1,
        2,
        1,
        2,
        2,
        1,
    ]  # 6 and 3 by their group
    assert connect(3, []).tolist() == [0, 1, 2]


@pytest.fixture
def tracks(tmp_path):
    """Two classes with six tracks of five frames, alike within a track."""
    rng = np.random.default_rng(0)
    for name in ("stop", "yield"):
        folder = tmp_path / "signs" / name
        folder.mkdir(parents=True)
        for track in range(6):
            pixels = rng.integers(0, 256, (6, 6, 3), np.uint8)
            picture = Image.fromarray(pixels).resize((48, 48), Image.Resampling.BICUBIC)
            for frame in range(5):
                picture.point(lambda value, by=frame: max(0, value - by)).save(
                    folder / f"{track}_{frame}.png"
                )
    return tmp_path / "signs"


def tracks_of(source):
    return {source.key(i).rpartition("_")[0] for i in range(len(source))}


@pytest.mark.parametrize("group", ["{group}_{number}", "copies"])
def test_frames_of_a_track_stay_together(tracks, group):
    plain = {name: tracks_of(open_source(tracks, name)) for name in SPLITS}
    assert plain["train"] & plain["test"]
    data = DataSet(f"{tracks}?group={group}")
    parts = {name: tracks_of(data.part(name)) for name in SPLITS}
    assert all(parts.values()) and len(set().union(*parts.values())) == sum(map(len, parts.values())) == 12
    # And in parts of a split, as validation while training.
    rest, held = (tracks_of(data.part(f"train[{part} per class]")) for part in (":70%", "70%:"))
    assert rest and held and not rest & held and rest | held == parts["train"]
    assert inspect_data(f"{tracks}?group={group}").splits[0].groups == len(parts["train"])


def test_without_the_option_splits_are_those_of_ever(tracks):
    files = sorted(str(path.relative_to(tracks)).encode() for path in tracks.rglob("*.png"))
    labels = np.array([name.startswith(b"yield") for name in files], np.int64)
    expected = stratified(files, labels, seed=0, validation=0.1, test=0.1)
    source = open_source(tracks, "test")
    assert [source.key(i) for i in range(len(source))] == [files[i].decode() for i in expected["test"]]


def test_copies_across_a_split_are_said(tracks, caplog):
    data = DataSet(tracks)
    assert copies_across(data.part("train"), data.part("test")) == len(data.part("test"))
    (problem,) = [p for p in inspect_data(tracks).problems if "of test are also in train" in p]
    assert "group=copies' keeps copies on one side" in problem
    apart = DataSet(f"{tracks}?group=copies")
    assert copies_across(apart.part("train"), apart.part("test")) == 0


def test_a_column_of_a_file_of_labels(tracks):
    rows = ["file_name,label,film"]
    rows += [f"{p.relative_to(tracks)},{p.parent.name},{p.name[0]}" for p in tracks.rglob("*.png")]
    (tracks / "list.csv").write_text("\n".join(rows))
    data = DataSet(f"{tracks}?labels=list.csv&group=film")
    films = [{path.rpartition("/")[2] for path in tracks_of(data.part(name))} for name in SPLITS]
    assert sum(map(len, films)) == len(set().union(*films)) == 6  # of both classes
    pattern = DataSet(f"{tracks}?pattern={{label}}/{{group}}_{{number}}.png")
    assert not tracks_of(pattern.part("train")) & tracks_of(pattern.part("test"))
    with pytest.raises(ConfigError, match="no column 'movie'"):
        open_source(f"{tracks}?labels=list.csv&group=movie")


@pytest.mark.parametrize("group", ["track", "{number}", "{group", "x{group}y{number}"])
def test_wrong_groups(tracks, group):
    with pytest.raises(ConfigError):
        open_source(f"{tracks}?group={group}")


def test_what_finetune_would_refuse_and_what_leaves_it_out(tracks):
    (tracks / "nothing").mkdir()
    for path in sorted(tracks.rglob("*.png"))[::4]:
        path.write_bytes(b"scribbled over")
    report = inspect_data(tracks)
    refused = "\n".join(report.refusals)
    assert "nothing" in refused and f"{tracks}?skip=empty" in refused and "--max-bad 0." in refused
    with pytest.raises(DataError, match="skip=empty"):
        open_source(tracks)
    assert open_source(f"{tracks}?skip=empty").class_names == ["stop", "yield"]
    assert not any("skip" in one for one in inspect_data(f"{tracks}?skip=empty").refusals)
    with pytest.raises(ConfigError, match="skip=rare"):
        open_source(f"{tracks}?skip=rare")


def test_a_folder_that_is_too_small_to_be_split_is_inspected(tracks):
    for path in tracks.rglob("*.png"):
        if path.name not in ("0_0.png", "1_0.png", "2_0.png"):
            path.unlink()
    report = inspect_data(tracks)
    assert [split.images for split in report.splits] == [6]
    assert ["'validation'" in report.refusals[0], "'test'" in report.refusals[1]] == [True, True]
    assert all("?validation=0.2&test=0.2" in refusal for refusal in report.refusals)
    with pytest.raises(DataError, match="no images for 'test'"):
        inspect_data(tracks, splits=["test"])


def test_classes_that_train_does_not_have(tracks, tmp_path):
    for split in ("train", "test"):
        shutil.copytree(tracks, tmp_path / "split" / split)
    (tmp_path / "split" / "test" / "stop").rename(tmp_path / "split" / "test" / "go")
    with pytest.raises(DataError, match=r"\?skip=unknown"):
        open_source(tmp_path / "split", "test")
    test = open_source(f"{tmp_path / 'split'}?skip=unknown,empty", "test")
    assert len(test) == 30 and test.class_names == ["stop", "yield"]
