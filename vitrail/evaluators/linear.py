"""The linear probe: logistic regression on frozen features, solved by L-BFGS.

    J(W, b) = mean over examples of cross-entropy(softmax(x W + b), y) + l2 / 2 ||W||^2

x (N, D) are the features of a split (inference/features.py), standardised by the mean and standard deviation of
those that are fitted to; W (D, K), b (K,). J is convex: the answer does not depend on a learning rate, an order or a
seed. Of several l2 the best on held-out parts of the training set is taken (five folds of a small one), and fitted
again to all of it; the test set is used once. float64, in blocks, so that the features may stay on the disk.

Features are correlated, which makes L-BFGS slow. So it optimises V with W = P V and a preconditioner P: with the
correlations C = Q diag(e) Q^T, the second derivative of J at W = 0 is near C / K + l2, and P = Q (e / K + l2)^-1/2.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.data.sources import Source
from vitrail.errors import ConfigError
from vitrail.evaluators.choose_l2 import choose_l2
from vitrail.evaluators.score import Score
from vitrail.inference.features import Extraction, Features, as_float64, train_and_test
from vitrail.runtime.log import note

FACTOR = 10.0
SWEEP = tuple(FACTOR**i for i in range(1, -7, -1))  # scikit-learn's C is 1 / (N l2)
STD_EPS = 1e-5
ITERATIONS = 1000  # of L-BFGS, at most
# The largest part of the gradient by V, at the end: J is then within about 1e-10 D K of its minimum.
TOLERANCE = 1e-5
BLOCK = 8192  # examples at a time


@dataclass(frozen=True)
class LinearProbe:
    """An evaluator: the score `linear`."""

    train: Source
    test: Source
    l2: Sequence[
        float
    ] = ()  # of several, the best on held-out parts of `train`; of none, of SWEEP and beyond
    extraction: Extraction = field(default_factory=Extraction)

    def __post_init__(self) -> None:
        if not all(0 < value < float("inf") for value in self.l2):
            raise ConfigError(f"l2 {tuple(self.l2)} must be positive numbers")

    def __call__(self, model: nn.Module) -> Iterator[Score]:
        _, score = self.chosen(model)
        yield score

    def chosen(self, model: nn.Module) -> tuple[float, Score]:
        """Return the l2, and the score with it."""
        l2, score, _ = self.fitted(model)
        return l2, score

    def fitted(self, model: nn.Module) -> tuple[float, Score, Probe]:
        """Return the l2, the score with it, and the probe itself."""
        train, test, device = train_and_test(model, self.train, self.test, self.extraction)
        l2 = self.l2[0] if len(self.l2) == 1 else choose(train.held_out_parts(), self.l2, device)
        probe = fit(train, l2, device)
        return l2, Score("linear", accuracy(probe, test), len(test)), probe


def choose(parts: Sequence[tuple[Features, Features]], l2: Sequence[float], device: torch.device) -> float:
    """Return the best of some l2 on the held-out parts, of none that of a grid that grows; of equals the largest."""
    probes: list[Probe | None] = [None] * len(parts)  # each value begins where the last one ended

    def right(value: float) -> int:
        for i, (rest, _) in enumerate(parts):
            probes[i] = fit(rest, value, device, start=probes[i])
        pairs = zip(probes, parts, strict=True)
        return sum(
            round(accuracy(probe, part) * len(part)) for probe, (_, part) in pairs if probe is not None
        )

    return choose_l2(right, l2 or SWEEP, 0.0 if l2 else FACTOR)


@dataclass(frozen=True)
class Probe:
    """A linear classifier of features."""

    mean: Tensor  # (D,)
    std: Tensor  # (D,)
    W: Tensor  # (D, K)
    b: Tensor  # (K,)
    C: Tensor  # (D, D), correlations of the features that are fitted to

    def logits(self, x: np.ndarray) -> Tensor:
        """(n, D) -> (n, K)."""
        return self.inputs(x) @ self.W + self.b

    def inputs(self, x: np.ndarray) -> Tensor:
        """(n, D), standardised."""
        return (as_float64(x, self.mean.device) - self.mean) / self.std

    def affine(self) -> tuple[np.ndarray, np.ndarray]:
        """Return weight (D, K) and bias (K,) on features as they are, not standardised."""
        weight = self.W / self.std[:, None]  # (D, K)
        return weight.cpu().numpy(), (self.b - self.mean @ weight).cpu().numpy()


def fit(
    features: Features, l2: float, device: torch.device | str = "cpu", start: Probe | None = None
) -> Probe:
    """Minimise J, from zero, or from the weights of another probe of the same features."""
    probe = zero(features, device) if start is None else start
    e, Q = torch.linalg.eigh(probe.C)  # (D,), (D, D)
    root = (e.clamp(min=0) / len(probe.b) + l2).sqrt()  # (D,)
    V = (root[:, None] * (Q.T @ probe.W)).requires_grad_()  # (D, K)
    b = probe.b.clone().requires_grad_()  # (K,)
    labels = torch.from_numpy(features.labels).to(device)
    optimizer = torch.optim.LBFGS(
        [V, b],
        max_iter=ITERATIONS,
        max_eval=2 * ITERATIONS,
        history_size=20,
        tolerance_grad=TOLERANCE,
        tolerance_change=0,  # a small step does not mean convergence
        line_search_fn="strong_wolfe",
    )

    def J() -> Tensor:
        optimizer.zero_grad()
        W = (Q @ (V / root[:, None])).detach().requires_grad_()  # (D, K)
        total = l2 / 2 * W.square().sum()
        total.backward()
        for i in range(0, len(features), BLOCK):
            here = slice(i, i + BLOCK)
            logits = probe.inputs(features.x[here]) @ W + b  # (n, K)
            loss = F.cross_entropy(logits, labels[here], reduction="sum") / len(features)
            loss.backward()
            total = total + loss.detach()
        assert W.grad is not None
        V.grad = (Q.T @ W.grad) / root[:, None]  # (D, K)
        return total.detach()

    optimizer.step(J)
    J()  # its last call need not have been where it ended
    assert V.grad is not None and b.grad is not None
    left = max(float(V.grad.abs().max()), float(b.grad.abs().max()))
    if left > 10 * TOLERANCE:
        note(f"the linear probe with l2 = {l2:g} stopped at a gradient of {left:.1e}, not {TOLERANCE:.0e}")
    return replace(probe, W=Q @ (V.detach() / root[:, None]), b=b.detach())


def zero(features: Features, device: torch.device | str) -> Probe:
    """Return a probe with weights of zero, and the features' mean, deviation and correlations, summed in blocks."""
    n, D = features.x.shape
    blocks = [slice(i, i + BLOCK) for i in range(0, n, BLOCK)]
    mean = sum(features.x[here].sum(axis=0, dtype=np.float64) for here in blocks) / n  # (D,)
    variance = sum(np.square(features.x[here] - mean).sum(axis=0) for here in blocks) / n  # (D,)
    K = len(features.class_names)
    probe = Probe(
        torch.from_numpy(mean).to(device),
        torch.from_numpy(np.sqrt(variance) + STD_EPS).to(device),
        torch.zeros(D, K, dtype=torch.float64, device=device),
        torch.zeros(K, dtype=torch.float64, device=device),
        torch.zeros(D, D, dtype=torch.float64, device=device),
    )
    for x in (probe.inputs(features.x[here]) for here in blocks):
        probe.C.addmm_(x.T, x, alpha=1 / n)
    return probe


def accuracy(probe: Probe, features: Features) -> float:
    blocks = range(0, len(features), BLOCK)
    predicted = [probe.logits(features.x[i : i + BLOCK]).argmax(dim=1).cpu().numpy() for i in blocks]
    return float((np.concatenate(predicted) == features.labels).mean())
