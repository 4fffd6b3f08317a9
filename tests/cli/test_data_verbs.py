import json
import re

import pytest
from PIL import Image

from vitrail.cli import DATA_VERBS


@pytest.mark.parametrize(
    "words",
    [
        ["inspect", "shapes", "--sheet", "taken/sheet.png"],
        ["dedup", "shapes", "shapes", "--out", "taken/list.jsonl"],
        ["dedup", "shapes", "shapes", "--sheet", "taken/sheet.png"],
    ],
)
def test_a_place_that_cannot_be_written_is_said_before_anything_is_read(
    vitrail_command, monkeypatch, tmp_path, words
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").write_text("")
    code, out, err = vitrail_command("data", *words)
    assert (code, out) == (2, "")
    assert "Not a directory" in err and "taken" in err and err.count("\n") == 1


def test_files_that_are_ignored_are_no_secret(vitrail_command, tmp_path):
    for name in ("cat/a.png", "cat/b.HEIC", "dog/c.png"):
        path = tmp_path / "photos/train" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (len(name) * 20, ord(name[4]), 9)).save(path, "PNG")
    code, out, _ = vitrail_command("data", "inspect", tmp_path / "photos")
    assert code == 0 and "ignored files: 1 (1 x HEIC is not supported: convert to JPEG or PNG" in " ".join(
        out.split()
    )
    code, out, _ = vitrail_command("data", "inspect", tmp_path / "photos", "--json")
    ((reason, count),) = json.loads(out)["ignored"].items()
    assert "HEIC" in reason and count == 1


@pytest.mark.parametrize("verb", DATA_VERBS)
def test_a_flag_that_begins_with_no_is_off_until_it_is_given(vitrail_command, verb):
    _, out, _ = vitrail_command("data", verb, "--help")
    words = " ".join(out.replace("│", " ").split())
    for flag in re.findall(r"--no-[a-z-]+ .*?\(default: (\w+)\)", words):
        assert flag == "False"


def test_shards_without_a_check_keep_what_cannot_be_decoded(vitrail_command, tmp_path):
    for name in "abc":
        (tmp_path / "photos/train" / name).mkdir(parents=True)
        Image.new("RGB", (8, 8), (ord(name), 0, 0)).save(tmp_path / "photos/train" / name / "0.png")
    (tmp_path / "photos/train/a/1.png").write_bytes(b"not an image")
    for flags, examples in (([], 3), (["--no-check"], 4)):
        folder = tmp_path / f"shards{examples}"
        _, out, _ = vitrail_command("data", "shard", tmp_path / "photos", folder, *flags, "--json")
        (split,) = json.loads(out)["splits"]
        assert (split["examples"], split["broken"]) == (examples, 4 - examples)
