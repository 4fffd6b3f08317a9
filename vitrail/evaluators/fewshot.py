"""Few-shot: a linear classifier in closed form on frozen features, the paper's quick measure of a model.

N examples, `shots` of each of K classes; X (N, D + 1) their features, standardised by their own mean and standard
deviation, with a constant feature of 100 for the bias (so large that it is hardly regularised); Y (N, K) of -1 and 1.

    W = argmin ||X W - Y||^2 + l2 ||W||^2
      = (X^T X + l2)^-1 X^T Y        where N >= D + 1        X^T X = Q diag(e) Q^T
      = X^T (X X^T + l2)^-1 Y        where N <  D + 1        X X^T = Q diag(e) Q^T

      = L diag(1 / (e + l2)) R       L = Q, R = Q^T X^T Y;  or L = X^T Q, R = Q^T Y

One decomposition (e, L, R) serves every l2 and every class. All of it in float64. Since Y = 2 onehot - 1, a product
with Y is two sums over classes, and Y is never made. Standardisation, constant and l2 = 2^10 are the published
code's (big_vision, evaluators/fewshot_lsr.py).

`draws`: the order of the examples of a class, of which the first `shots` are taken.

    vitrail      shuffled by (seed, class), the same from one release of numpy to the next
    big_vision   shuffled as big_vision does: its seeds are these seeds
    scenic       in the order of the data, whatever the seed (train_lib/transfer/fewshot_utils.py)

The last two draw the same examples as those libraries if the data has the order of TFDS.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.data.sources import Source
from vitrail.data.splits import class_members, shuffled_classes
from vitrail.errors import ConfigError, DataError
from vitrail.evaluators.choose_l2 import choose_l2
from vitrail.evaluators.classifier import UNMEASURED, best_scale
from vitrail.evaluators.score import Score, mean_and_std
from vitrail.inference.features import MAX_HELD_OUT, Extraction, Features, as_float64, train_and_test

Draws = Literal["vitrail", "big_vision", "scenic"]
SHOTS = (1, 5, 10, 25)
L2 = 2.0**10
FACTOR = 2.0
SWEEP = tuple(FACTOR**i for i in range(-10, 20))  # of scenic's transfer evaluation
CONSTANT = 100.0
STD_EPS = 1e-5
BLOCK = 4096  # rows that are predicted at a time
LARGE = 100_000  # K D from which a GPU, where the model is on one, is faster than the CPU


@dataclass(frozen=True)
class FewShot:
    """An evaluator: a score `5-shot` for each number of shots, the mean over the seeds with its deviation."""

    train: Source
    test: Source
    shots: Sequence[int] = SHOTS
    seeds: int = 3  # number of seeds: 0, 1, ... each draw other examples of each class
    # of several, the best on the examples of `train` that were not drawn; of none, of SWEEP and beyond
    l2: Sequence[float] = (L2,)
    extraction: Extraction = field(default_factory=Extraction)
    name: str = ""  # of the data, before the name of the score: pets -> pets_5-shot
    draws: Draws = "vitrail"  # order of the examples; scenic's depends on no seed: one run

    def __post_init__(self) -> None:
        if not self.shots or min(self.shots) < 1 or self.seeds < 1:
            raise ConfigError(f"shots {tuple(self.shots)} and seeds {self.seeds} must be at least 1")
        if self.draws not in get_args(Draws):
            raise ConfigError(f"draws {self.draws!r}: allowed are {', '.join(get_args(Draws))}")
        if not all(0 < value < float("inf") for value in self.l2):
            raise ConfigError(f"l2 {tuple(self.l2)} must be positive numbers")
        check_shots(self.train, max(self.shots))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of its scores."""
        return tuple(f"{self.name}_{shots}-shot" if self.name else f"{shots}-shot" for shots in self.shots)

    def __call__(self, model: nn.Module) -> Iterator[Score]:
        for runs in self.runs(model):
            yield score(runs, self.name)

    def runs(self, model: nn.Module, *, choose: bool = True) -> Iterator[list[Run]]:
        """Yield for each number of shots a run for each seed; without `choose`, for each seed and each of `l2`."""
        train, test, device = train_and_test(model, self.train, self.test, self.extraction)
        check_shots(train, max(self.shots))
        if len(train.class_names) * train.x.shape[1] < LARGE:
            device = torch.device("cpu")
        seeds = range(1 if self.draws == "scenic" else self.seeds)
        for shots in self.shots:
            by_seed = [
                run_draw(train, test, shots, i, self.l2, device, self.draws, choose=choose) for i in seeds
            ]
            yield [one for runs in by_seed for one in runs]


@dataclass(frozen=True)
class Run:
    """One classifier, tested."""

    shots: int
    seed: int
    l2: float
    accuracy: float
    n: int  # test examples


def score(runs: Sequence[Run], name: str = "") -> Score:
    """Return the mean over the seeds, and its spread."""
    mean, std = mean_and_std([r.accuracy for r in runs])
    return Score(f"{name}_{runs[0].shots}-shot".lstrip("_"), mean, runs[0].n, std)


def run_draw(
    train: Features,
    test: Features,
    shots: int,
    seed: int,
    l2: Sequence[float],
    device: torch.device,
    draws: Draws = "vitrail",
    *,
    choose: bool = True,
) -> list[Run]:
    """Draw the examples, solve, test with each l2; or `choose` the best on other examples, where there are none by
    five folds of those that were drawn."""
    classes = len(train.class_names)
    in_order = ordered_classes(train.labels, classes, seed, draws)
    drawn = np.concatenate([members[:shots] for members in in_order])  # (K shots,)
    few = train.part(np.sort(drawn))
    solution = solve(few.x, few.labels, classes, device)
    if choose and len(l2) != 1:
        rest = np.setdiff1d(np.arange(len(train)), drawn)
        thinned = rest[:: -(-len(rest) // MAX_HELD_OUT) or 1]  # evenly, where it is much
        parts = [(solution, train.part(thinned))] if len(rest) else solve_parts(few, device)
        l2 = [best_l2(parts, l2)]
    return [Run(shots, seed, value, accuracy(solution, test, value), len(test)) for value in l2]


def solve_all(
    train: Features, l2: Sequence[float], device: torch.device | str = "cpu"
) -> tuple[Solution, float, float]:
    """Solve for all examples; return with the l2, of several the best by five folds, the factor that makes logits of
    the outputs."""
    solution = solve(train.x, train.labels, len(train.class_names), device)
    if np.bincount(train.labels).max() < 2 and len(l2) < 2:
        return solution, l2[0] if l2 else L2, UNMEASURED
    parts = solve_parts(train, device)
    value = l2[0] if len(l2) == 1 else best_l2(parts, l2)
    outputs = []
    for solved, part in parts:
        weight, bias = solved.affine(value)
        outputs.append(part.x @ weight + bias)  # (n, K)
    labels = np.concatenate([part.labels for _, part in parts])
    return solution, value, best_scale(np.concatenate(outputs), labels)


def solve_parts(train: Features, device: torch.device | str) -> list[tuple[Solution, Features]]:
    """Return what is solved without each of some parts, and the part."""
    classes = len(train.class_names)
    return [(solve(rest.x, rest.labels, classes, device), part) for rest, part in train.held_out_parts()]


def best_l2(parts: Sequence[tuple[Solution, Features]], l2: Sequence[float]) -> float:
    """Return the best of some l2 on held-out examples, of none that of a grid that grows; of equals the largest."""

    def right(value: float) -> int:
        return sum(round(accuracy(solution, part, value) * len(part)) for solution, part in parts)

    return choose_l2(right, l2 or SWEEP, 0.0 if l2 else FACTOR)


def ordered_classes(labels: np.ndarray, classes: int, seed: int, draws: Draws) -> list[np.ndarray]:
    """Return the examples of each class in the order in which they are taken."""
    if draws == "vitrail":
        return shuffled_classes(labels, classes, seed)
    members = class_members(labels, classes)
    if draws == "scenic":
        return members
    rng = np.random.default_rng(seed)  # one for all classes, in their order
    return [rng.permutation(those) for those in members]


def accuracy(solution: Solution, features: Features, l2: float) -> float:
    return float((solution.predict(features.x, l2) == features.labels).mean())


@dataclass(frozen=True)
class Solution:
    """A least-squares problem, decomposed: weights for any l2 need two products. m = min(N, D + 1)."""

    mean: Tensor  # (D,)
    std: Tensor  # (D,)
    e: Tensor  # (m,)
    L: Tensor  # (D + 1, m)
    R: Tensor  # (m, K)

    def weights(self, l2: float) -> Tensor:
        """Return W (D + 1, K); the last row is the constant feature's."""
        return (self.L / (self.e + l2)) @ self.R

    def affine(self, l2: float) -> tuple[np.ndarray, np.ndarray]:
        """Return weight (D, K) and bias (K,) on features as they are, not standardised."""
        W = self.weights(l2)  # (D + 1, K)
        weight = W[:-1] / self.std[:, None]  # (D, K)
        bias = CONSTANT * W[-1] - self.mean @ weight  # (K,)
        return weight.cpu().numpy(), bias.cpu().numpy()

    def predict(self, x: np.ndarray, l2: float) -> np.ndarray:
        """(n, D) -> int64 (n,); of equal outputs, the first class."""
        W = self.weights(l2)
        blocks = (x[i : i + BLOCK] for i in range(0, len(x), BLOCK))
        predicted = [(self.inputs(as_float64(block, W.device)) @ W).argmax(dim=1).cpu() for block in blocks]
        return torch.cat(predicted).numpy()  # (n,)

    def inputs(self, x: Tensor) -> Tensor:
        """(n, D) -> X (n, D + 1)."""
        return F.pad((x - self.mean) / self.std, (0, 1), value=CONSTANT)


def solve(x: np.ndarray, y: np.ndarray, classes: int, device: torch.device | str = "cpu") -> Solution:
    """Decompose the problem of features (N, D) and labels (N,), in whichever of the two forms is smaller."""
    features, labels = as_float64(x, device), torch.from_numpy(np.array(y)).to(device)
    mean = features.mean(dim=0)  # (D,)
    features -= mean
    std = features.square().mean(dim=0).sqrt() + STD_EPS  # (D,)
    X = F.pad(features.div_(std), (0, 1), value=CONSTANT)  # (N, D + 1)
    if X.shape[0] >= X.shape[1]:
        e, Q = torch.linalg.eigh(X.T @ X)  # (D + 1,), (D + 1, D + 1)
        L, R = Q, Q.T @ times_targets(X, labels, classes)
    else:
        e, Q = torch.linalg.eigh(X @ X.T)  # (N,), (N, N)
        L, R = X.T @ Q, times_targets(Q, labels, classes)
    return Solution(mean, std, e.clamp(min=0), L, R)


def times_targets(a: Tensor, labels: Tensor, classes: int) -> Tensor:
    """a (N, m) -> a^T Y (m, K): for each class twice the sum of its rows, less the sum of all."""
    sums = a.new_zeros(classes, a.shape[1]).index_add_(0, labels, a)  # (K, m)
    return (2 * sums - a.sum(dim=0)).T  # (m, K)


def fitting_shots(train: Source) -> tuple[int, ...]:
    """Return those of SHOTS for which every class has enough examples; at least one."""
    least = np.bincount(train.labels, minlength=len(train.class_names)).min()
    return tuple(n for n in SHOTS if n <= max(least, 1))


def check_shots(train: Source | Features, shots: int) -> None:
    counts = np.bincount(train.labels, minlength=len(train.class_names))
    if counts.min() < shots:
        least = int(counts.argmin())
        raise DataError(
            f"{shots}-shot: class {train.class_names[least]!r} of {train.name} has {counts[least]} examples, the "
            f"fewest of all; at most {counts[least]} shots are possible"
        )
