"""Images to label next: the unlabelled ones whose labels would say most about all the others.

    labelled x, y ──► classifier in closed form (fewshot.py) ──► margin of each unlabelled image ──► weight w
    labelled, unlabelled x ──► variances of a linear classifier ──► greedy choice by weighted variance ──► Choice

Uncertainty and coverage are one number. Let z be the features of an image, standardised, of length 1. By a Bayesian
linear classifier with noise NOISE that has seen the images X, the variance of its output at z is

    v(z) = z^T P z        P = (X^T X + NOISE)^-1

and the label of an image i lowers it by (z^T P x_i)^2 / (1 + x_i^T P x_i). So that image is taken which lowers most

    sum over the unlabelled images of w(z) v(z)

then P is updated, and the next is taken. An image in a crowd of its like lowers the variance of many, one that is
beside an image that was taken that of few. w(z) is the rank of its margin: 1 for the most ambiguous, near 0 for the
clearest. The labels of the images themselves are not needed, so all n are chosen at once.

N unlabelled images, D width, n to be chosen.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vitrail.data.bounded_files import check_replaceable
from vitrail.data.contact_sheet import draw_sheet
from vitrail.data.readers.file_names import printable
from vitrail.data.sources import DataSet, Source
from vitrail.errors import ConfigError, DataError, ImageError
from vitrail.evaluators.fewshot import L2, solve
from vitrail.evaluators.knn import neighbours
from vitrail.inference.exported import Runnable
from vitrail.inference.features import (
    EXTRACTION,
    Extraction,
    Features,
    as_float64,
    extract_features,
    extract_rows,
)
from vitrail.inference.images import Pictures, decode_example, find_images
from vitrail.runtime.files import atomic_file
from vitrail.runtime.progress import progress

NOISE = 3.0  # measured: docs/results/next.md
SAME = 0.9999  # cosine from which on two images are the same
BLOCK = 8192  # images at a time
DRAWN = 200  # on a contact sheet
COLUMNS = ("file_name", "label", "predicted", "margin")
EPS = 1e-5


@dataclass(frozen=True)
class Choice:
    """Images to label, in this order: rows of the unlabelled features, int64 (n,), and what is thought of them."""

    rows: np.ndarray
    predicted: np.ndarray  # int64 (n,), classes
    margin: np.ndarray  # float64 (n,): best output less the second best, of a classifier of -1 and 1
    known: int  # unlabelled images that are among the labelled ones, and were left out


def choose_next(labelled: Features, x: np.ndarray, n: int) -> Choice:
    """Choose n of the unlabelled features (N, D); fewer if there are fewer."""
    if n < 1:
        raise ConfigError(f"number of images to choose must be at least 1, not {n}")
    similarity = neighbours(labelled.x, x, 1)[0][:, 0]  # (N,)
    new = np.flatnonzero(similarity < SAME)
    if not len(new):
        raise DataError(
            f"all {len(x):,} unlabelled images are among those of {labelled.name}: none is left to label"
        )
    predicted, margin = predict(labelled, x[new])  # (N,) each
    w = np.empty(len(new))
    w[np.argsort(-margin, kind="stable")] = np.arange(1, len(new) + 1) / len(new)  # (N,)
    taken = reduce_variance(*unit_rows(labelled.x, x[new]), w, min(n, len(new)))  # (n,)
    return Choice(new[taken], predicted[taken], margin[taken], len(x) - len(new))


def predict(labelled: Features, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return class and margin of each of (N, D), by the few-shot classifier."""
    K = len(labelled.class_names)
    solution = solve(labelled.x, labelled.labels, K)
    W, predicted, margin = solution.weights(L2), [], []
    for i in range(0, len(x), BLOCK):
        y = solution.inputs(as_float64(x[i : i + BLOCK], "cpu")) @ W  # (b, K)
        best = y.topk(min(2, K), dim=1)
        predicted.append(best.indices[:, 0])
        margin.append(best.values[:, 0] - best.values[:, -1])
    return torch.cat(predicted).numpy(), torch.cat(margin).numpy()


def unit_rows(labelled: np.ndarray, x: np.ndarray) -> tuple[Tensor, Tensor]:
    """Return both float32, standardised by the mean and deviation of all, of length 1."""
    blocks = [part[i : i + BLOCK] for part in (labelled, x) for i in range(0, len(part), BLOCK)]
    n = len(labelled) + len(x)
    mean = sum(block.sum(axis=0, dtype=np.float64) for block in blocks) / n  # (D,)
    std = np.sqrt(sum(np.square(block - mean).sum(axis=0) for block in blocks) / n) + EPS  # (D,)

    def unit(part: np.ndarray) -> Tensor:
        z = torch.empty(part.shape, dtype=torch.float32)
        for i in range(0, len(part), BLOCK):
            block = torch.from_numpy((part[i : i + BLOCK] - mean) / std)
            z[i : i + BLOCK] = torch.nn.functional.normalize(block, dim=1)
        return z

    return unit(labelled), unit(x)


def reduce_variance(X: Tensor, Z: Tensor, w: np.ndarray, n: int) -> np.ndarray:
    """Choose n of Z (N, D) one by one, by the variances w v(z) that they leave after labels of X; int64 (n,).

    With S = sum of w z z^T, image i lowers the sum by g / (1 + v), g = x_i^T P S P x_i: a choice costs two products
    with Z.
    """
    X64, D = X.double(), X.shape[1]
    P = torch.linalg.inv(X64.T @ X64 + NOISE * torch.eye(D, dtype=torch.float64))  # (D, D)
    S = torch.zeros(D, D, dtype=torch.float64)
    for z, weights in zip(Z.split(BLOCK), torch.from_numpy(w).split(BLOCK), strict=True):
        S += (z.double() * weights[:, None]).T @ z.double()
    M = P @ S @ P  # (D, D)
    v, g = (
        torch.cat([((z.double() @ A) * z).sum(dim=1) for z in Z.split(BLOCK)]) for A in (P, M)
    )  # (N,) each
    taken: list[int] = []
    for _ in progress(range(n), n, "choosing"):
        gain = g / (1 + v)  # (N,)
        gain[taken] = -torch.inf
        i = int(gain.argmax())
        taken.append(i)
        u = P @ Z[i].double()  # (D,)
        c, r = 1 + v[i], P @ (S @ u)
        t, a = (Z @ torch.stack([u, r], dim=1).float()).double().unbind(dim=1)  # (N,) each: z^T u, z^T P S u
        g = g - 2 * t * a / c + t.square() * (u @ S @ u) / c.square()
        v = v - t.square() / c
        P = P - torch.outer(u, u) / c
    return np.array(taken, np.int64)


# --- images, and the list ---


def labelled_images(data: str, split: str | None) -> Source:
    """Return a part of a data set; all of its splits if none is named: each of them is labelled."""
    data_set = DataSet(data)
    return data_set.part(split or "+".join(data_set.splits))


@dataclass(frozen=True)
class Suggestion:
    """An image to label."""

    path: Path
    name: str  # below the folder, for a file of labels
    predicted: str
    margin: float


def suggest(
    model: Runnable,
    labelled: Source,
    unlabelled: str,
    n: int,
    extraction: Extraction = EXTRACTION,
) -> tuple[list[Suggestion], dict[str, int]]:
    """Return the images of a folder to label next, and counts: images, unreadable ones, those that are labelled."""
    files = find_images([unlabelled])
    own = extract_features(model, labelled, extraction)
    rows = list(extract_rows(model, Pictures(files), extraction))
    x, index = (np.concatenate(arrays) for arrays in zip(*rows, strict=True))  # (N, D), (N,)
    if not len(index):
        raise ImageError(f"{unlabelled}: none of its {len(files):,} images can be read")
    choice = choose_next(own, x, n)
    root = Path(unlabelled)
    suggestions = []
    for row, label, margin in zip(choice.rows, choice.predicted, choice.margin, strict=True):
        path = files[int(index[row])]
        name = path.relative_to(root) if root.is_dir() else path
        suggestions.append(
            Suggestion(path, printable(name.as_posix()), own.class_names[label], float(margin))
        )
    counts = {"images": len(files), "unreadable": len(files) - len(index), "known": choice.known}
    return suggestions, counts


def check_list(path: Path) -> None:
    """Raise ConfigError if another kind of file is there."""
    check_replaceable(path, ",".join(COLUMNS).encode(), "list of images to label")


def write_list(suggestions: list[Suggestion], path: Path) -> None:
    """Write the list as a file of labels (data/readers/listed.py), whose column `label` a person fills in."""
    check_list(path)
    with atomic_file(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for one in suggestions:
            writer.writerow([one.name, "", one.predicted, f"{one.margin:.4f}"])


def draw_suggestions(suggestions: list[Suggestion], path: Path) -> None:
    """Draw the first of them, each with its predicted class."""
    from PIL import Image

    first = suggestions[:DRAWN]
    source = Pictures([one.path for one in first])
    cells: list[tuple[str, list[Image.Image | None]]] = []
    for i, one in enumerate(first):
        cells.append((f"{i + 1}: {one.predicted}?", [Image.fromarray(decode_example(source, i))]))
    more = f", {DRAWN} of them shown" if len(suggestions) > DRAWN else ""
    draw_sheet(f"{len(suggestions):,} images to label{more}", cells, 1, path)
