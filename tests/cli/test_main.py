"""What `main` prints when something is wrong: one line for each thing, whatever the names in it are."""

import pytest

import vitrail
from vitrail.cli.verb import Common, Output
from vitrail.errors import CheckpointError, Interrupted

HOSTILE = "a\x1b]52;c;eA==\x1b\\b\nerror: forged\x9b\u202e\udce9"
SHOWN = r"a\x1b]52;c;eA==\x1b\b\nerror: forged\x9b\u202e\xe9"


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (CheckpointError(f"{HOSTILE}: no such file"), 2, f"error: {SHOWN}: no such file"),
        (FileNotFoundError(2, "No such file", HOSTILE), 2, "error: [Errno 2] No such file: "),
        (Interrupted("SIGTERM", "step 1", HOSTILE), 143, f"SIGTERM: saved at step 1 in {SHOWN}; the same"),
    ],
)
def test_an_error_is_one_line_without_commands_to_the_terminal(
    vitrail_command, monkeypatch, error, code, said
):
    def fail(words):
        raise error

    monkeypatch.setattr("vitrail.cli.run", fail)
    found, out, err = vitrail_command()
    assert (found, out) == (code, "")
    assert err.startswith(said) and err.endswith("\n") and err[:-1].isprintable()


def test_the_version(vitrail_command):
    assert vitrail_command("--version") == (0, f"vitrail {vitrail.__version__}\n", "")


def test_problems_with_a_part_are_a_line_each(vitrail_command, monkeypatch):
    problems = [HOSTILE, "y" * 3_000_000]
    monkeypatch.setattr("vitrail.cli.run", lambda _: Output(Common(), ["a"], [["b"]], {}, problems=problems))
    code, _, err = vitrail_command()
    assert code == 2 and err.splitlines()[0] == f"error: {SHOWN}"
    assert len(err.splitlines()) == 2 and len(err) < 10_000
