"""Features -> places in the plane: t-SNE by openTSNE, where it is installed, else the first two principal components.

    x (n, D) ──► exact neighbours by the cosine (evaluators/knn.py) ──► t-SNE from the principal components ──► (n, 2)

Both are functions of the features and a seed. t-SNE keeps who is near to whom, and neither distances between groups
nor their sizes; the components keep the largest differences, and much lies on top of each other. openTSNE (BSD) has
wheels for every Python that vitrail runs on, and needs only numpy, scipy and scikit-learn.
"""

from __future__ import annotations

import importlib.util
import warnings
from typing import Literal, get_args

import numpy as np
import torch

from vitrail.errors import ConfigError
from vitrail.evaluators.knn import neighbours
from vitrail.inference.features import as_float64

Method = Literal["auto", "tsne", "pca"]
PERPLEXITY = 30.0  # near images that each is placed by, about
LEAST = 10  # images, for t-SNE
EARLY, LATE = 250, 500  # steps
EXACT = 2000  # images up to which forces are summed without interpolation
START = 1e-4  # deviation of the places at the start


def choose_method(method: Method, n: int) -> Method:
    """Return tsne or pca; ConfigError where tsne is asked for and cannot be."""
    if method not in get_args(Method):
        raise ConfigError(f"projection {method!r}: allowed are {', '.join(get_args(Method))}")
    installed = importlib.util.find_spec("openTSNE") is not None
    if method == "tsne" and not installed:
        raise ConfigError('--projection tsne needs openTSNE: pip install "vitrail[map]"; pca needs nothing')
    if method == "tsne" and n < LEAST:
        raise ConfigError(f"--projection tsne needs at least {LEAST} images, not {n}: use pca")
    return "tsne" if method != "pca" and installed and n >= LEAST else "pca"


def describe(method: Method) -> str:
    return "t-SNE" if method == "tsne" else "two principal components"


def project(x: np.ndarray, method: Method, seed: int = 0) -> np.ndarray:
    """Return places float64 (n, 2) of features (n, D), by "tsne" or "pca", between 0 and 1, in one scale."""
    xy = principal_components(x)  # (n, 2)
    if method == "tsne":
        xy = tsne(x, xy, seed)
    xy = xy - xy.min(axis=0)
    return xy / max(float(xy.max()), 1e-12)


def principal_components(x: np.ndarray) -> np.ndarray:
    """Return the coordinates (n, 2) along the first two components, whose largest weights are positive."""
    X = torch.nn.functional.normalize(as_float64(x, "cpu"), dim=1)
    X = X - X.mean(dim=0)
    Q = torch.linalg.eigh(X.T @ X)[1][:, -2:].flip(1)  # (D, up to 2)
    Q = Q * Q.gather(0, Q.abs().argmax(dim=0, keepdim=True)).sign()
    xy = torch.zeros(len(X), 2, dtype=torch.float64)
    xy[:, : Q.shape[1]] = X @ Q
    return xy.numpy()


def tsne(x: np.ndarray, start: np.ndarray, seed: int) -> np.ndarray:
    """Return the places (n, 2) by t-SNE, from others (n, 2)."""
    from openTSNE import TSNEEmbedding
    from openTSNE.affinity import PerplexityBasedNN
    from openTSNE.nearest_neighbors import PrecomputedNeighbors

    n, threads = len(x), torch.get_num_threads()
    perplexity = min(PERPLEXITY, (n - 1) / 3)
    k = min(n - 1, int(3 * perplexity))
    s, index = neighbours(
        x, x, k + 1
    )  # (n, k + 1) each; the image itself among them, but not always the first
    others = index != np.arange(n)[:, None]
    others[others.all(axis=1), -1] = False  # as many equal ones came before it
    s, index = s[others].reshape(n, k), index[others].reshape(n, k)
    distances = np.sqrt(np.maximum(2 - 2 * s, 0))  # (n, k), of unit vectors
    places = start * (START / max(float(start[:, 0].std()), 1e-12))
    # Equal images would stay in one place, without a force between them.
    places = places + np.random.default_rng(seed).normal(0, START / 100, places.shape)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        near = PrecomputedNeighbors(index, distances)
        affinities = PerplexityBasedNN(
            perplexity=perplexity, knn_index=near, n_jobs=threads, random_state=seed
        )
        embedding = TSNEEmbedding(
            places, affinities, n_jobs=threads, random_state=seed,
            negative_gradient_method="bh" if n <= EXACT else "fft",
        )  # fmt: skip
        embedding.optimize(EARLY, inplace=True, exaggeration=12, momentum=0.5)
        embedding.optimize(LATE, inplace=True, momentum=0.8)
    return np.asarray(embedding, np.float64)
