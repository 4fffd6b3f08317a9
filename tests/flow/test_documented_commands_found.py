"""What README.md and docs/ tell a person to type: found here, run by test_documented_commands.py.

    a fenced block of `sh`       each line that is neither empty nor a comment is a command (\\ continues a line)
    a fenced block of `python`   one command, the whole block
    a fenced block of `text`     nothing to type

Flags and verbs that are only named in the text, and links, are held true here as well.
"""

import contextlib
import io
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from vitrail.cli import DATA_VERBS, VERBS, main

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BEGINNINGS = ("vitrail", "torchrun", "make", "pip", "python")  # of commands
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ASSIGNMENT = re.compile(r"[A-Z_]+=\S*")


@dataclass(frozen=True)
class Command:
    """Something to type, and where it stands."""

    page: str
    line: int
    text: str
    python: bool = False

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def words(self) -> list[str]:
        """As a shell would take them, without variables that are set before and without the last &."""
        words = shlex.split(self.text, comments=True)
        while ASSIGNMENT.fullmatch(words[0]):
            words = words[1:]
        return words[:-1] if words[-1] == "&" else words


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(text: str) -> Iterator[tuple[int, str, str]]:
    """(number of its first line, language, what is in it) of each fenced block."""
    for fence in FENCE.finditer(text):
        yield text.count("\n", 0, fence.start()) + 2, fence[1], fence[2]


def commands(page: str, text: str) -> list[Command]:
    found = []
    for first, language, body in blocks(text):
        if language == "python":
            found.append(Command(page, first, body, python=True))
        elif language == "sh":
            whole = body.replace("\\\n", "  ")  # of the same length: lines are counted in `body`
            for line in re.finditer(r"^(?!\s*#)\s*\S.*$", whole, re.MULTILINE):
                found.append(Command(page, first + body.count("\n", 0, line.start()), line[0]))
    return found


COMMANDS = [command for page in PAGES for command in commands(name_of(page), page.read_text())]
BY_PAGE = pytest.mark.parametrize("page", PAGES, ids=name_of)


def test_commands_are_found():
    """More than a hand could have listed; none of those that a person sees at once is missing."""
    assert len(COMMANDS) > 60
    assert {command.words[0] for command in COMMANDS if not command.python} == set(BEGINNINGS)
    readme = [command.words for command in COMMANDS if command.page == "README.md" and not command.python]
    assert readme[:3] == [["pip", "install", "."], ["make", "demo"], ["make", "test"]]


PAGE = """\
A page.

```sh
# a comment
vitrail predict MODEL \\
    "my photos/*.jpg"  # and why
CUDA_VISIBLE_DEVICES=1 vitrail vtab MODEL &
```

```text
vitrail/
```

```python
import vitrail

vitrail.load("x")
```
"""


def test_lines_and_words_of_commands():
    shell, second, python = commands("page.md", PAGE)
    assert (str(shell), shell.words) == ("page.md:5", ["vitrail", "predict", "MODEL", "my photos/*.jpg"])
    assert (str(second), second.words) == ("page.md:7", ["vitrail", "vtab", "MODEL"])
    assert (str(python), python.python) == ("page.md:15", True)
    assert python.text == 'import vitrail\n\nvitrail.load("x")\n'


@BY_PAGE
def test_every_fence_says_what_it_is(page):
    """So that no command hides in a block that nothing runs."""
    text = page.read_text()
    made = list(blocks(text))
    assert 2 * len(made) == sum(line.lstrip().startswith("```") for line in text.splitlines())
    for first, language, body in made:
        assert language in ("sh", "python", "text"), f"{page}:{first}: a block of {language or 'nothing'}"
        if language == "text":
            assert not re.search(rf"^({'|'.join(BEGINNINGS)}) ", body, re.MULTILINE), f"{page}:{first}"


@pytest.fixture(scope="module")
def flags():
    """Every flag of every verb, as --help shows them, and torchrun's."""
    from torch.distributed.run import get_args_parser

    with contextlib.redirect_stdout(io.StringIO()) as shown:
        objectives = [["pretrain", "--objective", "masked-patches"]]
        for verb in [*([v] for v in VERBS), *(["data", v] for v in DATA_VERBS), *objectives]:
            with pytest.raises(SystemExit):
                main([*verb, "--help"])
    return set(re.findall(r"--[a-z][a-z0-9-]+", shown.getvalue() + get_args_parser().format_help()))


@BY_PAGE
def test_flags_verbs_and_targets_in_the_text_are_there(page, flags):
    for span in re.findall(r"`([^`\n]+)`", FENCE.sub("", page.read_text())):
        unknown = set(re.findall(r"(?<!\S)--[a-z][a-z0-9-]+", span)) - flags
        assert not unknown, f"{page.name}: `{span}` has {unknown}"
        if verb := re.match(r"vitrail (data )?([a-z|\\]+)(?!\S)", span):
            known = DATA_VERBS if verb[1] else VERBS
            assert set(verb[2].replace("\\", "").split("|")) <= known.keys(), f"{page.name}: `{span}`"
        if target := re.fullmatch(r"make (\w+)", span):
            assert re.search(rf"^{target[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE), span


def anchors(page):
    """What GitHub makes of the headings."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@BY_PAGE
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", page.read_text())):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        there = page.parent / path if path else page
        assert there.exists(), f"{page.name}: {target}"
        assert not anchor or anchor in anchors(there), f"{page.name}: {target}"
