"""The verb evaluate: how good a model is."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, arg

from vitrail.cli.verb import COMMON, READING, Common, ModelPath, Output, Reading
from vitrail.errors import ConfigError

if TYPE_CHECKING:
    from vitrail.evaluators.accuracy import Evaluation

SHOWN = 5  # worst classes, confused pairs, broken files: so many of each


@dataclass(frozen=True)
class Passing:
    """Settings for reading the images."""

    batch_size: int = 64  # images at a time
    num_workers: int | None = None  # processes that decode images; if unset, as many as help
    max_bad: float = 0.01  # share of the images that may be broken before it stops


PASSING = Passing()


def evaluate(
    model: ModelPath,
    data: Annotated[Positional[str], arg(metavar="DATA")],
    *,
    split: str | None = None,
    mapping: str | None = None,
    real: str | None = None,
    out: str | None = None,
    passing: Passing = PASSING,
    reading: Reading = READING,
    common: Common = COMMON,
) -> Output:
    """Measure a model on labelled images: accuracy, loss, calibration, and where it fails.

    Args:
        model: an included model (ti8-64), a bundle, a run, or any supported checkpoint
        data: a folder, Parquet or tar shards, an .npz, or a name of the catalog
        split: which part, such as test or train[98%:]; if unset, the test split or else validation
        mapping: a JSON file {data class: [model classes, ...]} where names differ; or `order`: class k is class k
        real: the file of ReaL labels (real.json), for ImageNet's validation images
        out: a new JSON file for the whole result, with every class and the mistakes
    """
    from vitrail.checkpoints.formats import load
    from vitrail.evaluators.accuracy import evaluate as run
    from vitrail.evaluators.accuracy import open_split
    from vitrail.runtime.device import pick
    from vitrail.runtime.distributed import group, rank
    from vitrail.runtime.files import atomic_file

    if out is not None and Path(out).exists():
        raise ConfigError(f"--out {out} exists; nothing is overwritten")
    source = open_split(data, split)
    with group(pick(common.device)) as device:
        loaded = load(model, **reading.arguments()).to(device)
        evaluation = run(loaded, source, mapping=mapping, real=real, **vars(passing))
        first = rank() == 0
    result = {"model": model, "preprocess": loaded.preprocess, **evaluation.as_json()}
    output = Output(
        common, ["", f">{source.name}"], score_rows(evaluation), result, after=failures(evaluation)
    )
    if out is not None and first:
        mistakes = evaluation.mistakes(source)
        with atomic_file(Path(out)) as file:
            whole = {**result, "mistakes": mistakes}
            file.write_text(json.dumps(whole, allow_nan=False, indent=1) + "\n", encoding="utf-8")
        named = f" (the {len(mistakes):,} most confident by name)" if len(mistakes) < result["wrong"] else ""
        output.after.append(f"Whole result, with {result['wrong']:,} mistakes{named}: {out}")
    return output


def score_rows(evaluation: Evaluation) -> list[list[str]]:
    from vitrail.evaluators.score import format_accuracy

    e = evaluation
    rows = [
        ["top-1", format_accuracy(e.top1, e.n)],
        [f"top-{min(5, len(e.model_class_names))}", format_accuracy(e.top5, e.n)],
        ["loss", f"{e.loss:.4f}"],
        ["ECE", f"{e.ece:.4f}"],
        ["images", f"{e.n:,}"],
        ["broken", f"{e.broken:,}"],
    ]
    if e.left_out:
        rows.append(["left out: not in the mapping", f"{e.left_out:,}"])
    if e.real is not None:
        rows.append(["ReaL", format_accuracy(e.real, e.real_n)])
    return rows


def failures(evaluation: Evaluation) -> list[str]:
    """Return lines on the worst classes, the most confused pairs and the files that could not be read."""
    from vitrail.data.readers.class_names import readable
    from vitrail.evaluators.score import format_accuracy

    lines = []
    if worst := evaluation.worst_classes(SHOWN):
        scores = (f"{readable(one.name)} {format_accuracy(one.accuracy)} (n = {one.n:,})" for one in worst)
        lines.append(f"Worst classes: {', '.join(scores)}")
    if pairs := evaluation.confused_pairs(SHOWN):
        counts = (
            f"{readable(true)} as {readable(wrong)} ({n:,} of {total:,})" for true, wrong, n, total in pairs
        )
        lines.append(f"Most confused: {', '.join(counts)}")
    if evaluation.bad:
        more = f"; and {evaluation.broken - SHOWN:,} more" if evaluation.broken > SHOWN else ""
        lines.append(f"Broken: {'; '.join(bad.reason for bad in evaluation.bad[:SHOWN])}{more}")
    return lines
