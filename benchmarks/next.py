"""What to label next: accuracy after labelling the images that `vitrail data next` chooses, against random ones.

    python -m benchmarks.next --data FOLDER/transfer

FOLDER/transfer has cifar10, cifar100, pets, flowers102 and dtd10, 1,000 training images each. For each seed 100 of
them are labelled at random; then 100 of the other 900 are chosen, by each rule, and a classifier is fitted to all 200
and tested on the test set: the closed form of `vitrail fewshot`, by which images are chosen too, and logistic
regression (`vitrail linear`, l2 = 0.01), which is another one. Rules, on the same labelled images:

    random      the next of the same random order
    next        vitrail/curate/next_labels.py
    margin      the least margin of the closed form
    k-centre    always the image that is farthest from all that are labelled

Differences to random are paired by seed: mean and standard error. The claim held: `next` is not worse than random
on any set, by either classifier. The numbers: docs/results/next.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np

from vitrail.curate.next_labels import choose_next, predict, unit_rows
from vitrail.data.sources import DataSet
from vitrail.evaluators import fewshot, linear
from vitrail.inference.exported import open_model
from vitrail.inference.features import Extraction, Features, cache_folder, extract_features

SETS = ("cifar10", "cifar100", "pets", "flowers102", "dtd10")
Rule = Callable[[Features, np.ndarray, int], np.ndarray]  # labelled, unlabelled (N, D), n -> rows (n,)


def by_margin(labelled: Features, x: np.ndarray, n: int) -> np.ndarray:
    return np.argsort(predict(labelled, x)[1], kind="stable")[:n]


def k_centre(labelled: Features, x: np.ndarray, n: int) -> np.ndarray:
    own, z = (rows.numpy() for rows in unit_rows(labelled.x, x))
    nearest = (z @ own.T).max(axis=1)  # (N,)
    taken: list[int] = []
    for _ in range(n):
        nearest[taken] = np.inf
        taken.append(int(nearest.argmin()))
        nearest = np.maximum(nearest, z @ z[taken[-1]])
    return np.array(taken)


RULES: dict[str, Rule] = {
    "random": lambda labelled, x, n: np.arange(n),  # which are in a random order
    "next": lambda labelled, x, n: choose_next(labelled, x, n).rows,
    "margin": by_margin,
    "k-centre": k_centre,
}


def accuracies(train: Features, test: Features) -> tuple[float, float]:
    """Return those of the closed form, and of logistic regression."""
    solution = fewshot.solve(train.x, train.labels, len(train.class_names))
    probe = linear.fit(train, 0.01)
    return fewshot.accuracy(solution, test, fewshot.L2), linear.accuracy(probe, test)


def main(data: Path, model: str = "ti8-64", labelled: int = 100, n: int = 100, seeds: int = 5) -> None:
    loaded, extraction = open_model(model), Extraction(cache=cache_folder())
    print(f"{model}; {labelled} labelled at random, {n} chosen; {seeds} seeds; accuracy in %")
    print(f"{'':12}{'':10}{'closed form':>24}{'logistic regression':>24}")
    for name in SETS:
        data_set = DataSet(data / name)
        pool = extract_features(loaded, data_set.part("train+validation"), extraction)
        test = extract_features(loaded, data_set.part("test"), extraction)
        scores: dict[str, list[tuple[float, float]]] = {rule: [] for rule in RULES}
        for seed in range(seeds):
            order = np.random.default_rng([1, seed]).permutation(len(pool))
            own, rest = order[:labelled], order[labelled:]
            for rule, choose in RULES.items():
                chosen = rest[choose(pool.part(own), pool.x[rest], n)]
                assert len(set(chosen.tolist())) == n
                scores[rule].append(accuracies(pool.part(np.concatenate([own, chosen])), test))
        random = 100 * np.array(scores["random"])  # (seeds, 2)
        for rule, values in scores.items():
            mean, differences = 100 * np.mean(values, axis=0), 100 * np.array(values) - random
            error = differences.std(axis=0, ddof=1) / np.sqrt(seeds) if seeds > 1 else np.zeros(2)
            cells = [
                f"{m:6.1f}" + (f"  {d:+5.1f} +- {e:3.1f}" if rule != "random" else " " * 14)
                for m, d, e in zip(mean, differences.mean(axis=0), error, strict=True)
            ]
            print(f"{name if rule == 'random' else '':12}{rule:10}{cells[0]:>24}{cells[1]:>24}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", default="ti8-64")
    for name, default in {"labelled": 100, "n": 100, "seeds": 5}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    main(**vars(parser.parse_args()))
