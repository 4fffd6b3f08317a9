"""Data sets: data inspect, data dedup, data shard, data apply."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable
from typing import Annotated, Any

from tyro.conf import Positional, arg

from vitrail.cli.verb import COMMON, Common, Output, table

DONE = ("kept", "relabelled", "dropped")  # of decisions
NAMED = 5  # unreadable images in a message


def data_inspect(
    path: Annotated[Positional[str], arg(metavar="PATH")],
    *,
    splits: tuple[str, ...] = (),
    sheet: str | None = None,
    common: Common = COMMON,
) -> Output:
    """Report what a data set contains and what is wrong with it: broken files, duplicates, leaks between splits.

    Args:
        path: a folder, Parquet or tar shards, an .npz file, or a name of the catalog
        splits: splits to inspect; if unset, all
        sheet: PNG file for a contact sheet, a few images of each class
    """
    from rich.console import Group
    from rich.text import Text

    from vitrail.data.audit import inspect_data

    report = inspect_data(path, splits=list(splits) or None, sheet=sheet)
    inspected = report.splits
    ranges = [sorted({min(split.counts), max(split.counts)}) for split in inspected]
    rows = [
        ["images", *(f"{split.images:,}" for split in inspected)],
        ["classes", *(f"{len(split.class_names):,}" for split in inspected)],
        ["images per class", *(" to ".join(f"{n:,}" for n in ends) for ends in ranges)],
        *(
            [["groups", *(f"{split.groups or 0:,}" for split in inspected)]]
            if any(split.groups for split in inspected)
            else []
        ),
        ["imbalance", *("" if split.balance is None else f"{split.balance:.1f}" for split in inspected)],
        ["height", *(str(split.height or "") for split in inspected)],
        ["width", *(str(split.width or "") for split in inspected)],
        ["unreadable", *(f"{len(split.unreadable):,}" for split in inspected)],
        [
            "stored as",
            *(", ".join(f"{mode} {n:,}" for mode, n in split.modes.items()) for split in inspected),
        ],
    ]
    # A column for each split, so that the table fits a narrow terminal.
    body: list[Any] = [Text(f"Layout: {report.layout}")] if report.layout else []
    body.append(table(["split", *(f">{split.name}" for split in inspected)], rows))
    if report.copies:
        copies = []
        for names, pairs in report.copies_by_splits.items():
            counts = [*count_kinds(copy.how for copy in pairs), sum(copy.conflict for copy in pairs)]
            copies.append([*names, *(f"{count:,}" for count in counts)])
        headings = ["copies in", "and in", ">same bytes", ">near", ">mirrored", ">different labels"]
        body.append(table(headings, copies))
    after = [f"- {problem}" for problem in report.problems] or ["No problems found."]
    if refusals := report.refusals:
        after += ["`vitrail finetune` would refuse this data:", *(f"- {refusal}" for refusal in refusals)]
    elif not splits and not {"validation", "test"} & {split.name for split in inspected}:
        after.append(
            "`vitrail finetune` would test nothing: --train 'train[:90% per class]' --test 'train[90%: per class]' "
            "holds out a part"
        )
    after += [f"Contact sheet: {report.sheet}"] if report.sheet else []
    return Output(common, [], [], report.as_json(), body=Group(*body), after=after)


def count_kinds(how: Iterable[str]) -> list[int]:
    """Return how many copies have the same bytes, are near, and are mirrored."""
    counts = Counter(how)
    return [counts["bytes"], counts["near"], counts["mirrored"]]


def data_dedup(
    train: Annotated[Positional[str], arg(metavar="TRAIN")],
    tests: Annotated[Positional[tuple[str, ...]], arg(metavar="TEST...")],
    *,
    out: str = "exclude.jsonl",
    train_split: str = "train",
    test_split: str | None = None,
    sheet: str | None = None,
    common: Common = COMMON,
) -> Output:
    """List the images of a training set that are near-duplicates of test images.

    Args:
        train: training set
        tests: test sets
        out: file for the list of images to exclude (JSON lines)
        train_split: split of the training set
        test_split: split of the test sets; if unset, test or else validation
        sheet: PNG file for the pairs, side by side
    """
    from vitrail.data.dedup import dedup

    leaks = dedup(train, tests, train_split=train_split, test_split=test_split, out=out, sheet=sheet)
    rows = []
    for test in leaks.tests:
        leaked, to_exclude = ({getattr(leak, side) for leak in test.leaks} for side in ("test", "train"))
        kinds = count_kinds(leak.how for leak in test.leaks)
        counts = [test.images, len(leaked), *kinds, len(to_exclude)]
        rows.append([test.name, *(f"{count:,}" for count in counts)])
    columns = ["test set", ">images", ">leaked", ">same bytes", ">near", ">mirrored", ">to exclude"]
    after = [
        f"{len(leaks.excluded):,} of {leaks.images:,} images of {leaks.train} to exclude, listed in {out}",
        *(f"{s.unreadable:,} images of {s.name} cannot be read" for s in leaks.tests if s.unreadable),
        *([f"Pairs drawn in {sheet}"] if sheet else []),
    ]
    return Output(common, columns, rows, leaks.as_json(), after=after)


def data_shard(
    source: Annotated[Positional[str], arg(metavar="SRC")],
    folder: Annotated[Positional[str], arg(metavar="DST")],
    *,
    splits: tuple[str, ...] = (),
    shard_mb: int = 256,
    no_check: bool = False,
    common: Common = COMMON,
) -> Output:
    """Convert any data set to Parquet shards; an interrupted run continues where it stopped.

    Args:
        source: data set to read
        folder: folder for the shards
        splits: splits to convert; if unset, all
        shard_mb: size of a shard in MB
        no_check: do not decode every image; by default, images that cannot be decoded are left out
    """
    from dataclasses import asdict

    from vitrail.data.shard import shard
    from vitrail.data.sources import list_splits

    names = splits or tuple(list_splits(source))
    reports = [shard(source, folder, split=name, shard_mb=shard_mb, check=not no_check) for name in names]
    rows = [[r.split, str(r.shards), f"{r.examples:,}", f"{r.broken:,}", str(r.kept)] for r in reports]
    columns = ["split", ">shards", ">images", ">broken, left out", ">shards from an earlier run"]
    result = {"folder": folder, "splits": [{**asdict(r), "folder": str(r.folder)} for r in reports]}
    return Output(common, columns, rows, result)


def data_apply(
    decisions: Annotated[Positional[str], arg(metavar="DECISIONS")],
    *,
    data: str,
    out: str,
    copy: bool = False,
    common: Common = COMMON,
) -> Output:
    """Write a data set as the decisions of a review have it: a corrected list, or a corrected copy.

    Args:
        decisions: file that the page of `vitrail data check` saved
        data: the data set that was checked; it is not changed
        out: new file for the list (.csv or .jsonl), or with --copy a new folder
        copy: write the images too, as class folders; for data that is no folder of images
    """
    from vitrail.curate.apply_decisions import apply_decisions

    applied = apply_decisions(decisions, data, out, copy=copy)
    done = ", ".join(f"{n:,} {words}" for words, n in zip(DONE, applied.counts.values(), strict=True))
    rows = [[split, f"{images:,}"] for split, images in applied.images.items()]
    after = [
        f"{done}. {'Copied to' if copy else 'Listed in'} {out}; the data itself is as it was.",
        *(f"No image of {name} is left" for name in applied.emptied),
        f"Use it: --data {shlex.quote(applied.use)}",
    ]
    output = Output(common, ["split", ">images"], rows, applied.as_json(), after=after)
    if unreadable := applied.unreadable:
        more = f"; {len(unreadable) - NAMED:,} more" if len(unreadable) > NAMED else ""
        output.problems.append(
            f"{len(unreadable):,} unreadable and not copied: {'; '.join(unreadable[:NAMED])}{more}"
        )
    return output
