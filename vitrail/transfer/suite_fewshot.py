"""Few-shot in the transfer suite: with big_vision's L2, or with one that the data sets choose together, as scenic's.

    rank_d = argsort(argsort(accuracies of data set d, by L2))      0: the worst
    chosen = the L2 of the highest mean of rank_d over the data sets; of equals the first, the smallest

For each number of shots, after scenic's train_lib/transfer/fewshot_utils.py. The accuracies are those on the *test*
sets that are then reported: what comes out is too good, the more so the fewer the data sets are, and stands beside
numbers that were chosen alike, never beside others. Every table that has them says so.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any, TypedDict

import numpy as np
from torch import nn

from vitrail.checkpoints.json_files import Count
from vitrail.evaluators.fewshot import L2, SWEEP, FewShot, Run

Entry = dict[str, Any]  # score, mean, std, n (runs), test_examples, values (of each run), l2
Finished = dict[tuple[str, str], list[Entry] | None]  # (data set, method) -> its scores; None: unfinished


class OfL2(TypedDict):
    l2: float
    values: list[float]  # of each run


class Ranked(TypedDict):
    """A number of shots in run.json, before the data sets have chosen their L2."""

    score: str
    test_examples: Count
    by_l2: list[OfL2]


ByL2 = list[OfL2]


def fixed_l2(evaluator: FewShot, model: nn.Module) -> list[Entry]:
    """A score for each number of shots, with the L2 of the published code."""
    assert tuple(evaluator.l2) == (L2,)
    return [entry_of([run.accuracy for run in runs], runs[0], L2) for runs in evaluator.runs(model)]


def every_l2(evaluator: FewShot, model: nn.Module) -> list[Entry]:
    """For each number of shots, `by_l2`: nothing is chosen yet."""
    assert tuple(evaluator.l2) == SWEEP
    made = []
    for by_l2 in evaluator.runs_by_l2(model):
        table = [{"l2": runs[0].l2, "values": [run.accuracy for run in runs]} for runs in by_l2]
        first = by_l2[0][0]
        made.append({"score": f"{first.shots}-shot", "test_examples": first.n, "by_l2": table})
    return made


def entry_of(values: list[float], run: Run, l2: float) -> Entry:
    return summary(values) | {"score": f"{run.shots}-shot", "test_examples": run.n, "l2": l2}


def summary(values: list[float]) -> Entry:
    std = statistics.stdev(values) if len(values) > 1 else None
    return {"mean": statistics.fmean(values), "std": std, "n": len(values), "values": values}


def with_one_l2(scores: Finished) -> tuple[Finished, dict[str, float] | None]:
    """Few-shot with the L2 that its data sets choose together; until all of them are there, unfinished."""
    few = {key: found for key, found in scores.items() if key[1] == "fewshot"}
    there = [found for found in few.values() if found is not None]
    if len(there) < len(few):
        return scores | dict.fromkeys(few), None
    chosen = choose_together(there)
    made = {
        key: [with_l2(one, chosen[one["score"]]) for one in found]
        for key, found in zip(few, there, strict=True)
    }
    return scores | made, chosen


def choose_together(scores: Iterable[list[Entry]]) -> dict[str, float]:
    """What `every_l2` made of each data set -> the L2 of each number of shots, by the data sets that have it."""
    tables: dict[str, list[ByL2]] = {}
    for entries in scores:
        for entry in entries:
            tables.setdefault(entry["score"], []).append(entry["by_l2"])
    return {shots: best_by_mean_rank(its) for shots, its in tables.items()}


def best_by_mean_rank(tables: Sequence[ByL2]) -> float:
    """From a table of each data set; over several seeds an accuracy is their mean."""
    ranks = []
    for table in tables:
        # In single precision and by numpy's default sort, as published: they decide where accuracies are equal.
        accuracies = np.array([statistics.fmean(row["values"]) for row in table], np.float32)
        ranks.append(np.argsort(np.argsort(accuracies)))
    return float(tables[0][int(np.argmax(np.mean(ranks, axis=0)))]["l2"])


def with_l2(entry: Entry, l2: float) -> Entry:
    """The score of one L2; the others stay beside it."""
    (values,) = (row["values"] for row in entry["by_l2"] if row["l2"] == l2)
    return {**entry, **summary(values), "l2": l2}


def remark(chosen: dict[str, float], data_sets: int) -> str:
    """The line below a table whose L2 was chosen so."""
    values = ", ".join(f"{shots} {l2:g}" for shots, l2 in chosen.items())
    return (
        f"few-shot: l2 was chosen on the TEST accuracies, one for all data sets ({data_sets}) by mean rank as scenic "
        f"does: {values}; these numbers are too good, and comparable with scenic's alone"
    )
