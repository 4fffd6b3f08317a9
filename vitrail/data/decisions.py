"""Decisions of a person about images of a data set: kept, given another label, or left out.

    findings.json ──► review.html ──► decisions.json ──► open_source("photos?decisions=decisions.json")

The file is of one state of one data set: of the split, or the part of splits, that was checked, with its
fingerprint. For other data, or data that has changed since, it is refused.
    {"format": "vitrail decisions", "version": 1, "data": "photos", "split": "train", "fingerprint": HEX,
     "images": 1200, "decisions": [{"key": "cat/1.jpg", "index": 1, "action": "relabel", "label": "dog"}, ...]}
`action` is keep, relabel or drop; `label` is a class for relabel, else null. Keep changes nothing: it says that a
person looked at the image. Splits that were not checked stay as they are.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from vitrail.data.bounded_files import read_text, wrong_fields
from vitrail.data.readers.fingerprint import digest
from vitrail.data.splits import Subset, parse_split, select_source
from vitrail.errors import ConfigError, DataError

if TYPE_CHECKING:
    from vitrail.data.sources import Example, Source

FORMAT, VERSION = "vitrail decisions", 1
MAX_BYTES = 64 << 20  # of the file
Action = Literal["keep", "relabel", "drop"]
ACTIONS: tuple[Action, ...] = get_args(Action)
HEAD = {
    "format": str, "version": int, "data": str, "split": str, "fingerprint": str, "images": int, "decisions": list,
}  # fmt: skip


@dataclass(frozen=True)
class Decision:
    """The fate of one image."""

    key: str  # as the source names it
    index: int  # in the source that was checked
    action: Action
    label: str | None  # of relabel


@dataclass(frozen=True)
class Decisions:
    """The contents of a file of decisions."""

    path: Path
    data: str  # as it was named
    split: str
    fingerprint: str  # of the source that was checked
    images: int  # in it
    decisions: tuple[Decision, ...]

    @property
    def counts(self) -> dict[Action, int]:
        """Return how many images are kept, relabelled and dropped."""
        counts = Counter(one.action for one in self.decisions)
        return {action: counts[action] for action in ACTIONS}


def read_decisions(path: str | Path) -> Decisions:
    """Read a file of decisions, and check it; DataError says what is wrong."""
    text = read_text(path, "decisions", MAX_BYTES)
    try:
        contents = json.loads(text, object_pairs_hook=unique_names)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: decisions must be JSON: {error}") from error
    if not isinstance(contents, dict) or contents.get("format") != FORMAT:
        raise DataError(f'{path}: not a file of decisions: it does not have "format": "{FORMAT}"')
    if contents.get("version") != VERSION:
        version = contents.get("version")
        raise DataError(f"{path} is of version {version!r:.40}; this vitrail reads version {VERSION}")
    if wrong := wrong_fields(contents, HEAD):
        raise DataError(f"{path}: wrong, missing or unknown fields: {', '.join(map(ascii, wrong[:8]))}")
    try:
        parse_split(contents["split"])
    except ConfigError as error:
        raise DataError(f"{path}: {error}") from error
    decisions, seen = [], set()
    for number, row in enumerate(contents["decisions"]):
        decision = check_decision(row, contents["images"], f"{path}: decision {number}")
        if decision.index in seen:
            raise DataError(f"{path}: decision {number}: the image {decision.index} was decided before")
        seen.add(decision.index)
        decisions.append(decision)
    head = {name: contents[name] for name in ("data", "split", "fingerprint", "images")}
    return Decisions(Path(path), **head, decisions=tuple(decisions))


def unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) < len(pairs):
        raise ValueError("a name appears twice in one object")
    return entries


def check_decision(row: object, images: int, where: str) -> Decision:
    """Return an entry of the list as a decision; DataError if it is none."""
    if not isinstance(row, dict):
        raise DataError(f"{where} is not an object")
    label = row.get("label", "")
    fields = {"key": str, "index": int, "action": str, "label": type(None) if label is None else str}
    if wrong := wrong_fields(row, fields):
        names = ", ".join(map(ascii, wrong[:8]))
        raise DataError(f"{where}: wrong, missing or unknown fields: {names}")
    if row["action"] not in ACTIONS:
        raise DataError(f"{where}: action {row['action']!r:.40} is not one of {', '.join(ACTIONS)}")
    if (label is not None) != (row["action"] == "relabel"):
        raise DataError(
            f"{where}: {row['action']} with label {label!r:.80}: relabel has a class, others null"
        )
    if not 0 <= row["index"] < images:
        raise DataError(f"{where}: index {row['index']} of {images} images")
    return Decision(row["key"], row["index"], row["action"], label)


class Decided(Subset):
    """The examples that are kept of a source, with the labels that were decided."""

    def __init__(self, base: Source, indices: np.ndarray, labels: np.ndarray) -> None:
        super().__init__(base, indices)
        self.labels = labels  # int64 (n,)

    def read(self, index: int) -> Example:
        return replace(super().read(index), label=int(self.labels[index]))

    def fingerprint(self) -> str:
        return digest(super().fingerprint(), self.labels)


class DecidedSplits:
    """The splits of a data set as a file of decisions has them; that they are those that were checked is asked once,
    whichever split is opened first."""

    def __init__(self, open_split: Callable[[str], Source], path: str | Path) -> None:
        self.open_split = open_split  # as they are before the decisions
        self.path = path

    @cached_property
    def decisions(self) -> Decisions:
        decisions = read_decisions(self.path)
        terms = parse_split(decisions.split)
        check_same(select_source([(self.open_split(term.name), term) for term in terms]), decisions)
        return decisions

    def open(self, split: str) -> Source:
        """Return a whole split, of which images are relabelled or left out."""
        decisions, source = self.decisions, self.open_split(split)
        by_index = {one.index: one for one in decisions.decisions}
        number = {name: label for label, name in enumerate(source.class_names)}
        labels, start = source.labels.copy(), 0  # -1: dropped
        for term in parse_split(decisions.split):
            places = term.indices(self.open_split(term.name))
            inside = range(start, start + len(places)) if term.name == split else range(0)
            for index in by_index.keys() & inside:
                decision, place = by_index[index], places[index - start]
                if decision.action == "relabel":
                    labels[place] = number[str(decision.label)]
                elif decision.action == "drop":
                    labels[place] = -1
            start += len(places)
        if (labels == source.labels).all():
            return source
        kept = np.flatnonzero(labels >= 0)
        if not len(kept):
            raise DataError(f"{self.path} drops all {len(source):,} images of {source.name}")
        return Decided(source, kept, labels[kept])


def check_same(checked: Source, decisions: Decisions) -> None:
    """Raise DataError unless decisions were made about this source."""
    path, made_for = decisions.path, f"{decisions.data}, split {decisions.split}"
    if len(checked) != decisions.images:
        raise DataError(
            f"{path} was made for {decisions.images:,} images ({made_for}), but {checked.name} has "
            f"{len(checked):,}: it is for other data, or images came or went since. Run `vitrail data check` again"
        )
    if checked.fingerprint() != decisions.fingerprint:
        raise DataError(
            f"{path} was made for other data ({made_for}): the files of {checked.name}, their dates or their labels "
            "are not those that were checked. Run `vitrail data check` again; for a copy of the same data, copy the "
            "files with their dates (cp -a, rsync -a)"
        )
    for one in decisions.decisions:
        if checked.key(one.index) != one.key:
            raise DataError(
                f"{path}: the image {one.index} of {checked.name} is {checked.key(one.index)!r:.200}, not "
                f"{one.key!r:.200}: the file is damaged, or was edited by hand"
            )
        if one.action == "relabel" and one.label not in checked.class_names:
            raise DataError(f"{path}: {one.key!r:.200}: {one.label!r:.80} is not one of the classes")
