"""The verbs that measure a model: evaluate, and probes of its frozen features: fewshot, knn, linear."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, arg

from vitrail.cli.verb import COMMON, READING, Common, ModelPath, Output, Precision, Reading
from vitrail.errors import ConfigError

if TYPE_CHECKING:
    from vitrail.data.sources import Source
    from vitrail.evaluators.accuracy import Evaluation
    from vitrail.evaluators.fewshot import FewShot
    from vitrail.evaluators.knn import KNN
    from vitrail.evaluators.linear import LinearProbe
    from vitrail.evaluators.score import Score
    from vitrail.inference.exported import Runnable
    from vitrail.inference.features import Extraction

SHOWN = 5  # worst classes, confused pairs, broken files: so many of each
DataPath = Annotated[Positional[str], arg(metavar="DATA")]


@dataclass(frozen=True)
class Passing:
    """Settings for reading the images."""

    batch_size: int = 64  # images at a time
    num_workers: int | None = None  # processes that decode images; if unset, chosen automatically
    max_bad: float = 0.01  # share of the images that may be broken before it stops


PASSING = Passing()


def evaluate(
    model: ModelPath,
    data: DataPath,
    *,
    split: str | None = None,
    mapping: str | None = None,
    real: str | None = None,
    text_embeddings: str | None = None,
    out: str | None = None,
    precision: Precision = "auto",
    passing: Passing = PASSING,
    reading: Reading = READING,
    common: Common = COMMON,
) -> Output:
    """Measure a model on labelled images: accuracy, loss, calibration, and where it fails.

    Args:
        model: an included model (ti8-64), a bundle, a run, any supported checkpoint, or an exported file
        data: a folder, Parquet or tar shards, an .npz, or a name of the catalog
        split: which part, such as test or train[98%:]; if unset, the test split or else validation
        mapping: a JSON file {data class: [model classes, ...]} where names differ; or `order`: class k is class k
        real: the file of ReaL labels (real.json), for ImageNet's validation images
        text_embeddings: a file of embedded texts (.safetensors, .npz), the classes instead of the model's own
        out: a new JSON file for the whole result, with every class and the mistakes
        precision: of the computation; auto: bf16 on a GPU, else float32; fp8 needs `vitrail calibrate` first
    """
    from vitrail.data.several_labels import targets_of
    from vitrail.evaluators.accuracy import evaluate as run
    from vitrail.evaluators.accuracy import open_split
    from vitrail.inference.exported import Exported, open_model
    from vitrail.inference.precision import choose_precision
    from vitrail.runtime.device import pick
    from vitrail.runtime.distributed import group, rank

    if out is not None and Path(out).exists():
        raise ConfigError(f"--out {out} exists; nothing is overwritten")
    source = open_split(data, split)
    if targets_of(source) is not None:
        if [mapping, real, text_embeddings] != [None, None, None]:
            raise ConfigError(
                f"{source.name} has several labels for an image: no mapping, real, text_embeddings"
            )
        return evaluate_several(model, source, out, precision, passing, reading, common)
    with group(pick(common.device)) as device:
        loaded = open_model(model, **reading.arguments()).to(device)
        settings: dict[str, Any] = {"mapping": mapping, "real": real, "text_embeddings": text_embeddings}
        evaluation = run(loaded, source, precision=precision, **settings, **vars(passing))
        first, chosen = rank() == 0, choose_precision(precision, device)
    used = loaded.card["precision"] if isinstance(loaded, Exported) else chosen
    result = {"model": model, "preprocess": loaded.preprocess, "precision": used, **evaluation.as_json()}
    rows, lines = describe_evaluation(evaluation)
    output = Output(common, ["", f">{source.name}"], rows, result, after=lines)
    if out is not None and first:
        mistakes = evaluation.mistakes(source)
        write_result({**result, "mistakes": mistakes}, out)
        named = f" (the {len(mistakes):,} most confident by name)" if len(mistakes) < result["wrong"] else ""
        output.after.append(f"Whole result, with {result['wrong']:,} mistakes{named}: {out}")
    return output


def evaluate_several(
    model: str,
    source: Source,
    out: str | None,
    precision: Precision,
    passing: Passing,
    reading: Reading,
    common: Common,
) -> Output:
    """Measure a model for several labels."""
    from vitrail.data.readers.class_names import readable
    from vitrail.evaluators.label_scores import evaluate_labels

    loaded = reading.open(model, common.device)
    e = evaluate_labels(loaded, source, precision=precision, task=f"evaluate {source.name}", **vars(passing))
    rows = [
        ["mAP", f"{e.map:.4f}"],
        ["F1, all classes together", f"{e.f1:.4f}"],
        ["F1, mean over classes", f"{e.f1_macro:.4f}"],
        ["loss", f"{e.loss:.4f}"],
        ["images", f"{e.n:,}"],
        ["broken", f"{e.broken:,}"],
    ]
    known = sorted((one.ap, one.name, one.n) for one in e.per_class if one.ap is not None)
    worst = (f"{readable(name)} {ap:.3f} (n = {n:,})" for ap, name, n in known[:SHOWN])
    result = {"model": model, **e.as_json()}
    output = Output(common, ["", f">{e.data}"], rows, result, after=[f"Lowest AP: {', '.join(worst)}"])
    if out is not None:
        write_result(result, out)
        output.after.append(f"Whole result: {out}")
    return output


def write_result(result: dict[str, Any], out: str) -> None:
    from vitrail.runtime.files import atomic_file

    with atomic_file(Path(out)) as file:
        file.write_text(json.dumps(result, allow_nan=False, indent=1) + "\n", encoding="utf-8")


def describe_evaluation(e: Evaluation) -> tuple[list[list[str]], list[str]]:
    """Return rows of scores, and lines on the worst classes, the most confused pairs and the broken files."""
    from vitrail.data.readers.class_names import readable
    from vitrail.evaluators.score import format_accuracy

    rows = [
        ["top-1", format_accuracy(e.top1, e.n)],
        [f"top-{min(5, len(e.model_class_names))}", format_accuracy(e.top5, e.n)],
        ["loss", f"{e.loss:.4f}"],
        ["ECE", f"{e.ece:.4f}"],
        ["images", f"{e.n:,}"],
        ["broken", f"{e.broken:,}"],
    ]
    if e.answered is not None:
        rows.insert(1, ["sure", format_accuracy(e.answered, e.n)])
        rows.insert(2, ["top-1 where sure", format_accuracy(e.answered_top1, round(e.answered * e.n))])
    if e.left_out:
        rows.append(["left out: not in the mapping", f"{e.left_out:,}"])
    if e.real is not None:
        rows.append(["ReaL", format_accuracy(e.real, e.real_n)])
    lines = []
    if worst := e.worst_classes(SHOWN):
        scores = (f"{readable(one.name)} {format_accuracy(one.accuracy)} (n = {one.n:,})" for one in worst)
        lines.append(f"Worst classes: {', '.join(scores)}")
    if pairs := e.confused_pairs(SHOWN):
        counts = (
            f"{readable(true)} as {readable(wrong)} ({n:,} of {total:,})" for true, wrong, n, total in pairs
        )
        lines.append(f"Most confused: {', '.join(counts)}")
    if e.bad:
        more = f"; and {e.broken - SHOWN:,} more" if e.broken > SHOWN else ""
        lines.append(f"Broken: {'; '.join(bad.reason for bad in e.bad[:SHOWN])}{more}")
    return rows, lines


@dataclass(frozen=True)
class Probing:
    """Data and features of the probe."""

    train_split: str = "train"  # split to learn from; settings are chosen on a held-out part of it
    test_split: str | None = None  # split to test on; if unset, test or else validation
    image_size: int | None = None  # pixels per side of the images; if unset, the model's own
    which: str = "pre_logits"  # features: pre_logits, token, mean, layer3, layer3.token, layer3.mean
    cache: Path | None = None  # folder that keeps features; if unset, VITRAIL_CACHE or ~/.cache/vitrail
    batch_size: int = 64  # images at a time
    num_workers: int = 0  # processes that decode images
    max_bad: float = 0.01  # share of the images that may be broken before it stops


PROBING = Probing()


def fewshot(
    model: ModelPath,
    data: DataPath,
    *,
    shots: tuple[int, ...] = (),
    seeds: int = 3,
    l2: tuple[float, ...] = (),
    sweep: bool = False,
    draws: Literal["vitrail", "big_vision", "scenic"] = "vitrail",
    out: str | None = None,
    probing: Probing = PROBING,
    common: Common = COMMON,
) -> Output:
    """Fit least squares to a few examples of each class: the paper's few-shot accuracy.

    Args:
        model: an included model (ti8-64), a bundle, a run, any supported checkpoint, or an exported file
        data: a folder, Parquet or tar shards, an .npz, or a name of the catalog
        shots: training examples of each class; if unset, those of 1 5 10 25 for which every class has enough
        seeds: number of draws; their mean and standard deviation are reported
        l2: regularisation, 2^10 as published if unset; of several, the best on the examples that were not drawn
        sweep: choose l2 from 2^-10 ... 2^19, and beyond where the best is an end
        draws: examples to learn from: vitrail's, big_vision's for the same seeds, or scenic's (the first, no seed)
        out: a new bundle: the model with a classifier of all training images; its l2, if unset, by five folds
    """
    from vitrail.evaluators.fewshot import L2, FewShot, fitting_shots, score
    from vitrail.evaluators.probes import learn_fewshot
    from vitrail.evaluators.score import format_accuracy

    train, test, extraction = open_probe(data, probing)
    values = () if sweep else l2 or (L2,)
    evaluator = FewShot(train, test, shots or fitting_shots(train), seeds, values, extraction, draws=draws)
    loaded, output = begin_table(model, evaluator, common, ["std", "each seed", "l2"], probing.image_size)
    learned = None if out is None else learn_fewshot(evaluator, loaded, out, l2)
    output.result["draws"] = draws
    for runs in evaluator.runs(loaded):
        mean, l2s, each = score(runs), sorted({run.l2 for run in runs}), [run.accuracy for run in runs]
        cells = [format_accuracy(mean.std), " ".join(map(format_accuracy, each))]
        cells.append(" ".join(f"{value:g}" for value in l2s))
        add_row(output, mean, cells, l2=l2s, seeds=len(runs), values=each)
    if out is not None and learned is not None:
        best, whole = learned
        add_row(output, whole, ["", "", f"{best:g}"], l2=[best], seeds=1, values=[whole.value])
        tell_written(output, out)
    return output


def knn(
    model: ModelPath,
    data: DataPath,
    *,
    k: tuple[int, ...] = (20,),
    temperature: float = 0.07,
    probing: Probing = PROBING,
    common: Common = COMMON,
) -> Output:
    """Classify by the nearest training images, by the cosine similarity of features; nothing is trained.

    Args:
        model: an included model (ti8-64), a bundle, a run, any supported checkpoint, or an exported file
        data: a folder, Parquet or tar shards, an .npz, or a name of the catalog
        k: number of neighbours; of several, the best on a held-out fifth of the training split
        temperature: temperature of the weighted vote, exp(cosine / temperature)
    """
    from vitrail.evaluators.knn import KNN
    from vitrail.evaluators.score import Score

    train, test, extraction = open_probe(data, probing)
    evaluator = KNN(train, test, k, temperature, extraction)
    loaded, output = begin_table(model, evaluator, common, ["k"], probing.image_size)
    for vote, (best, value, n) in evaluator.chosen(loaded).items():
        add_row(output, Score(f"knn {vote}", value, n), [str(best)], k=best)
    return output


def linear(
    model: ModelPath,
    data: DataPath,
    *,
    l2: tuple[float, ...] = (),
    out: str | None = None,
    probing: Probing = PROBING,
    common: Common = COMMON,
) -> Output:
    """Fit logistic regression to the features, by L-BFGS: the linear probe.

    Args:
        model: an included model (ti8-64), a bundle, a run, any supported checkpoint, or an exported file
        data: a folder, Parquet or tar shards, an .npz, or a name of the catalog
        l2: regularisation; of several the best by five folds of a small training split, on a fifth of a large one;
            if unset, of 10 ... 1e-6, and beyond where the best is an end
        out: a new bundle: the model with the probe as its classifier
    """
    from vitrail.evaluators.linear import LinearProbe
    from vitrail.evaluators.probes import learn_linear

    train, test, extraction = open_probe(data, probing)
    evaluator = LinearProbe(train, test, l2, extraction)
    loaded, output = begin_table(model, evaluator, common, ["l2"], probing.image_size)
    best, score = evaluator.chosen(loaded) if out is None else learn_linear(evaluator, loaded, out)
    add_row(output, score, [f"{best:g}"], l2=best)
    if out is not None:
        tell_written(output, out)
    return output


def open_probe(data: str, probing: Probing) -> tuple[Source, Source, Extraction]:
    from vitrail.evaluators.probes import open_probe_splits
    from vitrail.inference.features import Extraction, cache_folder

    p, cache = probing, cache_folder(probing.cache)
    train, test = open_probe_splits(data, p.train_split, p.test_split)
    return train, test, Extraction(p.which, cache, p.batch_size, p.num_workers, p.max_bad)


def begin_table(
    name: str,
    probe: FewShot | KNN | LinearProbe,
    common: Common,
    columns: list[str],
    image_size: int | None,
) -> tuple[Runnable, Output]:
    """Load the model onto its device; return it, and a table without rows."""
    from vitrail.inference.exported import open_model
    from vitrail.runtime.device import pick

    model = open_model(name, image_size=image_size).to(pick(common.device))
    train, test, which = probe.train, probe.test, probe.extraction.which
    result: dict[str, Any] = {"model": name, "preprocess": model.preprocess, "which": which}
    result |= {"train": train.name, "test": test.name, "scores": []}
    line = f"Learned from {len(train):,} images ({train.name}), tested on {len(test):,} ({test.name}); "
    headings = ["", ">accuracy", *(f">{column}" for column in columns)]
    return model, Output(common, headings, [], result, after=[f"{line}features: {which}"])


def add_row(output: Output, score: Score, cells: list[str], **details: Any) -> None:
    from vitrail.evaluators.score import format_accuracy

    output.rows.append([score.name, format_accuracy(score.value, score.n), *cells])
    output.result["scores"].append({**vars(score), **details})


def tell_written(output: Output, out: str) -> None:
    from shlex import quote

    output.result["out"] = out
    output.after.append(f"Next: vitrail predict {quote(out)} IMAGE...    vitrail evaluate {quote(out)} DATA")
