"""What a model is worth on other people's data: vtab, transfer."""

from __future__ import annotations

from pathlib import Path

from vitrail.cli.verb import COMMON, Common, ModelPath, Shown
from vitrail.train.folders import default_folder
from vitrail.transfer.settings import PROTOCOL, SUITE, Method, Protocol, Suite


def vtab(
    model: ModelPath,
    *,
    data: str,
    out: str | None = None,
    tasks: tuple[str, ...] = (),
    manifests: str | None = None,
    paper: str | None = None,
    protocol: Protocol = PROTOCOL,
    common: Common = COMMON,
) -> Shown:
    """VTAB-1k: fine-tune on each of 19 tasks with 1,000 examples. Again, or several at once on one --out: it goes on.

    Args:
        model: a name in the box (ti8-64), a bundle, a run, anyone's checkpoint; an architecture's name: from scratch
        data: a folder with a folder of Parquet files for each task, or data set (docs/transfer.md)
        out: folder of the results; without one: runs/vtab-MODEL
        tasks: names of tasks, and of groups: natural, specialized, structured; without any: all 19
        manifests: folder of TASK.csv, what another run wrote: examples other than these are refused
        paper: what to compare with: "H/14 JFT", "L/16 JFT" or "L/16 i21k"
    """
    from vitrail.transfer import vtab as work
    from vitrail.transfer.vtab_table import below, table

    folder = Path(out) if out else default_folder("vtab", model)
    result = work.vtab(
        model, data, folder, tasks=tasks, protocol=protocol, manifests=manifests, paper=paper,
        device=common.device,
    )  # fmt: skip
    columns, rows = table(result)
    return Shown(common, aligned(columns, 2), rows, result, after=[*below(result), written(folder)])


def transfer(
    model: ModelPath,
    *,
    data: tuple[str, ...],
    out: str | None = None,
    methods: tuple[Method, ...] = ("fewshot", "linear", "knn", "finetune"),
    paper: str | None = None,
    suite: Suite = SUITE,
    common: Common = COMMON,
) -> Shown:
    """Few-shot, linear probe, kNN and fine-tuning on a list of data sets, in one table. Again: it goes on.

    Args:
        model: a name in the box (ti8-64), a bundle, a run, or anyone's checkpoint
        data: folders, Parquet or tar shards, .npz files, or names of the catalog
        out: folder of the results; without one: runs/transfer-MODEL
        methods: what to evaluate with
        paper: a model of the paper's Tables 5 and 6, as "B/16 i21k"; without one: what the model's name says
    """
    from vitrail.transfer import suite as work

    folder = Path(out) if out else default_folder("transfer", model)
    result = work.transfer(
        model, data, folder, methods=methods, suite=suite, paper=paper, device=common.device
    )
    columns, rows = work.table(result["rows"])
    return Shown(common, aligned(columns, 2), rows, result, after=[*work.below(result), written(folder)])


def aligned(columns: list[str], words: int) -> list[str]:
    """Numbers stand on the right; the first columns are words."""
    return [*columns[:words], *(f">{column}" for column in columns[words:])]


def written(folder: Path) -> str:
    return f"Written: {folder / 'results.md'}, results.csv, results.json"
