import pytest


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
