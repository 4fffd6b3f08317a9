"""Data sets: data inspect, data dedup, data shard."""

from __future__ import annotations

from typing import Annotated

from tyro.conf import Positional, arg

from vitrail.cli.verb import COMMON, Common, Shown


def data_inspect(
    path: Annotated[Positional[str], arg(metavar="PATH")],
    *,
    splits: tuple[str, ...] = (),
    sheet: str | None = None,
    common: Common = COMMON,
) -> Shown:
    """What is in a data set and what is wrong with it: broken files, duplicates, leaks between splits.

    Args:
        path: a folder, Parquet or tar shards, an .npz, or a name of the catalog
        splits: which splits; all of them where nothing is said
        sheet: a PNG file for a contact sheet, a few pictures of each class
    """
    from vitrail.data.audit import inspect_path, report_tables
    from vitrail.runtime.progress import bars

    with bars() as progress:
        report = inspect_path(path, splits=list(splits) or None, sheet=sheet, progress=progress)
    return Shown(common, [], [], report.as_json(), body=report_tables(report))


def data_dedup(
    train: Annotated[Positional[str], arg(metavar="TRAIN")],
    tests: Annotated[Positional[tuple[str, ...]], arg(metavar="TEST...")],
    *,
    out: str = "exclude.jsonl",
    train_split: str = "train",
    test_split: str | None = None,
    sheet: str | None = None,
    common: Common = COMMON,
) -> Shown:
    """The images of a training set that are near-duplicates of test images.

    Args:
        train: the training set
        tests: the test sets
        out: where the list to exclude is written (JSON lines)
        train_split: of the training set
        test_split: of the test sets; their test or validation split where nothing is said
        sheet: a PNG file for the pairs, side by side
    """
    from vitrail.data.leaks import dedup_paths, leak_table
    from vitrail.runtime.progress import bars

    splits = {"train_split": train_split, "test_split": test_split}
    with bars() as progress:
        leaks = dedup_paths(train, tests, **splits, out=out, sheet=sheet, progress=progress)  # type: ignore[arg-type]
    after = [f"{len(leaks.excluded):,} images of {train} to exclude, listed in {out}"]
    return Shown(common, [], [], leaks.as_json(), body=leak_table(leaks), after=after)


def data_shard(
    source: Annotated[Positional[str], arg(metavar="SRC")],
    folder: Annotated[Positional[str], arg(metavar="DST")],
    *,
    splits: tuple[str, ...] = (),
    shard_mb: int = 256,
    no_check: bool = False,
    common: Common = COMMON,
) -> Shown:
    """Any data set to Parquet shards; a run that was interrupted goes on where it stopped.

    Args:
        source: what to read
        folder: where the shards go
        splits: which splits; all of them where nothing is said
        shard_mb: size of a shard
        no_check: do not decode every image; without this flag those that cannot be decoded are left out
    """
    from dataclasses import asdict

    from vitrail.data.shard import shard
    from vitrail.data.sources import splits_of

    names = splits or tuple(splits_of(source))
    reports = [
        shard(source, folder, split=name, shard_mb=shard_mb, check=not no_check, progress=True)
        for name in names
    ]
    rows = [[r.split, str(r.shards), f"{r.examples:,}", f"{r.broken:,}", str(r.kept)] for r in reports]
    columns = ["split", ">shards", ">examples", ">broken, left out", ">shards kept from before"]
    result = {"folder": folder, "splits": [{**asdict(r), "folder": str(r.folder)} for r in reports]}
    return Shown(common, columns, rows, result)
