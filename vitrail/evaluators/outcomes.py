"""What a model answers to each example of a split, and how right that is.

    Loader ──► model ──► judged, batch by batch ──► Predictions, a few numbers an example ──► accuracy.py

Of the logits y (K,) of an example, with p = softmax(y) and R its right answers (class_mapping.py; mostly one):
    predicted    argmax y; of equals the first
    confidence   max p
    rank         how many classes come before the best of R: 0 is right, below 5 is right among the top 5
    loss         -log sum_{k in R} p_k, which for one right answer is the cross-entropy
Logits are dropped as soon as these are known.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from vitrail.data.bad_files import BadExample, BadFiles
from vitrail.data.loader import Batch, Loader
from vitrail.errors import CheckpointError, DataError
from vitrail.evaluators.class_mapping import ClassMapping
from vitrail.evaluators.features import evaluation_mode
from vitrail.runtime.distributed import gather, rank
from vitrail.runtime.progress import progress

Precision = Literal["float32", "bf16"]


@dataclass(frozen=True)
class Predictions:
    """By example, (n,) each, in the order of the source."""

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
        """Positions in these arrays of the wrong answers, the most confident first."""
        wrong = np.flatnonzero(~self.right)
        return wrong[np.argsort(-self.confidence[wrong], kind="stable")]


def judge(
    model: nn.Module, loader: Loader, classes: ClassMapping, precision: Precision, what: str | None = None
) -> tuple[Predictions, list[BadExample]]:
    """Every example of the loader's source, over all processes, and those that are broken.

    `what` names a progress bar, if there is to be one.
    """
    batches = loader.batches(device=next(model.parameters()).device)
    if what is not None and rank() == 0:
        batches = progress(batches, loader.steps, what)
    predictions = joined(gather(predictions_of(model, batches, classes, precision)))
    own = loader.bad_files
    broken = BadFiles(own.n, own.max_bad)  # of all processes: together too many, where those of each are not
    broken.add(bad for part in gather(list(own.found.values())) for bad in part)
    if not len(predictions):
        raise DataError(f"no example could be used: {broken.summary()}")
    check_finite(predictions)
    return predictions, sorted(broken.found.values(), key=lambda bad: bad.index)


def predictions_of(
    model: nn.Module, batches: Iterable[Batch], mapping: ClassMapping, precision: Precision = "float32"
) -> Predictions:
    """Judge the examples of some evaluation batches; padding and broken examples have no part in it.

    The batches are on the model's device. The model is left in the mode in which it was.
    """
    weight = next(model.parameters())
    autocast = torch.autocast(weight.device.type, torch.bfloat16, enabled=precision == "bf16")
    row, right = (torch.from_numpy(a).to(weight.device) for a in (mapping.row, mapping.right))  # (L,), (C, m)
    most = int(mapping.right.max())
    parts = []
    with evaluation_mode(model), torch.no_grad():
        for batch in batches:
            with autocast:
                y = model(batch["image"].to(weight.dtype))  # (B, K)
            if most >= y.shape[1]:
                raise DataError(
                    f"the data has a class {most}, the model only {y.shape[1]}: 0 to {y.shape[1] - 1}"
                )
            label = row[batch["label"]]  # (B,)
            made = {"index": batch["index"], "label": label, **judged(y.float(), right[label])}
            used = batch["weight"].cpu() > 0  # (B,)
            parts.append(Predictions(**{name: t.cpu()[used].numpy() for name, t in made.items()}))
    return joined(parts)


def judged(y: Tensor, right: Tensor) -> dict[str, Tensor]:
    """Logits (B, K) and right answers (B, m), padded with -1 -> the numbers above, (B,) each."""
    log_p = y.log_softmax(dim=1)  # (B, K)
    padding, right = right < 0, right.clamp(min=0)
    of_right = log_p.gather(1, right).masked_fill(padding, -torch.inf)  # (B, m)
    best = right.gather(1, of_right.argmax(dim=1, keepdim=True))  # (B, 1)
    y_best = y.gather(1, best)  # (B, 1)
    before = torch.arange(y.shape[1], device=y.device) < best  # (B, K); of equals the first comes first
    return {
        "predicted": y.argmax(dim=1),
        "confidence": log_p.amax(dim=1).exp(),
        "rank": ((y > y_best) | ((y == y_best) & before)).sum(dim=1),
        "loss": -of_right.logsumexp(dim=1),
    }


def joined(parts: Sequence[Predictions]) -> Predictions:
    """Batches, or what each process has, put together in the order of the source; each example is there once."""
    names = [field.name for field in fields(Predictions)]
    arrays = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
    order = np.argsort(arrays["index"])
    assert (np.diff(arrays["index"][order]) > 0).all(), "an example was judged twice"
    return Predictions(**{name: array[order] for name, array in arrays.items()})


def check_finite(predictions: Predictions) -> None:
    """A score over outputs that are no numbers would be none either."""
    wrong = ~(np.isfinite(predictions.loss) & np.isfinite(predictions.confidence))
    if wrong.any():
        raise CheckpointError(
            f"the model's outputs are not finite for {int(wrong.sum()):,} of {len(predictions):,} examples, "
            f"first for number {int(predictions.index[wrong][0])}: its weights have overflowed"
        )
