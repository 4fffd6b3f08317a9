"""A folder as people have it: every kind of file that breaks other loaders, through reading, training and audit."""

import json
import os
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from vitrail.cli import main
from vitrail.data.bad_files import BadFiles
from vitrail.data.loader import Loader
from vitrail.data.preprocess import parse
from vitrail.data.settings import DataSettings
from vitrail.data.sources import open_source
from vitrail.errors import DataError

LINE = parse("resize(16)|uint8|to_range(-1,1)")
LONG = "a" * 200 + ".png"
BROKEN = {"empty.png", "text.jpg", "truncated.jpg", "huge.png", "dangling.png"}
FINE = {
    "deep16.png",
    "cmyk.jpg",
    "palette.png",
    "grey.png",
    "animated.gif",
    "turned.jpg",
    "été 東京 🐈.png",
    LONG,
}


def huge_png(side=30_000):
    """A header that promises 900 million pixels, and hardly any of them."""

    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(bytes(100))) + chunk(b"IEND", b"")


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    for name in ("cats", "dogs"):
        (tmp_path / "train" / name).mkdir(parents=True)
        for i in range(10):
            pixels = rng.integers(0, 256, (30, 40, 3), np.uint8)
            Image.fromarray(pixels).save(tmp_path / "train" / name / f"{i}.png")
    cats = tmp_path / "train" / "cats"
    picture = Image.fromarray(rng.integers(0, 256, (64, 64, 3), np.uint8))
    (cats / "empty.png").touch()
    (cats / "text.jpg").write_text("this is not a picture")
    picture.save(cats / "truncated.jpg")
    (cats / "truncated.jpg").write_bytes((cats / "truncated.jpg").read_bytes()[:-900])
    (cats / "huge.png").write_bytes(huge_png())
    (cats / "dangling.png").symlink_to(cats / "nowhere.png")
    Image.fromarray((np.arange(64 * 64).reshape(64, 64) * 16).astype(np.uint16)).save(cats / "deep16.png")
    picture.convert("CMYK").save(cats / "cmyk.jpg")
    picture.quantize(16).save(cats / "palette.png", transparency=3)
    picture.convert("L").save(cats / "grey.png")
    picture.save(cats / "animated.gif", save_all=True, append_images=[picture.rotate(90)])
    exif = Image.Exif()
    exif[0x0112] = 6
    picture.save(cats / "turned.jpg", exif=exif)
    picture.save(cats / "été 東京 🐈.png")
    picture.save(cats / LONG)
    (cats / "notes.txt").write_text("not an image by name, so not an example")
    (cats / "loop").symlink_to(cats)
    return tmp_path


def test_training_keeps_every_slot_and_lists_what_is_broken(folder, tmp_path):
    source = open_source(folder, "train")
    names = {source.key(i).split("/")[-1] for i in range(len(source))}
    assert names >= BROKEN | FINE and "notes.txt" not in names
    bad_files = BadFiles(len(source), max_bad=0.2, path=tmp_path / "run" / "bad_files.jsonl")
    loader = Loader(source, LINE, DataSettings(batch_size=len(source)), evaluation=True, bad_files=bad_files)
    (batch,) = loader.batches()
    weights = {source.key(i).split("/")[-1]: batch["weight"][i].item() for i in range(len(source))}
    assert {name for name, weight in weights.items() if weight == 0} == BROKEN
    rows = [json.loads(line) for line in (tmp_path / "run" / "bad_files.jsonl").read_text().splitlines()]
    reasons = {row["key"].split("/")[-1]: row["reason"] for row in rows}
    assert set(reasons) == BROKEN
    assert "empty" in reasons["empty.png"]
    assert "900000000 pixels" in reasons["huge.png"]


def test_above_the_threshold_the_run_stops_with_the_list(folder):
    source = open_source(folder, "train")
    with pytest.raises(
        DataError, match=r"5 of 33 examples are broken, more than the 1\.0% allowed.*empty\.png"
    ):
        list(Loader(source, LINE, DataSettings(batch_size=len(source)), evaluation=True).batches())


def test_inspect_reports_them(folder, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    main(["data", "inspect", str(folder), "--sheet", str(folder / "sheet.png"), "--json"])
    report = json.loads(capsys.readouterr().out)
    (split,) = report["splits"]
    assert {row["key"].split("/")[-1] for row in split["unreadable"]} == BROKEN
    with Image.open(folder / "sheet.png") as sheet:
        assert min(sheet.size) > 100
    main(["data", "inspect", str(folder)])
    assert "unreadable" in capsys.readouterr().out


@pytest.mark.skipif(os.geteuid() == 0, reason="the super-user may read everything")
def test_a_file_without_permission(folder):
    (folder / "train" / "dogs" / "0.png").chmod(0)
    source = open_source(folder, "train")
    (batch,) = Loader(
        source, LINE, DataSettings(batch_size=len(source), max_bad=1), evaluation=True
    ).batches()
    assert (batch["weight"] == 0).sum() == len(BROKEN) + 1


def test_shards_of_it_are_a_data_set_without_the_broken_ones(folder, tmp_path_factory, capsys):
    shards = tmp_path_factory.mktemp("shards")
    main(["data", "shard", str(folder), str(shards), "--json"])
    (made,) = json.loads(capsys.readouterr().out)["splits"]
    assert (made["examples"], made["broken"]) == (28, 5)
    assert len(open_source(shards, "train")) == 28
