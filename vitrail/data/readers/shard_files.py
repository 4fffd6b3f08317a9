"""The files of a sharded data set, found by their names: shared by the Parquet and the tar reader.

    train-00000-of-00004.parquet ..   data/train-00000-of-00004-8f2a.parquet ..   train800.parquet
    train-000000.tar ..               imagenet-val-000012.tar ..                  train/00000.tar 00001.tar ..

Shards lie in the folder itself, else in `data/` below it, else in sub-folders named after splits. A name
without its shard number is the stem; the split word in the stem (splits.py) is the split. A stem without
such a word is `train` when it is the only one, else its own split; stems that would share one split each keep
their own name. A split can be asked for by its stem too (`train800`). With `-of-00004` in the names, all four
have to be there.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from vitrail.data.splits import WORDS, find_split, in_order, split_in_name
from vitrail.errors import DataError


@dataclass(frozen=True)
class Shards:
    """The files of one split, in order."""

    stem: str
    files: tuple[Path, ...]


def has_shards(folder: Path, suffix: str) -> bool:
    """Tell whether `folder` is a set of shards that end in `suffix`."""
    return bool(_files(folder, suffix))


def find_shards(path: Path, suffix: str) -> dict[str, Shards]:
    """Return {split: its shards}, train first. `path` is a folder, or one file that is a split by itself."""
    stems: dict[str, list[tuple[int, int, Path]]] = defaultdict(list)
    for stem, file in [("", path)] if path.is_file() else _files(path, suffix):
        name, number, total = _parse_name(file.name[: -len(suffix)])
        stems[stem or name].append((number, total, file))
    words = {stem: split_in_name(stem) for stem in stems}
    times = Counter(words.values())
    splits: dict[str, Shards] = {}
    for stem, numbered in stems.items():
        word = words[stem] or ("train" if len(stems) == 1 else None)
        split = word if word is not None and times[words[stem]] == 1 else stem
        splits[split] = Shards(stem, _complete(path, stem, numbered))
    return {split: splits[split] for split in in_order(list(splits))}


def find_split_shards(path: Path, suffix: str, split: str) -> tuple[str, Shards]:
    """Return the split that `split` means, by its name or by the stem of its files, and its shards."""
    splits = find_shards(path, suffix)
    for name, shards in splits.items():
        if shards.stem == split:
            return name, shards
    name = find_split(split, list(splits), str(path))
    return name, splits[name]


def names_in(folder: Path) -> list[str]:
    """List the names in a folder that are not hidden, sorted; none where there is no such folder."""
    try:
        return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise DataError(f"{folder}: cannot be listed: {error.strerror}") from error


def _files(folder: Path, suffix: str) -> list[tuple[str, Path]]:
    """List (name of the split folder or empty, file), from the first place that has any."""
    names = names_in(folder)
    files = _shards(folder, names, suffix)
    if not files and "data" in names and (folder / "data").is_dir():
        files = _shards(folder / "data", names_in(folder / "data"), suffix)
    if files:
        return [("", file) for file in files]
    places = [folder / name for name in names if name.lower() in WORDS and (folder / name).is_dir()]
    return [(place.name, file) for place in places for file in _shards(place, names_in(place), suffix)]


def _shards(folder: Path, names: list[str], suffix: str) -> list[Path]:
    return [folder / name for name in names if name.lower().endswith(suffix) and (folder / name).is_file()]


_OF = re.compile(r"(?P<stem>.+?)-(?P<number>\d+)-of-(?P<total>\d+)(-[0-9a-f]+)?")
_NUMBER = re.compile(r"((?P<stem>.+?)[-_])?(?P<number>\d+)")


def _parse_name(name: str) -> tuple[str, int, int]:
    """Parse `train-00001-of-00004` to (train, 1, 4); total 0: unknown."""
    match = _OF.fullmatch(name)
    if match is not None:
        return match["stem"], int(match["number"]), int(match["total"])
    match = _NUMBER.fullmatch(name)
    if match is not None:
        return match["stem"] or "train", int(match["number"]), 0
    return name, 0, 0


def _complete(path: Path, stem: str, numbered: list[tuple[int, int, Path]]) -> tuple[Path, ...]:
    numbers = [number for number, _, _ in numbered]
    total = max(total for _, total, _ in numbered)
    if path.is_dir() and total and (len(numbers) != total or sorted(numbers) != list(range(total))):
        there = set(numbers)
        missing = list(islice((number for number in range(total) if number not in there), 8))
        raise DataError(
            f"{path}: {stem!r} has {total} shards by the names of its files, but there are {len(numbers)} files; "
            f"missing: {missing}"
        )
    return tuple(file for _, _, file in sorted(numbered, key=lambda shard: (shard[0], shard[2].name)))
