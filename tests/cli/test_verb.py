"""What verbs have to say, printed: names from other people's files are only ever shown."""

import io
import json

import pytest
from rich.console import Group
from rich.text import Text

from vitrail.cli.verb import Common, Shown, show

CLIPBOARD = "\x1b]52;c;cm0gLXJmIH4=\x1b\\"
HOSTILE = [CLIPBOARD, "\x1b[31m", "\x9b31m", "\u202e", "\udce9", "\ud800"]


@pytest.fixture
def printed(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")

    def printed(*given, json=False, **more):
        show(Shown(Common(json=json), *given, **more))
        return capsys.readouterr().out

    return printed


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize(
    "place",
    [
        lambda name: ((["image", ">class"], [[name, name]], {}), {}),
        lambda name: (([f">{name}"], [["a"]], {}), {}),
        lambda name: (([], [], {}), {"body": Group(Text(f"- {name}"), Text("all"))}),
        lambda name: ((["a"], [["b"]], {}), {"after": [f"Worst classes: {name}"]}),
    ],
    ids=["cells", "heading", "body", "after"],
)
def test_no_name_speaks_to_the_terminal(printed, place, text):
    given, more = place(f"cat{text}dog")
    out = printed(*given, **more)
    assert text not in out and "cat\\" in out
    assert all(c == "\n" or c.isprintable() for c in out)


def test_a_name_of_two_lines_is_one_cell(printed):
    out = printed(["image"], [["a\nerror: b"], ["c"]], {})
    assert r"a\nerror: b" in out


def test_json_is_exact(printed):
    result = {"name": "".join(HOSTILE), "long": "y" * 100_000}
    assert json.loads(printed([], [], result, json=True)) == result


def test_letters_that_the_terminal_does_not_have(monkeypatch):
    from vitrail.cli import main

    monkeypatch.setattr(
        "vitrail.cli.run", lambda _: Shown(Common(), ["class"], [["日本 é"]], {}, after=["日本"])
    )
    stdout = io.TextIOWrapper(io.BytesIO(), encoding="latin-1", errors="strict")
    monkeypatch.setattr("sys.stdout", stdout)
    main([])
    assert rb"\u65e5\u672c " + b"\xe9" in stdout.buffer.getvalue()
