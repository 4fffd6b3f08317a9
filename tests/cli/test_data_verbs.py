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


def test_files_that_are_ignored_are_no_secret(vitrail_command, tmp_path, without_heif):
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


def test_the_tables_of_inspect_and_dedup(vitrail_command, tmp_path):
    for number, name in enumerate(("train/[cat]/a", "train/[cat]/b", "train/dog/c", "test/dog/d")):
        path = tmp_path / "photos" / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.effect_noise((32, 32), 40 + 10 * min(number, 2)).convert("RGB").save(path)
    (tmp_path / "photos/test/dog/d.png").write_bytes((tmp_path / "photos/train/dog/c.png").read_bytes())
    code, out, _ = vitrail_command("data", "inspect", tmp_path / "photos", "--splits", "train[:100%]", "test")
    assert code == 0 and "train[:100%]" in out and "0 to 2" not in out and "1 to 2" in out
    assert "1 of 1 images of test are also in train[:100%]" in " ".join(out.split())
    code, out, _ = vitrail_command("data", "inspect", tmp_path / "photos", "--splits", "test")
    assert "- classes without images" in out  # [cat] has none in test
    listed = tmp_path / "exclude.jsonl"
    code, out, _ = vitrail_command("data", "dedup", tmp_path / "photos", tmp_path / "photos", "--out", listed)
    assert code == 0 and "1 of 3 images of photos:train to exclude" in " ".join(out.split())
    assert re.search(r"photos:test +1 +1 +1 +0 +0 +1\b", out)
