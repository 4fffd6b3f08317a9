"""Classification: softmax or sigmoid cross-entropy, with smoothed and mixed targets.

    target   y = share onehot(label) + (1 - share) onehot(partner_label)         mixup, cutmix; else share = 1
    smoothed y <- (1 - s) y + s / K
    softmax  -sum_k y_k log softmax(logits)_k
    sigmoid  -sum_k [y_k log sigma(logits_k) + (1 - y_k) log(1 - sigma(logits_k))]       sum over the K classes

The loss is a mean over the batch with the examples' weights, 0 for broken ones.
"""

from __future__ import annotations

from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.errors import ConfigError

Loss = Literal["softmax", "sigmoid"]
Batch = dict[str, Tensor]


class Supervised(nn.Module):
    """model(image) (B, K) against labels."""

    def __init__(self, model: nn.Module, loss: Loss = "softmax", smoothing: float = 0.0) -> None:
        super().__init__()
        if loss not in ("softmax", "sigmoid") or not 0 <= smoothing < 1:
            raise ConfigError(
                f"loss {loss!r} is not softmax or sigmoid, or smoothing {smoothing} not in [0, 1)"
            )
        self.model, self.loss, self.smoothing = model, loss, smoothing

    def forward(self, batch: Batch) -> tuple[Tensor, Batch]:
        logits = self.model(batch["image"]).float()  # (B, K)
        each = self.of_target(logits, batch["label"])  # (B,)
        if "share" in batch:
            partner = self.of_target(logits, batch["partner_label"])
            each = batch["share"] * each + (1 - batch["share"]) * partner
        right = (logits.argmax(dim=1) == batch["label"]).float()
        return mean(each, batch["weight"]), {"top1": mean(right, batch["weight"]).detach()}

    def of_target(self, logits: Tensor, label: Tensor) -> Tensor:
        """(B,); linear in the target, so that a mixed one is a mixture of losses."""
        if self.loss == "softmax":
            return F.cross_entropy(logits, label, reduction="none", label_smoothing=self.smoothing)
        at_target = logits.gather(1, label[:, None])[:, 0]  # (B,)
        if self.smoothing:
            at_target = (1 - self.smoothing) * at_target + self.smoothing * logits.mean(dim=1)
        return F.softplus(logits).sum(dim=1) - at_target


def mean(each: Tensor, weight: Tensor) -> Tensor:
    """Over examples, by weight; 0 where all are broken."""
    return (each * weight).sum() / weight.sum().clamp(min=1)
