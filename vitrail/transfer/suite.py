"""The transfer suite: few-shot, linear probe, kNN and fine-tuning of one model on a list of data sets, in one table.

    for each data set, for each method:  OUT/DATA/METHOD/ (a run)  ──►  OUT/results.md, .csv, .json

Few-shot draws its examples again for each seed, fine-tuning trains again. A linear probe and kNN do not depend on a
seed: they are one number (n 1, no std). Features are computed once (inference/features.py), below OUT. The same call
continues; several at once share the work (tables.py). The paper's numbers are of fine-tuning on the whole data set.

Few-shot uses big_vision's L2, or, as scenic's train_lib/transfer/fewshot_utils.py, one that the data sets choose
together for each number of shots:

    rank_d = argsort(argsort(accuracies of data set d, by L2))      0: the worst
    chosen = the L2 of the highest mean of rank_d over the data sets; of equals the first, the smallest

Those accuracies are the ones on the *test* sets that are then reported: they are too optimistic, the more so the
fewer data sets there are, and comparable only with numbers chosen the same way. Every table that has them says so.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any, Literal, TypedDict, get_args

import numpy as np

from vitrail.checkpoints.checkpoint import model_digest
from vitrail.checkpoints.formats import load
from vitrail.checkpoints.json_files import Count, check_kind
from vitrail.data.sources import Source, find_test_split, split_options
from vitrail.errors import CheckpointError, ConfigError
from vitrail.evaluators.fewshot import L2, SWEEP, Draws, FewShot, fitting_shots
from vitrail.evaluators.knn import KNN, fitting_k
from vitrail.evaluators.linear import LinearProbe
from vitrail.evaluators.probes import open_probe_splits
from vitrail.evaluators.score import format_accuracy, mean_and_std
from vitrail.inference.engine import ModelLike
from vitrail.inference.features import Extraction
from vitrail.models.names import Model
from vitrail.runtime.device import Device, pick
from vitrail.runtime.log import note
from vitrail.train.keywords import override, override_known
from vitrail.train.run import Figures, lacks_model
from vitrail.train.settings import INCIDENTAL
from vitrail.transfer import tables
from vitrail.transfer.facts import check_counts
from vitrail.transfer.finetune import Scored, prepare, run_finetuning
from vitrail.transfer.paper_scores import paper_model, paper_score
from vitrail.transfer.protocols import Finetuning

Method = Literal["fewshot", "linear", "knn", "finetune"]
METHODS = get_args(Method)
FEATURES = "features"  # folder of the feature cache
# A score: score, mean, std, n (runs), test_examples, and the settings that were chosen.
Entry = dict[str, Any]
Finished = dict[tuple[str, str], list[Entry] | None]  # (data set, method) -> its scores; None: unfinished


@dataclass(frozen=True)
class SuiteSettings:
    """Settings of the methods."""

    seeds: int = 3  # number of runs of few-shot and of fine-tuning
    # few-shot examples of each class; if unset, those of 1, 5, 10, 25 for which every class has enough
    shots: tuple[int, ...] | None = None
    # examples of few-shot: vitrail's, big_vision's for the same seeds, or scenic's (the first, no seed)
    draws: Draws = "vitrail"
    # regularisation of few-shot: 2^10; test-rank: one of 2^-10 ... 2^19 by mean rank on the TEST sets, as scenic
    fewshot_l2: Literal["fixed", "test-rank"] = "fixed"
    # regularisation of the linear probe; if unset, the best of a grid on held-out parts of the training split
    l2: tuple[float, ...] = ()
    # neighbours of kNN; of several, the best on a held-out fifth; if unset, those of 1, 5, 10, 20, 50
    k: tuple[int, ...] | None = None
    train_split: str = "train"  # split to learn from
    test_split: str | None = None  # split to test on; if unset, test or else validation
    # what chooses the settings of fine-tuning that are left unset
    protocol: Literal["default", "plain", "paper", "augreg", "bit"] = "default"


SUITE = SuiteSettings()


class ScoreEntry(TypedDict):
    """An entry in run.json."""

    score: str
    mean: float | None
    std: float | None
    n: Count
    test_examples: Count


class L2Values(TypedDict):
    l2: float
    values: list[float]  # accuracy of each run


class L2Entry(TypedDict):
    """A few-shot entry in run.json before the data sets have chosen its L2."""

    score: str
    test_examples: Count
    by_l2: list[L2Values]


class PieceResults(TypedDict):
    """Results in run.json of one method on one data set."""

    scores: list[ScoreEntry | L2Entry]


class Top1(TypedDict):
    top1: Scored


def transfer(
    model: ModelLike,
    data: Sequence[str],
    out: str | Path,
    *,
    methods: Sequence[Method] = ("fewshot", "linear", "knn", "finetune"),
    paper: str | None = None,
    device: Device = "auto",
    figures: Figures | None = None,
    settings: SuiteSettings = SUITE,
    **keywords: Any,
) -> dict[str, Any]:
    """Evaluate a model on every data set by every method and return the content of results.json.

    Fields of `settings` can be replaced by keyword; every other keyword is a setting of fine-tuning, such as lr.
    """
    settings, finetuning = override_known(settings, vars(settings) | keywords)  # checked, whoever made them
    if fixed := sorted({"model", "data", "train", "val", "test"} & set(finetuning)):
        raise ConfigError(f"{', '.join(fixed)} cannot be set: each data set has its own (see train_split)")
    loading = override(Finetuning(), finetuning | {"seeds": settings.seeds}).experiment.data
    folder, methods = Path(out).expanduser(), tuple(dict.fromkeys(methods))
    if unknown := sorted(set(methods) - set(METHODS)):
        raise ConfigError(f"unknown method {', '.join(unknown)}; methods: {', '.join(METHODS)}")
    named = name_data(data)
    tables.check_results_folder(folder, (FEATURES, tables.START, *named))
    row = paper_model(paper, str(model) if isinstance(model, str | Path) else "")
    extraction = Extraction(
        cache=folder / FEATURES, num_workers=loading.num_workers or 0, max_bad=loading.max_bad
    )
    datasets = {
        name: SuiteData.open(where, settings, methods, extraction, finetuning)
        for name, where in named.items()
    }
    path = tables.model_path(model, folder)
    loaded = load(path).to(pick(device))
    about = {"model": path, "weights": model_digest(loaded), "preprocess": loaded.preprocess}
    for (name, dataset), method in product(datasets.items(), methods):
        config = {**about, "method": method, **dataset.identity(method)}
        with tables.claim_piece(folder / name / method, config) as piece:
            if piece is None:
                continue  # another process is at it
            run = piece.path / "run"
            if piece.results(PieceResults) is None or lacks_model(run):
                note(f"{name}: {method}")
                if method == "finetune":
                    entries = run_finetune(dataset, path, run, device, figures)
                else:
                    entries = run_probe(dataset.probes[method], loaded)
                piece.finish({"scores": entries})
    with tables.results_lock(folder):
        scores: Finished = {}
        chosen = None
        for name, method in product(datasets, methods):
            results = tables.read_piece(folder / name / method, PieceResults)
            scores[name, method] = None if results is None else results["scores"]
        if settings.fewshot_l2 == "test-rank" and "fewshot" in methods:
            scores, chosen = choose_l2(scores)
        rows = collect(folder, scores, datasets, row)
        values = {**asdict(settings), "finetuning": finetuning}
        result = {**about, "paper": row, "rows": rows, "settings": values, "fewshot_l2": chosen}
        tables.write_tables(folder, result, *table(result))
    return result


def name_data(data: Sequence[str]) -> dict[str, str]:
    """Name each data set after its last folder; refuse two of one name, whose results would share a folder."""
    if not data:
        raise ConfigError("no data: --data PATH... (folders of images, Parquet or tar shards), or names")
    named: dict[str, str] = {}
    for where in data:
        path = Path(split_options(where)[0])
        path = path if path.name.strip(".") else path.resolve()  # `.` and `..` are not names
        name = path.name.replace(":", "-")
        if name in named:
            raise ConfigError(f"{named[name]} and {where} are both called {name!r}; use a call for each")
        named[name] = where
    return named


@dataclass(frozen=True)
class SuiteData:
    """One data set, opened, with the methods' settings for it."""

    where: str
    train: Source
    test: Source
    test_split: str
    probes: dict[str, FewShot | LinearProbe | KNN]  # by method
    settings: SuiteSettings
    finetuning: dict[str, Any]  # settings by keyword

    @classmethod
    def open(
        cls,
        where: str,
        settings: SuiteSettings,
        methods: Sequence[str],
        extraction: Extraction,
        finetuning: dict[str, Any],
    ) -> SuiteData:
        """Open and check a data set, before anything is computed."""
        split = settings.test_split or find_test_split(where, settings.train_split)
        train, test = open_probe_splits(where, settings.train_split, split)
        probes: dict[str, FewShot | LinearProbe | KNN] = {}
        if "fewshot" in methods:
            shots = settings.shots or fitting_shots(train)
            l2 = SWEEP if settings.fewshot_l2 == "test-rank" else (L2,)
            few = FewShot(train, test, shots, settings.seeds, l2, extraction, draws=settings.draws)
            probes["fewshot"] = few
        if "linear" in methods:
            probes["linear"] = LinearProbe(train, test, settings.l2, extraction)
        if "knn" in methods:
            probes["knn"] = KNN(train, test, settings.k or fitting_k(train), extraction=extraction)
        if "finetune" in methods:
            check_counts(train)
        return cls(where, train, test, split, probes, settings, finetuning)

    def identity(self, method: str) -> dict[str, Any]:
        """Return the data and settings that must be equal for a method to count as finished."""
        fingerprint = f"{self.train.fingerprint()} {self.test.fingerprint()}"
        about = {"data": self.where, "test": self.test_split, "fingerprint": fingerprint}
        settings = asdict(self.settings)
        for probe in self.probes.values():  # with what is chosen for this data set: shots, k
            settings |= {name: value for name, value in vars(probe).items() if name in ("shots", "k")}
        settings["finetuning"] = {n: value for n, value in self.finetuning.items() if n not in INCIDENTAL}
        return about | {name: settings[name] for name in ("train_split", *FIELDS[method])}


# Settings that the scores of each method depend on.
FIELDS: dict[str, tuple[str, ...]] = {
    "fewshot": ("seeds", "shots", "draws", "fewshot_l2"),
    "linear": ("l2",),
    "knn": ("k",),
    "finetune": ("seeds", "protocol", "finetuning"),
}


def run_probe(probe: FewShot | LinearProbe | KNN, model: Model) -> list[Entry]:
    """Return the scores; of few-shot one for each number of shots, with the accuracies of every L2 of several."""
    if isinstance(probe, LinearProbe):
        l2, score = probe.chosen(model)
        return [{"score": "linear", **summarise([score.value]), "test_examples": score.n, "l2": l2}]
    if isinstance(probe, KNN):
        k, value, n = probe.chosen(model)["weighted"]
        return [{"score": "knn", **summarise([value]), "test_examples": n, "k": k}]
    entries = []
    for runs in probe.runs(model, choose=False):
        entry: Entry = {"score": f"{runs[0].shots}-shot", "test_examples": runs[0].n}
        values = {l2: [run.accuracy for run in runs if run.l2 == l2] for l2 in probe.l2}
        if len(values) > 1:
            entry["by_l2"] = [{"l2": l2, "values": each} for l2, each in values.items()]
        else:
            entry |= {**summarise(values[L2]), "l2": L2}
        entries.append(entry)
    return entries


def run_finetune(
    data: SuiteData, model: str, folder: Path, device: Device, figures: Figures | None
) -> list[Entry]:
    settings = data.settings
    changes = {"train": settings.train_split, "test": data.test_split, "seeds": settings.seeds}
    changes |= data.finetuning
    prepared = prepare(data.where, model, protocol=settings.protocol, device=device, out=folder, **changes)
    results = run_finetuning(prepared, folder, device=device, figures=figures).results
    check_kind(results["scores"], Top1, f"{folder}: scores")
    top1 = results["scores"]["top1"]
    entry = {"score": "finetune", "mean": top1["mean"], "std": top1["std"], "n": settings.seeds}
    return [entry | {name: results[name] for name in ("test_examples", "lr", "steps")}]


def summarise(values: list[float]) -> Entry:
    mean, std = mean_and_std(values)
    return {"mean": mean, "std": std, "n": len(values), "values": values}


def choose_l2(scores: Finished) -> tuple[Finished, dict[str, float] | None]:
    """Choose one L2 for each number of shots; until few-shot has run on all data sets, none of it is finished."""
    few = {key: entries for key, entries in scores.items() if key[1] == "fewshot"}
    if None in few.values():
        return scores | dict.fromkeys(few), None
    by_score: dict[str, list[list[L2Values]]] = {}  # accuracies on each data set
    for entry in (entry for entries in few.values() for entry in entries or ()):
        by_score.setdefault(entry["score"], []).append(entry["by_l2"])
    chosen = {score: best_by_mean_rank(by_data) for score, by_data in by_score.items()}

    def finish(entry: Entry) -> Entry:
        l2 = chosen[entry["score"]]
        (values,) = (row["values"] for row in entry["by_l2"] if row["l2"] == l2)
        return {**entry, **summarise(values), "l2": l2}

    return scores | {key: [finish(entry) for entry in entries or ()] for key, entries in few.items()}, chosen


def best_by_mean_rank(by_data: Sequence[list[L2Values]]) -> float:
    """Return the L2 of the highest mean rank over the data sets; seeds are averaged first."""
    ranks = []
    for rows in by_data:
        # In single precision and by numpy's default sort, as published: they decide where accuracies are equal.
        accuracies = np.array([statistics.fmean(row["values"]) for row in rows], np.float32)
        ranks.append(np.argsort(np.argsort(accuracies)))
    return float(by_data[0][int(np.argmax(np.mean(ranks, axis=0)))]["l2"])


def collect(
    folder: Path, scores: Finished, datasets: dict[str, SuiteData], paper_row: str | None
) -> list[dict[str, Any]]:
    """Return a row for each score, finished or not."""
    rows: list[dict[str, Any]] = []
    for (name, method), entries in scores.items():
        dataset, examples = datasets[name], [len(datasets[name].train)]
        if entries is None:
            unfinished = {"score": method, "mean": None, "std": None, "n": 0}
            entries = [{**unfinished, "test_examples": len(dataset.test)}]
        elif isinstance(probe := dataset.probes.get(method), FewShot):
            examples = [shots * len(dataset.train.class_names) for shots in probe.shots]
        if len(examples) != len(entries):
            raise CheckpointError(f"{folder / name / method}: {len(entries)} scores, not {len(examples)}")
        paper = paper_score(paper_row, name) if method == "finetune" else None
        for n, entry in zip(examples, entries, strict=True):
            about = {"data": name, "method": method, "train_examples": n}
            rows.append({**about, **entry, **about, "paper": paper})
    return rows


def table(result: dict[str, Any]) -> tables.Table:
    """Return the table for display."""
    rows = [
        [
            row["data"],
            row["score"],
            "unfinished" if row["mean"] is None else format_accuracy(row["mean"], row["test_examples"]),
            tables.std_cell(row["std"]),
            str(row["n"]),
            f"{row['train_examples']:,}",
            format_accuracy(row["paper"]),
        ]
        for row in result["rows"]
    ]
    lines = ["Accuracy and std over the runs; a linear probe and kNN do not depend on a seed and run once"]
    if (draws := result["settings"]["draws"]) != "vitrail":
        lines.append(f"Few-shot: the examples that {draws} draws")
    if result["fewshot_l2"] is not None:
        values = ", ".join(f"{shots} {l2:g}" for shots, l2 in result["fewshot_l2"].items())
        n = len({row["data"] for row in result["rows"]})
        lines.append(
            f"Few-shot: l2 chosen on the TEST accuracies, one for all data sets ({n}) by mean rank, as scenic does: "
            f"{values}. These accuracies are too optimistic; compare them only with scenic's"
        )
    if result["paper"] is not None:
        lines.append(f"Paper: {result['paper']}, fine-tuned on the whole data set (Tables 5 and 6)")
    return ["data", "score", "accuracy", "std", "runs", "training images", "paper"], rows, lines
