"""Out-of-fold predictions on frozen features: what images that it has not seen say about the label of each.

    x, labels, folds ──► three classifiers, fitted to all folds but that of the image ──► product of their predictions

    discriminant    Gaussian classes with one covariance S, shrunk towards a multiple of I:
                        f_k(x) = -1/2 n_k / (n_k + 1) (x - mean_k)^T S^-1 (x - mean_k)
    kernel          least squares to targets 0 and 1 with the kernel exp((cosine - 1) / t), by up to 1,024 landmarks
    neighbours      votes of the 50 nearest, weighted by exp(cosine / t):  f_k(x) = log of the share of class k

They fail in different places: the first is best where a class has few images, the last where it is several
clusters; together they rank label errors better than each (docs/results/label_errors.md). All are in closed form. The
settings of each (shrinkage; t, l2; t), its temperature and that of the product are those with which the labels are
most probable out of fold. A prediction is

    log p(k | x) = log softmax_k of T (the sum over the classifiers of log softmax_k(T_c f_c(x)))

n images, D width, C classes, m rows that are asked for, r landmarks and a constant.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.evaluators.knn import neighbours, unit
from vitrail.inference.features import as_float64
from vitrail.runtime.progress import progress

SHRINKAGES = (0.1, 0.3, 0.5, 0.7, 0.85, 0.95)
KERNELS = tuple((t, l2) for t in (0.1, 0.3, 1.0) for l2 in (0.1, 0.3, 1.0, 3.0))
NEAR = (0.02, 0.03, 0.05, 0.07, 0.1, 0.15)  # t
LANDMARKS = 1024
NEIGHBOURS = 50
UNSEEN = 0.05  # share of the votes that is spread over all classes
CONSTANT = 10.0  # a feature, so large that its weight, the bias, is hardly regularised
EPS = 1e-5
TEMPERATURES = torch.logspace(-2, 2, 81, dtype=torch.float64)
TUNING = 5000  # images that settings are chosen on, at most
BLOCK = 8192  # images at a time
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Labelled:
    """Images, and which of them are predicted together."""

    x: np.ndarray  # (n, D)
    labels: np.ndarray  # int64 (n,)
    folds: np.ndarray  # int64 (n,)
    classes: int

    def __len__(self) -> int:
        return len(self.labels)

    def by_fold(self, rows: np.ndarray) -> list[tuple[int, np.ndarray]]:
        """Return each fold, and the places in `rows` of its images, in blocks."""
        blocks = []
        for fold in np.unique(self.folds[rows]).tolist():
            places = np.flatnonzero(self.folds[rows] == fold)
            blocks += [(fold, places[i : i + BLOCK]) for i in range(0, len(places), BLOCK)]
        return blocks


Classifier = Callable[[np.ndarray, Any], Tensor]  # rows (m,), setting -> f float64 (m, C), each out of fold


def number_of_folds(n: int) -> int:
    """Return 50 for up to 1,000 images, where each of them counts, and down to 10 for many."""
    return min(50, max(10, 50_000 // max(1, n)))


class Discriminant:
    """Gaussian classes with one covariance; its decomposition serves every shrinkage."""

    def __init__(self, x: np.ndarray, labels: np.ndarray, classes: int) -> None:
        X, y = as_float64(x, CPU), torch.from_numpy(labels)
        self.mean = X.mean(dim=0)  # (D,)
        X -= self.mean
        self.std = X.square().mean(dim=0).sqrt() + EPS  # (D,)
        X /= self.std  # (n, D)
        self.counts = torch.bincount(y, minlength=classes)  # (C,)
        sums = X.new_zeros(classes, X.shape[1]).index_add_(0, y, X)  # (C, D)
        means = sums / self.counts.clamp(min=1)[:, None]  # (C, D)
        X -= means[y]
        e, self.Q = torch.linalg.eigh(X.T @ X / max(1, len(X) - classes))  # (D,), (D, D)
        self.e, self.means = e.clamp(min=0), means @ self.Q  # (D,), (C, D)

    def __call__(self, x: np.ndarray, shrinkage: float) -> Tensor:
        """(m, D) -> f (m, C)."""
        root = ((1 - shrinkage) * self.e + shrinkage * self.e.mean() + EPS).sqrt()  # (D,)
        a = ((as_float64(x, CPU) - self.mean) / self.std) @ self.Q / root  # (m, D)
        means = self.means / root  # (C, D)
        squares = a.square().sum(dim=1, keepdim=True) + means.square().sum(dim=1) - 2 * a @ means.T  # (m, C)
        squares *= self.counts / (self.counts + 1)
        squares[:, self.counts == 0] = squares.max() if len(squares) else 0.0
        return -squares / 2


def discriminant(data: Labelled) -> Classifier:
    """Fit one for each fold, to all others."""
    fitted = {}
    numbers = np.unique(data.folds).tolist()
    for fold in progress(numbers, len(numbers), "fitting"):
        rest = data.folds != fold
        fitted[fold] = Discriminant(data.x[rest], data.labels[rest], data.classes)

    def predict(rows: np.ndarray, shrinkage: float) -> Tensor:
        f = torch.zeros(len(rows), data.classes, dtype=torch.float64)  # (m, C)
        for fold, places in data.by_fold(rows):
            f[places] = fitted[fold](data.x[rows[places]], shrinkage)
        return f

    return predict


def kernel(data: Labelled) -> Classifier:
    """Solve for all images; leave a fold out of the normal equations, or of the solution where that is smaller.

    With U (n, r), U^T U = diag(e): W = (diag(e) + l2)^-1 U^T Y solves for all. Without the rows b of a fold,
    f_b = Y_b - (1 - H_bb)^-1 (Y_b - U_b W) with H_bb = U_b (diag(e) + l2)^-1 U_b^T.
    """
    n, y = len(data), torch.from_numpy(data.labels)
    x = unit(data.x, CPU, torch.float64)  # (n, D)
    landmarks = x[np.random.PCG64([0]).random_raw(n).argsort()[:LANDMARKS].copy()]  # (r - 1, D)
    spectra: dict[float, tuple[Tensor, Tensor, Tensor]] = {}

    def spectrum(t: float) -> tuple[Tensor, Tensor, Tensor]:
        if t not in spectra:
            spectra.clear()  # one at a time: U is large
            e, Q = torch.linalg.eigh(((landmarks @ landmarks.T - 1) / t).exp())
            kept = e > 1e-10 * e[-1]
            root = Q[:, kept] / e[kept].sqrt()  # (landmarks, r - 1)
            parts = [((part @ landmarks.T - 1) / t).exp() @ root for part in x.split(BLOCK)]
            features = F.pad(torch.cat(parts), (0, 1), value=CONSTANT)  # (n, r)
            e, Q = torch.linalg.eigh(features.T @ features)
            U = features @ Q  # (n, r)
            spectra[t] = U, e.clamp(min=0), U.new_zeros(data.classes, U.shape[1]).index_add_(0, y, U).T
        return spectra[t]

    def predict(rows: np.ndarray, setting: tuple[float, float]) -> Tensor:
        U, e, UY = spectrum(setting[0])  # (n, r), (r,), (r, C)
        e = e + setting[1]
        f = torch.zeros(len(rows), data.classes, dtype=torch.float64)  # (m, C)
        for fold in np.unique(data.folds[rows]).tolist():
            b, places = np.flatnonzero(data.folds == fold), np.flatnonzero(data.folds[rows] == fold)
            U_b, Y_b = U[b], F.one_hot(y[b], data.classes).double()  # (b, r), (b, C)
            if len(b) < len(e):
                H = (U_b / e) @ U_b.T  # (b, b)
                right = torch.linalg.solve(torch.eye(len(b)).double() - H, Y_b - (U_b / e) @ UY)  # (b, C)
                f[places] = (Y_b - right)[np.searchsorted(b, rows[places])]
            else:
                W = torch.linalg.solve(torch.diag(e) - U_b.T @ U_b, UY - U_b.T @ Y_b)  # (r, C)
                f[places] = U[rows[places]] @ W
        return f

    return predict


def votes(data: Labelled) -> Classifier:
    """Let the nearest images of the other folds vote."""

    def predict(rows: np.ndarray, t: float) -> Tensor:
        f = torch.zeros(len(rows), data.classes, dtype=torch.float64)  # (m, C)
        for fold, places in data.by_fold(rows):
            rest = np.flatnonzero(data.folds != fold)
            s, index = neighbours(
                data.x[rest], data.x[rows[places]], min(NEIGHBOURS, len(rest))
            )  # (b, k) each
            w = torch.from_numpy(np.exp((s - s[:, :1]) / t))  # (b, k)
            labels = torch.from_numpy(data.labels[rest][index])
            shares = w.new_zeros(len(places), data.classes).scatter_add_(1, labels, w)  # (b, C)
            shares /= shares.sum(dim=1, keepdim=True)
            f[places] = ((1 - UNSEEN) * shares + UNSEEN / data.classes).log()
        return f

    return predict


CLASSIFIERS: dict[str, tuple[Callable[[Labelled], Classifier], Sequence[Any]]] = {
    "discriminant": (discriminant, SHRINKAGES),
    "kernel": (kernel, KERNELS),
    "neighbours": (votes, NEAR),
}


@dataclass(frozen=True)
class Predictions:
    """Predictions of images by classifiers that have seen neither them nor a copy of them."""

    log_p: np.ndarray  # float64 (n, C)
    settings: dict[str, Any]  # that were chosen


def predict_out_of_fold(x: np.ndarray, labels: np.ndarray, folds: np.ndarray, classes: int) -> Predictions:
    """Predict each image by those of the other folds."""
    data, y = Labelled(x, labels, folds, classes), torch.from_numpy(labels)
    tuning, everything = np.arange(0, len(x), -(-len(x) // TUNING)), np.arange(len(x))
    product, settings = torch.zeros(len(x), classes, dtype=torch.float64), {}
    for name, (prepare, values) in CLASSIFIERS.items():
        predict = prepare(data)
        best: dict[Any, tuple[float, float]] = {}  # by setting: log-likelihood, temperature
        for value in progress(values, len(values), f"predicting out of fold: {name}"):
            best[value] = temperature(predict(tuning, value), y[tuning])
        settings[name] = max(best, key=lambda value: best[value][0])
        product += F.log_softmax(best[settings[name]][1] * predict(everything, settings[name]), dim=1)
    _, T = temperature(product[tuning], y[tuning])
    return Predictions(F.log_softmax(T * product, dim=1).numpy(), settings)


def temperature(f: Tensor, labels: Tensor) -> tuple[float, float]:
    """Return the highest mean of log softmax(T f) at the labels, and its T."""
    likelihoods = [-float(F.cross_entropy(T * f, labels)) for T in TEMPERATURES]
    best = int(np.argmax(likelihoods))
    return likelihoods[best], float(TEMPERATURES[best])
