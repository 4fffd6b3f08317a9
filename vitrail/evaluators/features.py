"""Images -> what a model makes of them, batch by batch: features (n, D) or logits (n, classes).

Images are paths, encoded bytes, PIL images, uint8 arrays (H, W, 3) or a data source. Each goes through the
model's own preprocessing line, so that every user of a model sees the same pixels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitrail.data import preprocess as pp
from vitrail.data.decode import decode, rgb_pixels
from vitrail.data.sources import Example, Source
from vitrail.errors import ConfigError, ImageError
from vitrail.models.names import Model

ImageLike = str | Path | bytes | Image.Image | np.ndarray
BATCH = 32


def features(model: Model, images_or_source: ImageLike | Sequence[ImageLike] | Source) -> np.ndarray:
    """The model's representation of each image, float32 (n, D). The model stays on its device."""
    made = [y.numpy() for y in outputs(model, each_image(images_or_source), model.features)]
    return np.concatenate(made) if made else np.zeros((0, model.config.width), np.float32)  # (n, D)


def outputs(
    model: Model, images: Iterable[ImageLike], call: Callable[[Tensor], Tensor] | None = None
) -> Iterator[Tensor]:
    """`call` (the model itself, where nothing is said) on batches of images; results on the CPU."""
    pipeline = pipeline_of(model)
    device, dtype = next(model.parameters()).device, next(model.parameters()).dtype
    was_training = model.training
    model.eval()
    try:
        for group in in_batches(images, BATCH):
            x = torch.stack([pipeline.host(pixels(image)) for image in group])  # (B, 3, H, W)
            with torch.inference_mode():
                y = (call or model)(pipeline.device(x.to(device)).to(dtype))
            yield y.float().cpu()
    finally:
        model.train(was_training)


def pipeline_of(model: Model) -> pp.Pipeline:
    if not model.preprocess:
        raise ConfigError("this model does not say how its input is made: set model.preprocess to a line")
    pipeline = pp.parse(model.preprocess)
    if pipeline.image_size != tuple(model.config.image_size):
        raise ConfigError(
            f"the preprocessing line {model.preprocess!r} does not make the model's {model.config.image_size}"
        )
    return pipeline


def each_image(images: ImageLike | Sequence[ImageLike] | Source) -> Iterable[ImageLike]:
    if isinstance(images, Source):
        return (pixels_of(images.read(i)) for i in range(len(images)))
    if isinstance(images, str | Path | bytes | Image.Image):
        return [images]
    if isinstance(images, np.ndarray):
        return list(images) if images.ndim == 4 else [images]
    return images


def pixels(image: ImageLike) -> np.ndarray:
    """uint8 (H, W, 3) RGB."""
    if isinstance(image, str | Path):
        try:
            return decode(Path(image).read_bytes(), name=str(image))
        except OSError as error:
            raise ImageError(f"{image}: {error.strerror or error}") from error
    if isinstance(image, bytes):
        return decode(image)
    if isinstance(image, Image.Image):
        return rgb_pixels(image)
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
        raise ImageError(f"an image array must be uint8 (H, W, 3), not {image.dtype} {image.shape}")
    return image


def pixels_of(example: Example) -> np.ndarray:
    return decode(example.image, name=example.key) if isinstance(example.image, bytes) else example.image


def in_batches(images: Iterable[ImageLike], size: int) -> Iterator[list[ImageLike]]:
    group: list[ImageLike] = []
    for image in images:
        group.append(image)
        if len(group) == size:
            yield group
            group = []
    if group:
        yield group
