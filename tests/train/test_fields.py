from pathlib import Path
from typing import Literal

import pytest

from vitrail.errors import ConfigError
from vitrail.train.fields import typed

Several = tuple[str, ...]


@pytest.mark.parametrize(
    ("given", "annotation", "value"),
    [
        (4, int | None, 4),
        (None, int | None, None),
        (1, float, 1),
        ("90ep", int | str, "90ep"),
        (Path("a/b"), str, "a/b"),
        ([0.1, 1], tuple[float, ...] | None, (0.1, 1)),
        ("body", Several, ("body",)),
        ("sgd", Literal["sgd", "adamw"] | None, "sgd"),
    ],
)
def test_what_fits_is_taken(given, annotation, value):
    assert typed("field", given, annotation) == value


@pytest.mark.parametrize(
    ("given", "annotation", "problem"),
    [
        ("4", int | None, "batch must be a whole number or None, not of type str '4'"),
        (True, int, "batch must be a whole number, not of type bool True"),
        (4.0, int, "batch must be a whole number, not of type float 4.0"),
        ("0.1", float, "batch must be a number, not of type str '0.1'"),
        (1, bool, "batch must be True or False, not of type int 1"),
        (object(), str, "batch must be text, not of type object"),
        (["a"], tuple[float, ...], r"batch must be several of a number, not of type list \['a'\]"),
        ("nadam", Literal["sgd", "adamw"], "batch must be one of sgd, adamw, not of type str 'nadam'"),
    ],
)
def test_what_does_not_is_refused_in_words(given, annotation, problem):
    with pytest.raises(ConfigError, match=f"^{problem}$"):
        typed("batch", given, annotation)
