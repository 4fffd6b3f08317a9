"""Splits of a data set: their names, split strings, the sources that these select, and cuts class by class.

    train   train[:98%]   train[98%:]   train[10%:20%]   train[:1000]   train[-1000:]   train+validation
    train[:5 per class]   train[:5 per class, seed 3]   train[:90% per class]   train[90%: per class]

Each form has one rule:
- a percentage p of n examples is the position round(p n / 100), halves to even, as TFDS has it; so `[:98%]`
  and `[98%:]` share one boundary, and any two slices that meet at it partition the split;
- a negative bound counts from the end; a bound beyond the split is an error, as TFDS has it;
- `[a:b per class, seed s]` shuffles each class by (s, class) and takes that slice of it, so that `[:5 per class]`
  is inside `[:10 per class]`, `[:90% per class]` and `[90%: per class]` partition the split with every class in
  proportion, whatever the order of the data; a class with fewer examples than a count asks for is an error; where
  images have groups (groups.py), a percentage ends between two of them;
- train, validation and test have one name each, however folders and files spell them: val means validation.

Within a split the order of the source is kept; `+` puts parts one behind the other. Cuts are functions of a seed
alone: they depend neither on the order of a directory listing nor on the release of numpy.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from vitrail.data.readers.fingerprint import digest
from vitrail.errors import ConfigError, DataError

if TYPE_CHECKING:
    from vitrail.data.sources import Example, Source

FORMS = "name, name[a:b] with a and b counts or percentages, name[a:b per class, seed s], joined by +"
SPLITS = ("train", "validation", "test")
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
    return [name for name in SPLITS if name in names] + sorted(name for name in names if name not in SPLITS)


def split_in_name(name: str) -> str | None:
    """Return the split word in the name of a folder or a shard; None: no word, or several.

    `cifar10-train`, `TrainImages`, `val200`, `testset`: words stand between `-`, `_`, `.`, blanks, digits and where
    a capital follows, and may end in `set`.
    """
    words = re.split(r"[-_.\s\d]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower())
    splits = {WORDS[part] for word in words for part in (word, word.removesuffix("set")) if part in WORDS}
    return splits.pop() if len(splits) == 1 else None


@dataclass(frozen=True)
class Bound:
    """One end of a slice: a count, or a percentage of the split."""

    value: Fraction
    percent: bool

    def position(self, n: int) -> int:
        """Return the position 0..n of this bound in a split of n examples."""
        at = round(self.value * n / 100) if self.percent else int(self.value)
        if abs(at) > n:
            raise DataError(f"bound {self} is outside a split of {n} examples")
        return at if self.value >= 0 else n + at

    def __str__(self) -> str:
        number = str(self.value) if self.value.denominator == 1 else str(float(self.value))
        return f"{number}%" if self.percent else number


@dataclass(frozen=True)
class Part:
    """One term of a split string."""

    name: str
    start: Bound | None = None
    stop: Bound | None = None
    per_class: bool = False
    seed: int = 0  # of the order within a class

    def __str__(self) -> str:
        if self.start is None and self.stop is None:
            return self.name
        bounds = f"{self.start or ''}:{self.stop or ''}"
        return f"{self.name}[{bounds}{f' per class, seed {self.seed}' if self.per_class else ''}]"

    def indices(self, source: Source) -> np.ndarray:
        """Return the indices of the examples of `source` that this part takes, int64 (m,), in order."""
        if not self.per_class:
            return np.arange(*self.bounds(len(source)), dtype=np.int64)
        taken, groups, classes = [], groups_of(source), len(source.class_names)
        ordered: list[tuple[np.ndarray, np.ndarray | None]]
        if groups is None:
            ordered = [(members, None) for members in shuffled_classes(source.labels, classes, self.seed)]
        else:
            from vitrail.data.groups import shuffled_groups

            ordered = [*shuffled_groups(source.labels, groups, classes, self.seed)]
        for c, (members, ends) in enumerate(ordered):
            try:
                start, stop = self.bounds(len(members))
            except DataError as error:
                raise DataError(f"{self}: class {source.class_names[c]!r}: {error}") from error
            if ends is not None:  # a percentage ends between two groups
                start = start if self.start is None or not self.start.percent else nearest_end(ends, start)
                stop = stop if self.stop is None or not self.stop.percent else nearest_end(ends, stop)
            taken.append(members[start:stop])
        return np.sort(np.concatenate(taken)).astype(np.int64)

    def bounds(self, n: int) -> tuple[int, int]:
        start = 0 if self.start is None else self.start.position(n)
        return start, n if self.stop is None else self.stop.position(n)


def nearest_end(ends: np.ndarray, at: int) -> int:
    """Return the end of a group that is nearest to a place; of those inside the class, if the place is."""
    inside = ends[1:-1] if 0 < at < ends[-1] and len(ends) > 2 else ends
    return int(inside[np.abs(inside - at).argmin()])


_NUMBER = r"-?\d[\d_]*(\.\d+)?\s*%?"
_PART = re.compile(
    rf"(?P<name>[\w.\-]+)\s*(\[\s*(?P<start>{_NUMBER})?\s*:\s*(?P<stop>{_NUMBER})?"
    r"(?P<per_class>\s+per\s+class\s*(,\s*seed\s+(?P<seed>\d+))?)?\s*\])?"
)


def parse_split(text: str) -> tuple[Part, ...]:
    """Read a split string; ConfigError says what is allowed."""
    parts = []
    for term in map(str.strip, text.split("+")):
        match = _PART.fullmatch(term)
        if match is None:
            raise ConfigError(f"split {text!r}: {term!r} is not one of: {FORMS}")
        ends: list[Bound | None] = []
        for number in (match["start"], match["stop"]):
            if number is None:
                ends.append(None)
                continue
            bound = Bound(Fraction(number.rstrip("% ").replace("_", "")), number.endswith("%"))
            if abs(bound.value) > 100 if bound.percent else bound.value.denominator != 1:
                raise ConfigError(
                    f"split {text!r}: {bound} is neither a whole number of examples nor a percentage up to 100%"
                )
            ends.append(bound)
        start, stop = ends
        per_class = match["per_class"] is not None and ends != [None, None]
        if per_class and start is None and stop is not None and stop.value == 0:
            raise ConfigError(f"split {text!r}: {stop} per class; at least 1 is allowed")
        seed = int(match["seed"] or 0) if per_class else 0
        parts.append(Part(canonical(match["name"]), start, stop, per_class, seed))
    return tuple(parts)


def select_source(parts: Sequence[tuple[Source, Part]]) -> Source:
    """Return the source of a parsed split string, given the opened split of each of its parts."""
    taken: list[Source] = []
    for source, part in parts:
        if part.start is None and part.stop is None:
            taken.append(source)
            continue
        indices = part.indices(source)
        if not len(indices):
            raise DataError(f"{part} of {source.name} selects none of its {len(source)} examples")
        taken.append(Subset(source, indices, name=f"{source.name}{str(part)[len(part.name) :]}"))
    return taken[0] if len(taken) == 1 else Joined(taken)


def groups_of(source: Source) -> np.ndarray | None:
    """Return the groups of its examples that stay on one side of a split, int64 (n,); None without any: groups.py."""
    groups: np.ndarray | None = getattr(source, "together", None)
    return groups


class Subset:
    """Some examples of a source, in the order given; keys and class names stay."""

    def __init__(self, base: Source, indices: np.ndarray, name: str | None = None) -> None:
        self.base = base
        self.indices = np.asarray(indices, dtype=np.int64)
        self.name = base.name if name is None else name
        self.class_names = base.class_names
        self.labels = base.labels[self.indices]
        groups = groups_of(base)
        self.together = None if groups is None else groups[self.indices]
        targets = getattr(base, "targets", None)  # of several labels for an image
        self.targets = None if targets is None else targets[self.indices]

    def __len__(self) -> int:
        return len(self.indices)

    def key(self, index: int) -> str:
        return self.base.key(int(self.indices[index]))

    def read(self, index: int) -> Example:
        return self.base.read(int(self.indices[index]))

    def fingerprint(self) -> str:
        return digest(self.base.fingerprint(), self.indices)


class Joined:
    """Several sources with the same classes, one behind the other."""

    def __init__(self, parts: Sequence[Source]) -> None:
        for part in parts[1:]:
            if part.class_names != parts[0].class_names:
                raise DataError(f"{parts[0].name} and {part.name} cannot be joined: their classes differ")
        self.parts = list(parts)
        self.name = "+".join(part.name for part in parts)
        self.class_names = parts[0].class_names
        self.labels = np.concatenate([part.labels for part in parts])
        every = [getattr(part, "targets", None) for part in parts]
        targets = [one for one in every if one is not None]
        if len(targets) not in (0, len(parts)):
            raise DataError(f"{self.name}: only some of them have several labels for an image")
        self.targets = np.concatenate(targets) if targets else None
        self.ends = np.cumsum([len(part) for part in parts])

    def __len__(self) -> int:
        return int(self.ends[-1])

    def key(self, index: int) -> str:
        part, i = locate_example(index, self.ends)
        return self.parts[part].key(i)

    def read(self, index: int) -> Example:
        part, i = locate_example(index, self.ends)
        return self.parts[part].read(i)

    def fingerprint(self) -> str:
        return digest(*(part.fingerprint() for part in self.parts))


def locate_example(index: int, ends: np.ndarray) -> tuple[int, int]:
    """Return the part that holds example `index`, and its place there; parts are stored up to their `ends`."""
    if not 0 <= index < ends[-1]:
        raise IndexError(f"{index} in a source of {ends[-1]}")
    part = int(np.searchsorted(ends, index, side="right"))
    return part, index - (int(ends[part - 1]) if part else 0)


def check_apart(train: Source, other: Source) -> None:
    """Raise ConfigError if two parts of one data set share examples, or have no class in common."""
    example = "as 'train[:90% per class]' and 'train[90%: per class]' do"
    if both := shared(train, other):
        raise ConfigError(
            f"{both} of the {len(other)} examples of {other.name} are in {train.name} too: no example may be "
            f"trained on and held out. Name two parts that do not overlap, {example}"
        )
    ordered = all((np.diff(part.labels) >= 0).all() for part in (train, other))
    if ordered and not np.isin(np.unique(other.labels), np.unique(train.labels)).any():
        raise ConfigError(
            f"{other.name} and {train.name} have no class in common, because the examples are ordered by class: "
            f"cut parts class by class, {example}"
        )


def shared(a: Source, b: Source) -> int:
    """Count the examples that two parts of one data set have in common."""
    return sum(
        int(np.isin(others, chosen).sum())
        for x, chosen in pieces(a)
        for y, others in pieces(b)
        if x.name == y.name
    )


def pieces(source: Source) -> list[tuple[Source, np.ndarray]]:
    """Return the splits that a part was cut from, each with the indices that the part takes of it."""
    if isinstance(source, Joined):
        return [piece for part in source.parts for piece in pieces(part)]
    if not isinstance(source, Subset):
        return [(source, np.arange(len(source)))]
    taken, start = [], 0
    for whole, places in pieces(source.base):
        inside = source.indices[(source.indices >= start) & (source.indices < start + len(places))]
        taken.append((whole, places[inside - start]))
        start += len(places)
    return taken


def class_members(labels: np.ndarray, classes: int) -> list[np.ndarray]:
    """Return the examples of each class, in the order of the data."""
    counts = np.bincount(labels, minlength=classes)
    return np.split(np.argsort(labels, kind="stable"), np.cumsum(counts)[:-1])


def shuffled_classes(labels: np.ndarray, classes: int, seed: int) -> list[np.ndarray]:
    """Return the examples of each class, in an order by (seed, class)."""
    # Raw words of a bit generator stay the same from one numpy to the next; its permutations need not.
    return [
        members[np.argsort(np.random.PCG64([seed, c]).random_raw(len(members)), kind="stable")]
        for c, members in enumerate(class_members(labels, classes))
    ]


def stratified(
    keys: Sequence[bytes], labels: np.ndarray, *, seed: int, validation: float, test: float
) -> dict[str, np.ndarray]:
    """Split one set in three, class by class: {train, validation, test} -> indices in order.

    Within a class the examples are ranked by a hash of (seed, key): the first round(test n) are the test set,
    the next round(validation n) the validation set, the rest, at least one, train. Neither the order of the
    files nor other classes matter, and a new file moves few others.
    """
    hashes = b"".join(hashlib.blake2b(key, digest_size=8, key=str(seed).encode()).digest() for key in keys)
    order = np.lexsort((np.frombuffer(hashes, "<u8"), labels))
    counts = np.bincount(labels)
    place = np.arange(len(labels)) - np.repeat(np.cumsum(counts) - counts, counts)  # rank within the class
    n_test = np.minimum(np.rint(counts * test), counts - 1).astype(np.int64)
    n_held = np.minimum(n_test + np.rint(counts * validation), counts - 1).astype(np.int64)
    ends_test, ends_held = n_test[labels[order]], n_held[labels[order]]
    return {
        "train": np.sort(order[place >= ends_held]),
        "validation": np.sort(order[(place >= ends_test) & (place < ends_held)]),
        "test": np.sort(order[place < ends_test]),
    }
