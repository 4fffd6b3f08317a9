"""What the demo does: what its flags set. Free of torch, so that `--help` answers at once."""

from __future__ import annotations

from dataclasses import dataclass

from vitrail.errors import ConfigError

MOST_PICTURES = 12  # beside one another in the summary


@dataclass(frozen=True)
class Demo:
    """The defaults take about a minute on two cores."""

    data: str = "shapes:colour?n=400"  # your folder, or any data set; shapes are drawn by the package
    images: tuple[str, ...] = ()  # to classify; without any: drawings, or some images of --data
    model: str = "ti8-64"  # in the box, or any checkpoint of a ViT with a classifier
    steps: int = 40  # of fine-tuning
    batch: int = 32  # images in a step; fewer where there are few
    rate: float = 0.03  # the highest learning rate
    shots: tuple[int, ...] = (1, 5, 10)  # examples of each class that frozen features are tried with
    seeds: int = 3  # how often these are drawn
    most: int = 400  # images that are measured on, about; of a larger data set, so many of all classes
    pictures: int = 8  # to classify and to look at closely

    def check(self) -> None:
        for name in ("steps", "batch", "seeds", "most", "pictures"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} {getattr(self, name)}: at least 1 is needed")
        if self.rate <= 0:
            raise ConfigError(f"rate {self.rate:g}: it must be positive")
        if self.pictures > MOST_PICTURES:
            raise ConfigError(f"pictures {self.pictures}: at most {MOST_PICTURES} fit beside one another")
        if not self.shots or min(self.shots) < 1:
            raise ConfigError(f"shots {self.shots}: at least one number is needed, each at least 1")


DEMO = Demo()
