"""Docstrings begin with a verb or with the name of the thing."""

import ast
import re
from pathlib import Path

import vitrail

PACKAGE = Path(vitrail.__file__).parent
QUAINT = re.compile(r"(Of|What|Whether|The same|As|With|Where|Likewise)\b")
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def test_no_docstring_begins_with_a_fragment():
    files = sorted(PACKAGE.rglob("*.py"))
    assert len(files) > 100
    fragments = [
        f"{path.relative_to(PACKAGE)}: {docstring.splitlines()[0]}"
        for path in files
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, DOCUMENTED)
        if QUAINT.match(docstring := ast.get_docstring(node) or "")
    ]
    assert not fragments, "begin with a verb, or name the thing:\n" + "\n".join(fragments)
