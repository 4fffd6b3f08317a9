"""The few-shot solver against scikit-learn's ridge regressions: weights for a sweep of l2, in one run.

    python -m benchmarks.fewshot

20,000 examples of 768 features and 1,000 classes, 20 values of l2, float64. All get the same problem: the features
standardised, with the constant feature, targets -1 and 1. Ours and numpy's make it from the raw features within
their time; scikit-learn finds it made. Each gives the weights of every l2, but for RidgeCV, which gives those of the
best one. Predictions on 2,000 other examples are compared outside the time. By turns, `repeats` times, medians.

Claims held: no slower than what also factors once (RidgeCV; Ridge on the factored Gram matrix), several times faster
than Ridge for each l2; the same predictions. scikit-learn is not a dependency: without it, numpy is compared alone.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator

import numpy as np
import torch

from vitrail.evaluators.fewshot import CONSTANT, STD_EPS, solve

Weights = dict[float, np.ndarray]  # l2: W (D + 1, K)


def main(n: int = 20_000, width: int = 768, classes: int = 1000, values: int = 20, repeats: int = 3) -> None:
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((classes, width))
    labels = np.concatenate([np.arange(classes), rng.integers(0, classes, n - classes)])
    x = centres[labels] + 4 * rng.standard_normal((n, width))
    tests = centres[rng.integers(0, classes, 2000)] + 4 * rng.standard_normal((2000, width))
    sweep = [2.0**i for i in range(-6, values - 6)]
    X, Y = inputs(x, x), 2.0 * np.eye(classes)[labels] - 1

    def ours() -> Weights:
        solution = solve(x, labels, classes)
        return {l2: solution.weights(l2).numpy() for l2 in sweep}

    methods: dict[str, Callable[[], Weights]] = {
        "vitrail": ours,
        "the same algebra in numpy": lambda: numpy_eigh(x, Y, sweep),
    }
    methods |= dict(scikit_learn(X, Y, sweep))
    seconds: dict[str, list[float]] = {name: [] for name in methods}
    made: dict[str, Weights] = {}
    for _ in range(repeats):
        for name, method in methods.items():
            began = time.perf_counter()
            made[name] = method()
            seconds[name].append(time.perf_counter() - began)
            print(f"  {name:32} {seconds[name][-1]:7.2f} s", flush=True)
    problem = f"{n:,} x {width}, {classes:,} classes, {values} l2"
    print(f"{problem}; {repeats} repeats, medians, {torch.get_num_threads()} threads")
    report(seconds, made, inputs(tests, x))


def inputs(x: np.ndarray, train: np.ndarray) -> np.ndarray:
    """(n, D) -> X (n, D + 1), as vitrail/evaluators/fewshot.py has it."""
    standardised = (x - train.mean(axis=0)) / (train.std(axis=0) + STD_EPS)
    return np.pad(standardised, ((0, 0), (0, 1)), constant_values=CONSTANT)


def numpy_eigh(x: np.ndarray, Y: np.ndarray, sweep: list[float]) -> Weights:
    """With the targets written out."""
    X = inputs(x, x)
    e, Q = np.linalg.eigh(X.T @ X)
    R = Q.T @ (X.T @ Y)
    return {l2: (Q / (e + l2)) @ R for l2 in sweep}


def scikit_learn(
    X: np.ndarray, Y: np.ndarray, sweep: list[float]
) -> Iterator[tuple[str, Callable[[], Weights]]]:
    try:
        from sklearn.linear_model import Ridge, RidgeCV
    except ImportError:
        print("scikit-learn is not installed: numpy is compared alone")
        return

    def ridge(X: np.ndarray, Y: np.ndarray) -> Weights:
        fit = {l2: Ridge(l2, fit_intercept=False, solver="cholesky").fit(X, Y) for l2 in sweep}
        return {l2: model.coef_.T for l2, model in fit.items()}

    def on_gram() -> Weights:
        """X^T X = U^T U once: ||U W - U^-T X^T Y||^2 has the same solutions with D + 1 rows instead of N."""
        U = np.linalg.cholesky(X.T @ X).T
        return ridge(U, np.linalg.solve(U.T, X.T @ Y))

    def cross_validated() -> Weights:
        model = RidgeCV(sweep, fit_intercept=False).fit(X, Y)
        return {float(model.alpha_): model.coef_.T}

    yield "scikit-learn Ridge on the Gram", on_gram
    yield "scikit-learn RidgeCV", cross_validated
    yield "scikit-learn Ridge", lambda: ridge(X, Y)


def report(seconds: dict[str, list[float]], made: dict[str, Weights], tests: np.ndarray) -> None:
    ours = {l2: (tests @ W).argmax(axis=1) for l2, W in made["vitrail"].items()}
    print(f"{'':34}{'seconds':>9}{'time / ours':>13}{'(range)':>16}   same predictions")
    for name, times in seconds.items():
        ratios = [theirs / own for theirs, own in zip(times, seconds["vitrail"], strict=True)]
        same = [np.mean((tests @ W).argmax(axis=1) == ours[l2]) for l2, W in made[name].items()]
        print(
            f"{name:34}{statistics.median(times):9.2f}{statistics.median(ratios):12.2f}x"
            f"{min(ratios):9.2f} to {max(ratios):.2f}   {min(same):.2%} of 2,000, {len(same)} l2"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    for name, default in {"n": 20_000, "width": 768, "classes": 1000, "values": 20, "repeats": 3}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    main(**vars(parser.parse_args()))
