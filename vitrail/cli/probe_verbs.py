"""What a model's frozen features are worth on a data set: fewshot, knn, linear."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, arg

from vitrail.cli.verb import COMMON, Common, ModelPath, Shown
from vitrail.evaluators.draws import Draws

if TYPE_CHECKING:
    from vitrail.data.sources import Source
    from vitrail.evaluators.score import Score
    from vitrail.inference.feature_cache import Extraction
    from vitrail.models.names import Model

DataPath = Annotated[Positional[str], arg(metavar="DATA")]


@dataclass(frozen=True)
class Probing:
    """Flags of every probe."""

    train_split: str = "train"  # what is learned from; settings are chosen on a held-out part of it
    test_split: str | None = None  # what is tested on; without one: test, or else validation
    which: str = "pre_logits"  # features: pre_logits, token, mean, layer3, layer3.token, layer3.mean
    cache: str | None = None  # folder that keeps features; without one: VITRAIL_CACHE, or ~/.cache/vitrail
    batch: int = 64  # images at a time
    workers: int = 0  # processes that decode images
    max_bad: float = 0.01  # part of the images that may be broken before it stops


PROBING = Probing()


def fewshot(
    model: ModelPath,
    data: DataPath,
    *,
    shots: tuple[int, ...] = (),
    seeds: int = 3,
    l2: tuple[float, ...] = (1024.0,),
    sweep: bool = False,
    draws: Draws = "vitrail",
    probing: Probing = PROBING,
    common: Common = COMMON,
) -> Shown:
    """Least squares in closed form on a few examples of each class: the paper's few-shot accuracy.

    Args:
        model: a name in the box (ti8-64), a bundle, a run, or anyone's checkpoint
        data: a folder, Parquet or tar shards, an .npz, or a name of the catalog
        shots: training examples of each class; without any: 1 5 10 25, as far as every class has as many
        seeds: how often they are drawn; the mean and the standard deviation are shown
        l2: regularisation; of several, the best on the training examples that were not drawn
        sweep: choose l2 among 2^-10 ... 2^19
        draws: which examples: vitrail's own, big_vision's for the same seeds, or scenic's (the first ones, no seed)
    """
    from vitrail.evaluators.fewshot import SWEEP, FewShot, fitting_shots, score

    loaded, train, test, extraction = opened(model, data, probing, common)
    evaluator = FewShot(
        train, test, shots or fitting_shots(train), seeds, SWEEP if sweep else l2, extraction, draws=draws
    )
    shown = begin(model, loaded, train, test, probing, common, ["std", "each seed", "l2"])
    shown.result["draws"] = draws
    for runs in evaluator.runs(loaded):
        made, l2s = score(runs), sorted({run.l2 for run in runs})
        std, chosen = "-" if made.std is None else f"{made.std:.2%}", " ".join(f"{v:g}" for v in l2s)
        values = [run.accuracy for run in runs]
        each = " ".join(f"{value:.2%}" for value in values)
        add(shown, made, [std, each, chosen], l2=l2s, seeds=len(runs), values=values)
    return shown


def knn(
    model: ModelPath,
    data: DataPath,
    *,
    k: tuple[int, ...] = (20,),
    temperature: float = 0.07,
    probing: Probing = PROBING,
    common: Common = COMMON,
) -> Shown:
    """The classes of the nearest training images by the cosine of their features; nothing is trained.

    Args:
        model: a name in the box (ti8-64), a bundle, a run, or anyone's checkpoint
        data: a folder, Parquet or tar shards, an .npz, or a name of the catalog
        k: neighbours that vote; of several, the best on a held-out fifth of the training split
        temperature: of the weighted vote, exp(cosine / temperature)
    """
    from vitrail.evaluators.knn import KNN
    from vitrail.evaluators.score import Score

    loaded, train, test, extraction = opened(model, data, probing, common)
    evaluator = KNN(train, test, k, temperature, extraction)
    shown = begin(model, loaded, train, test, probing, common, ["k"])
    for vote, (best, value, n) in evaluator.chosen(loaded).items():
        add(shown, Score(f"knn {vote}", value, n), [str(best)], k=best)
    return shown


def linear(
    model: ModelPath,
    data: DataPath,
    *,
    l2: tuple[float, ...] = (10.0, 1.0, 0.1, 0.01, 1e-3, 1e-4, 1e-5, 1e-6),
    probing: Probing = PROBING,
    common: Common = COMMON,
) -> Shown:
    """Logistic regression on the features, solved by L-BFGS: the linear probe.

    Args:
        model: a name in the box (ti8-64), a bundle, a run, or anyone's checkpoint
        data: a folder, Parquet or tar shards, an .npz, or a name of the catalog
        l2: regularisation; of several, the best on a held-out fifth of the training split
    """
    from vitrail.evaluators.linear import LinearProbe

    loaded, train, test, extraction = opened(model, data, probing, common)
    evaluator = LinearProbe(train, test, l2, extraction)
    shown = begin(model, loaded, train, test, probing, common, ["l2"])
    best, score = evaluator.chosen(loaded)
    add(shown, score, [f"{best:g}"], l2=best)
    return shown


def opened(
    model: str, data: str, probing: Probing, common: Common
) -> tuple[Model, Source, Source, Extraction]:
    """The model on its device, both splits, and how features are made."""
    from vitrail.checkpoints.formats import load
    from vitrail.data.sources import open_source, test_split_of
    from vitrail.data.splits import check_apart
    from vitrail.inference.feature_cache import Extraction, cache_folder
    from vitrail.runtime.device import pick

    train = open_source(data, probing.train_split)
    test = open_source(data, probing.test_split or test_split_of(data, probing.train_split))
    check_apart(train, test)
    extraction = Extraction(
        probing.which, cache_folder(probing.cache), probing.batch, probing.workers, probing.max_bad
    )
    return load(model).to(pick(common.device)), train, test, extraction


def begin(
    name: str, model: Model, train: Source, test: Source, probing: Probing, common: Common, columns: list[str]
) -> Shown:
    """A table without rows, and what its numbers stand on."""
    result: dict[str, Any] = {"model": name, "preprocess": model.preprocess, "which": probing.which}
    result |= {"train": train.name, "test": test.name, "scores": []}
    after = [f"{train.name} ({len(train):,}) -> {test.name} ({len(test):,}), features {probing.which}"]
    headings = ["", ">accuracy", *(f">{column}" for column in columns), ">test examples"]
    return Shown(common, headings, [], result, after=after)


def add(shown: Shown, score: Score, cells: list[str], **chosen: Any) -> None:
    shown.rows.append([score.name, f"{score.value:.2%}", *cells, f"{score.n:,}"])
    shown.result["scores"].append({**vars(score), **chosen})
