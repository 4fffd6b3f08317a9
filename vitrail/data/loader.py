"""Examples -> batches on a device, in an order that can be entered at any step.

    position p of an endless stream -> (epoch, index) -> one example, everything random about it included

Step s of a global batch of B is the positions s B ... s B + B - 1: the first epoch's permutation of the data, then
the second's, with nothing dropped between. The order comes from (seed, epoch); crop, flip, RandAugment and patch
mask of an example from (seed, epoch, index); mixing partners and weights from (seed, step), over the global batch.
So a batch is the same whoever makes it: with any number of workers, at the start of a run or in the middle, and on
R processes, of which process r makes the slots r B/R ... (r + 1) B/R - 1.

A batch is a dict of tensors. b = B / R; h x w the pipeline's image size; N patches.
    image    (b, 3, h, w)   what the model takes; bytes until it is on the device
    label    (b,) int64
    weight   (b,) float32   0 for a broken example and for the padding of the last evaluation batch, else 1
    index    (b,) int64     in the source; -1 for padding
    partner_label, share    (b,)        with mixing: the target is share * label + (1 - share) * partner_label
    corruption, other       (b, N)      with masking: masking.py
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate

from vitrail.data import augment
from vitrail.data.bad_files import BadExample, BadFiles
from vitrail.data.masking import Masking, draw_mask
from vitrail.data.order import EXAMPLE, MASK, MIX, Order, generator, with_partners
from vitrail.data.preprocess import Pipeline
from vitrail.data.sources import Source
from vitrail.data.workers import UNGUARDED, begin_worker, start_fork_server
from vitrail.errors import ConfigError, DataError, TrainingError
from vitrail.runtime.device import Device, pick

Batch = dict[str, Tensor]
# What a worker sends: images, all else, broken examples. A tensor crosses in memory that both sides share, and to set
# that up takes about a millisecond, so only the images are one.
Made = tuple[Tensor, dict[str, np.ndarray], list[BadExample]]


@dataclass(frozen=True)
class Loading:
    """How batches are made."""

    batch: int = 256  # B, examples in a global batch
    seed: int = 0
    workers: int = 0  # processes that decode; 0: this one
    mixup: float = 0.0  # p of Beta(p, p); 0: none
    cutmix: float = 0.0  # likewise; with both, each batch gets one or the other by a fair coin
    masking: Masking | None = None  # patches to corrupt, for masked patch prediction
    rank: int = 0  # this process, of
    world: int = 1  # so many that share the global batch
    max_bad: float = 0.01  # part of the examples that may be broken before the run stops

    def __post_init__(self) -> None:
        if self.batch < 1 or self.world < 1 or not 0 <= self.rank < self.world or self.workers < 0:
            raise ConfigError(
                f"batch {self.batch} must be at least 1, rank {self.rank} in 0 ... world {self.world} - 1, workers "
                f"{self.workers} not negative"
            )
        if self.batch % self.world:
            raise ConfigError(f"a global batch of {self.batch} cannot be shared by {self.world} processes")
        if not (0 <= self.mixup < float("inf") and 0 <= self.cutmix < float("inf")):
            raise ConfigError(f"mixup={self.mixup}, cutmix={self.cutmix} must not be negative")
        if self.seed < 0 or not 0 <= self.max_bad <= 1:
            raise ConfigError(f"seed {self.seed} must not be negative, max_bad {self.max_bad} in [0, 1]")


class Loader:
    """The batches of a training run, or with `evaluation` each example once, in order, the last batch padded."""

    def __init__(
        self,
        source: Source,
        pipeline: Pipeline,
        loading: Loading,
        *,
        evaluation: bool = False,
        bad_files: BadFiles | None = None,
    ) -> None:
        self.stream = Stream(source, pipeline, loading, evaluation)
        self.bad_files = BadFiles(len(source), loading.max_bad) if bad_files is None else bad_files

    @property
    def steps(self) -> int:
        """Of one pass over the data, the last of them not always full."""
        return -(-len(self.stream.source) // self.stream.loading.batch)

    def batch(self, step: int, device: torch.device | str = "cpu") -> Batch:
        """The batch of one step, made here and now."""
        return next(self.batches(step, step + 1, device, workers=0))

    def batches(
        self,
        start: int = 0,
        stop: int | None = None,
        device: torch.device | str = "cpu",
        *,
        workers: int | None = None,
    ) -> Iterator[Batch]:
        """Steps start ... stop - 1; without `stop`, all of an evaluation, and a training run without end."""
        device = present(device)
        self.prepare(device)
        on_host = self.on_host(start, stop, pinned=device.type == "cuda", workers=workers)
        return (self.finish(batch) for batch in ahead(on_host, device))

    def prepare(self, device: torch.device) -> None:
        """What a device must have before the first batch: nothing, unless images stay there (resident.py)."""

    def finish(self, batch: Batch) -> Batch:
        """On the device: what is left to be done."""
        return self.stream.finish(batch)

    def on_host(
        self, start: int = 0, stop: int | None = None, *, pinned: bool = False, workers: int | None = None
    ) -> Iterator[Batch]:
        """The same before they cross to the device: images as bytes, not yet normalised or mixed."""
        if stop is None and self.stream.evaluation:
            stop = self.steps
        steps: Iterable[int] = itertools.count(start) if stop is None else range(start, stop)
        workers = self.stream.loading.workers if workers is None else workers
        for image, batch, bad in self._made(steps, pinned, workers):
            self.bad_files.add(bad)
            yield {"image": image, **{name: torch.from_numpy(a) for name, a in batch.items()}}

    def _made(self, steps: Iterable[int], pinned: bool, workers: int) -> Iterator[Made]:
        if not workers:
            yield from (self.stream[step] for step in steps)
            return
        start_fork_server(preload=__name__)
        loader: DataLoader[Made] = DataLoader(
            self.stream,
            batch_size=None,
            collate_fn=as_it_is,
            sampler=steps,
            num_workers=workers,
            multiprocessing_context="forkserver",
            worker_init_fn=begin_worker,
            pin_memory=pinned,
        )
        try:
            yield from loader
        except BrokenPipeError as error:
            raise ConfigError(UNGUARDED) from error
        except RuntimeError as error:
            if not str(error).startswith("DataLoader worker (pid"):
                raise
            raise TrainingError(
                "a loader process was killed, often for lack of memory, or of shared memory (/dev/shm): fewer "
                "--workers and a smaller --batch need less, --workers 0 needs no shared memory"
            ) from error


class Stream(Dataset[Made]):
    """step -> this process's part of its batch. What a worker holds; the same in each of them."""

    def __init__(self, source: Source, pipeline: Pipeline, loading: Loading, evaluation: bool) -> None:
        self.source, self.pipeline, self.loading, self.evaluation = source, pipeline, loading, evaluation
        self.order = Order(len(source), None if evaluation else loading.seed)
        self.mixes = bool(loading.mixup or loading.cutmix)
        if not len(source):
            raise DataError(f"{source.name} has no examples")
        if pipeline.image_size is None:
            raise ConfigError(f"'{pipeline}' makes images of many sizes; a batch needs one")
        self.image_size = pipeline.image_size
        if evaluation and (pipeline.random or self.mixes):
            raise ConfigError(f"evaluation takes nothing random but masks: '{pipeline}', {loading}")

    def __getitem__(self, step: int) -> Made:
        b = self.loading.batch // self.loading.world
        slots = np.arange(b) + self.loading.rank * b
        mixing = self._mixing(step) if self.mixes else None
        partner = np.zeros(0, np.int64)
        if mixing is not None:
            slots, partner = with_partners(slots, mixing.partner)
        places = [self.order.at(step * self.loading.batch + int(slot)) for slot in slots]
        image, batch, bad = self._read(places, b)
        if mixing is not None:
            own = slots[:b]
            # Where the partner is broken, the example stays as it is.
            share = np.where(batch["weight"][partner] > 0, mixing.weight[own], 1.0)
            batch["partner"], batch["share"] = partner, share.astype(np.float32)
            if mixing.box is not None:
                batch["box"] = np.where(share[:, None] < 1, mixing.box[own], 0)
        for name in ("weight", "index"):
            batch[name] = batch[name][:b]
        return image, batch, bad

    def _read(self, places: list[tuple[int, int]], b: int) -> Made:
        """The examples at (epoch, index); the first b are this process's own, those beyond only partners."""
        images = [self.blank()] * len(places)
        label, weight = np.zeros(len(places), np.int64), np.zeros(len(places), np.float32)
        masks, bad = [], []
        for slot, (epoch, index) in enumerate(places):
            if self.loading.masking is not None and slot < b:
                rng = generator(self.loading.seed, epoch, max(index, 0), MASK)
                masks.append(draw_mask(self.loading.masking, rng))
            if index < 0:
                continue
            try:
                images[slot] = self.pixels(epoch, index)
                label[slot], weight[slot] = self.source.labels[index], 1.0
            except DataError as error:
                key, reason = self.source.key(index), str(error)
                bad.append(BadExample(index, key, reason if key in reason else f"{key}: {reason}"))
        image = default_collate(images)  # (b, 3, h, w); in a worker, made in the memory that is shared
        indices = np.array([index for _, index in places], np.int64)
        batch: dict[str, np.ndarray] = {"label": label, "weight": weight, "index": indices}
        for k, name in enumerate(("corruption", "other") if masks else ()):
            batch[name] = np.stack([mask[k] for mask in masks])  # (b, N)
        return image, batch, bad

    def blank(self) -> Tensor:
        """In the place of what cannot be read."""
        dtype = torch.uint8 if self.pipeline.crosses_as_bytes else torch.float32
        return torch.zeros(3, *self.image_size, dtype=dtype)

    def pixels(self, epoch: int, index: int) -> Tensor:
        rng = generator(self.loading.seed, epoch, index, EXAMPLE) if self.pipeline.random else None
        example = self.source.read(index)
        if isinstance(example.image, bytes):
            return self.pipeline.load(example.image, rng, name=example.key)
        return self.pipeline.host(example.image, rng)

    def _mixing(self, step: int) -> augment.Mixing:
        """Of the global batch."""
        c, rng = self.loading, generator(self.loading.seed, step, 0, MIX)
        by_cutmix = bool(c.cutmix) and (not c.mixup or rng.random() < 0.5)
        if by_cutmix:
            return augment.draw_cutmix(c.batch, self.image_size, c.cutmix, rng)
        mixing = augment.draw_mixup(c.batch, c.mixup, rng)
        # Where both are used, every batch has boxes, so that its form does not change from step to step.
        return replace(mixing, box=np.zeros((c.batch, 4), np.int64)) if c.cutmix else mixing

    def finish(self, batch: Batch) -> Batch:
        """On the device: the rest of the preprocessing, and mixing."""
        x = self.pipeline.device(batch.pop("image"))
        if not self.mixes:
            return {"image": x, **batch}
        partner, share, box = batch.pop("partner"), batch["share"], batch.pop("box", None)
        label = batch["label"]
        batch["label"], batch["partner_label"] = label[: len(partner)], label[partner]
        if box is None:
            return {"image": augment.mixup(x, partner, share), **batch}
        cut = (box[:, 2] * box[:, 3] > 0).to(x.dtype)  # (b,); 0: mixup, or not mixed
        cut = cut[:, None, None, None]  # (b, 1, 1, 1)
        x = cut * augment.cutmix(x, partner, box) + (1 - cut) * augment.mixup(x, partner, share)
        return {"image": x, **batch}


def as_it_is(made: Any) -> Any:
    """A step is a batch already, and its arrays stay arrays."""
    return made


def present(device: torch.device | str) -> torch.device:
    """The device, `cuda:1` say; ConfigError where this machine has none of its kind."""
    kind, _, number = str(device).partition(":")
    found = pick(cast(Device, kind))
    return torch.device(found.type, int(number)) if number else found


def ahead(batches: Iterator[Batch], device: torch.device) -> Iterator[Batch]:
    """The batches on the device; on CUDA the next one is copied while this one is used."""
    if device.type != "cuda":
        yield from ({name: t.to(device) for name, t in batch.items()} for batch in batches)
        return
    side = torch.cuda.Stream(device)

    def copied(batch: Batch) -> Batch:
        with torch.cuda.stream(side):
            return {name: t.to(device, non_blocking=True) for name, t in batch.items()}

    waiting: Batch | None = None
    for batch in batches:
        coming = copied(batch)
        if waiting is not None:
            yield waiting
        torch.cuda.current_stream(device).wait_stream(side)
        for t in coming.values():
            t.record_stream(torch.cuda.current_stream(device))
        waiting = coming
    if waiting is not None:
        yield waiting
