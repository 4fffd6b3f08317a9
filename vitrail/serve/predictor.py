"""A model and a bounded queue of images -> an answer for each, computed in batches. No web code.

    submit(images) ──► waiting ──► decode ──► ready ──► compute, a batch at a time ──► Answer, by a Future

On a CPU each thread decodes and computes: it decodes until a batch is ready, or nothing waits, then computes it. On a
GPU some threads decode and one computes; it waits a few milliseconds for a batch to fill up. An image that waits
longer than its deadline is given up; when too many wait, `submit` refuses at once.

A predictor serves one state of a model. When its files change, another predictor takes its place, and this one
finishes what it has (served.py). B images, D width, K classes.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from vitrail.errors import ImageError, VitrailError
from vitrail.serve.metrics import IMAGES, Metrics

SLOWEST = 1.0  # images per second that are assumed until some were computed
SMOOTHING = 0.1  # share of the last batch in the mean speed


def batch_sizes(largest: int) -> list[int]:
    """Return how many images are computed together: 1, 2, 4, ... and at most `largest`."""
    return [1 << i for i in range(largest.bit_length()) if 1 << i < largest] + [largest]


class Overloaded(VitrailError):  # noqa: N818 - it is no error
    """Too many images wait already."""

    def __init__(self, message: str, retry_after: int) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Late(VitrailError):  # noqa: N818
    """An image waited longer than its deadline."""


class Closed(VitrailError):  # noqa: N818
    """The predictor was replaced by another: submit to that."""


class Outputs(NamedTuple):
    """Outputs of a model on a batch, on the CPU."""

    features: np.ndarray  # float32 (B, D), the input of the classifier
    logits: np.ndarray | None  # float32 (B, K); None: no classifier


class Computation(Protocol):
    """A model as a predictor needs it; threads may call it at once. computation.py has those of vitrail's models."""

    batch_size: int  # images that are computed together, at most
    threads: int  # that decode
    computes_apart: bool  # one thread of its own computes, as on a GPU

    def load(self, image: bytes, name: str) -> Tensor:
        """Decode and prepare an image, (3, h, w), on the host."""

    def __call__(self, x: Tensor) -> Outputs:
        """Compute images (B, 3, h, w) that `load` prepared."""

    def close(self) -> None:
        """Free what was prepared for computing."""


class Answer(NamedTuple):
    """Outputs for one image."""

    features: np.ndarray  # float32 (D,)
    logits: np.ndarray | None  # float32 (K,)


@dataclass(eq=False)
class Job:
    """One image on its way."""

    image: bytes
    name: str
    deadline: float  # by time.monotonic
    future: Future[Answer] = field(default_factory=Future)
    x: Tensor = field(default_factory=lambda: torch.empty(0))  # uint8 or float32 (3, h, w), decoded
    since: float = 0.0  # when it was ready


class Predictor:
    """Threads that decode and compute what is submitted, until `close`."""

    def __init__(
        self,
        compute: Computation,
        name: str,
        metrics: Metrics,
        *,
        max_waiting: int = 256,
        max_wait: float = 0.002,
    ) -> None:
        """`max_waiting`: images. `max_wait`: seconds for which a GPU waits for a batch to fill up."""
        self.compute, self.name, self.metrics = compute, name, metrics
        self.max_waiting, self.max_wait = max_waiting, max_wait if compute.computes_apart else 0.0
        self.waiting: deque[Job] = deque()
        self.ready: deque[Job] = deque()
        self.decoding = 0  # images
        self.speed = SLOWEST  # images per second
        self.changed = threading.Condition()
        self.closing = False
        roles = [(True, not compute.computes_apart)] * compute.threads
        roles += [(False, True)] if compute.computes_apart else []
        self.threads = [
            threading.Thread(target=self.work, args=role, name=f"vitrail {name}", daemon=True)
            for role in roles
        ]
        for thread in self.threads:
            thread.start()

    def submit(self, images: Sequence[bytes], names: Sequence[str], seconds: float) -> list[Future[Answer]]:
        """Queue all of the images, or raise Overloaded; the futures fail with ImageError or Late."""
        deadline = time.monotonic() + seconds
        jobs = [Job(image, name, deadline) for image, name in zip(images, names, strict=True)]
        with self.changed:
            if self.closing:
                raise Closed(f"{self.name} was replaced")
            n = len(self)
            if n + len(jobs) > self.max_waiting:
                self.metrics.count("vitrail_images_total", len(jobs), model=self.name, result="rejected")
                raise Overloaded(
                    f"{n} images wait for {self.name} already, and at most {self.max_waiting} may: try again later",
                    max(1, math.ceil(n / self.speed)),
                )
            self.waiting += jobs
            self.wake(len(jobs))
        return [job.future for job in jobs]

    def __len__(self) -> int:
        """Count the images that wait."""
        return len(self.waiting) + self.decoding + len(self.ready)

    def close(self) -> None:
        """Refuse new images, finish those that wait, and free the model."""
        with self.changed:
            self.closing = True
            self.changed.notify_all()
        for thread in self.threads:
            thread.join()
        self.compute.close()

    def work(self, decodes: bool, computes: bool) -> None:
        if self.compute.threads > 1:
            torch.set_num_threads(1)  # the threads share the cores
        while (job := self.next(decodes, computes)) is not None:
            if isinstance(job, Job):
                self.decode(job)
            else:
                self.answer(job)

    def next(self, decodes: bool, computes: bool) -> Job | list[Job] | None:
        """Wait for an image to decode or a batch to compute; return None when all is done."""
        with self.changed:
            while True:
                if computes and self.batch_is_due():
                    return [self.ready.popleft() for _ in range(self.size(len(self.ready)))]
                if decodes and self.waiting:
                    self.decoding += 1
                    return self.waiting.popleft()
                if self.closing and not len(self):
                    self.changed.notify_all()
                    return None
                self.changed.wait(self.max_wait if computes and self.ready else None)

    def size(self, n: int) -> int:
        """Return how many of n images to compute together.

        Not any number: for each size of a batch, the kernels of a CPU keep memory of their own for good. A GPU gets
        all, and fills up the batch itself.
        """
        if n >= self.compute.batch_size or self.compute.computes_apart:
            return min(n, self.compute.batch_size)
        return max(size for size in batch_sizes(self.compute.batch_size) if size <= n)

    def wake(self, n: int) -> None:
        """Wake threads for n images; where the threads differ, all of them, as any may be the right one."""
        if self.compute.computes_apart:
            self.changed.notify_all()
        else:
            self.changed.notify(n)

    def batch_is_due(self) -> bool:
        """Return whether to compute now: a batch is full, or nothing more can be expected soon."""
        if not self.ready:
            return False
        if len(self.ready) >= self.compute.batch_size:
            return True
        if self.compute.computes_apart:
            return time.monotonic() - self.ready[0].since >= self.max_wait
        return not self.waiting

    def decode(self, job: Job) -> None:
        failed: Exception | None = None
        wanted = job.future.set_running_or_notify_cancel() and self.in_time(job)
        if wanted:
            try:
                job.x = self.compute.load(job.image, job.name)  # (3, h, w)
            except Exception as error:  # whatever it is, the thread must go on
                failed = error
        job.image = b""
        with self.changed:
            self.decoding -= 1
            if wanted and failed is None:
                job.since = time.monotonic()
                self.ready.append(job)
            self.wake(1)
        if failed is not None:
            result = "unreadable" if isinstance(failed, ImageError) else "failed"
            self.metrics.count("vitrail_images_total", model=self.name, result=result)
            job.future.set_exception(failed)

    def in_time(self, job: Job) -> bool:
        """Return whether a job's deadline is still to come; else give it up."""
        if time.monotonic() > job.deadline:
            self.metrics.count("vitrail_images_total", model=self.name, result="late")
            job.future.set_exception(Late(f"{self.name} had no time for the image before its deadline"))
            return False
        return True

    def answer(self, batch: list[Job]) -> None:
        batch = [job for job in batch if self.in_time(job)]
        if not batch:
            return
        start = time.monotonic()
        try:
            outputs = self.compute(torch.stack([job.x for job in batch]))
        except Exception as error:
            self.metrics.count("vitrail_images_total", len(batch), model=self.name, result="failed")
            for job in batch:
                job.future.set_exception(error)
            return
        self.speed += SMOOTHING * (len(batch) / max(time.monotonic() - start, 1e-6) - self.speed)
        self.metrics.count("vitrail_images_total", len(batch), model=self.name, result="ok")
        self.metrics.observe("vitrail_batch_images", len(batch), IMAGES, model=self.name)
        for i, job in enumerate(batch):
            logits = None if outputs.logits is None else outputs.logits[i]
            job.future.set_result(Answer(outputs.features[i], logits))
