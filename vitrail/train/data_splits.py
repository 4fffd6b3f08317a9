"""The splits of a run: trained on, chosen by, evaluated at the end; what `auto` means for each."""

from __future__ import annotations

from dataclasses import dataclass, replace

from vitrail.data.settings import DataSettings
from vitrail.data.several_labels import class_counts
from vitrail.data.sources import DataSet, Source
from vitrail.data.splits import check_apart, parse_split
from vitrail.errors import ConfigError, DataError

# Table 4 and BiT-HyperRule tell data sets apart by size: examples below which a set is small, and medium.
SMALL, MEDIUM = 20_000, 500_000
NOTHING = (None, "", "none")  # in the place of a split
HELD_OUT = "validation"  # the split that is for choices
NAMED = 5  # classes in a note


@dataclass(frozen=True)
class Sources:
    train: Source
    val: Source | None
    test: Source | None
    calibrate: Source | None = None  # neither trained nor tested on; may be `val`

    @classmethod
    def open(cls, settings: DataSettings, data: DataSet | None = None) -> Sources:
        """Open the splits that the settings name; `data` is the data set, where it is open already."""
        data = open_data(settings) if data is None else data
        settings = resolve_splits(settings, data)
        train = data.part(settings.train)
        try:
            val = None if settings.val in NOTHING else data.part(settings.val)
        except DataError as error:
            raise DataError(
                f"{error}; --val names the validation split, `--train train --val none` holds out nothing"
            ) from error
        test = None if settings.test in NOTHING else data.part(settings.test)
        for other in filter(None, (val, test)):
            if other.class_names != train.class_names:
                only = {
                    one.name: sorted(set(one.class_names) - set(beside.class_names))[:NAMED]
                    for one, beside in ((other, train), (train, other))
                }
                lists = [f"only in {name}: {', '.join(names)}" for name, names in only.items() if names]
                raise DataError(
                    f"{other.name} and {train.name} do not have the same classes: "
                    + ("; ".join(lists) or "the order differs")
                )
            check_apart(train, other)
        return cls(train, val, test, open_held_out(settings, data, train, val, test))

    def fingerprint(self) -> tuple[str, list[str]]:
        """Return what a run records about its data: a fingerprint, which changes with the data, and class names."""
        splits = [self.train, self.val, self.test]
        splits += [] if self.calibrate in (None, self.val) else [self.calibrate]
        return " ".join("-" if s is None else s.fingerprint() for s in splits), self.train.class_names

    def untested(self) -> list[str]:
        """Return the classes without images in the test split; none if nothing is tested."""
        return [] if self.test is None else without_images(self.test)


def open_held_out(
    settings: DataSettings, data: DataSet, train: Source, val: Source | None, test: Source | None
) -> Source | None:
    """Open what the temperature is fitted on: the split that is named, else `val`, else a validation split that the
    run does not use otherwise; None if there is none, or if it does not fit."""
    if settings.calibrate in NOTHING:
        return None
    if settings.calibrate != "auto":
        source = data.part(settings.calibrate)
        if source.class_names != train.class_names:
            raise DataError(f"{source.name} and {train.name} do not have the same classes")
        for other in filter(None, (train, test)):
            check_apart(other, source)
        return source
    used = [split for split in (settings.train, settings.val, settings.test) if split not in NOTHING]
    names = {part.name for split in used for part in parse_split(split)}
    if val is not None or HELD_OUT in names or HELD_OUT not in data.splits:
        return val
    try:
        source = data.part(HELD_OUT)
    except DataError:  # no labels, as some published ones
        return None
    return source if source.class_names == train.class_names else None


def open_data(settings: DataSettings) -> DataSet:
    if not settings.data:
        raise ConfigError("no data: give a folder of images, Parquet or tar shards, or a name (--data PATH)")
    return DataSet(settings.data)


def without_images(source: Source) -> list[str]:
    """Return the classes without examples."""
    return [name for name, n in zip(source.class_names, class_counts(source), strict=True) if not n]


def list_some(names: list[str]) -> str:
    more = f" and {len(names) - NAMED:,} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def resolve_splits(settings: DataSettings, data: DataSet) -> DataSettings:
    """Replace `auto`: for train and val the paper's held-out parts, class by class; for test an unused split."""
    train, val, test = settings.train, settings.val, settings.test
    if train != "auto":
        val = "none" if val == "auto" else val
    elif val != "auto":
        # Train without the one slice of it that is held out.
        held = [] if val in NOTHING else [part for part in parse_split(val) if part.name == "train"]
        train = "train"
        if len(held) == 1:
            left = (
                replace(held[0], start=None, stop=held[0].start),
                replace(held[0], start=held[0].stop, stop=None),
            )
            train = "+".join(str(part) for part in left if part.start or part.stop) or "train"
    else:
        part = f"{100 * (1 - held_part(len(data.whole('train')))):g}%"
        train, val = f"train[:{part} per class]", f"train[{part}: per class]"
    if test == "auto":
        test = data.unseen_split(*(split for split in (train, val) if split not in NOTHING)) or "none"
    return replace(settings, train=train, val=val, test=test)


def held_part(examples: int) -> float:
    """Return the fraction of `examples` to hold out, as the paper does for Pets, CIFAR and ImageNet."""
    return 0.1 if examples < SMALL else 0.02 if examples < MEDIUM else 0.01
