"""Training images that copy test images: found, written, read back."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageEnhance, ImageOps

from vitrail.data.audit import inspect_data
from vitrail.data.dedup import Leaks, dedup, read_exclusions, write_exclusions
from vitrail.data.sources import list_splits, open_source
from vitrail.errors import ConfigError, DataError

# Any name a file can have: the bytes of a name that is not Unicode become surrogates.
KEYS = st.text(st.characters(exclude_categories=())) | st.sampled_from(["\udcff.png", "a\u2028b", "c\x85d"])


def photo(seed: int) -> Image.Image:
    """A picture with the spectrum of photographs, 1/f in amplitude."""
    rng = np.random.default_rng(seed)
    f = np.fft.fftfreq(64)
    amplitude = 1 / np.maximum(np.hypot(f[:, None], f), 1 / 64)
    values = np.fft.ifft2(np.fft.fft2(rng.standard_normal((64, 64))) * amplitude).real
    return Image.fromarray(np.clip(128 + 45 * values / values.std(), 0, 255).astype(np.uint8)).convert("RGB")


def save(image: Image.Image, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """`web`, of which two training images are test images of `pets` and one of them also of `wild`."""
    for seed in range(12):
        save(photo(seed), tmp_path / "web/train" / ("cat" if seed < 6 else "dog") / f"{seed}.png")
    save(photo(3), tmp_path / "pets/test/tabby/same.png")
    save(ImageOps.mirror(photo(8)).resize((50, 50)), tmp_path / "pets/test/pug/mirrored.png")
    for seed in range(100, 106):
        save(photo(seed), tmp_path / "pets/test/pug" / f"{seed}.png")
    save(photo(3).crop((3, 3, 61, 61)), tmp_path / "wild/test/lynx/crop.png")
    (tmp_path / "wild/test/lynx/broken.png").write_bytes(b"not an image")
    return tmp_path


def found(data: Path, **options: Path) -> Leaks:
    return dedup(data / "web", [data / "pets", data / "wild"], **options)


def test_copies_are_listed_by_test_set(data: Path) -> None:
    leaks = found(data)
    pets, wild = leaks.tests
    assert leaks.images == 12
    assert [(Path(leak.train).name, Path(leak.test).name, leak.how) for leak in pets.leaks] == [
        ("3.png", "same.png", "bytes"),
        ("8.png", "mirrored.png", "mirrored"),
    ]
    assert [(leak.train_class, leak.test_class) for leak in pets.leaks] == [("cat", "tabby"), ("dog", "pug")]
    assert [(Path(leak.train).name, leak.how) for leak in wild.leaks] == [("3.png", "near")]
    assert (pets.images, pets.unreadable) == (8, 0)
    assert (wild.images, wild.unreadable) == (2, 1)
    assert {Path(key).name for key in leaks.excluded} == {"3.png", "8.png"}


def test_the_file_gives_back_the_keys(data: Path) -> None:
    leaks = found(data, out=data / "new/exclude.jsonl")
    assert read_exclusions(data / "new/exclude.jsonl")[1] == leaks.excluded
    assert [file.name for file in (data / "new").iterdir()] == ["exclude.jsonl"]
    head, *rows = [json.loads(line) for line in (data / "new/exclude.jsonl").read_text().splitlines()]
    assert head["train"] == leaks.train
    assert head["fingerprint"] == leaks.split["fingerprint"]
    assert [sorted(row) for row in rows] == [
        sorted(("train", "test", "test_set", "score", "how", "train_class", "test_class"))
    ] * 3


def test_it_can_be_seen_and_serialised(data: Path) -> None:
    leaks = found(data, sheet=data / "pairs.png")
    with Image.open(data / "pairs.png") as sheet:
        assert sheet.width > 200
        assert len(sheet.getcolors(1 << 20) or ()) > 100
    assert json.loads(json.dumps(leaks.as_json()))["excluded"] == 2


@given(st.lists(st.tuples(KEYS, KEYS, st.floats(0.75, 1), st.sampled_from(["bytes", "near", "mirrored"]))))
def test_any_keys_survive_the_file(tmp_path_factory: pytest.TempPathFactory, rows: list[tuple]) -> None:
    path = tmp_path_factory.mktemp("any") / "exclude.jsonl"
    lines = [{"train": train, "test": test, "score": score, "how": how} for train, test, score, how in rows]
    write_exclusions(path, {"train": "web", "split": "train"}, lines)
    assert read_exclusions(path)[1] == {row[0] for row in rows}


def test_something_must_be_compared(data: Path) -> None:
    with pytest.raises(ConfigError, match="at least one"):
        dedup(data / "web", [])


def test_exclusions_are_of_one_whole_split(data: Path) -> None:
    """A file for `train+validation` would leave nothing out of `train`, and nobody would know."""
    save(photo(50), data / "web/val/cat/50.png")
    save(photo(51), data / "web/val/dog/51.png")
    with pytest.raises(ConfigError, match=r"web:train\+web:validation"):
        dedup(data / "web", [data / "pets"], train_split="train+validation")
    found(data, out=data / "first.jsonl")
    where = f"{data / 'web'}?exclude={data / 'first.jsonl'}"
    again = dedup(where, [data / "wild"], train_split="train[:50%]", out=data / "second.jsonl")
    assert again.split["images"] == 12
    assert len(open_source(f"{data / 'web'}?exclude={data / 'second.jsonl'}")) == 12


@pytest.mark.parametrize("place", ["out", "sheet"])
def test_files_that_are_not_ours_are_found_before_the_work(
    data: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vitrail.data.dedup.scan", lambda *_, **__: pytest.fail("the data was read"))
    (data / "mine").write_text("mine")
    with pytest.raises(ConfigError, match="mine exists"):
        dedup(data / "web", [data / "pets"], **{place: data / "mine"})  # type: ignore[arg-type]
    assert (data / "mine").read_text() == "mine"


def test_inspect_dedup_and_exclude_have_one_answer(tmp_path: Path) -> None:
    root, out = tmp_path / "set", tmp_path / "exclude.jsonl"
    rng = np.random.default_rng(0)
    for seed in range(60):
        picture = photo(seed)
        save(picture, root / "train" / ("cat" if seed < 30 else "dog") / f"{seed:02}.png")
        left, top, right, bottom = rng.integers(0, 8, 4).tolist()
        copy = ImageEnhance.Brightness(picture.crop((left, top, 64 - right, 64 - bottom))).enhance(
            rng.uniform(0.8, 1.2)
        )
        copy = ImageOps.mirror(copy) if seed % 3 == 0 else copy
        save(copy.resize((64, 64)) if seed % 2 else copy, root / "test/cat" / f"{seed:02}.jpg")
    save(photo(5), root / "train/dog/again.png")  # the same bytes twice in train
    save(photo(5), root / "test/dog/same.png")
    pairs = {
        (copy.key, copy.other_key, copy.how)
        for copy in inspect_data(root).copies
        if (copy.split, copy.other_split) == ("train", "test")
    }
    leaks = dedup(root, [root], out=out)
    assert {(leak.train, leak.test, leak.how) for leak in leaks.tests[0].leaks} == pairs
    assert len(pairs) > 40
    left = open_source(f"{root}?exclude={out}", "train")
    kept = {left.key(i) for i in range(len(left))}
    whole = open_source(root, "train")
    assert {whole.key(i) for i in range(len(whole))} - kept == {train for train, _, _ in pairs}
    after = inspect_data(f"{root}?exclude={out}").copies
    assert not [copy for copy in after if copy.split != copy.other_split]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for split in ("train", "test"):
        for name in ("cats", "dogs"):
            (tmp_path / split / name).mkdir(parents=True)
            for i in range(4):
                Image.fromarray(np.full((8, 8, 3), 40 * i, np.uint8)).save(
                    tmp_path / split / name / f"{i}.png"
                )
    return tmp_path


def test_a_source_leaves_out_what_the_file_names(folder: Path) -> None:
    whole = open_source(folder, "train")
    keys = [whole.key(1), whole.key(6)]
    head = {"train": "x", "split": "train", "images": 8, "fingerprint": whole.fingerprint()}
    write_exclusions(folder / "exclude.jsonl", head, [{"train": key} for key in keys])
    rest = open_source(f"{folder}?exclude={folder / 'exclude.jsonl'}", "train")
    assert [rest.key(i) for i in range(len(rest))] == [whole.key(i) for i in (0, 2, 3, 4, 5, 7)]
    assert rest.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert rest.class_names == whole.class_names
    assert len(open_source(f"{folder}?exclude={folder / 'exclude.jsonl'}", "train[:4]")) == 4
    assert len(open_source(f"{folder}?exclude={folder / 'exclude.jsonl'}", "test")) == 8
    assert list_splits(f"{folder}?exclude={folder / 'exclude.jsonl'}") == ["train", "test"]


def test_a_file_made_for_other_data_is_refused(folder: Path) -> None:
    write_exclusions(folder / "exclude.jsonl", {"train": "x"}, [{"train": "no/such.png"}])
    with pytest.raises(DataError, match=r"names images that .* does not have"):
        open_source(f"{folder}?exclude={folder / 'exclude.jsonl'}", "train")
    write_exclusions(folder / "exclude.jsonl", {"train": "x", "split": "train", "images": 9}, [])
    with pytest.raises(DataError, match=r"was made for 9 images of x, .* 8"):
        open_source(f"{folder}?exclude={folder / 'exclude.jsonl'}", "train")


def test_other_dates_are_said(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_exclusions(folder / "exclude.jsonl", {"split": "train", "images": 8, "fingerprint": "00"}, [])
    open_source(f"{folder}?exclude={folder / 'exclude.jsonl'}", "train")
    assert "other files or dates" in caplog.text


def test_a_file_that_names_nothing_leaves_out_nothing(folder: Path) -> None:
    write_exclusions(folder / "exclude.jsonl", {"train": "x"}, [])
    assert read_exclusions(folder / "exclude.jsonl")[1] == set()
    assert len(open_source(f"{folder}?exclude={folder / 'exclude.jsonl'}", "train")) == 8


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "line 1"),
        ('{"train": "a.png"}\n', "not a file of exclusions"),
        ("[]\n", "line 1"),
        ('{"format": "vitrail exclusions 1"}\n{"train": 5}\n', "line 2"),
        ('{"format": "vitrail exclusions 1"}\n{"test": "a.png"}\n', "line 2"),
        ('{"format": "vitrail exclusions 1"}\n{"train": "a.png"}\n{"train": "b\n', "line 3"),
        ('{"format": "vitrail exclusions 1"}\n' + "[" * 100_000, "line 2"),
        ("\xff\xfe", "exclusions"),
    ],
)
def test_a_file_that_is_not_one_is_refused_in_words(tmp_path: Path, content: str, says: str) -> None:
    path = tmp_path / "exclude.jsonl"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(DataError, match=says):
        read_exclusions(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nowhere"):
        read_exclusions(tmp_path / "nowhere.jsonl")


def test_only_a_list_of_exclusions_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "exclude.jsonl"
    for name in ("first", "second"):
        write_exclusions(path, {"train": name}, [{"train": f"{name}.png"}])
    assert read_exclusions(path)[1] == {"second.png"}
    path.write_text("mine\n")
    with pytest.raises(ConfigError, match=r"exclude\.jsonl exists and is not a list of exclusions"):
        write_exclusions(path, {}, [])
    assert path.read_text() == "mine\n"
