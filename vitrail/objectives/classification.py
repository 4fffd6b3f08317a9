"""Classification: softmax or sigmoid cross-entropy, with smoothed and mixed targets.

    target   y = share onehot(label) + (1 - share) onehot(partner_label)         mixup, cutmix; else share = 1
    smoothed y <- (1 - s) y + s / K
    softmax  -sum_k y_k log softmax(logits)_k
    sigmoid  -sum_k [y_k log sigma(logits_k) + (1 - y_k) log(1 - sigma(logits_k))]       sum over the K classes

An image with several labels has a y of several ones, and the sigmoid loss; `top1` is then how often the most probable
class is one of them. The loss is a mean over the batch with the examples' weights, 0 for broken ones.

    balanced  logits_k + t log(n_k / n)        in the softmax loss alone; n_k of n training images are of class k

With t = 1 the model learns what it would from even classes (logit adjustment, Menon et al. 2020): what is rare in the
training images is not taken to be rare.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, cast

import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.data.loader import View
from vitrail.data.settings import DataSettings
from vitrail.data.several_labels import targets_of
from vitrail.data.sources import Source
from vitrail.errors import ConfigError
from vitrail.evaluators.accuracy import Accuracy
from vitrail.evaluators.label_scores import Labels
from vitrail.evaluators.score import Evaluator
from vitrail.models.names import Model
from vitrail.objectives.objective import Batch, mean, training_view


@dataclass(frozen=True)
class Classification:
    # cross-entropy over all classes, or of each class by itself
    loss: Literal["softmax", "sigmoid"] = "softmax"
    label_smoothing: float = 0.0  # share of each target that is spread over all classes
    # how far uneven classes are evened out: 0: every image counts the same, 1: every class
    balance: float = 0.0

    needs_labels: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.loss not in ("softmax", "sigmoid"):
            raise ConfigError(f"loss {self.loss!r} is not one of softmax, sigmoid")
        if not 0 <= self.label_smoothing < 1:
            raise ConfigError(f"label_smoothing {self.label_smoothing}: must be in [0, 1)")
        if not 0 <= self.balance <= 1:
            raise ConfigError(f"balance {self.balance}: must be in [0, 1]")
        if self.balance and self.loss == "sigmoid":
            raise ConfigError(f"balance {self.balance:g} is for loss softmax: with sigmoid set it to 0")

    def views(self, model: Model, data: DataSettings) -> dict[str, View]:
        return {"image": training_view(model, data)}

    def build(self, model: nn.Module) -> nn.Module:
        return CrossEntropy(model, self)

    def evaluators(self, module: Any, val: Source, data: DataSettings) -> list[Evaluator]:
        if targets_of(val) is not None:
            return [Labels(val, data.batch_size, data.num_workers, data.max_bad)]
        return [Accuracy(val, data.batch_size, data.num_workers, data.max_bad)]


class CrossEntropy(nn.Module):
    """model(image) (B, K) against labels; where the batch has features (B, D) of a frozen body, head(features)."""

    def __init__(self, model: nn.Module, settings: Classification) -> None:
        super().__init__()
        self.model, self.settings = model, settings
        self.prior: Tensor | None
        self.register_buffer("prior", None, persistent=False)  # (K,), t log(n_k / n)

    def count_classes(self, counts: Tensor) -> None:
        """Learn how many training images each class has (K,); one without any counts as one."""
        if self.settings.balance:
            shares = counts.clamp(min=1) / counts.sum()
            self.prior = (self.settings.balance * shares.log()).float()

    def forward(self, batch: Batch) -> tuple[Tensor, Batch]:
        logits = self.logits(batch).float()  # (B, K)
        each = self.against(logits, batch["label"])  # (B,)
        if "share" in batch:
            partner = self.against(logits, batch["partner_label"])
            each = batch["share"] * each + (1 - batch["share"]) * partner
        if "targets" in batch:  # (B, K): several labels for an image
            right = batch["targets"].gather(1, logits.argmax(dim=1, keepdim=True))[:, 0]  # (B,)
            return mean(self.against_several(logits, batch["targets"]), batch["weight"]), {
                "top1": mean(right, batch["weight"]).detach()
            }
        right = (logits.argmax(dim=1) == batch["label"]).float()
        return mean(each, batch["weight"]), {"top1": mean(right, batch["weight"]).detach()}

    def logits(self, batch: Batch) -> Tensor:
        if "features" in batch:  # of a frozen body
            head = cast(nn.Module, self.model.head)
            return cast(Tensor, head(batch["features"]))
        shapes = [batch["grid"]] if "grid" in batch else []  # of images of any shape
        return cast(Tensor, self.model(batch["image"], *shapes))

    def against(self, logits: Tensor, label: Tensor) -> Tensor:
        """Return the loss of each example (B,). It is linear in the target: a mixed one gives a mixture of losses."""
        s = self.settings.label_smoothing
        if self.prior is not None:
            logits = logits + self.prior
        if self.settings.loss == "softmax":
            return F.cross_entropy(logits, label, reduction="none", label_smoothing=s)
        at_target = logits.gather(1, label[:, None])[:, 0]  # (B,)
        if s:
            at_target = (1 - s) * at_target + s * logits.mean(dim=1)
        return F.softplus(logits).sum(dim=1) - at_target

    def against_several(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the sigmoid loss of each example (B,) for targets (B, K)."""
        s, K = self.settings.label_smoothing, logits.shape[1]
        targets = (1 - s) * targets + s / K
        return F.binary_cross_entropy_with_logits(logits, targets, reduction="none").sum(dim=1)
