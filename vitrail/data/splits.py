"""Splits of a data set: split strings, and the sources that they select.

    train   train[:98%]   train[98%:]   train[10%:20%]   train[:1000]   train[-1000:]   train+validation
    train[:5 per class]   train[:5 per class, seed 3]   train[:90% per class]   train[90%: per class]

Between `name` and the data stands one rule per form:
- a percentage p of n examples is the position round(p n / 100), halves to even, as TFDS has it; so `[:98%]`
  and `[98%:]` share one boundary, and any two slices that meet at it partition the split;
- a negative bound counts from the end; a bound beyond the split is an error, as TFDS has it;
- `[a:b per class, seed s]` shuffles each class by (s, class) and takes that slice of it, so that `[:5 per class]`
  is inside `[:10 per class]`, `[:90% per class]` and `[90%: per class]` partition the split with every class in
  proportion, whatever the order of the data; a class with fewer examples than a count asks for is an error;
- names are as split_names.py reads them: val means validation.

Within a split the order of the source is kept; `+` puts parts one behind the other.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from vitrail.data.readers.fingerprint import digest
from vitrail.data.readers.split_names import canonical
from vitrail.data.readers.stratify import shuffled_classes
from vitrail.errors import ConfigError, DataError

if TYPE_CHECKING:
    from vitrail.data.sources import Example, Source

FORMS = "name, name[a:b] with a and b counts or percentages, name[a:b per class, seed s], joined by +"


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
        taken = []
        for c, members in enumerate(shuffled_classes(source.labels, len(source.class_names), self.seed)):
            try:
                start, stop = self.bounds(len(members))
            except DataError as error:
                raise DataError(f"{self}: class {source.class_names[c]!r}: {error}") from error
            taken.append(members[start:stop])
        return np.sort(np.concatenate(taken)).astype(np.int64)

    def bounds(self, n: int) -> tuple[int, int]:
        start = 0 if self.start is None else self.start.position(n)
        return start, n if self.stop is None else self.stop.position(n)


_PART = re.compile(r"(?P<name>[\w.\-]+)\s*(\[(?P<inside>[^\[\]]*)\])?")
_PER_CLASS = re.compile(r"(?P<bounds>.*?)\s+per\s+class\s*(,\s*seed\s+(?P<seed>\d+)\s*)?")
_BOUND = re.compile(r"(?P<number>-?\d[\d_]*(\.\d+)?)\s*(?P<percent>%?)")


def parse_split(text: str) -> tuple[Part, ...]:
    """Read a split string; ConfigError says what is allowed."""
    parts = []
    for term in map(str.strip, text.split("+")):
        match = _PART.fullmatch(term)
        if match is None:
            raise ConfigError(f"split {text!r}: {term!r} is not one of: {FORMS}")
        name, inside = canonical(match["name"]), match["inside"]
        if inside is None:
            parts.append(Part(name))
            continue
        by_class = _PER_CLASS.fullmatch(inside.strip())
        start, colon, stop = (inside if by_class is None else by_class["bounds"]).partition(":")
        if not colon:
            raise ConfigError(f"split {text!r}: [{inside}] is not one of: [a:b], [a:b per class, seed s]")
        first, last = _parse_bound(start.strip(), text), _parse_bound(stop.strip(), text)
        if by_class is None or first is last is None:
            parts.append(Part(name, first, last))
            continue
        if first is None and last is not None and last.value == 0:
            raise ConfigError(f"split {text!r}: {stop.strip()} per class; at least 1 is allowed")
        parts.append(Part(name, first, last, per_class=True, seed=int(by_class["seed"] or 0)))
    return tuple(parts)


def _parse_bound(bound: str, text: str) -> Bound | None:
    if not bound:
        return None
    match = _BOUND.fullmatch(bound)
    if match is None:
        raise ConfigError(f"split {text!r}: bound {bound!r} is neither a count (1000) nor a percentage (98%)")
    parsed = Bound(Fraction(match["number"].replace("_", "")), bool(match["percent"]))
    if parsed.percent and abs(parsed.value) > 100:
        raise ConfigError(f"split {text!r}: {bound} is beyond 100%")
    if not parsed.percent and parsed.value.denominator != 1:
        raise ConfigError(f"split {text!r}: {bound} examples; a count is a whole number")
    return parsed


def assemble(parts: Sequence[tuple[Source, Part]]) -> Source:
    """Return the source of a parsed split string, given the opened split of each of its parts."""
    taken: list[Source] = []
    for source, part in parts:
        if part.start is None and part.stop is None:
            taken.append(source)
            continue
        indices = part.indices(source)
        if not len(indices):
            raise DataError(f"{part} of {source.name} holds none of its {len(source)} examples")
        taken.append(Subset(source, indices, name=f"{source.name}{str(part)[len(part.name) :]}"))
    return taken[0] if len(taken) == 1 else Joined(taken)


class Subset:
    """Some examples of a source, in the order given; keys and class names stay."""

    def __init__(self, base: Source, indices: np.ndarray, name: str | None = None) -> None:
        self.base = base
        self.indices = np.asarray(indices, dtype=np.int64)
        self.name = base.name if name is None else name
        self.class_names = base.class_names
        self.labels = base.labels[self.indices]

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
        self.ends = np.cumsum([len(part) for part in parts])

    def __len__(self) -> int:
        return int(self.ends[-1])

    def key(self, index: int) -> str:
        part, i = locate(index, self.ends)
        return self.parts[part].key(i)

    def read(self, index: int) -> Example:
        part, i = locate(index, self.ends)
        return self.parts[part].read(i)

    def fingerprint(self) -> str:
        return digest(*(part.fingerprint() for part in self.parts))


def locate(index: int, ends: np.ndarray) -> tuple[int, int]:
    """Return the part that holds example `index`, and its place there; parts are stored up to their `ends`."""
    if not 0 <= index < ends[-1]:
        raise IndexError(f"{index} in a source of {ends[-1]}")
    part = int(np.searchsorted(ends, index, side="right"))
    return part, index - (int(ends[part - 1]) if part else 0)


def check_apart(train: Source, other: Source) -> None:
    """Raise ConfigError where two parts of one data set share examples, or have no class in common."""
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
    count = 0
    for x, chosen in pieces(a):
        for y, others in pieces(b):
            if x.name == y.name:
                taken = np.zeros(len(x), dtype=bool)
                taken[chosen] = True
                count += int(taken[others].sum())
    return count


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
