"""Default folders of runs: runs/DATA-MODEL, runs/vtab-MODEL."""

from __future__ import annotations

import re
from pathlib import Path


def default_folder(*words: str) -> Path:
    """Join the last parts of paths and names; a bundle in a run's folder (NAME/model) gives the run's name."""
    return Path("runs", "-".join(filter(None, map(plain, words))) or "run")


def plain(word: str) -> str:
    text = word.partition("?")[0].rstrip("/")
    if (path := Path(text).expanduser()).exists():
        path = path.resolve()
        text = path.parent.name if path.name == "model" else path.stem if path.is_file() else path.name
    else:
        text = text.rpartition(":")[2]
    return re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-.").lower()
