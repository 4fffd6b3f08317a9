"""Answers of a model to the examples of a split: how right, and how sure.

    engine.outputs ──► score_logits, batch by batch ──► Predictions, a few numbers an example ──► accuracy.py

Of the logits y (K,) of an example, with p = softmax(y) and R its right answers (class_mapping.py; mostly one):
    predicted    argmax y; of equals the first
    confidence   max p
    rank         how many classes come before the best of R: 0 is right, below 5 is right among the top 5
    loss         -log sum_{k in R} p_k, which for one right answer is the cross-entropy
Logits are dropped as soon as these are known.

Calibration: does a model that is 80% sure answer right in 80% of the cases? Answers are put into BINS bins of equal
width by their confidence, bin b holding b / BINS < confidence <= (b + 1) / BINS:

    ECE = sum_b  n_b / n  |right_b / n_b - mean confidence_b|        (Guo et al., arXiv:1706.04599)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor, nn

from vitrail.data.bad_files import BadExample, BadFiles
from vitrail.data.loader import Loader
from vitrail.errors import DataError
from vitrail.evaluators.class_mapping import ClassMapping
from vitrail.inference.engine import Precision, outputs
from vitrail.runtime.distributed import gather

BINS = 15


@dataclass(frozen=True)
class Predictions:
    """A few numbers for each example, (n,) each, in the order of the source."""

    index: np.ndarray  # int64: in the source
    label: np.ndarray  # int64: of the mapping's class_names
    predicted: np.ndarray  # int64: of its model_class_names
    confidence: np.ndarray  # float32
    rank: np.ndarray  # int64
    loss: np.ndarray  # float32

    def __len__(self) -> int:
        return len(self.index)

    @property
    def right(self) -> np.ndarray:
        """bool (n,)"""
        return self.rank == 0

    def mistakes(self) -> np.ndarray:
        """Return the positions in these arrays of the wrong answers, the most confident first."""
        wrong = np.flatnonzero(~self.right)
        return wrong[np.argsort(-self.confidence[wrong], kind="stable")]


def judge(
    model: nn.Module, loader: Loader, mapping: ClassMapping, precision: Precision = "float32", task: str = ""
) -> tuple[Predictions, list[BadExample]]:
    """Return the predictions for every example of the loader's source, over all processes, and the broken ones.

    `task` names a progress bar.
    """
    predictions = join(gather(judge_own(model, loader, mapping, precision, task)))
    own = loader.bad_files
    broken = BadFiles(own.n, own.max_bad)  # of all processes: together too many, where those of each are not
    broken.add(bad for examples in gather(list(own.examples.values())) for bad in examples)
    if not len(predictions):
        raise DataError(f"no example could be used: {broken.summary()}")
    return predictions, sorted(broken.examples.values(), key=lambda bad: bad.index)


def judge_own(
    model: nn.Module, loader: Loader, mapping: ClassMapping, precision: Precision = "float32", task: str = ""
) -> Predictions:
    """Return the predictions for this process's examples."""
    device = next(model.parameters()).device
    row, right = (torch.from_numpy(a).to(device) for a in (mapping.row, mapping.right))  # (L,), (C, m)
    most = int(mapping.right.max())
    batches = []
    for y, batch in outputs(model, loader, precision=precision, task=task):
        if most >= y.shape[1]:
            raise DataError(
                f"the data has a class {most}, the model only {y.shape[1]}: 0 to {y.shape[1] - 1}"
            )
        label = row[batch["label"]]  # (b,)
        columns = {"index": batch["index"], "label": label, **score_logits(y, right[label])}
        batches.append(Predictions(**{name: t.cpu().numpy() for name, t in columns.items()}))
    return join(batches)


def score_logits(y: Tensor, right: Tensor) -> dict[str, Tensor]:
    """Return the numbers above, (B,) each, for logits (B, K) and right answers (B, m), padded with -1."""
    log_p = y.log_softmax(dim=1)  # (B, K)
    padding, right = right < 0, right.clamp(min=0)
    log_p_right = log_p.gather(1, right).masked_fill(padding, -torch.inf)  # (B, m)
    best = right.gather(1, log_p_right.argmax(dim=1, keepdim=True))  # (B, 1)
    y_best = y.gather(1, best)  # (B, 1)
    before = torch.arange(y.shape[1], device=y.device) < best  # (B, K); of equals the first comes first
    return {
        "predicted": y.argmax(dim=1),
        "confidence": log_p.amax(dim=1).exp(),
        "rank": ((y > y_best) | ((y == y_best) & before)).sum(dim=1),
        "loss": -log_p_right.logsumexp(dim=1),
    }


def join(pieces: Sequence[Predictions]) -> Predictions:
    """Put the predictions of batches, or of processes, together in the order of the source, each example once."""
    names = [field.name for field in fields(Predictions)]
    arrays = {name: np.concatenate([getattr(piece, name) for piece in pieces]) for name in names}
    order = np.argsort(arrays["index"])
    assert (np.diff(arrays["index"][order]) > 0).all(), "an example was judged twice"
    return Predictions(**{name: array[order] for name, array in arrays.items()})


def expected_calibration_error(confidence: np.ndarray, right: np.ndarray) -> float:
    """Return the ECE of n answers: confidence in (0, 1], float (n,); whether it was right, bool (n,)."""
    confidence = confidence.astype(np.float64)
    b = np.clip(np.ceil(confidence * BINS).astype(np.int64) - 1, 0, BINS - 1)  # (n,)
    gap = np.bincount(b, right, BINS) - np.bincount(b, confidence, BINS)  # (BINS,)
    return float(np.abs(gap).sum() / len(confidence))
