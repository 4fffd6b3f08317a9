"""The verbs that fine-tune and probe a model on many data sets: vtab, transfer."""

from __future__ import annotations

from pathlib import Path

from vitrail.cli.verb import COMMON, Common, ModelPath, Shown
from vitrail.train.folders import default_folder
from vitrail.transfer.settings import SUITE, VTAB, Method, SuiteSettings, VTABSettings


def vtab(
    model: ModelPath,
    *,
    data: str,
    out: str | None = None,
    tasks: tuple[str, ...] = (),
    manifests: str | None = None,
    paper: str | None = None,
    settings: VTABSettings = VTAB,
    common: Common = COMMON,
) -> Shown:
    """Fine-tune on the 19 tasks of VTAB-1k. Repeat the command to continue, or run several at once on one --out.

    Args:
        model: a name in the box (ti8-64), a bundle, a run, any supported checkpoint, or an architecture
        data: folder with a folder of Parquet files for each task or data set (see docs/transfer.md)
        out: folder for the results (default: runs/vtab-MODEL)
        tasks: names of tasks, or groups: natural, specialized, structured (default: all 19)
        manifests: folder of TASK.csv from another run; other examples are refused
        paper: model of the paper's Table 9 to compare with: "H/14 JFT", "L/16 JFT" or "L/16 i21k"
    """
    from vitrail.transfer import vtab as work

    folder = Path(out) if out else default_folder("vtab", model)
    result = work.vtab(
        model, data, folder, tasks=tasks, settings=settings, manifests=manifests, paper=paper,
        device=common.device,
    )  # fmt: skip
    columns, rows = work.table(result)
    return Shown(common, aligned(columns, 2), rows, result, after=[*work.remarks(result), written(folder)])


def transfer(
    model: ModelPath,
    *,
    data: tuple[str, ...],
    out: str | None = None,
    methods: tuple[Method, ...] = ("fewshot", "linear", "knn", "finetune"),
    paper: str | None = None,
    settings: SuiteSettings = SUITE,
    common: Common = COMMON,
) -> Shown:
    """Run few-shot, linear probe, kNN and fine-tuning on a list of data sets. Repeat the command to continue.

    Args:
        model: a name in the box (ti8-64), a bundle, a run, or any supported checkpoint
        data: folders of images, Parquet or tar shards, .npz files, or names of the catalog
        out: folder for the results (default: runs/transfer-MODEL)
        methods: methods to run
        paper: model of the paper's Tables 5 and 6 to compare with, such as "B/16 i21k" (default: by the model's name)
    """
    from vitrail.transfer import suite as work

    folder = Path(out) if out else default_folder("transfer", model)
    result = work.transfer(
        model, data, folder, methods=methods, settings=settings, paper=paper, device=common.device
    )
    columns, rows = work.table(result["rows"])
    return Shown(common, aligned(columns, 2), rows, result, after=[*work.remarks(result), written(folder)])


def aligned(columns: list[str], words: int) -> list[str]:
    """Mark the columns after the first `words` as numbers, which are right-aligned."""
    return [*columns[:words], *(f">{column}" for column in columns[words:])]


def written(folder: Path) -> str:
    return f"Results written to {folder / 'results.md'}, results.csv and results.json"
