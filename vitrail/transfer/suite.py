"""What a model is worth elsewhere: few-shot, linear probe, kNN and fine-tuning on a list of data sets; one table.

    for each data set, for each method:  OUT/DATA/METHOD/ (a run)  ──►  OUT/results.md, .csv, .json

Few-shot draws its examples anew for each seed, fine-tuning trains anew. A linear probe and kNN depend on no seed:
they are one number (n 1, no std). Features are computed once (evaluators/feature_cache.py), below OUT. The same call
continues; several at once share the work (claim.py). The paper's numbers are of fine-tuning on the whole data set.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from vitrail.checkpoints.formats import load
from vitrail.checkpoints.json_files import Count, check_kind
from vitrail.data.sources import Source, open_source, split_options, test_split_of
from vitrail.data.splits import check_apart
from vitrail.errors import CheckpointError, ConfigError
from vitrail.evaluators.fewshot import L2, SWEEP, FewShot, check_shots, fitting_shots
from vitrail.evaluators.knn import KNN, check_k, fitting_k
from vitrail.inference.feature_cache import Extraction, model_digest
from vitrail.models.names import Model
from vitrail.runtime.device import Device, pick
from vitrail.runtime.log import note
from vitrail.train.results import lacks_model
from vitrail.transfer.claim import alone, check_own, claimed, results_in
from vitrail.transfer.finetune import run_finetuning
from vitrail.transfer.finetune_results import Scored
from vitrail.transfer.finetune_settings import Finetuning, check_counts
from vitrail.transfer.linear import LinearProbe
from vitrail.transfer.paper_scores import paper_model, paper_score
from vitrail.transfer.settings import SUITE, Method, Suite
from vitrail.transfer.suite_fewshot import Finished, Ranked, every_l2, fixed_l2, remark, with_one_l2
from vitrail.transfer.tables import percent, write_tables


@dataclass(frozen=True)
class Cell:
    """One data set, opened, and what it is evaluated with."""

    where: str
    train: Source
    test: Source
    test_split: str
    shots: tuple[int, ...]
    k: tuple[int, ...]  # of kNN; empty where that is not asked for

    @classmethod
    def open(cls, where: str, suite: Suite, methods: Sequence[str]) -> Cell:
        """Everything that can be found wrong is found here, before anything is computed."""
        split = suite.test_split or test_split_of(where, suite.train_split)
        train, test = open_source(where, suite.train_split), open_source(where, split)
        check_apart(train, test)
        shots = suite.shots or fitting_shots(train)
        k: tuple[int, ...] = ()
        if "fewshot" in methods:
            check_shots(train, max(shots))
        if "knn" in methods:
            k = suite.k or fitting_k(train)
            check_k(train, k)
        if "finetune" in methods:
            check_counts(train)
        return cls(where, train, test, split, shots, k)


def transfer(
    model: str,
    data: Sequence[str],
    out: str | Path,
    *,
    methods: Sequence[Method] = ("fewshot", "linear", "knn", "finetune"),
    suite: Suite = SUITE,
    paper: str | None = None,
    device: Device = "auto",
) -> dict[str, Any]:
    """Evaluate `model` on every data set by every method. Returns what results.json holds."""
    folder, methods = Path(out).expanduser(), tuple(dict.fromkeys(methods))
    if unknown := sorted(set(methods) - set(METHODS)):
        raise ConfigError(f"no method {', '.join(unknown)}; methods: {', '.join(METHODS)}")
    check_own(folder, (FEATURES, *named(data)))
    row = paper_model(paper, model)
    cells = {name: Cell.open(where, suite, methods) for name, where in named(data).items()}
    loaded = load(model).to(pick(device))
    given = {"model": model, "weights": model_digest(loaded), "preprocess": loaded.preprocess}
    extraction = Extraction(cache=folder / FEATURES, num_workers=suite.workers or 0, max_bad=suite.max_bad)
    for name, cell in cells.items():
        for method in methods:
            with claimed(folder / name / method, identity(given, cell, method, suite)) as piece:
                if piece is None or (
                    piece.results(Found) is not None and not lacks_model(piece.path / "run")
                ):
                    continue
                note(f"{name}: {method}")
                work = Work(model, loaded, cell, suite, extraction, piece.path, device)
                piece.finish({"scores": METHODS[method](work)})
    with alone(folder):
        scores, chosen = finished(folder, cells, methods), None
        if suite.fewshot_l2 == "test-rank" and "fewshot" in methods:
            scores, chosen = with_one_l2(scores)
        rows = collected(folder, scores, cells, row)
        result = {**given, "paper": row, "rows": rows, "suite": dataclasses.asdict(suite)}
        result["fewshot_l2"] = chosen
        write_tables(folder, *table(rows), result, below(result))
    return result


def named(data: Sequence[str]) -> dict[str, str]:
    """Name -> data set; two of one name are refused, for their results would share a folder."""
    if not data:
        raise ConfigError("no data: --data PATH... (folders of images, Parquet or tar shards), or names")
    made: dict[str, str] = {}
    for where in data:
        path = Path(split_options(where)[0])
        path = path if path.name.strip(".") else path.resolve()  # `.` and `..` name no folder of their own
        name = path.name.replace(":", "-")
        if name in made:
            raise ConfigError(f"{made[name]} and {where} are both called {name!r}; give them in two calls")
        made[name] = where
    return made


def identity(given: dict[str, str], cell: Cell, method: str, suite: Suite) -> dict[str, Any]:
    """What has to be the same for a piece to count as done."""
    settings = dataclasses.asdict(suite)
    used = {name: settings[name] for name in ("train_split", *FIELDS[method])}
    if method == "fewshot":
        used["shots"] = cell.shots
    if method == "knn":
        used["k"] = cell.k
    data = {"data": cell.where, "test": cell.test_split}
    data["fingerprint"] = f"{cell.train.fingerprint()} {cell.test.fingerprint()}"
    return {**given, "method": method} | data | used


FEATURES = "features"  # the folder of their cache
# What of `Suite` each method looks at.
FIELDS: dict[str, tuple[str, ...]] = {
    "fewshot": ("seeds", "draws", "fewshot_l2"),
    "linear": ("l2",),
    "knn": (),
    "finetune": ("seeds", "protocol", "image_size", "steps", "batch", "rate", "sweep"),
}
Entry = dict[str, Any]  # what a method measured, and how


class Measured(TypedDict):
    """What an entry has in any case."""

    score: str
    mean: float | None
    std: float | None
    n: Count  # runs
    test_examples: Count


class Found(TypedDict):
    """In run.json, of a finished piece."""

    scores: list[Measured | Ranked]


class Top1(TypedDict):
    top1: Scored


@dataclass(frozen=True)
class Work:
    """What a method is given."""

    model: str
    loaded: Model
    cell: Cell
    suite: Suite
    extraction: Extraction
    folder: Path  # for runs of its own
    device: Device


def by_fewshot(work: Work) -> list[Entry]:
    cell, suite, ranked = work.cell, work.suite, work.suite.fewshot_l2 == "test-rank"
    l2 = SWEEP if ranked else (L2,)
    evaluator = FewShot(
        cell.train, cell.test, cell.shots, suite.seeds, l2, work.extraction, draws=suite.draws
    )
    return (every_l2 if ranked else fixed_l2)(evaluator, work.loaded)


def by_linear(work: Work) -> list[Entry]:
    probe = LinearProbe(work.cell.train, work.cell.test, work.suite.l2, work.extraction)
    l2, made = probe.chosen(work.loaded)
    return [{**entry("linear", made.value, None, 1, made.n), "l2": l2}]


def by_knn(work: Work) -> list[Entry]:
    evaluator = KNN(work.cell.train, work.cell.test, work.cell.k, extraction=work.extraction)
    k, value, n = evaluator.chosen(work.loaded)["weighted"]
    return [{**entry("knn", value, None, 1, n), "k": k}]


def by_finetuning(work: Work) -> list[Entry]:
    suite, fields = work.suite, {name: getattr(work.suite, name) for name in FIELDS["finetune"]}
    fields |= {"train": suite.train_split, "test": work.cell.test_split}
    fields |= {"workers": suite.workers, "max_bad": suite.max_bad}
    asked = Finetuning(work.cell.where, work.model, **fields)
    results = run_finetuning(asked, work.folder / "run", device=work.device).results
    check_kind(results["scores"], Top1, f"{work.folder / 'run'}: scores")
    top1 = results["scores"]["top1"]
    made = entry("finetune", top1["mean"], top1["std"], suite.seeds, results["test_examples"])
    return [{**made, "rate": results["rate"], "steps": results["steps"]}]


METHODS: dict[str, Callable[[Work], list[Entry]]] = {
    "fewshot": by_fewshot,
    "linear": by_linear,
    "knn": by_knn,
    "finetune": by_finetuning,
}


def entry(score: str, mean: float, std: float | None, n: int, test_examples: int) -> Entry:
    return {"score": score, "mean": mean, "std": std, "n": n, "test_examples": test_examples}


def finished(folder: Path, cells: dict[str, Cell], methods: Sequence[str]) -> Finished:
    scores: Finished = {}
    for name in cells:
        for method in methods:
            found = results_in(folder / name / method, Found)
            scores[name, method] = None if found is None else found["scores"]
    return scores


def collected(
    folder: Path, scores: Finished, cells: dict[str, Cell], row: str | None
) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for (name, method), found in scores.items():
        cell = cells[name]
        beside = paper_score(row, name) if method == "finetune" else None
        unfinished = {"score": method, "mean": None, "std": None, "n": 0, "test_examples": len(cell.test)}
        entries = [unfinished] if found is None else found
        examples = [len(cell.train)]
        if method == "fewshot" and found is not None:
            examples = [shots * len(cell.train.class_names) for shots in cell.shots]
        if len(examples) != len(entries):
            raise CheckpointError(f"{folder / name / method}: {len(entries)} scores, not {len(examples)}")
        for n, one in zip(examples, entries, strict=True):
            here = {"data": name, "method": method, "train_examples": n}
            rows.append({**here, **one, **here, "paper": beside})
    return rows


def table(rows: list[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    cells = [
        [
            row["data"],
            row["score"],
            "unfinished" if row["mean"] is None else percent(row["mean"]),
            percent(row["std"]),
            str(row["n"]),
            f"{row['train_examples']:,}",
            f"{row['test_examples']:,}",
            percent(row["paper"]),
        ]
        for row in rows
    ]
    return ["data", "score", "mean", "std", "n", "trained on", "tested", "paper"], cells


def below(result: dict[str, Any]) -> list[str]:
    lines = ["n: runs, over which mean and std are taken; linear probe and kNN depend on no seed"]
    if (draws := result["suite"]["draws"]) != "vitrail":
        lines.append(f"few-shot: the examples that {draws} draws")
    if result["fewshot_l2"] is not None:
        lines.append(remark(result["fewshot_l2"], len({row["data"] for row in result["rows"]})))
    if result["paper"] is not None:
        lines.append(f"paper: {result['paper']}, fine-tuned on the whole data set (Tables 5 and 6)")
    return lines
