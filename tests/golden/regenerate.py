"""Write the golden traces anew: `python -m tests.golden.regenerate --why "..."`, in a commit of its own.

The reason is stored with the numbers. Names after it choose some of them; else all are written. Bits differ from one
processor to another: elsewhere the test allows for rounding. To see whether a change keeps every bit there too, write
them before it and after it, and compare.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from tests.golden.traces import FOLDER, TRACES, trace


def main(words: list[str] | None = None, into: Path = FOLDER) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--why", required=True, help="what changed, so that other numbers are right")
    parser.add_argument("names", nargs="*", help=f"of {', '.join(TRACES)}")
    given = parser.parse_args(words)
    if not given.why.strip():
        parser.error("--why is empty: say what changed")
    if unknown := set(given.names) - set(TRACES):
        parser.error(f"no trace {', '.join(sorted(unknown))}; there are {', '.join(TRACES)}")
    for name in given.names or TRACES:
        with tempfile.TemporaryDirectory() as folder:
            made = {"why": given.why.strip(), **trace(name, Path(folder))}
        (into / f"{name}.json").write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
