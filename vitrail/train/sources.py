"""The parts of a data set that a run uses: what it trains on, what it chooses by, what it is judged on at the end."""

from __future__ import annotations

from dataclasses import dataclass, replace

from vitrail.data.sources import Source, open_source, unseen_split
from vitrail.data.splits import check_apart, parse_split
from vitrail.errors import ConfigError, DataError
from vitrail.train.experiment import DataChoice, Experiment

# Table 4 and BiT-HyperRule tell data sets apart by size: examples below which a set is small, and medium.
SMALL, MEDIUM = 20_000, 500_000
NOTHING = (None, "", "none")  # in the place of a split
NAMED = 5  # classes in a note


@dataclass(frozen=True)
class Sources:
    train: Source
    val: Source | None
    test: Source | None

    @classmethod
    def open(cls, choice: DataChoice) -> Sources:
        if not choice.data:
            raise ConfigError("no data: --data PATH (a folder of images, Parquet or tar shards), or a name")
        choice = with_test(with_splits(choice))
        train = open_source(choice.data, choice.train)
        val = held_out(choice)
        test = None if choice.test in NOTHING else open_source(choice.data, choice.test)
        for other in (val, test):
            if other is None:
                continue
            if other.class_names != train.class_names:
                raise DataError(different_classes(train, other))
            check_apart(train, other)
        return cls(train, val, test)

    def noted(self) -> tuple[str, list[str]]:
        """What a run remembers of its data: a fingerprint, which changes when it does, and the class names."""
        parts = (self.train, self.val, self.test)
        made = " ".join("-" if part is None else part.fingerprint() for part in parts)
        return made, self.train.class_names

    def untested(self) -> list[str]:
        """The classes that the test split has no images of; none where nothing is tested."""
        return [] if self.test is None else without_images(self.test)


def remarks(experiment: Experiment, sources: Sources) -> list[str]:
    """What a person may not have meant."""
    made, train = [], sources.train
    absent = without_images(train)
    if absent and experiment.objective.objective != "masked":
        made.append(
            f"{train.name} has no image of {len(absent):,} of {len(train.class_names):,} classes, which cannot be "
            f"learnt: {some_of(absent)} (`train[:25% per class]` takes a part of each)"
        )
    if experiment.data.val == "auto" and sources.val is None:
        made.append(
            "--train without --val: nothing is held out to choose by; --train 'train[:90% per class]' --val "
            "'train[90%: per class]' would"
        )
    return made


def without_images(source: Source) -> list[str]:
    """Its classes that nothing in it is of."""
    there = set(source.labels.tolist())
    return [name for label, name in enumerate(source.class_names) if label not in there]


def some_of(names: list[str]) -> str:
    more = f" and {len(names) - NAMED:,} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def with_splits(choice: DataChoice) -> DataChoice:
    """What `auto` means for train and val: the paper's parts to choose by, class by class."""
    if choice.train != "auto":
        return replace(choice, val="none") if choice.val == "auto" else choice
    if choice.val != "auto":
        return replace(choice, train=beside(choice.val))
    n = len(open_source(choice.data, "train"))
    part = f"{100 * (1 - held_part(n)):g}%"
    return replace(choice, train=f"train[:{part} per class]", val=f"train[{part}: per class]")


def with_test(choice: DataChoice) -> DataChoice:
    """Likewise for test, once train and val are known: a split that nothing else has seen, or none."""
    if choice.test != "auto":
        return choice
    seen = [split for split in (choice.train, choice.val) if split not in NOTHING]
    return replace(choice, test=unseen_split(choice.data, *seen) or "none")


def beside(val: str) -> str:
    """Train, without the one slice of it that is held out."""
    taken = [] if val in NOTHING else [part for part in parse_split(val) if part.name == "train"]
    if len(taken) != 1:
        return "train"
    (held,) = taken
    left = (replace(held, start=None, stop=held.start), replace(held, start=held.stop, stop=None))
    return "+".join(str(part) for part in left if part.start or part.stop) or "train"


def held_part(examples: int) -> float:
    """To choose by, out of so many training examples: as the paper has it for Pets and Flowers, CIFAR, ImageNet."""
    return 0.1 if examples < SMALL else 0.02 if examples < MEDIUM else 0.01


def different_classes(train: Source, other: Source) -> str:
    only = sorted(set(other.class_names) - set(train.class_names))
    missing = sorted(set(train.class_names) - set(other.class_names))
    return (
        f"{other.name} and {train.name} do not have the same classes: "
        + "; ".join(
            f"only in {name}: {', '.join(found[:5])}"
            for name, found in ((other.name, only), (train.name, missing))
            if found
        )
        + ("" if only or missing else "the order differs")
    )


def held_out(choice: DataChoice) -> Source | None:
    if choice.val in NOTHING:
        return None
    try:
        return open_source(choice.data, choice.val)
    except DataError as error:
        raise DataError(
            f"{error}; --val names what is held out, `--train train --val none` holds out nothing"
        ) from error
