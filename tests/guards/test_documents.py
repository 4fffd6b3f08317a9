"""Names of files in docs/tree.md and in the Makefile: they exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_tree_page_names_what_exists():
    (tree,) = re.findall(
        r"^```text\n(.*?)^```", (ROOT / "docs/tree.md").read_text(), re.MULTILINE | re.DOTALL
    )
    folder, named = ROOT, set()
    for line in tree.splitlines():
        indent = len(line) - len(line.lstrip())
        if indent == 0:
            folder = ROOT / line.split()[0]
        elif indent == 2:
            folder = ROOT / "vitrail" / line.split()[0]
            named.add(line.split()[0].rstrip("/"))
        assert folder.is_dir(), line
        for name in re.findall(r"\b(\w+\.py|\w+/)(?=[\s:,;]|$)", line):
            assert any((place / name).exists() for place in (folder, folder.parent, ROOT, ROOT / "tests")), (
                line
            )
    here = {
        path.name for path in (ROOT / "vitrail").iterdir() if path.is_dir() and path.name != "__pycache__"
    }
    assert named == here


def test_the_makefile_names_folders_that_exist():
    (folders,) = re.findall(r"^FAST := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for name in folders.split():
        assert (ROOT / "tests" / name).is_dir(), name
