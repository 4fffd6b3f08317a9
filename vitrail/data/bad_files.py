"""Broken examples: they are counted and listed in `bad_files.jsonl` with the reason; too many stop the run."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from vitrail.data.bounded_files import parse_object, read_text
from vitrail.errors import DataError

FIELDS = {"index": int, "key": str, "reason": str}  # of a line


@dataclass(frozen=True)
class BadExample:
    index: int
    key: str
    reason: str


class BadFiles:
    """The broken examples among n; each is listed once, also over several runs with one file."""

    def __init__(
        self, n: int, max_bad: float = 0.01, path: Path | None = None, others: Iterable[Path] = ()
    ) -> None:
        """Read the lists; `path` is also written, `others` are only read."""
        self.n, self.max_bad, self.path, self.others = n, max_bad, path, list(others)
        self.examples: dict[str, BadExample] = {}
        self.torn = False  # a kill, or a full disk, left a part of a last line
        for other in self.others:
            self.examples |= _read(other)[0]
        if path is not None and path.exists():
            listed, self.torn = _read(path)
            self.examples |= listed
        self._check()

    def add(self, examples: Iterable[BadExample]) -> None:
        """List more broken examples; DataError above `max_bad`, though one is always tolerated."""
        new = {bad.key: bad for bad in examples if bad.key not in self.examples}
        if not new:
            return
        self.examples |= new
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            mode, rows = ("w", self.examples) if self.torn else ("a", new)
            with self.path.open(mode, encoding="utf-8") as file:
                file.writelines(json.dumps(asdict(bad)) + "\n" for bad in rows.values())
            self.torn = False
        self._check()

    def _check(self) -> None:
        if len(self.examples) > max(1, self.max_bad * self.n):
            lists = ", ".join(map(str, [self.path, *self.others] if self.path else self.others))
            raise DataError(
                f"{len(self.examples)} of {self.n:,} examples are broken, more than the {self.max_bad:.1%} allowed"
                + (f" (all in {lists})" if lists else "")
                + f": {self.summary(5)}. Remove or replace them, or allow more with --max-bad (max_bad in Python)"
                + ("; once they are repaired, delete the list" if lists else "")
            )

    def summary(self, most: int = 5) -> str:
        """Join the first few reasons."""
        reasons = "; ".join(bad.reason for bad in list(self.examples.values())[:most])
        more = len(self.examples) - most
        return reasons + (f"; and {more} more" if more > 0 else "")


def _read(path: Path) -> tuple[dict[str, BadExample], bool]:
    """Return {key: broken example} of a list, and whether its last line is torn."""
    *lines, last = read_text(path, "broken examples").split("\n")
    rows = (
        parse_object(line, f"{path}, line {number}: not a broken example", FIELDS)
        for number, line in enumerate(lines, 1)
    )
    return {row["key"]: BadExample(**row) for row in rows}, bool(last)
