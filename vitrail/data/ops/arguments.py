"""What the arguments of a preprocessing op may be; a ConfigError says what was given and what is allowed.

The ops of pixel_ops.py, value_ops.py and augment.py check their own fields with these when they are made.
`op` is the name of the op in a preprocessing line, the keywords are the fields.
"""

from __future__ import annotations

import math

from vitrail.errors import ConfigError

MAX_SIDE = 16_384  # pixels; a line can come from a downloaded model, and must not ask for all memory


def check_whole(op: str, least: int = 1, most: int = MAX_SIDE, **numbers: object) -> None:
    for field, number in numbers.items():
        if not isinstance(number, int) or isinstance(number, bool) or not least <= number <= most:
            raise ConfigError(f"{op}: {field} is {number!r}; allowed: a whole number from {least} to {most}")


def check_numbers(op: str, least: float = -1e9, most: float = 1e9, **numbers: object) -> None:
    for field, number in numbers.items():
        if not isinstance(number, int | float) or isinstance(number, bool) or not least <= number <= most:
            raise ConfigError(f"{op}: {field} is {number!r}; allowed: a number from {least:g} to {most:g}")


def check_interval(op: str, most: float = 1e9, **intervals: object) -> None:
    for field, interval in intervals.items():
        if not isinstance(interval, tuple) or len(interval) != 2:
            raise ConfigError(f"{op}: {field} is {interval!r}; allowed: (low, high)")
        low, high = interval
        check_numbers(op, most=most, **{f"the high end of {field}": high})
        check_numbers(op, math.ulp(0.0), high, **{f"the low end of {field}": low})


def check_word(op: str, allowed: tuple[str, ...], **words: object) -> None:
    for field, word in words.items():
        if word not in allowed:
            raise ConfigError(f"{op}: {field} is {word!r}; allowed: {', '.join(allowed)}")
