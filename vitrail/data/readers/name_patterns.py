"""Patterns of file names: `{label}_{number}.jpg` takes a file's label, group or split from its name.

    {label} {group} {split}    text that has no slash, as short as the rest of the pattern lets it be
    {number}                   digits
    {}                         any text that has no slash, or none

All else stands for itself. With a slash in it a pattern is that of the whole path below the folder, else that of the
last part of it. One that ends without an extension leaves out that of the name. A field that occurs several times is
all of its texts: `{group}/{group}_{}` is folder and number. No pattern takes long on any name: at most MAX_FIELDS.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise

from vitrail.errors import ConfigError

FIELDS = ("label", "group", "split", "number")
MAX_FIELDS = 4  # the time that a match may take grows with the length of a name to this power less one
TEXT = {"number": r"\d+", "": r"[^/]*?"}  # of all other fields [^/]+?


@dataclass(frozen=True)
class NamePattern:
    """A pattern, ready to be matched."""

    text: str
    fields: tuple[str, ...]  # in order; "" for {}
    expression: re.Pattern[str]
    whole: bool  # of the whole path
    stem: bool  # without the extension

    def match(self, key: str) -> dict[str, str] | None:
        """Return {field: text} of a path below the folder; None: it has another form."""
        name = key if self.whole else key.rpartition("/")[2]
        folder, slash, last = name.rpartition("/")
        if self.stem and "." in last[1:]:
            name = f"{folder}{slash}{last.rpartition('.')[0]}"
        match = self.expression.fullmatch(name)
        if match is None:
            return None
        texts: dict[str, str] = {}
        for field, text in zip(self.fields, match.groups(), strict=True):
            texts[field] = f"{texts[field]}/{text}" if field in texts else text
        return texts


def parse_pattern(text: str, *needed: str) -> NamePattern:
    """Read a pattern that has one of the fields `needed`; ConfigError says what is allowed."""
    pieces = re.split(r"\{([^{}]*)\}", text)
    fields = tuple(field.strip() for field in pieces[1::2])
    allowed = ", ".join(f"{{{field}}}" for field in (*FIELDS, ""))
    if wrong := [field for field in fields if field and field not in FIELDS]:
        raise ConfigError(f"pattern {text!r}: no field {{{wrong[0]}}}; the fields are {allowed}")
    if any("{" in piece or "}" in piece for piece in pieces[::2]):
        raise ConfigError(f"pattern {text!r}: a brace without its partner; the fields are {allowed}")
    if not set(needed) & set(fields):
        raise ConfigError(f"pattern {text!r}: no field {' or '.join(f'{{{name}}}' for name in needed)}")
    if len(fields) > MAX_FIELDS:
        raise ConfigError(f"pattern {text!r}: {len(fields)} fields; at most {MAX_FIELDS} are allowed")
    pairs = zip(pieces[2:-1:2], pairwise(fields), strict=True)
    if any(not between and "number" not in pair for between, pair in pairs):
        raise ConfigError(f"pattern {text!r}: nothing stands between two fields: where does the first end?")
    expression = "".join(
        f"({TEXT.get(piece.strip(), '[^/]+?')})" if k % 2 else re.escape(piece)
        for k, piece in enumerate(pieces)
    )
    return NamePattern(text, fields, re.compile(expression), "/" in text, "." not in pieces[-1])
