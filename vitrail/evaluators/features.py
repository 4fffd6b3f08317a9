"""Images -> what a model makes of them, batch by batch: features (n, D) or logits (n, classes).

Images are paths (of files, of folders of them, glob patterns), encoded bytes, PIL images, uint8 arrays (H, W, 3) or
a data source. Each goes through the model's own preprocessing line, so that every user of a model sees the same
pixels.

`representation` says which features: what the classifier sees, or the tokens of any layer. Features of whole
splits, for probes, are in feature_cache.py. B images, T tokens, D width, z_l (B, T, D) the tokens after layer l.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from vitrail.checkpoints.formats import as_model
from vitrail.data import preprocess as pp
from vitrail.data.decode import decode, rgb_pixels
from vitrail.data.sources import Example, Source, read_image_file
from vitrail.errors import CheckpointError, ConfigError, DataError, ImageError
from vitrail.evaluators.image_files import find_images
from vitrail.models.names import Model
from vitrail.models.vit import ViT

T = TypeVar("T")
ImageLike = str | Path | bytes | Image.Image | np.ndarray
BATCH = 32
KINDS = "a path, encoded bytes, a PIL image, a uint8 array (H, W, 3)"
WHICH = "pre_logits, token, mean, layer3 (any layer), layer3.token, layer3.mean"


def features(
    model: Model | str | Path, images_or_source: ImageLike | Sequence[ImageLike] | Source
) -> np.ndarray:
    """What the classifier sees of each image, float32 (n, D). A model stays on its device."""
    model = as_model(model)
    made = [y.numpy() for y in outputs(model, each_image(images_or_source), representation(model))]
    hidden = model.config.pre_logits if isinstance(model, ViT) else 0
    D = hidden or model.config.width
    return np.concatenate(made) if made else np.zeros((0, D), np.float32)  # (n, D)


def outputs(
    model: Model, images: Iterable[ImageLike], call: Callable[[Tensor], Tensor] | None = None
) -> Iterator[Tensor]:
    """`call` (the model itself, where nothing is said) on batches of images; results on the CPU.

    Of the images as they were decoded, which may be large, one is held at a time.
    """
    pipeline = pipeline_of(model)
    seen = (pipeline.host(pixels(image)) for image in images)  # (3, H, W) each
    device, dtype = next(model.parameters()).device, next(model.parameters()).dtype
    with evaluation_mode(model):
        for group in in_batches(seen, BATCH):
            x = torch.stack(group)  # (B, 3, H, W)
            with torch.inference_mode():
                y = (call or model)(pipeline.device(x.to(device)).to(dtype)).float().cpu()
            check_finite(y, "outputs")
            yield y


def check_finite(t: Tensor, what: str) -> None:
    """Nothing can be said, or drawn, of what a model is or makes where that is no number."""
    if wrong := int((~t.isfinite()).sum()):
        raise CheckpointError(
            f"the model's {what} are not finite in {wrong:,} of {t.numel():,} values: its weights have overflowed"
        )


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Every part of it, and back into what each was: a frozen part may be in evaluation mode while it trains."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def representation(model: Model, which: str = "pre_logits") -> Callable[[Tensor], Tensor]:
    """images (B, C, H, W) -> features (B, D), by the model's seams.

    pre_logits      what the classifier sees
    token, mean     of what the encoder makes: the class token, the mean of the patch tokens
    layer3          of z_3, not normalised: the class token where there is one, else the mean; layer0 is z_0
    layer3.token, layer3.mean
    """
    match = re.fullmatch(r"pre_logits|token|mean|layer(\d{1,4})(?:\.(token|mean))?", which)
    if match is None:
        raise ConfigError(f"features {which!r} are not one of: {WHICH}")
    if which == "pre_logits":
        return lambda x: model.head.representation(model.features(x))  # (B, pre_logits or D)
    if not isinstance(model, ViT):
        raise ConfigError(f"features {which!r}: a ResNet has no tokens; it has pre_logits")
    vit, has_token = model, bool(model.config.class_token)
    layer = None if match[1] is None else int(match[1])
    pool = (which if layer is None else match[2]) or ("token" if has_token else "mean")
    if layer is not None and layer > vit.config.depth:
        raise ConfigError(f"features {which!r}: this model has the layers 0 to {vit.config.depth}")
    if pool == "token" and not has_token:
        raise ConfigError(f"features {which!r}: this model has no class token; use 'mean'")

    def pooled(x: Tensor) -> Tensor:
        z = vit.tokens(vit.patches(x))  # (B, T, D)
        z = vit.encode(z) if layer is None else after_layer(vit, z, layer)  # (B, T, D)
        return z[:, 0] if pool == "token" else z[:, vit.config.prefix :].mean(dim=1)  # (B, D)

    return pooled


def after_layer(model: ViT, z: Tensor, layer: int) -> Tensor:
    """z_0 -> z_layer, both (B, T, D)."""
    if not layer:
        return z
    record = OneEntry(f"block{layer - 1}.z")
    model.encode(z, record=record)
    return record[record.name]


class OneEntry(dict[str, Tensor]):
    """A record that keeps one entry: the attention weights of all layers would fill the memory."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def __setitem__(self, name: str, t: Tensor) -> None:
        if name == self.name:
            super().__setitem__(name, t)


def pipeline_of(model: Model) -> pp.Pipeline:
    if not model.preprocess:
        raise ConfigError("this model does not say how its input is made: set model.preprocess to a line")
    pipeline = pp.parse(model.preprocess)
    if pipeline.image_size != tuple(model.config.image_size):
        raise ConfigError(
            f"the preprocessing line {model.preprocess!r} does not make the model's {model.config.image_size}"
        )
    return pipeline


def each_image(images: ImageLike | Iterable[ImageLike] | Source) -> Iterator[ImageLike]:
    if isinstance(images, Source):
        yield from (pixels_of(images.read(i)) for i in range(len(images)))
    elif isinstance(images, str | Path):
        yield from find_images([str(images)])
    elif isinstance(images, bytes | Image.Image) or (isinstance(images, np.ndarray) and images.ndim != 4):
        yield images
    elif isinstance(images, Iterable):
        for image in images:
            yield from find_images([str(image)]) if isinstance(image, str | Path) else [image]
    else:
        raise ConfigError(f"images are {KINDS}, or several of them, not of type {type(images).__name__}")


def pixels(image: ImageLike) -> np.ndarray:
    """uint8 (H, W, 3) RGB."""
    if isinstance(image, str | Path):
        try:
            return decode(read_image_file(str(image), str(image)), name=str(image))
        except DataError as error:  # a file that cannot be read is one image that cannot be used
            raise ImageError(str(error)) from error
    if isinstance(image, bytes):
        return decode(image)
    if isinstance(image, Image.Image):
        return rgb_pixels(image)
    if not isinstance(image, np.ndarray):
        raise ConfigError(f"an image is one of {KINDS}, not of type {type(image).__name__}")
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
        raise ImageError(f"an image array must be uint8 (H, W, 3), not {image.dtype} {image.shape}")
    return image


def pixels_of(example: Example) -> np.ndarray:
    return decode(example.image, name=example.key) if isinstance(example.image, bytes) else example.image


def in_batches(images: Iterable[T], size: int) -> Iterator[list[T]]:
    group: list[T] = []
    for image in images:
        group.append(image)
        if len(group) == size:
            yield group
            group = []
    if group:
        yield group
