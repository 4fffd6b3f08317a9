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

What is not as it should be is an error that names it; `?skip=` leaves it out: REASONS.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from vitrail.data.groups import COPIES, number_groups
from vitrail.data.readers.class_names import check_names, read_class_names, with_titles
from vitrail.data.readers.file_names import Names, is_image_name, printable, scan_folder, walk_images, why_not
from vitrail.data.readers.folder import (
    DEFAULTS,
    FolderSource,
    cut_in_three,
    read_split_options,
    with_groups,
)
from vitrail.data.readers.label_files import Cell, Table, read_table
from vitrail.data.readers.name_patterns import parse_pattern
from vitrail.data.sources import Reader
from vitrail.data.splits import WORDS, canonical, find_split, in_order
from vitrail.errors import ConfigError, DataError

METADATA = ("metadata.csv", "metadata.jsonl", "metadata.parquet")
IMAGE = ("file_name", "filename", "file", "image", "img", "image_name", "image_path", "img_path", "path", "filepath",
         "image_id", "img_id", "name", "id")  # fmt: skip
LABEL = ("label", "labels", "class", "classes", "class_name", "category", "categories", "target", "targets", "tags",
         "tag", "y", "label_name", "category_name", "class_id", "label_id", "category_id")  # fmt: skip
SPLIT = ("split", "subset", "partition")
REASONS = {
    "missing": "images that are named and are not there",
    "unlabelled": "images without a label",
    "duplicates": "images that are named with several labels",
    "unknown": "images of other splits whose class train does not have",
    "rare": "classes that have fewer than two images",
}
OPTIONS = ("labels", "pattern", "image", "label", "split", "several", "skip", "group")
JOINT = "\x1f"  # between several labels of an image
SEVERAL = "labels of the columns"
BITS = {"0": False, "1": True, "false": False, "true": True, "0.0": False, "1.0": True}
NAMED = 4  # examples in a message


@dataclass(frozen=True)
class Listing:
    """Images below `root`, and what is known of each."""

    root: Path
    words: str  # where the labels were found, for people
    files: list[bytes]
    labels: list[str]
    splits: list[str] | None = None
    skipped: Counter[str] = field(default_factory=Counter)
    groups: list[str] | None = None  # "": in none
    several: bool = False  # each label is any number of them, joined by JOINT

    def keep(self, kept: Sequence[int], reason: str) -> Listing:
        """Return the images of these places; the others count as skipped."""
        left_out = Counter({reason: len(self.files) - len(kept)})
        splits = None if self.splits is None else [self.splits[i] for i in kept]
        groups = None if self.groups is None else [self.groups[i] for i in kept]
        files, labels = [self.files[i] for i in kept], [self.labels[i] for i in kept]
        kept_ones = replace(self, files=files, labels=labels, splits=splits, groups=groups)
        return replace(kept_ones, skipped=self.skipped + left_out)


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


# --- the images and labels of a table ---


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


def label_sets(cells: list[Cell], mark: str) -> list[str | None]:
    """Return the labels of each cell, sorted and joined by JOINT; a text is cut at the mark."""
    texts: list[str | None] = []
    for cell in cells:
        parts: Sequence[str] = cell if isinstance(cell, tuple) else [cell or ""]
        if isinstance(cell, str) and mark not in ("", "rows"):
            parts = cell.split(mark)
        each = sorted({part.strip() for part in parts} - {""})
        texts.append(None if cell is None else JOINT.join(each))
    return texts


def one_column(table: Table, options: dict[str, str], but: set[str | None]) -> Table:
    """Return the table with the names of the columns that have a 1, in a column of their own."""
    asked = [name.strip() for name in options.get("label", "").split(",") if name.strip()]
    split = find_split_column(table, options.get("split") if options.get("split") != "none" else None)
    names = asked or [name for name in table.columns if name not in but | {split}]
    for name in names:
        if name not in table.columns:
            raise ConfigError(
                f"{table.path}: no column {name!r} (label); columns: {', '.join(table.columns)}"
            )
    sets: list[Cell] = []
    for row in range(len(table)):
        cells = {name: str(table[name][row] or "0").lower() for name in names}
        if wrong := [name for name, text in cells.items() if text not in BITS]:
            raise DataError(
                f"{table.place(row)}: {wrong[0]!r} is {cells[wrong[0]]!r:.40}, not 0 or 1; name the columns of the "
                "classes: ?label=a,b,c"
            )
        sets.append(tuple(name for name, text in cells.items() if BITS[text]))
    return Table(table.path, table.columns | {SEVERAL: sets}, table.lines)


def one_row(table: Table, image: str, texts: list[str | None]) -> tuple[Table, list[str | None]]:
    """Return the table with the first row of each image, and the labels of all of its rows."""
    sets: dict[Cell, set[str]] = {}
    first: dict[Cell, int] = {}
    for row, (cell, text) in enumerate(zip(table[image], texts, strict=True)):
        first.setdefault(cell, row)
        sets.setdefault(cell, set()).update(text.split(JOINT) if text else ())
    kept = list(first.values())
    columns = {name: [cells[row] for row in kept] for name, cells in table.columns.items()}
    merged: list[str | None] = [JOINT.join(sorted(sets[cell])) or None for cell in first]
    return Table(table.path, columns, [table.lines[row] for row in kept]), merged


def refuse(where: Path, reason: str, cases: list[str], skip: set[str], skipped: Counter[str]) -> None:
    """Raise DataError for these cases unless they are to be skipped, and then count them."""
    if cases and reason not in skip:
        more = f" and {len(cases) - NAMED:,} more" if len(cases) > NAMED else ""
        raise DataError(
            f"{where}: {len(cases):,} {REASONS[reason]}: {', '.join(cases[:NAMED])}{more}; ?skip={reason} leaves "
            "them out"
        )
    if cases:
        skipped[f"left out by skip={reason}"] += len(cases)


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


def find_column(
    table: Table, role: str, usual: Sequence[str], asked: str | None, but: str | None = None
) -> str | None:
    """Return the column that is asked for, else the first of the usual names; None: there is none."""
    if asked is not None:
        if asked not in table.columns:
            raise ConfigError(
                f"{table.path}: no column {asked!r} ({role}); columns: {', '.join(table.columns)}"
            )
        return asked
    plain = {re.sub(r"[\s\-.]+", "_", name.lower()): name for name in reversed(table.columns) if name != but}
    return next((plain[name] for name in usual if name in plain), None)


def find_image_column(table: Table, asked: str | None) -> str:
    column = find_column(table, "image", IMAGE, asked)
    if column is not None:
        return column
    named = [
        name
        for name, cells in table.columns.items()
        if all(isinstance(cell, str) and is_image_name(cell) for cell in cells[:100])
    ]
    if len(named) != 1:
        raise DataError(
            f"{table.path}: cannot tell which column has the names of the images, of {', '.join(table.columns)}; "
            "name it: ?image=COLUMN"
        )
    return named[0]


def find_label_column(table: Table, asked: str | None, image: str, split: str | None) -> str:
    """Return the column of labels: the one asked for, else one of a usual name, else the only one that is left."""
    column = find_column(table, "label", LABEL, asked, but=image)
    left = [name for name in table.columns if name not in (image, split)]
    if column is None and len(left) != 1:
        raise DataError(
            f"{table.path}: cannot tell which column is the label, of {', '.join(table.columns)}; name it: "
            "?label=COLUMN"
        )
    return left[0] if column is None else column


def find_split_column(table: Table, asked: str | None) -> str | None:
    """Return the column of splits: the one asked for, else one of the usual name that has only words for splits."""
    column = find_column(table, "split", SPLIT, asked)
    if asked is None and column is not None:
        values = {cell for cell in table[column] if cell is not None}
        if not values or not all(isinstance(value, str) and value.lower() in WORDS for value in values):
            return None
    return column


def whole_numbers(cells: list[Cell]) -> list[str | None]:
    """Return labels as text; 3.0 is 3 where all are such, as pandas writes whole numbers beside empty cells."""
    texts = [", ".join(cell) if isinstance(cell, tuple) else cell for cell in cells]
    if all(text is None or re.fullmatch(r"\d+\.0", text) for text in texts):
        return [text and text.removesuffix(".0") for text in texts]
    return texts


# --- names that carry the label ---


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


# --- a listing as a data set ---


def joined(listings: list[Listing]) -> Listing:
    """Put the listings of several folders of one data set together."""
    first = listings[0]
    if len(listings) == 1:
        return first
    parts = [one.splits for one in listings if one.splits is not None]
    splits = [split for part in parts for split in part] if len(parts) == len(listings) else None
    groups = [group for one in listings for group in one.groups or [""] * len(one.files)]
    return replace(
        first,
        groups=groups if any(groups) else None,
        words=" and ".join(dict.fromkeys(one.words for one in listings)),
        files=[file for one in listings for file in one.files],
        labels=[label for one in listings for label in one.labels],
        splits=splits,
        skipped=sum((one.skipped for one in listings), Counter()),
        several=any(one.several for one in listings),
    )


def reader_of(listing: Listing, options: dict[str, str], skip: set[str], group: str | None = None) -> Reader:
    """Return the reader: of the listing's own splits, else those of its folders, else cut class by class.

    `group`: a pattern for groups, or copies; else those of the listing.
    """
    root = listing.root
    fractions = read_split_options(str(root), options)
    if listing.splits is None:
        listing = replace(listing, splits=splits_by_folders(listing.files))
    listing = leave_out_classes(listing, skip)
    names, known = class_names(listing)
    numbers = None if listing.groups is None else number_groups(listing.groups)
    targets = None
    if listing.several:
        from vitrail.data.several_labels import make_targets

        sets = [[known[label] for label in labels_of(text)] for text in listing.labels]
        targets, labels = make_targets(sets, len(names), str(root))
    else:
        labels = np.array([known[label] for label in listing.labels], np.int64)

    def part(name: str, chosen: np.ndarray) -> FolderSource:
        files = Names([listing.files[i] for i in chosen])
        groups = None if numbers is None else numbers[chosen]
        several = None if targets is None else targets[chosen]
        source = FolderSource(
            name, root, files, labels[chosen], names, listing.skipped, together=groups, targets=several
        )
        return with_groups(source, group)

    layout, title = f"labels from {listing.words}", root.resolve().name
    if listing.splits is None:
        reader = cut_in_three(str(root), lambda: part(title, np.arange(len(labels))), fractions)
        return reader._replace(
            layout=f"{layout}; split into train, validation and test", ignored=lambda: listing.skipped
        )
    if unused := {name: options[name] for name in DEFAULTS if name in options}:
        raise ConfigError(f"{root} has its own splits: options {unused} do not apply")
    own = np.array(listing.splits)
    there = in_order(sorted(set(listing.splits)))

    def open_part(split: str) -> FolderSource:
        split = find_split(split, there, str(root))
        return part(f"{title}:{split}", np.flatnonzero(own == split))

    return Reader(there, open_part, f"{layout}; its own splits", ignored=lambda: listing.skipped)


def splits_by_folders(files: list[bytes]) -> list[str] | None:
    """Return the splits where the first folder of every path is a word for one; else None."""
    tops = [file.partition(b"/")[0].decode("utf-8", "replace") if b"/" in file else "" for file in files]
    return [canonical(top) for top in tops] if all(top.lower() in WORDS for top in set(tops)) else None


def leave_out_classes(listing: Listing, skip: set[str]) -> Listing:
    """Refuse classes that train does not have, or leave them out; leave out rare ones where that is asked for."""
    splits = listing.splits or ["train"] * len(listing.labels)
    sets = [labels_of(text) if listing.several else (text,) for text in listing.labels]
    counts = Counter(
        label for labels, split in zip(sets, splits, strict=True) if split == "train" for label in labels
    )
    if "rare" in skip:
        rare = {label for label, count in counts.items() if count < 2}
        kept = [i for i, labels in enumerate(sets) if not rare.intersection(labels)]
        listing = listing.keep(kept, f"of {len(rare):,} classes, left out by skip=rare") if rare else listing
        sets = [sets[i] for i in kept]
    if "train" in splits and (
        unknown := sorted({label for labels in sets for label in labels} - set(counts))
    ):
        skipped: Counter[str] = Counter()
        refuse(listing.root, "unknown", unknown, skip, skipped)
        kept = [i for i, labels in enumerate(sets) if all(label in counts for label in labels)]
        listing = listing.keep(kept, "left out by skip=unknown")
    if not listing.labels:
        raise DataError(f"{listing.root}: {listing.words}: no image is left")
    return listing


def labels_of(text: str) -> tuple[str, ...]:
    """Return several labels that were joined."""
    return tuple(text.split(JOINT)) if text else ()


def class_names(listing: Listing) -> tuple[list[str], dict[str, int]]:
    """Return the names of the classes in order, and {label as it is stored: its number}."""
    stored = {label for text in listing.labels for label in (labels_of(text) if listing.several else (text,))}
    if not stored:
        raise DataError(f"{listing.root}: {listing.words}: no image has a label")
    if all(re.fullmatch(r"\d{1,9}", label) for label in stored):
        ids = sorted(stored, key=int)
        named = read_class_names(listing.root)  # in the order of the labels
        if named is not None and [*map(str, range(len(named)))] == ids:
            return named, {label: k for k, label in enumerate(ids)}
    else:
        ids = sorted(stored)
    check_names(ids, f"{listing.root}: {listing.words}")
    return with_titles(ids, listing.root), {label: k for k, label in enumerate(ids)}
