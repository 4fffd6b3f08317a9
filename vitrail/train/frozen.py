"""Features of a frozen body, computed once: the batches of a run that trains the head alone.

    image i -> the training line, without randomness -> the body -> features[i] (D,)      once, before the first batch
    batch of step s: the examples that loader.py draws, `features` (b, D) in place of images

The body must give the same features at every step: nothing random in the line, no mixing, no dropout, no stochastic
depth. A run that resumes computes them again.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from vitrail.data.loader import Batch, Loader, Stream, View
from vitrail.data.settings import DataSettings
from vitrail.data.sources import Source
from vitrail.errors import DataError
from vitrail.inference.engine import evaluation_loader, outputs
from vitrail.models.names import Model
from vitrail.objectives.classification import Classification
from vitrail.objectives.objective import Objective
from vitrail.runtime.distributed import world

MOST_BYTES = 1 << 30  # of features in memory
RANDOM = ("dropout", "attention_dropout", "drop_path")


def is_cacheable(
    model: Model, objective: Objective, views: dict[str, View], data: DataSettings, n: int
) -> bool:
    """Return whether each image has one feature vector during the run, and all of them fit into memory."""
    pipeline = next(iter(views.values())).pipeline
    return (
        isinstance(objective, Classification)
        and all(p.requires_grad == name.startswith("head.") for name, p in model.named_parameters())
        and not (pipeline.random or data.mixup or data.cutmix or data.resident or pipeline.strip is not None)
        and not any(getattr(model.config, name, 0) for name in RANDOM)
        and n * model.config.pooled_width * 4 <= MOST_BYTES
        and world() == 1
    )


class FrozenLoader(Loader):
    """A Loader of training batches with the features of their images."""

    def __init__(
        self, source: Source, views: dict[str, View], settings: DataSettings, *, model: Model, **more: Any
    ) -> None:
        super().__init__(source, views, settings, **more)
        self.stream: Places = Places(
            source, views, settings, **{k: more[k] for k in ("seed", "rank", "world")}
        )
        self.model, self.features = model, torch.zeros(0, 0)

    def prepare(self, device: torch.device) -> None:
        """Compute the features of all examples; those that cannot be read are zeros."""
        source, settings = self.stream.source, self.stream.settings
        if len(self.features) == len(source):
            return
        loader = evaluation_loader(
            source,
            self.stream.pipeline,
            settings.batch_size,
            settings.num_workers,
            settings.max_bad,
            shared=False,
        )
        features = torch.zeros(len(source), self.model.config.pooled_width)
        with torch.no_grad():
            for x, batch in outputs(
                self.model, loader, self.model.features, task=f"features of {source.name}"
            ):
                features[batch["index"].cpu()] = x.cpu()  # (b, D)
        self.bad_files.add(list(loader.bad_files.examples.values()))
        self.stream.broken = frozenset(bad.index for bad in loader.bad_files.examples.values())
        self.features = features.to(device)

    def finish(self, batch: Batch) -> Batch:
        return batch | {"features": self.features[batch.pop("image")]}


class Places(Stream):
    """step -> the places of this process's part of the batch, (b,) int64, where the Stream has images."""

    broken: frozenset[int] = frozenset()

    def blanks(self) -> dict[str, Tensor]:
        return {"image": torch.zeros((), dtype=torch.int64)}

    def draws(self, epoch: int, index: int) -> dict[str, Tensor]:
        if index in self.broken:
            raise DataError(f"{self.source.key(index)} could not be read")
        return {"image": torch.tensor(index)}
