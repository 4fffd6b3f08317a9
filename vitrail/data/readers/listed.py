"""Folders of images whose labels do not stand in folders: in a file of labels, or in the names of the images.

    photos?labels=labels.csv        a row for each image: label_files.py
    photos?pattern={label}_{number} the label is a part of the name: name_patterns.py
    photos/metadata.csv             Hugging Face's imagefolder, in the folder or in those of its splits: found by
                                    itself where it has labels; `photos?labels=none` takes the folders instead

Columns of a file of labels
- of names: `?image=COLUMN`, else file_name, file, image, path, id, ..., else the one that has names of images. A name
  is a path below the folder; its extension may be missing. What lies outside of the folder cannot be named, because
  names are looked up among the files that were found in it.
- of labels: `?label=COLUMN`, else label, class, category, ..., else the only one that is left.
- of groups that stay on one side of a split: `?group=COLUMN` (groups.py).
- of several labels: `?several=|` where this mark stands between them, `?several=rows` where an image has a row for
  each, `?several=columns` with a column of 0 and 1 for each class: those of `?label=a,b,c`, else all that are left.
  Lists, in JSON lines and Parquet, are several labels by themselves.
- of splits: `?split=COLUMN`, else split or subset where all of it are words such as train and val. Without one the
  first folder of the paths is the split, where all of them are such words; else the images are split by a seed, as
  class folders are.

What is not as it should be is an error that names it; `?skip=` leaves it out: REASONS in listing_reader.py.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections import Counter
from dataclasses import replace
from pathlib import Path

from vitrail.data.groups import COPIES
from vitrail.data.readers.file_names import printable, scan_folder, walk_images, why_not
from vitrail.data.readers.label_columns import (
    JOINT,
    LABEL,
    SEVERAL,
    find_column,
    find_image_column,
    find_label_column,
    find_split_column,
    label_sets,
    one_column,
    one_row,
    whole_numbers,
)
from vitrail.data.readers.label_files import Cell, Table, read_table
from vitrail.data.readers.listing_reader import NAMED, REASONS, Listing, joined, reader_of, refuse
from vitrail.data.readers.name_patterns import parse_pattern
from vitrail.data.sources import Reader
from vitrail.data.splits import WORDS, canonical
from vitrail.errors import ConfigError, DataError

METADATA = ("metadata.csv", "metadata.jsonl", "metadata.parquet")
OPTIONS = ("labels", "pattern", "image", "label", "split", "several", "skip", "group")


def find_listing(root: Path, options: dict[str, str]) -> Reader | None:
    """Return the reader of a folder with labels in a file or in names; None: they are its folders."""
    known = {name: options[name] for name in OPTIONS if name in options}
    rest = {name: value for name, value in options.items() if name not in known}
    labels, pattern = known.pop("labels", None), known.pop("pattern", None)
    skip, group = read_reasons(str(root), known.pop("skip", "")), known.pop("group", None)
    column = group if group is not None and group != COPIES and "{" not in group else None
    if labels is not None and pattern is not None:
        raise ConfigError(
            f"{root}: labels={labels} and pattern={pattern}: only one of them can say the labels"
        )
    if pattern is not None:
        if known:
            raise ConfigError(
                f"{root}: {', '.join(known)} name columns of a file of labels, not with pattern="
            )
        if column is not None:
            raise ConfigError(f"{root}: group={column} names a column of a file of labels, not with pattern=")
        return reader_of(list_by_pattern(root, pattern), rest, skip, group)
    found = (
        find_metadata(root) if labels is None else {} if labels == "none" else {"": find_file(root, labels)}
    )
    listings = []
    for split, file in found.items():
        table = read_table(file)
        if (
            labels is None
            and not known
            and column is None
            and find_column(table, "label", LABEL, None) is None
        ):
            continue  # captions, say
        one = list_by_table(root if labels else file.parent, root, table, known, skip, column)
        if split and one.splits is None:
            one = replace(one, splits=[split] * len(one.files))
        listings.append(one)
    if not listings:
        if known:
            raise ConfigError(f"{root}: {', '.join(known)} name columns of a file of labels: --labels FILE")
        return None
    return reader_of(joined(listings), rest, skip, None if column else group)


def read_reasons(where: str, text: str) -> set[str]:
    reasons = {word.strip() for word in text.split(",") if word.strip()}
    if unknown := sorted(reasons - set(REASONS) - {"empty"}):
        raise ConfigError(
            f"{where}: skip={unknown[0]}: allowed are {', '.join(REASONS)} and empty, joined by commas"
        )
    return reasons


def find_file(root: Path, name: str) -> Path:
    """Return the path of a file of labels: as it is named, else in the folder of the images."""
    for path in (Path(name).expanduser(), root / name):
        if path.is_file():
            return path
    raise DataError(f"no file of labels {name!r}, neither here nor in {root}")


def find_metadata(root: Path) -> dict[str, Path]:
    """Return the metadata files of an imagefolder: {"": that of the whole}, else {split: that in its folder}."""
    if here := next((path for name in METADATA if (path := root / name).is_file()), None):
        return {"": here}
    folders = {}
    for entry in scan_folder(root):
        if entry.name.lower() in WORDS and entry.is_dir(follow_symlinks=False):
            folders[canonical(entry.name)] = Path(entry.path)
    places = ((split, folder / name) for split, folder in folders.items() for name in reversed(METADATA))
    return {split: path for split, path in places if path.is_file()}


def list_by_table(
    base: Path, root: Path, table: Table, options: dict[str, str], skip: set[str], group: str | None = None
) -> Listing:
    """Look up each row's image among those in `base`, where the table's names begin; `group`: a column."""
    image = find_image_column(table, options.get("image"))
    several = options.get("several", "")
    if several == "columns":
        table, several = one_column(table, options, but={image, group}), JOINT
        options = options | {"label": SEVERAL}
    split = None if options.get("split") == "none" else find_split_column(table, options.get("split"))
    label = find_label_column(table, options.get("label"), image, split)
    group = find_column(table, "group", (), group)
    skipped: Counter[str] = Counter()
    there = ImageNames(base, root, skipped)
    listed = bool(several) or any(isinstance(cell, tuple) for cell in table[label])
    texts = label_sets(table[label], several) if listed else whole_numbers(table[label])
    if several == "rows":
        table, texts = one_row(table, image, texts)
    rows: dict[bytes, tuple[str, str, int]] = {}
    missing, unlabelled, conflicts = [], [], set()
    for row, cell in enumerate(table[image]):
        file = there.find(cell, table, row)
        if file is None:
            missing.append(f"{cell!r:.80} ({table.place(row)})")
            continue
        if (text := texts[row]) is None:
            unlabelled.append(f"{cell!r:.80} ({table.place(row)})")
            continue
        part = "" if split is None else str(table[split][row] or "")
        if split is not None and not part:
            unlabelled.append(f"{cell!r:.80} has no split ({table.place(row)})")
            continue
        before = rows.setdefault(file, (text, part, row))
        if before[:2] != (text, part):
            conflicts.add(file)
        elif before[2] != row:
            skipped[f"rows of {table.path.name} that repeat another"] += 1
    if len(missing) == len(table):
        raise DataError(
            f"{table.path}: none of its {len(table):,} images is in {base}{there.hint(table[image])}"
        )
    refuse(table.path, "missing", missing, skip, skipped)
    refuse(table.path, "unlabelled", unlabelled, skip, skipped)
    refuse(table.path, "duplicates", [printable(file) for file in sorted(conflicts)], skip, skipped)
    files = sorted(file for file in rows if file not in conflicts)
    skipped[why_not(table.path.name)] -= table.path.is_relative_to(base)  # the file of labels itself
    if unnamed := len(there.paths) - len(rows):
        skipped[f"an image that {table.path.name} does not name or label"] += unnamed
    words = f"{table.path.name}, column {label}"
    skipped = +skipped
    splits = None if split is None else [canonical(rows[file][1]) for file in files]
    cells = None if group is None else whole_numbers(table[group])
    groups = None if cells is None else [cells[rows[file][2]] or "" for file in files]
    return Listing(root, words, files, [rows[file][0] for file in files], splits, skipped, groups, listed)


class ImageNames:
    """The images below `root`, found from `base` down, by the ways in which a file of labels may spell them."""

    def __init__(self, base: Path, root: Path, skipped: Counter[str]) -> None:
        self.base = base
        inside = "." if base == root else str(base.relative_to(root))
        paths = [path for here in walk_images(root, inside, skipped).values() for path in here]
        self.paths: dict[str, bytes] = {}
        self.stems: dict[str, bytes | None] = {}  # without extension; None: several
        for path in sorted(paths):
            name = unicodedata.normalize("NFC", printable(path[len(inside) + 1 :]))
            self.paths[name] = os.fsencode(path.removeprefix("./"))
            stem = name.rpartition(".")[0]
            self.stems[stem] = None if stem in self.stems else self.paths[name]

    def find(self, cell: Cell, table: Table, row: int) -> bytes | None:
        """Return the path below root of the image that a cell names; DataError where it names no image or two."""
        if not isinstance(cell, str):
            raise DataError(f"{table.place(row)}: no name of an image")
        name = unicodedata.normalize("NFC", cell)
        spellings = (name, name.replace("\\", "/"))
        for spelling in (re.sub(r"^(\./)+", "", one) for one in spellings):
            if spelling in self.paths:
                return self.paths[spelling]
            if spelling in self.stems:
                if self.stems[spelling] is None:
                    raise DataError(
                        f"{table.place(row)}: several images are called {cell!r}, without extension"
                    )
                return self.stems[spelling]
        if (
            ".." in re.split(r"[/\\]", name)
            or name.startswith(("/", "~"))
            or re.match(r"[A-Za-z]:[/\\]", name)
        ):
            raise DataError(
                f"{table.place(row)}: {cell!r:.200} is not a path below {self.base}: names are relative to it, "
                "without .."
            )
        return None

    def hint(self, cells: list[Cell]) -> str:
        """Return where the images may lie, for a message: the folder in which the first names are found."""
        last = {name.rpartition("/")[2]: name for name in self.paths}
        for cell in cells[:NAMED]:
            if isinstance(cell, str) and (path := last.get(cell.replace("\\", "/").rpartition("/")[2])):
                return f"; {cell!r:.80} may be {path!r}: name the folder from which the paths begin"
        return f", which has {len(self.paths):,} images" + (f" such as {next(iter(last))!r}" if last else "")


def list_by_pattern(root: Path, text: str) -> Listing:
    """Take labels, and splits where the pattern has them, from the names of all images."""
    pattern = parse_pattern(text, "label")
    skipped: Counter[str] = Counter()
    files, labels, splits, groups, others = [], [], [], [], []
    for name, file in ImageNames(root, root, skipped).paths.items():
        fields = pattern.match(name)
        if fields is None:
            others.append(name)
            continue
        files.append(file)
        labels.append(fields["label"])
        splits.append(canonical(fields.get("split", "")))
        groups.append(fields.get("group", ""))
    if not files:
        example = f", such as {others[0]!r}" if others else ""
        raise DataError(
            f"{root}: none of its {len(others):,} images{example}, has a name of the form {text!r}"
        )
    if others:
        skipped[f"an image whose name is not of the form {text}, such as {others[0]}"] += len(others)
    own = splits if "split" in pattern.fields else None
    together = groups if "group" in pattern.fields else None
    return Listing(root, f"names by {text}", files, labels, own, skipped, together)
