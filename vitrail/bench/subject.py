"""The subject of a measurement: a model, with a batch size, on a device."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vitrail.bench import BenchSettings
from vitrail.checkpoints.formats import create, has_weights, load
from vitrail.models.names import Config, Model, make_config

CLASSES = 1000  # outputs of a model that has no classifier of its own


@dataclass(frozen=True)
class Subject:
    name: str  # an architecture, or weights
    stored: bool  # it has weights
    config: Config
    batch_size: int
    settings: BenchSettings
    device: torch.device

    @classmethod
    def choose(
        cls, settings: BenchSettings, image_size: int | tuple[int, int] | None, device: torch.device
    ) -> Subject:
        """Fill in unset settings: sizes that take seconds on the device."""
        cuda = device.type == "cuda"
        name = ("B/16" if cuda else "Ti/16") if settings.model is None else settings.model
        batch_size = (256 if cuda else 8) if settings.batch_size is None else settings.batch_size
        if stored := has_weights(name):
            config = load_weights(name, image_size).config
        else:
            config = make_config(name, classes=CLASSES, **({"image_size": image_size} if image_size else {}))
        return cls(name, stored, config, batch_size, settings, device)

    def model(self) -> Model:
        """Return the model on its device, with its weights or fresh ones."""
        torch.manual_seed(self.settings.seed)
        if self.stored:
            model = load_weights(self.name, self.config.image_size)
        else:
            model = create(self.name, classes=self.config.classes, image_size=self.config.image_size)
        return model.to(self.device)

    def images(self, count: int) -> Tensor:
        """Return random images on the device, in the usual range."""
        generator = torch.Generator().manual_seed(self.settings.seed)
        shape = (count, self.config.channels, *self.config.image_size)
        return (torch.rand(shape, generator=generator) * 2 - 1).to(self.device)  # (B, C, H, W)

    def labels(self) -> Tensor:
        generator = torch.Generator().manual_seed(self.settings.seed)
        return torch.randint(self.config.classes, (self.batch_size,), generator=generator).to(
            self.device
        )  # (B,)


def load_weights(name: str, image_size: int | tuple[int, int] | None) -> Model:
    model = load(name, image_size=image_size)
    return model if model.config.classes else load(name, image_size=image_size, classes=CLASSES)
