"""Names of splits, split strings and the examples that they take, and cuts class by class."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitrail.data.sources import Example, Source
from vitrail.data.splits import (
    Bound,
    Joined,
    Part,
    Subset,
    canonical,
    find_split,
    in_order,
    parse_split,
    pieces,
    select_source,
    shared,
    split_in_name,
    stratified,
)
from vitrail.errors import ConfigError, DataError


@dataclass
class Numbered:
    """n examples that know their own number."""

    name: str
    n: int
    classes: int = 3
    class_names: list[str] = field(init=False)
    labels: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self.class_names = [f"class {c}" for c in range(self.classes)]
        self.labels = np.arange(self.n) * 7 % self.classes

    def __len__(self) -> int:
        return self.n

    def key(self, index: int) -> str:
        return f"{self.name}:{index}"

    def read(self, index: int) -> Example:
        return Example(bytes([index % 256]), int(self.labels[index]), self.key(index))

    def fingerprint(self) -> str:
        return f"{self.name} {self.n}"


def take(text: str, **sources: Source) -> Source:
    return select_source([(sources[part.name], part) for part in parse_split(text)])


def keys(source: Source) -> list[str]:
    return [source.key(i) for i in range(len(source))]


@pytest.mark.parametrize(
    ("text", "first", "last", "n"),
    [
        ("train", 0, 99, 100),
        ("train[:98%]", 0, 97, 98),
        ("train[98%:]", 98, 99, 2),
        ("train[10%:20%]", 10, 19, 10),
        ("train[:30]", 0, 29, 30),
        ("train[-30:]", 70, 99, 30),
        ("train[:-10%]", 0, 89, 90),
        ("train[ 5 : 1_0 ]", 5, 9, 5),
        ("train[99.4%:]", 99, 99, 1),
        ("training[:1]", 0, 0, 1),
    ],
)
def test_slices(text: str, first: int, last: int, n: int) -> None:
    source = take(text, train=Numbered("train", 100))
    assert keys(source) == [f"train:{i}" for i in range(first, last + 1)]
    assert len(source) == n == len(source.labels)


def test_percent_rounds_half_to_even_as_tfds() -> None:
    at_half = [Bound(Fraction(50), True).position(n) for n in range(8)]
    assert at_half == [round(50 * n / 100) for n in range(8)] == [0, 0, 1, 2, 2, 2, 3, 4]


@given(n=st.integers(0, 10**4), percent=st.decimals(0, 100, places=2), count=st.integers(0, 10**6))
def test_complementary_slices_partition(n: int, percent: object, count: int) -> None:
    for bound in (f"{percent}%", str(min(count, n)), f"-{min(count, n)}" if count and n else "0"):
        head, tail = parse_split(f"train[:{bound}]+train[{bound}:]")
        source = Numbered("train", n)
        joined = np.concatenate([head.indices(source), tail.indices(source)])
        assert np.array_equal(joined, np.arange(n))


bounds = st.none() | st.builds(
    lambda value, percent: Bound(Fraction(value, 1 if not percent else 4), percent),
    st.integers(-100, 100),
    st.booleans(),
)
parts = st.builds(
    Part, st.sampled_from(["train", "validation", "test", "train800", "a.b-c"]), bounds, bounds
) | st.builds(
    Part,
    st.just("train"),
    bounds,
    bounds.filter(lambda bound: bound is not None and bound.value != 0),
    per_class=st.just(True),
    seed=st.integers(0, 2**40),
)


@given(st.lists(parts, min_size=1, max_size=4))
def test_text_and_back(terms: list[Part]) -> None:
    assert parse_split(" + ".join(map(str, terms))) == tuple(terms)


@given(st.text(alphabet="train[]:%+-5 .,persclase", max_size=20))
def test_any_text_parses_or_says_what_is_allowed(text: str) -> None:
    try:
        assert parse_split("+".join(map(str, parse_split(text)))) == parse_split(text)
    except ConfigError as error:
        assert text in str(error) or repr(text)[1:-1] in str(error)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "train[",
        "train[5]",
        "train[:5.5]",
        "train[:101%]",
        "train[a:b]",
        "train[:0 per class]",
        "train,test",
        "a/../b",
    ],
)
def test_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="split"):
        parse_split(text)


def test_bounds_outside_of_the_split_are_errors() -> None:
    for text in ("train[:101]", "train[-101:]", "train[200:300]"):
        with pytest.raises(DataError, match="outside a split of 100"):
            take(text, train=Numbered("train", 100))


def test_a_part_that_takes_nothing_is_an_error() -> None:
    with pytest.raises(DataError, match="none of its 10 examples"):
        take("train[:1%]", train=Numbered("train", 10))


def test_few_per_class_in_order_balanced_and_nested() -> None:
    source = Numbered("train", 90, classes=5)
    five = take("train[:5 per class, seed 3]", train=source)
    assert np.bincount(five.labels).tolist() == [5] * 5
    indices = [int(key.split(":")[1]) for key in keys(five)]
    assert indices == sorted(indices)
    assert set(keys(five)) < set(keys(take("train[:10 per class, seed 3]", train=source)))
    assert keys(five) != keys(take("train[:5 per class]", train=source))
    assert keys(take("train[:5 per class]", train=source)) == keys(
        take("train[:5 per class, seed 0]", train=source)
    )


def test_few_per_class_more_than_there_are() -> None:
    with pytest.raises(DataError, match=r"class 'class 1': bound 31 is outside a split of 30"):
        take("train[:31 per class]", train=Numbered("train", 91, classes=3))


@given(n=st.integers(3, 300), percent=st.integers(0, 100), seed=st.integers(0, 5))
def test_slices_of_classes_partition_a_split_in_proportion(n: int, percent: int, seed: int) -> None:
    source = Numbered("train", n)
    source.labels = np.sort(source.labels)  # as a folder has them: class after class
    (head,) = parse_split(f"train[:{percent}.0% per class, seed {seed}]") if percent else (None,)
    (tail,) = parse_split(f"train[{percent}%: per class, seed {seed}]")
    first = np.zeros(0, np.int64) if head is None else head.indices(source)
    assert np.array_equal(np.sort(np.concatenate([first, tail.indices(source)])), np.arange(n))
    counts = np.bincount(source.labels[first], minlength=3)
    assert counts.tolist() == [round(percent * c / 100) for c in np.bincount(source.labels, minlength=3)]


def test_joined_keeps_order_keys_and_labels() -> None:
    a, b = Numbered("train", 4), Numbered("validation", 3)
    both = take("train[2:]+validation", train=a, validation=b)
    assert isinstance(both, Joined)
    assert keys(both) == ["train:2", "train:3", "validation:0", "validation:1", "validation:2"]
    assert [both.read(i).key for i in range(5)] == keys(both)
    assert [both.read(i).label for i in range(5)] == both.labels.tolist()
    assert both.class_names == a.class_names
    with pytest.raises(IndexError):
        both.read(5)


def test_joined_refuses_other_classes() -> None:
    with pytest.raises(DataError, match="classes differ"):
        take("train+test", train=Numbered("train", 4), test=Numbered("test", 4, classes=2))


def test_fingerprints_follow_what_is_taken() -> None:
    source = Numbered("train", 100)
    prints = {take(f"train[:{n}]", train=source).fingerprint() for n in (10, 11, 12)}
    prints |= {take("train[:10]+train[10:12]", train=source).fingerprint(), source.fingerprint()}
    assert len(prints) == 5
    assert take("train[:10]", train=source).fingerprint() == take("train[:10%]", train=source).fingerprint()


def test_subset_pickles() -> None:
    subset = Subset(Numbered("train", 10), np.array([7, 1]))
    again = pickle.loads(pickle.dumps(subset))
    assert keys(again) == ["train:7", "train:1"]
    assert again.read(0) == subset.read(0)


@given(st.data())
def test_shared_counts_the_keys_in_both(data):
    def part():
        indices = st.lists(st.integers(0, 8), unique=True, min_size=1)
        made = [
            Subset(Numbered(name, 9), data.draw(indices))
            for name in data.draw(st.sampled_from(["a", "b", "ab"]))
        ]
        joined = made[0] if len(made) == 1 else Joined(made)
        return Subset(joined, np.arange(len(joined))[:: data.draw(st.sampled_from([1, 2]))])

    def members(source):
        return {(whole.name, i) for whole, places in pieces(source) for i in places.tolist()}

    one, other = part(), part()
    assert len(members(one)) == len(one)
    assert shared(one, other) == len(members(one) & members(other)) == shared(other, one)


@pytest.mark.parametrize(
    ("stem", "split"),
    [
        ("train", "train"),
        ("cifar10-train", "train"),
        ("imagenet_val", "validation"),
        ("val200", "validation"),
        ("train800", "train"),
        ("Test.images", "test"),
        ("trains", None),
        ("latest", None),
        ("train-val", None),
        ("photos", None),
        ("TrainImages", "train"),
        ("testset", "test"),
        ("seg_train", "train"),
    ],
)
def test_split_in_name(stem: str, split: str | None) -> None:
    assert split_in_name(stem) == split


def test_canonical_and_order() -> None:
    assert [canonical(name) for name in ("VAL", "dev", "testing", "extra")] == [
        "validation",
        "validation",
        "test",
        "extra",
    ]
    assert in_order(["zoo", "test", "extra", "train"]) == ["train", "test", "extra", "zoo"]


def test_find_split_lists_what_there_is() -> None:
    assert find_split("val", ["train", "validation"], "here") == "validation"
    with pytest.raises(DataError, match="here has no split 'extra'; it has: train, test"):
        find_split("extra", ["train", "test"], "here")


files = st.lists(
    st.tuples(st.binary(min_size=1, max_size=6), st.integers(0, 4)), min_size=1, unique_by=lambda f: f[0]
)


def split(
    found: list[tuple[bytes, int]], seed: int = 0, validation: float = 0.1, test: float = 0.2
) -> dict[str, set[bytes]]:
    labels = np.array([label for _, label in found])
    parts = stratified([name for name, _ in found], labels, seed=seed, validation=validation, test=test)
    return {part: {found[i][0] for i in indices} for part, indices in parts.items()}


@given(files, st.integers(0, 2**64))
def test_every_example_in_one_part_and_every_class_in_train(
    found: list[tuple[bytes, int]], seed: int
) -> None:
    parts = split(found, seed)
    assert sorted(name for part in parts.values() for name in part) == sorted(name for name, _ in found)
    assert {label for name, label in found if name in parts["train"]} == {label for _, label in found}


@given(files, st.randoms())
def test_the_order_of_the_files_does_not_matter(found: list[tuple[bytes, int]], random: object) -> None:
    shuffled = list(found)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert split(found) == split(shuffled)


def test_shares_of_each_class_and_the_seed() -> None:
    found = [(f"{label}/{i}".encode(), label) for label, n in enumerate((100, 50, 7, 1)) for i in range(n)]
    parts = split(found)
    counts = {
        part: [sum(name.startswith(f"{c}/".encode()) for name in names) for c in range(4)]
        for part, names in parts.items()
    }
    assert counts == {"train": [70, 35, 5, 1], "validation": [10, 5, 1, 0], "test": [20, 10, 1, 0]}
    assert split(found, seed=1) != parts
    assert split(found, validation=0, test=0)["train"] == {name for name, _ in found}


def test_a_new_file_moves_few_others() -> None:
    found = [(f"{i}".encode(), 0) for i in range(1000)]
    before, after = split(found), split([*found, (b"new", 0)])
    moved = sum(len(before[part] - after[part]) for part in before)
    assert moved <= 2
