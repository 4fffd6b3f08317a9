"""The engine behind predict, evaluate, features and inspect: a model and images -> its outputs, batch by batch.

    source ──► evaluation_loader ──► outputs(model, loader, call) ──► (y, batch), readable examples only
    images ──► image_outputs(model, images, call) ──► y                           any unreadable image is an error

Every image goes through the model's own preprocessing line, so that all users of a model see the same pixels. The
model stays on its device, and every module keeps its mode. B images, b readable ones.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from vitrail.checkpoints.formats import as_model
from vitrail.data.loader import Batch, Loader
from vitrail.data.preprocess import Pipeline, parse
from vitrail.data.settings import DataSettings
from vitrail.data.sources import Source
from vitrail.errors import CheckpointError, ConfigError, ImageError
from vitrail.inference.images import ImageLike, Images, Pictures, each_image, pixels
from vitrail.inference.precision import Precision, in_precision
from vitrail.models.names import Model
from vitrail.runtime.distributed import rank, world
from vitrail.runtime.progress import progress

ModelLike = Model | str | Path
Call = Callable[[Tensor], Tensor]
BATCH_SIZE = 32
HELD = 512  # images of an iterator that are held at a time
PARALLEL = 5000  # images from which on starting processes that decode them is worth the time
MOST_WORKERS = 8


def outputs(
    model: nn.Module,
    loader: Loader,
    call: Call | None = None,
    *,
    precision: Precision = "float32",
    task: str = "",
) -> Iterator[tuple[Tensor, Batch]]:
    """Yield y = call(images), float32 (b, ...), and the batch without images, for the readable examples of a loader.

    `call`: None for the model itself. `task`: the name of a progress bar; no name, no bar. `loader.bad_files` lists
    the examples that could not be read.
    """
    weight = next(model.parameters())
    batches = loader.batches(device=weight.device)
    if task and rank() == 0:
        batches = progress(batches, loader.steps, task)
    with evaluation_mode(model), in_precision(model, precision) as dtype:
        for batch in batches:
            x = batch.pop("image").to(dtype)  # (B, 3, H, W)
            with torch.no_grad():
                y = (call or model)(x).float()  # (B, ...)
            used = batch["weight"] > 0  # (B,); no padding, and nothing that is broken
            y = y[used]  # (b, ...)
            check_finite(y, "outputs")
            yield y, {name: t[used] for name, t in batch.items()}


def image_outputs(
    model: Model,
    images: Images,
    call: Call | None = None,
    batch_size: int = BATCH_SIZE,
    num_workers: int | None = 0,
    *,
    task: str = "",
) -> Iterator[Tensor]:
    """Yield y = call(images) on the CPU, float32 (b, ...); raise ImageError at the first that cannot be read."""
    for loader in image_loaders(model, images, batch_size, num_workers):
        for y, _ in outputs(model, loader, call, task=task):
            for bad in loader.bad_files.examples.values():
                raise ImageError(bad.reason)
            yield y.cpu()


def image_loaders(
    model: Model, images: Images, batch_size: int, num_workers: int | None = 0
) -> Iterator[Loader]:
    """Yield a loader for each source of `as_sources`; any number of images may be broken."""
    pipeline = evaluation_pipeline(model)
    for source in as_sources(images):
        yield evaluation_loader(source, pipeline, batch_size, num_workers, max_bad=1.0, shared=False)


def as_sources(images: Images) -> Iterator[Source]:
    """Yield the images as one source; those of an iterator, which may be many, as one for every HELD of them."""
    if isinstance(images, Source):
        yield images
    elif isinstance(images, Iterator):
        each = each_image(images)
        while group := list(islice(each, HELD)):
            yield Pictures(group)
    elif listed := list(each_image(images)):
        yield Pictures(listed)


def evaluation_loader(
    source: Source,
    pipeline: Pipeline,
    batch_size: int,
    num_workers: int | None = 0,
    max_bad: float = 0.01,
    *,
    shared: bool = True,
) -> Loader:
    """Return a loader of each example once, in order, `batch_size` at a time on each process.

    `num_workers`: processes that decode; None: chosen automatically. `max_bad`: share of examples that may be broken.
    `shared`: processes that were started together (torchrun) each get a part; otherwise each gets everything.
    """
    if batch_size < 1:
        raise ConfigError(f"batch_size must be at least 1, not {batch_size}")
    if num_workers is None:
        num_workers = min(MOST_WORKERS, os.cpu_count() or 1) if len(source) >= PARALLEL else 0
    processes, number = (world(), rank()) if shared else (1, 0)
    batch_size = min(batch_size, -(-len(source) // processes))
    if isinstance(source, Pictures):
        steps = -(-len(source) // batch_size)
        batch_size = -(-len(source) // steps)  # evenly: the last batch is padded to the size of the others
    settings = DataSettings(batch_size=batch_size * processes, num_workers=num_workers, max_bad=max_bad)
    return Loader(source, pipeline, settings, rank=number, world=processes, evaluation=True)


def evaluation_pipeline(model: Model) -> Pipeline:
    """Return the model's own preprocessing; ConfigError if it has none, or one for another image size."""
    if not model.preprocess:
        raise ConfigError("this model has no preprocessing line: set model.preprocess to one")
    pipeline = parse(model.preprocess)
    if pipeline.image_size != tuple(model.config.image_size):
        raise ConfigError(
            f"the preprocessing line {model.preprocess!r} does not make images of {model.config.image_size}, the "
            "model's size"
        )
    return pipeline


@dataclass(frozen=True)
class Transform:
    """Prepare one image for a model; can be pickled, for the workers of a torch DataLoader."""

    pipeline: Pipeline

    def __call__(self, image: ImageLike) -> Tensor:
        """Return float32 (3, H, W). Random ops draw from torch's generator, as torchvision's do."""
        rng = None
        if self.pipeline.random:
            rng = np.random.default_rng(int(torch.randint(1 << 62, ())))
        return self.pipeline(pixels(image), rng)

    def __repr__(self) -> str:
        return f"Transform({str(self.pipeline)!r})"


def transform(model: ModelLike, training: bool = False) -> Transform:
    """Return a callable that prepares an image for a model: a path, bytes, PIL image, uint8 array -> (3, H, W).

    Its output is what predict and evaluate use; with `training`, a random crop and flip of the same size and range.
    """
    model = as_model(model)
    pipeline = evaluation_pipeline(model)
    return Transform(parse(training_line(model)) if training else pipeline)


def training_line(model: Model) -> str:
    """Return Inception crop and flip, to the model's size and range."""
    H, W = model.config.image_size
    size = f"{H}" if H == W else f"{H}, {W}"
    value = parse(model.preprocess).value_op
    return str(Pipeline(parse(f"inception_crop({size})|flip_lr|uint8").pixel_ops, value))


def check_finite(t: Tensor, what: str) -> None:
    """Raise CheckpointError if a model's weights or outputs are not finite."""
    if wrong := int((~t.isfinite()).sum()):
        raise CheckpointError(
            f"the model's {what} are not finite in {wrong:,} of {t.numel():,} values: its weights have overflowed"
        )


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Set every module to evaluation mode, then back: a frozen one may be in it while the others train."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
