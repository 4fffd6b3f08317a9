"""Examples -> batches on a device, in an order that can be resumed at any step.

    position p of an endless stream -> (epoch, index) -> one example, everything random about it included

Step s of a global batch of B is the positions s B ... s B + B - 1: the first epoch's permutation of the data, then
the second's, with nothing dropped between. The order comes from (seed, epoch); crop, flip, RandAugment and patch
mask of an example from (seed, epoch, index), further views of it from (seed, epoch, index, view); mixing partners
and weights from (seed, step), over the global batch. So a batch is always the same: with any number of workers, at
the start of a run or in the middle, and on R processes, of which process r makes the slots r B/R to (r + 1) B/R - 1.

A batch is a dict of tensors. b = B / R; h x w the image size of a view.
    image    (b, 3, h, w)   one entry for each view, by its name; (b, count, 3, h, w) for a view with several draws
    label    (b,) int64
    weight   (b,) float32   0 for a broken example and for the padding of the last evaluation batch, else 1
    index    (b,) int64     in the source; -1 for padding
    partner_label, share    (b,)        with mixing: the target is share * label + (1 - share) * partner_label
    grid     (b, 2) int64     rows and columns of images of any shape, which are strips (3, P, N P) of their patches
    ...                     (b, ...)    what a view draws besides, such as patch masks
"""

from __future__ import annotations

import copy
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TypeVar, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate

from vitrail.data import augment
from vitrail.data.bad_files import BadExample, BadFiles
from vitrail.data.preprocess import Pipeline
from vitrail.data.settings import DataSettings
from vitrail.data.sources import Source
from vitrail.data.workers import UNGUARDED, begin_worker, end_workers, start_fork_server
from vitrail.errors import ConfigError, DataError, TrainingError
from vitrail.runtime.device import Device, pick
from vitrail.runtime.threads import in_order

# Purpose of a random generator: the last word of its seed, so that no two of these share a stream.
ORDER, EXAMPLE, MIX, MASK = range(4)

READING = threading.Lock()  # sources share an open file: one thread reads at a time

T = TypeVar("T")
Batch = dict[str, Tensor]
Arrays = dict[str, np.ndarray]
# A step, as a worker sends it: images by view, all else, broken examples. A tensor crosses in memory that is shared,
# and setting that up takes about a millisecond, so only images are tensors.
Step = tuple[dict[str, Tensor], Arrays, list[BadExample]]


@dataclass(frozen=True)
class View:
    """Draws of each example under one name of the batch."""

    pipeline: Pipeline
    count: int = 1  # draws of each example
    # further arrays of each draw, such as patch masks
    masks: Callable[[np.random.Generator], Arrays] | None = None


class Loader:
    """The batches of a training run, or with `evaluation` each example once, in order, the last batch padded."""

    def __init__(
        self,
        source: Source,
        views: dict[str, View] | Pipeline,
        settings: DataSettings,
        *,
        seed: int = 0,
        rank: int = 0,  # this process
        world: int = 1,  # processes that share the global batch
        evaluation: bool = False,
        bad_files: BadFiles | None = None,
    ) -> None:
        views = {"image": View(views)} if isinstance(views, Pipeline) else views
        self.stream = Stream(source, views, settings, seed, rank, world, evaluation)
        self.bad_files = BadFiles(len(source), settings.max_bad) if bad_files is None else bad_files

    @property
    def steps(self) -> int:
        """Steps of one pass over the data, the last of them not always full."""
        return -(-len(self.stream.source) // self.stream.settings.batch_size)

    def with_batch_size(self, batch_size: int) -> Loader:
        """Return a loader of the same examples, `batch_size` at a time on each process, and the same bad_files."""
        settings = replace(self.stream.settings, batch_size=batch_size * self.stream.world)
        loader = copy.copy(self)
        loader.stream = replace(self.stream, settings=settings)
        return loader

    def batch(self, step: int, device: torch.device | str = "cpu") -> Batch:
        """Return the batch of one step, read by this process."""
        return next(self.batches(step, step + 1, device, num_workers=0))

    def batches(
        self,
        start: int = 0,
        stop: int | None = None,
        device: torch.device | str = "cpu",
        *,
        num_workers: int | None = None,
    ) -> Iterator[Batch]:
        """Yield steps start ... stop - 1; without `stop`, all of an evaluation, and a training run without end."""
        kind = str(device).partition(":")[0]
        device = torch.device(str(device).replace(kind, pick(cast(Device, kind)).type))
        self.prepare(device)
        on_host = self.on_host(start, stop, pinned=device.type == "cuda", num_workers=num_workers)
        return (self.finish(batch) for batch in ahead(on_host, device))

    def prepare(self, device: torch.device) -> None:
        """Prepare the device before the first batch: ResidentLoader copies all images to it."""

    def finish(self, batch: Batch) -> Batch:
        """Finish a batch on the device."""
        return self.stream.finish(batch)

    def on_host(
        self, start: int = 0, stop: int | None = None, *, pinned: bool = False, num_workers: int | None = None
    ) -> Iterator[Batch]:
        """Yield batches before they cross to the device: images as bytes, not yet normalised or mixed."""
        if stop is None and self.stream.evaluation:
            stop = self.steps
        steps: Iterable[int] = itertools.count(start) if stop is None else range(start, stop)
        if num_workers is None:
            num_workers = self.stream.settings.num_workers or 0
        read: Iterable[Step] = map(self.stream.__getitem__, steps)
        if num_workers:
            read = self.read_by_workers(steps, num_workers, pinned=pinned)
        for images, arrays, bad in read:
            self.bad_files.add(bad)
            yield as_tensors(images, arrays)

    def in_threads(self, function: Callable[[Batch], T], threads: int) -> Iterator[T]:
        """Yield function(batch) of each step of an evaluation on the CPU, in order.

        The threads also read and decode, unless processes do. An exception of the function is raised here.
        """
        assert self.stream.evaluation
        num_workers = self.stream.settings.num_workers or 0
        steps: Iterable[int | Step] = range(self.steps)
        if num_workers:
            steps = self.read_by_workers(range(self.steps), num_workers)

        def apply(step: int | Step) -> tuple[T, list[BadExample]]:
            images, arrays, bad = self.stream[step] if isinstance(step, int) else step
            return function(self.finish(as_tensors(images, arrays))), bad

        for result, bad in in_order(apply, steps, threads):
            self.bad_files.add(bad)
            yield result

    def read_by_workers(
        self, steps: Iterable[int], num_workers: int, *, pinned: bool = False
    ) -> Iterator[Step]:
        """Yield the steps, read by other processes."""
        start_fork_server(preload=__name__)
        read = DataLoader(
            self.stream,
            batch_size=None,
            collate_fn=tuple,  # a step is a batch already, and its arrays stay arrays
            sampler=steps,
            num_workers=num_workers,
            multiprocessing_context="forkserver",
            worker_init_fn=begin_worker,
            pin_memory=pinned,
        )
        try:
            batches = iter(read)
            try:
                yield from batches
            finally:
                batches._shutdown_workers()  # type: ignore[attr-defined]
                end_workers(batches._workers)  # type: ignore[attr-defined]
        except BrokenPipeError as error:
            raise ConfigError(UNGUARDED) from error
        except RuntimeError as error:
            if not str(error).startswith("DataLoader worker (pid"):
                raise
            raise TrainingError(
                "a loader process was killed, often for lack of memory, or of shared memory (/dev/shm): fewer "
                "--num-workers and a smaller --batch-size need less, --num-workers 0 needs no shared memory"
            ) from error


@dataclass(eq=False)
class Stream(Dataset[Step]):
    """step -> this process's part of its batch. Every worker holds the same one."""

    source: Source
    views: dict[str, View]
    settings: DataSettings
    seed: int
    rank: int
    world: int
    evaluation: bool = False

    def __post_init__(self) -> None:
        source, views, settings, rank, world = self.source, self.views, self.settings, self.rank, self.world
        if world < 1 or not 0 <= rank < world or self.seed < 0:
            raise ConfigError(
                f"rank {rank} of {world} processes, seed {self.seed}: none may be negative, rank < world"
            )
        if settings.batch_size % world:
            raise ConfigError(
                f"batch_size {settings.batch_size} cannot be shared equally by {world} processes"
            )
        self.own = settings.batch_size // world  # b
        self.order = Order(len(source), None if self.evaluation else self.seed)
        self.mixes = bool(settings.mixup or settings.cutmix)
        numbers = itertools.count()  # over the draws of all views: the last word of their seeds
        self.draw_numbers = {name: [next(numbers) for _ in range(view.count)] for name, view in views.items()}
        if not len(source):
            raise DataError(f"{source.name} has no examples")
        for view in views.values():
            if view.pipeline.strip is not None:
                if self.mixes or len(views) > 1 or view.count > 1 or view.masks is not None:
                    raise ConfigError(
                        f"'{view.pipeline}' makes images of any shape, which cannot be mixed, masked or drawn "
                        "several times: set mixup and cutmix to 0"
                    )
            elif view.pipeline.image_size is None:
                raise ConfigError(f"'{view.pipeline}' makes images of many sizes; a batch needs one")
            if self.evaluation and (view.pipeline.random or self.mixes):
                raise ConfigError(
                    f"evaluation allows no randomness except masks, not '{view.pipeline}' with {settings}"
                )
        if self.mixes and (list(views) != ["image"] or views["image"].count > 1):
            raise ConfigError(
                f"mixup and cutmix need one view named image, not {', '.join(views)}: set both to 0"
            )

    @property
    def pipeline(self) -> Pipeline:
        """Pipeline of the first view."""
        return next(iter(self.views.values())).pipeline

    def __getitem__(self, step: int) -> Step:
        c, b = self.settings, self.own
        slots = [self.rank * b + i for i in range(b)]
        if self.mixes and self.world > 1:
            slots.append((slots[0] - 1) % c.batch_size)  # the partner of the first
        images, batch, bad = self._read([self.order.at(step * c.batch_size + slot) for slot in slots])
        if self.mixes:
            rng = generator(self.seed, step, 0, MIX)
            weight, box = 1.0, (0, 0, 0, 0)
            if c.cutmix and (not c.mixup or rng.random() < 0.5):
                assert self.pipeline.image_size is not None
                weight, box = augment.draw_cutmix(self.pipeline.image_size, c.cutmix, rng)
            else:
                weight = augment.draw_mixup(c.mixup, rng)
            # Where the partner is broken, the example stays as it is.
            partner_weight = np.roll(batch["weight"], 1)[:b]
            batch["share"] = np.where(partner_weight > 0, np.float32(weight), np.float32(1))
            if c.cutmix:  # in every batch, so that its form does not change from step to step
                batch["box"] = np.where(batch["share"][:, None] < 1, np.array(box), 0)  # (b, 4)
        for name in ("weight", "index"):
            batch[name] = batch[name][:b]
        return images, batch, bad

    def _read(self, places: list[tuple[int, int]]) -> Step:
        """Read the examples at (epoch, index); the first b are this process's own, those beyond only partners."""
        images: dict[str, list[Tensor]] = {name: [] for name in self.blanks()}
        label, weight = np.zeros(len(places), np.int64), np.zeros(len(places), np.float32)
        bad = []
        for slot, (epoch, place) in enumerate(places):
            draws = self.blanks()
            if place >= 0:
                try:
                    draws = self.draws(epoch, place)
                    label[slot], weight[slot] = self.source.labels[place], 1.0
                except DataError as error:
                    key, reason = self.source.key(place), str(error)
                    bad.append(BadExample(place, key, reason if key in reason else f"{key}: {reason}"))
            for name, draw in draws.items():
                images[name].append(draw)
        index = np.array([index for _, index in places], np.int64)
        batch: Arrays = {"label": label, "weight": weight, "index": index, **self._masks(places[: self.own])}
        if (targets := getattr(self.source, "targets", None)) is not None and not self.evaluation:
            batch["targets"] = targets[np.maximum(index, 0)].astype(np.float32)  # (b, K)
        # (b, 3, h, w); in a worker, made in the memory that is shared
        return {name: default_collate(each) for name, each in images.items()}, batch, bad

    def draws(self, epoch: int, index: int) -> dict[str, Tensor]:
        """Draw all views of an example: (3, h, w) each, (count, 3, h, w) for several draws."""
        with READING:
            example = self.source.read(index)
        draws = {}
        for name, view in self.views.items():
            each = []
            for number in self.draw_numbers[name]:
                key = (self.seed, epoch, index, EXAMPLE, number)
                rng = generator(*key) if view.pipeline.random else None
                each.append(view.pipeline.load(example.image, rng, name=example.key))
            draws[name] = each[0] if view.count == 1 else torch.stack(each)
            if view.pipeline.strip is not None:
                draws[name], draws["grid"] = view.pipeline.strip.strip(draws[name])
        return draws

    def blanks(self) -> dict[str, Tensor]:
        """Return zeros in place of the draws of an example that cannot be read."""
        blanks = {}
        for name, view in self.views.items():
            strip, size = view.pipeline.strip, view.pipeline.image_size
            size = size if strip is None else strip.strip_size
            assert size is not None
            shape = (3, *size) if view.count == 1 else (view.count, 3, *size)
            dtype = torch.uint8 if view.pipeline.crosses_as_bytes else torch.float32
            blanks[name] = torch.zeros(shape, dtype=dtype)
            if strip is not None:
                blanks["grid"] = torch.ones(2, dtype=torch.int64)
        return blanks

    def _masks(self, places: list[tuple[int, int]]) -> Arrays:
        """Draw the masks of all views, (b, ...) each, (b, count, ...) for several draws."""
        masks: Arrays = {}
        for name, view in self.views.items():
            if view.masks is None:
                continue
            each = [
                [
                    view.masks(generator(self.seed, epoch, max(index, 0), MASK, n))
                    for n in self.draw_numbers[name]
                ]
                for epoch, index in places
            ]
            for mask in each[0][0]:
                stacked = np.array([[draw[mask] for draw in example] for example in each])  # (b, count, ...)
                masks[mask] = stacked[:, 0] if view.count == 1 else stacked
        return masks

    def finish(self, batch: Batch) -> Batch:
        """Do the rest of the preprocessing on the device, and mix."""
        for name, view in self.views.items():
            batch[name] = view.pipeline.device(batch[name])
        if not self.mixes:
            return batch
        x, label, share, box = batch["image"], batch["label"], batch["share"], batch.pop("box", None)
        b = len(share)
        batch["label"], batch["partner_label"] = label[:b], augment.partners(label, b)
        if box is None:
            return batch | {"image": augment.mixup(x, share)}
        # 0: mixup, or not mixed
        cut = (box[:, 2] * box[:, 3] > 0).to(x.dtype)[:, None, None, None]  # (b, 1, 1, 1)
        return batch | {"image": cut * augment.cutmix(x, box) + (1 - cut) * augment.mixup(x, share)}


def as_tensors(images: dict[str, Tensor], arrays: Arrays) -> Batch:
    return {**images, **{name: torch.from_numpy(a) for name, a in arrays.items()}}


class Order:
    """position -> (epoch, index): each epoch a permutation of its own; without a seed, one pass in order."""

    def __init__(self, n: int, seed: int | None) -> None:
        self.n, self.seed = n, seed
        self.permutations: dict[int, np.ndarray] = {}  # of the epochs in use

    def at(self, position: int) -> tuple[int, int]:
        """Return (epoch, index); past the end of a pass in order there is padding, index -1."""
        epoch, place = divmod(position, self.n)
        if self.seed is None:
            return 0, place if not epoch else -1
        if epoch not in self.permutations:
            # A batch lies in one or two epochs, but for tiny data: keep the last few.
            self.permutations = {e: p for e, p in self.permutations.items() if epoch - 2 <= e <= epoch + 2}
            rng = generator(self.seed, epoch, 0, ORDER)
            self.permutations[epoch] = rng.permutation(self.n).astype(np.int64)
        return epoch, int(self.permutations[epoch][place])


def generator(seed: int, epoch: int, index: int, purpose: int, number: int = 0) -> np.random.Generator:
    """Return the generator of draw `number` of an example; the key of the first draw has no number."""
    return np.random.default_rng((seed, epoch, index, purpose, *([number] if number else [])))


def ahead(batches: Iterator[Batch], device: torch.device) -> Iterator[Batch]:
    """Yield the batches on the device; on CUDA the next one is copied while this one is used."""
    if device.type != "cuda":
        yield from ({name: t.to(device) for name, t in batch.items()} for batch in batches)
        return
    side, waiting = torch.cuda.Stream(device), None
    for batch in batches:
        with torch.cuda.stream(side):
            coming = {name: t.to(device, non_blocking=True) for name, t in batch.items()}
        if waiting is not None:
            yield waiting
        torch.cuda.current_stream(device).wait_stream(side)
        for t in coming.values():
            t.record_stream(torch.cuda.current_stream(device))
        waiting = coming
    if waiting is not None:
        yield waiting
