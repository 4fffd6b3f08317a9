"""The names of splits: one word each for train, validation and test, however a folder or a file spells it.

Used by every reader that finds its splits by the names of files and folders, and by splits.py for split strings.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from vitrail.errors import DataError

WORDS = {
    "train": "train", "training": "train",
    "validation": "validation", "valid": "validation", "val": "validation", "dev": "validation",
    "test": "test", "testing": "test",
}  # fmt: skip


def canonical(name: str) -> str:
    """Return the usual name of a split: `val` -> `validation`; other names stay."""
    return WORDS.get(name.lower(), name)


def find_split(asked: str, available: Sequence[str], where: str) -> str:
    """Return the split of `where` that `asked` means; DataError lists what there is."""
    for name in (asked, canonical(asked)):
        if name in available:
            return name
    raise DataError(f"{where} has no split {asked!r}; it has: {', '.join(available) or 'none'}")


def in_order(names: Sequence[str]) -> list[str]:
    """Sort names of splits: train, validation, test, then the others by name."""
    first = ["train", "validation", "test"]
    return [name for name in first if name in names] + sorted(name for name in names if name not in first)


def split_in_stem(stem: str) -> str | None:
    """Return the split word in a name: `cifar10-train` -> train, `val200` -> validation; None: no word, or several.

    Words stand between `-`, `_`, `.`, blanks and digits, as the Hugging Face `datasets` package has it.
    """
    splits = {WORDS[word] for word in re.split(r"[-_.\s\d]+", stem.lower()) if word in WORDS}
    return splits.pop() if len(splits) == 1 else None


def split_in_folder(name: str) -> str | None:
    """Return the split word in the name of a folder, which varies more: TrainImages, testset, seg_train."""
    words = re.split(r"[-_.\s\d]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower())
    splits = {WORDS[part] for word in words for part in (word, word.removesuffix("set")) if part in WORDS}
    return splits.pop() if len(splits) == 1 else None
