"""Which examples of a data set: split strings, and the sources that they make.

    train   train[:98%]   train[98%:]   train[10%:20%]   train[:1000]   train[-1000:]   train+validation
    train[:5 per class]   train[:5 per class, seed 3]

Between `name` and the data stands one rule per form:
- a percentage p of n examples is the position round(p n / 100), halves to even, as TFDS has it; so `[:98%]`
  and `[98%:]` share one boundary, and any two slices that meet at it partition the split;
- a negative bound counts from the end; a bound beyond the split is an error, as TFDS has it;
- `[:k per class, seed s]` shuffles each class by (s, class) and takes its first k, so that k = 5 is inside k
  = 10 and the choice does not depend on the format that the data is stored in; a class with fewer than k is
  an error;
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
from vitrail.data.readers.stratify import few_per_class
from vitrail.errors import ConfigError, DataError

if TYPE_CHECKING:
    from vitrail.data.sources import Example, Source

FORMS = "name, name[a:b] with a and b counts or percentages, name[:k per class, seed s], joined by +"


@dataclass(frozen=True)
class Bound:
    """One end of a slice: a count, or a percentage of the split."""

    value: Fraction
    percent: bool

    def position(self, n: int) -> int:
        """The position 0..n that this bound means in a split of n examples."""
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
    per_class: int | None = None
    seed: int = 0

    def __str__(self) -> str:
        if self.per_class is not None:
            return f"{self.name}[:{self.per_class} per class, seed {self.seed}]"
        if self.start is None and self.stop is None:
            return self.name
        return f"{self.name}[{self.start or ''}:{self.stop or ''}]"

    def indices(self, source: Source) -> np.ndarray:
        """The examples of `source` that this part takes, int64 (m,), in order."""
        n = len(source)
        if self.per_class is not None:
            return few_per_class(source.labels, source.class_names, self.per_class, self.seed)
        start = 0 if self.start is None else self.start.position(n)
        stop = n if self.stop is None else self.stop.position(n)
        return np.arange(start, stop, dtype=np.int64)


def parse_split(text: str) -> tuple[Part, ...]:
    """Read a split string; ConfigError says what is allowed."""
    return tuple(_parse_part(term.strip(), text) for term in text.split("+"))


def assemble(parts: Sequence[tuple[Source, Part]]) -> Source:
    """The source that a parsed split string means, given the opened split of each of its parts."""
    taken: list[Source] = []
    for source, part in parts:
        if part.per_class is None and part.start is None and part.stop is None:
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
        part, i = self._locate(index)
        return part.key(i)

    def read(self, index: int) -> Example:
        part, i = self._locate(index)
        return part.read(i)

    def fingerprint(self) -> str:
        return digest(*(part.fingerprint() for part in self.parts))

    def _locate(self, index: int) -> tuple[Source, int]:
        if not 0 <= index < len(self):
            raise IndexError(f"{index} in a source of {len(self)}")
        p = int(np.searchsorted(self.ends, index, side="right"))
        return self.parts[p], index - (int(self.ends[p - 1]) if p else 0)


_PART = re.compile(r"(?P<name>[\w.\-]+)\s*(\[(?P<inside>[^\[\]]*)\])?")
_PER_CLASS = re.compile(r":\s*(?P<k>\d[\d_]*)\s+per\s+class\s*(,\s*seed\s+(?P<seed>\d+)\s*)?")
_BOUND = re.compile(r"(?P<number>-?\d[\d_]*(\.\d+)?)\s*(?P<percent>%?)")


def _parse_part(term: str, text: str) -> Part:
    match = _PART.fullmatch(term)
    if match is None:
        raise ConfigError(f"split {text!r}: {term!r} is not one of: {FORMS}")
    name, inside = canonical(match["name"]), match["inside"]
    if inside is None:
        return Part(name)
    few = _PER_CLASS.fullmatch(inside.strip())
    if few is not None:
        if int(few["k"]) < 1:
            raise ConfigError(f"split {text!r}: {few['k']} per class; at least 1 is allowed")
        return Part(name, per_class=int(few["k"]), seed=int(few["seed"] or 0))
    start, colon, stop = inside.partition(":")
    if not colon:
        raise ConfigError(f"split {text!r}: [{inside}] is not one of: [a:b], [:k per class, seed s]")
    return Part(name, _parse_bound(start.strip(), text), _parse_bound(stop.strip(), text))


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
