"""The engine behind predict, evaluate, features and inspect: a model and images -> its outputs, batch by batch.

    source ──► evaluation_loader ──► outputs(model, loader, call) ──► (y, batch), readable examples only
    images ──► image_outputs(model, images, call) ──► y                           any unreadable image is an error

Every image goes through the model's own preprocessing line, so that all users of a model see the same pixels. The
model stays on its device, and every module keeps its mode. B images, b readable ones.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from vitrail.data.bad_files import BadExample
from vitrail.data.loader import READING, Batch, Loader
from vitrail.data.preprocess import Pipeline, augmented_line, parse
from vitrail.data.settings import DataSettings
from vitrail.data.sources import Source
from vitrail.errors import CheckpointError, ConfigError, DataError, ImageError
from vitrail.inference.exported import Exported, Runnable, as_runnable, check_precision
from vitrail.inference.images import ImageLike, Images, Pictures, decoded, each_image, pixels
from vitrail.inference.packed import packed_features
from vitrail.inference.precision import Precision, in_precision
from vitrail.models.cost import cost
from vitrail.models.names import Model
from vitrail.models.vit import ViT
from vitrail.runtime.cuda_graph import Recorded
from vitrail.runtime.device import computing_seconds
from vitrail.runtime.distributed import rank, world
from vitrail.runtime.progress import progress
from vitrail.runtime.threads import in_order

ModelLike = Model | str | Path
RunnableLike = Runnable | str | Path
Call = Callable[..., Tensor]  # of images (B, 3, H, W); with a second tensor, grids: of strips
BATCH_SIZE = 32
HELD = 512  # images of an iterator that are held at a time
PARALLEL = 5000  # images from which on starting processes that decode them is worth the time
MOST_WORKERS = 8
MOST_THREADS = 16  # that compute batches of their own, on a CPU; with more cores, each uses several
PACKED = 8  # images from which on packing the weights for them is worth the time
CPU_PIXELS = 16 * 64 * 64  # of such a batch
RECORDED = 4  # batches from which on recording their kernels is worth the time
COMPILED = 60  # seconds of computing from which on compiling, about half a minute, is worth the time
ONE_SIZE = (
    "this needs images of one size, and the model takes images of any shape: load it with an image_size"
)
T = TypeVar("T")


def outputs(
    model: nn.Module,
    loader: Loader,
    call: Call | None = None,
    *,
    precision: Precision = "float32",
    threads: int | None = None,
    takes_strips: bool = False,
    task: str = "",
) -> Iterator[tuple[Tensor, Batch]]:
    """Yield y = call(images), float32 (b, ...), and the batch without images, for the readable examples of a loader.

    `call`: None for the model itself. `takes_strips`: of images of any shape it takes the grids too. `threads`: on a
    CPU, in how many `call` may run at once; None: chosen automatically. `task`: the name of a progress bar; no name,
    no bar. `loader.bad_files` lists the examples that could not be read.
    """
    device = next(model.parameters()).device
    if isinstance(model, Exported) and model.takes_pixels:
        check_precision(model, precision)
        each = pixel_outputs(call or model, loader, threads)
        yield from progress(each, len(loader.stream.source), task) if task and rank() == 0 else each
        return
    on_cpu = device.type == "cpu"
    if on_cpu:
        loader, threads = share_out(loader, threads)
    n, any_shape = len(loader.stream.source), loader.stream.pipeline.strip is not None
    if any_shape and call is not None and not takes_strips:
        raise ConfigError(ONE_SIZE)
    # What is prepared for many images is for images of one size.
    many = {} if any_shape else {"n": n, "steps": loader.steps}
    with forward_pass(model, call, precision=precision, **many) as forward:

        def compute(batch: Batch) -> tuple[Tensor, Batch]:
            shapes = [batch.pop("grid")] if any_shape else []
            return forward(batch.pop("image"), *shapes), batch

        results: Iterator[tuple[Tensor, Batch]]
        if on_cpu:
            assert threads is not None
            results = loader.in_threads(lambda batch: readable(*compute(batch)), threads)
        else:
            batches = loader.batches(device=device, num_workers=decoding_processes(loader))
            results = (readable(*result) for result in one_behind(map(compute, batches)))
        yield from progress(results, loader.steps, task) if task and rank() == 0 else results


@contextmanager
def forward_pass(
    model: nn.Module,
    call: Call | None = None,
    *,
    precision: Precision = "float32",
    n: int = 1,
    steps: int = 1,
) -> Iterator[Call]:
    """Context that yields images (B, 3, H, W) -> y = call(images), float32 (B, ...); None: of the model itself.

    `n` images in `steps` batches of equal shapes are to come: many are worth preparing for, which does not change
    results beyond rounding. On a CPU weights are packed for them; on CUDA the kernels are recorded, or compiled.
    """
    device = next(model.parameters()).device
    check_precision(model, precision)
    pack = device.type == "cpu" and precision != "fp8" and n >= PACKED
    with (
        evaluation_mode(model),
        in_precision(model, precision) as numbers,
        packed_features(model) if pack and not numbers.autocast else nullcontext(),
    ):

        def forward(x: Tensor, *shapes: Tensor) -> Tensor:
            with (
                torch.no_grad(),
                torch.autocast(device.type, torch.bfloat16, enabled=numbers.autocast, cache_enabled=False),
            ):
                return (call or model)(x.to(numbers.dtype), *shapes).float()

        if device.type == "cuda" and call is None and steps >= RECORDED:
            assert isinstance(model, Model)
            if computing_seconds(n * cost(model.config).flops, device) > COMPILED:
                forward = torch.compile(forward)
            recorded = Recorded(lambda inputs: forward(inputs["image"]))
            yield lambda x: recorded({"image": x}).clone()  # the next call overwrites it
        else:
            yield forward


def pixel_outputs(call: Call, loader: Loader, threads: int | None = None) -> Iterator[tuple[Tensor, Batch]]:
    """Yield what `outputs` does for a file that prepares images itself: one at a time, since their sizes differ."""
    stream, processes = loader.stream, loader.stream.world
    source = stream.source

    def compute(index: int) -> tuple[Tensor, Batch] | BadExample:
        try:
            with READING:
                example = source.read(index)
            image = decoded(example)
        except DataError as error:
            key, reason = source.key(index), str(error)
            return BadExample(index, key, reason if key in reason else f"{key}: {reason}")
        y = call(torch.from_numpy(np.ascontiguousarray(image))[None])  # (1, ...)
        check_finite(y, "outputs")
        label = torch.tensor([int(source.labels[index])])
        return y, {"label": label, "weight": torch.ones(1), "index": torch.tensor([index])}

    own = range(stream.rank, len(source), processes)
    for result in in_order(compute, own, min(threads or MOST_THREADS, torch.get_num_threads(), len(own))):
        if isinstance(result, BadExample):
            loader.bad_files.add([result])
        else:
            yield result


def readable(y: Tensor, batch: Batch) -> tuple[Tensor, Batch]:
    """Leave out padding and broken examples: y (B, ...) -> (b, ...), and the rest of the batch."""
    used = batch["weight"] > 0  # (B,)
    y = y[used]  # (b, ...)
    check_finite(y, "outputs")
    return y, {name: t[used] for name, t in batch.items()}


def one_behind(results: Iterator[T]) -> Iterator[T]:
    """Yield each result when the next is under way: the device computes that while the host waits for this."""
    waiting: list[T] = []
    for result in results:
        waiting.append(result)
        if len(waiting) > 1:
            yield waiting.pop(0)
    yield from waiting


def share_out(loader: Loader, threads: int | None) -> tuple[Loader, int]:
    """Return a loader of batches that suit a core's cache, at least one for each thread; and how many threads."""
    stream = loader.stream
    own = -(-len(stream.source) // stream.world)  # examples of this process
    threads = min(threads or MOST_THREADS, torch.get_num_threads(), own)
    strip = stream.pipeline.strip
    size = stream.pipeline.image_size if strip is None else strip.strip_size
    assert size is not None
    batch_size = min(stream.own, max(1, CPU_PIXELS // (size[0] * size[1])), -(-own // threads))
    return loader.with_batch_size(batch_size), threads


def decoding_processes(loader: Loader) -> int:
    """Return the number of processes that decode for a GPU: as set, else by the number of images."""
    if loader.stream.settings.num_workers is not None:
        return loader.stream.settings.num_workers
    return min(MOST_WORKERS, os.cpu_count() or 1) if len(loader.stream.source) >= PARALLEL else 0


def image_outputs(
    model: Runnable,
    images: Images,
    call: Call | None = None,
    batch_size: int = BATCH_SIZE,
    num_workers: int | None = 0,
    *,
    threads: int | None = None,
    takes_strips: bool = False,
    task: str = "",
) -> Iterator[Tensor]:
    """Yield y = call(images) on the CPU, float32 (b, ...); raise ImageError at the first that cannot be read."""
    for loader in image_loaders(model, images, batch_size, num_workers):
        for y, _ in outputs(model, loader, call, threads=threads, takes_strips=takes_strips, task=task):
            for bad in loader.bad_files.examples.values():
                raise ImageError(bad.reason)
            yield y.cpu()


def image_loaders(
    model: Runnable, images: Images, batch_size: int, num_workers: int | None = 0
) -> Iterator[Loader]:
    """Yield a loader for each source of `as_sources`; any number of images may be broken."""
    pipeline = evaluation_pipeline(model, any_shape=True)
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

    `num_workers`: processes that decode; None: chosen automatically; 0: none, on a CPU the threads that compute also
    decode. `max_bad`: share of examples that may be broken.
    `shared`: processes that were started together (torchrun) each get a part; otherwise each gets everything.
    """
    if batch_size < 1:
        raise ConfigError(f"batch_size must be at least 1, not {batch_size}")
    processes, number = (world(), rank()) if shared else (1, 0)
    batch_size = min(batch_size, -(-len(source) // processes))
    if isinstance(source, Pictures):
        steps = -(-len(source) // batch_size)
        batch_size = -(-len(source) // steps)  # evenly: the last batch is padded to the size of the others
    settings = DataSettings(batch_size=batch_size * processes, num_workers=num_workers, max_bad=max_bad)
    return Loader(source, pipeline, settings, rank=number, world=processes, evaluation=True)


def evaluation_pipeline(model: Runnable, *, any_shape: bool = False) -> Pipeline:
    """Return the model's own preprocessing; ConfigError if it has none, or one for another image size.

    `any_shape`: the caller can also take images of any shape.
    """
    if not model.preprocess:
        raise ConfigError("this model has no preprocessing line: set model.preprocess to one")
    pipeline = parse(model.preprocess)
    if pipeline.strip is not None and not any_shape:
        raise ConfigError(ONE_SIZE)
    if not fits_model(pipeline, model):
        raise ConfigError(
            f"the preprocessing line {model.preprocess!r} does not make images of {model.config.image_size}, the "
            "model's size"
        )
    return pipeline


def fits_model(pipeline: Pipeline, model: Runnable) -> bool:
    """Return whether a line makes images that a model takes: of its size, or of any shape in its patches."""
    if pipeline.strip is not None:
        return isinstance(model, ViT) and pipeline.strip.patch == model.config.stride
    return pipeline.image_size == tuple(model.config.image_size)


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


def transform(model: RunnableLike, training: bool = False) -> Transform:
    """Return a callable that prepares an image for a model: a path, bytes, PIL image, uint8 array -> (3, H, W).

    Its output is what predict and evaluate use; with `training`, a random crop and flip of the same size and range.
    """
    model = as_runnable(model)
    pipeline = evaluation_pipeline(model, any_shape=True)
    return Transform(parse(training_line(model)) if training else pipeline)


def training_line(model: Runnable, augment: str | None = None) -> str:
    """Return the training line of a strength, to the model's size and range; without one Inception crop and flip, of
    images of any shape the flip alone."""
    if augment is not None:
        return augmented_line(augment, model.preprocess, model.config.image_size)
    own = parse(model.preprocess)
    if own.strip is not None:
        return f"flip_lr|{own}"
    H, W = model.config.image_size
    size = f"{H}" if H == W else f"{H}, {W}"
    value = own.value_op
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
