"""The demo, in demo.py; here its settings, without torch, so that `--help` answers at once."""

from __future__ import annotations

from dataclasses import dataclass

from vitrail.errors import ConfigError

MAX_PICTURES = 12  # columns of the summary


@dataclass(frozen=True)
class Demo:
    """Settings of the demo; the defaults take about two minutes on two cores."""

    data: str = "shapes:colour?n=400"  # your folder, or any data set; the package draws shapes
    images: tuple[str, ...] = ()  # files to classify; if unset, rendered pictures, or images of --data
    model: str = "ti8-64"  # the included model, or any checkpoint of a ViT with a classifier
    steps: int = 40  # steps of fine-tuning
    batch_size: int = 32  # images per step; fewer for small data sets
    lr: float = 0.03  # peak learning rate
    shots: tuple[int, ...] = (1, 5, 10)  # examples per class for evaluating frozen features
    seeds: int = 3  # number of random draws of these examples
    max_images: int = 400  # images to evaluate on, approximately; larger data sets are subsampled
    pictures: int = 8  # number of pictures to classify and explain

    def check(self) -> None:
        for name in ("steps", "batch_size", "seeds", "max_images", "pictures"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.lr <= 0:
            raise ConfigError(f"lr must be positive, not {self.lr:g}")
        if self.pictures > MAX_PICTURES:
            raise ConfigError(f"pictures must be at most {MAX_PICTURES}, not {self.pictures}")
        if not self.shots or min(self.shots) < 1:
            raise ConfigError(f"shots must be one or more numbers of at least 1, not {self.shots}")


DEMO = Demo()
