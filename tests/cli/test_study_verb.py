"""study: the list, the plan and its cost, the results; mistakes are one line and exit code 2."""

import json

from tests.studies.quick import DATA, SMALLER
from vitrail.studies.names import STUDIES

QUICK = ("--data", DATA, "--seeds", "1", "--override", *SMALLER, "--device", "cpu")
POINTS = ("--points", "class token, lr 0.001", "mean of patches, lr 0.001")


def test_the_list(vitrail_command):
    code, out, _ = vitrail_command("study", "list")
    assert code == 0 and all(name in out for name in STUDIES)
    _, out, _ = vitrail_command("study", "list", "--json")
    assert {study["name"] for study in json.loads(out)["studies"]} == set(STUDIES)


def test_a_dry_run_writes_nothing(vitrail_command, tmp_path):
    out = tmp_path / "out"
    code, printed, err = vitrail_command("study", "head", "--dry-run", "--out", out, *QUICK)
    assert code == 0, err
    assert "mean of patches, lr 0.001" in printed and "8 runs" in printed
    assert not out.exists()


def test_a_study_and_its_continuation(vitrail_command, tmp_path, caplog):
    out = tmp_path / "out"
    code, printed, err = vitrail_command("study", "head", "--out", out, *QUICK, *POINTS)
    assert code == 0, err
    assert "cannot be told" in printed and str(out / "page.html") in printed
    code, printed, err = vitrail_command("study", "head", "--out", out, *QUICK, *POINTS, "--json")
    assert code == 0 and "all are finished" in caplog.text
    result = json.loads(printed)
    assert result["finished"] and set(result["scores"]["5-shot"]) == set(POINTS[1:])
    assert "--points" in (out / "page.md").read_text()  # the command as it was typed


def test_the_papers_scale_needs_yes(vitrail_command, tmp_path):
    code, printed, err = vitrail_command("study", "positions", "--size", "paper", "--out", tmp_path / "out")
    assert code == 2 and "--yes" in err
    assert "B/16" in printed and "exaFLOPs" in printed
    code, _, err = vitrail_command(
        "study", "positions", "--size", "paper", "--out", tmp_path / "out", "--yes"
    )
    assert code == 2 and "--data" in err
    assert not (tmp_path / "out").exists()


def test_mistakes(vitrail_command, tmp_path):
    for words, text in (
        (("study", "heads"), "did you mean head"),
        (("study", "head", "--points", "token"), "no point 'token'"),
        (("study", "head", "--override", "stepz=3", "--out", tmp_path / "a"), "stepz"),
        (("study", "head", "--data", "nowhere", "--out", tmp_path / "b"), "nowhere"),
        (("study", "head", "--minutes", "0"), "minutes"),
    ):
        code, _, err = vitrail_command(*words)
        assert code == 2 and text in err, err
    assert not list(tmp_path.iterdir())
