"""Patterns of file names: what they take, what they refuse, and that no name makes one slow."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitrail.data.readers.name_patterns import parse_pattern
from vitrail.errors import ConfigError

WORD = st.text(
    st.characters(blacklist_categories=("Cs",), blacklist_characters="/-."), min_size=1, max_size=12
)


@pytest.mark.parametrize(
    ("pattern", "key", "label"),
    [
        ("{label}_{number}", "great_dane_12.jpg", "great_dane"),
        ("{label}_{}", "great_dane_12.jpg", "great"),
        ("{label}{number}.png", "deep/cat12.png", "cat"),
        ("{label}.{number}.jpg", "cat.12.jpg", "cat"),
        ("{}-{label}.png", "x-dog.png", "dog"),
        ("{}/{label}_{number}", "a/dog_1.png", "dog"),
        ("{}/{label}_{number}", "dog_1.png", None),
        ("{label}_{number}.jpg", "dog_1.png", None),
        ("{label}_{number}", "dog_x.png", None),
        ("[{label}](.*)", "[a](.*)", "a"),
    ],
)
def test_patterns(pattern: str, key: str, label: str | None) -> None:
    match = parse_pattern(pattern, "label").match(key)
    assert (match and match["label"]) == label


def test_a_field_that_occurs_twice_is_all_of_its_texts() -> None:
    match = parse_pattern("{group}/{group}_{}", "group").match("20/track7_3.ppm")
    assert match is not None and match["group"] == "20/track7"


@pytest.mark.parametrize(
    "pattern",
    ["", "{}", "{number}", "{label", "label}", "{label}{}", "{{label}}", "{word}_{label}", "{label}_" * 5],
)
def test_patterns_that_are_refused(pattern: str) -> None:
    with pytest.raises(ConfigError, match="pattern"):
        parse_pattern(pattern, "label")


@given(WORD, st.integers(0, 10**9))
def test_what_was_put_together_is_taken_apart(label: str, number: int) -> None:
    match = parse_pattern("{label}-{number}.png", "label").match(f"a/b/{label}-{number}.png")
    assert match == {"label": label, "number": str(number)}


def test_no_name_takes_long() -> None:
    pattern = parse_pattern("{label}_{}_{}_{}!", "label")
    start = time.process_time()
    assert pattern.match("_" * 255) is None
    assert time.process_time() - start < 2
