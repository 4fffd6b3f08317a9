"""Durations are values: 10_000 steps, "90ep" epochs, "5%" of the run."""

from __future__ import annotations

import re

from vitrail.errors import ConfigError

Duration = int | str

_EPOCHS = re.compile(r"(\d+(?:\.\d+)?)\s*(?:ep|epoch|epochs)")
_PERCENT = re.compile(r"(\d+(?:\.\d+)?)\s*%")


def in_steps(duration: Duration, *, examples: int, batch_size: int, total: int | None = None) -> int:
    """Return the duration in steps of `batch_size` examples, out of `examples`, in a run of `total` steps."""
    text = str(duration).strip().replace("_", "")
    if text.isdecimal():
        if total is None and not int(text):
            raise ConfigError(f"steps {duration}: a run has at least 1")
        return int(text)
    if match := _EPOCHS.fullmatch(text):
        return round(float(match[1]) * examples / batch_size)
    if (match := _PERCENT.fullmatch(text)) and total is not None and float(match[1]) <= 100:
        return round(float(match[1]) / 100 * total)
    allowed = "steps (10_000), epochs (90ep)" + ("" if total is None else " or a part of the run (5%)")
    raise ConfigError(f"{duration!r} is not a duration: {allowed}")
