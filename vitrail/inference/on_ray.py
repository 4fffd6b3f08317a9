"""The pieces of a job, computed by the workers of a Ray cluster, or by Ray's on this machine.

    rows that remain ──► parts of PART rows ──► ray.data ──► a Predictor on each GPU, or CPU ──► pieces

Ray starts the workers, hands out parts, and gives those of a worker that died to another, RETRIES times. Rows do
not travel: each worker writes its pieces into the job's folder, which all must see. So a job may be resumed with or
without Ray.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.data.sources import Source
from vitrail.errors import ConfigError, TrainingError
from vitrail.inference.bulk import write_pieces
from vitrail.inference.prediction_job import Job, Work, runs
from vitrail.models.names import Model
from vitrail.runtime.progress import progress

PART = 4096  # rows that are handed out at a time
# Of a part whose worker died. Ray's own is no limit, and an image that kills a decoder does so always.
RETRIES = 3


class Predictor:
    """A worker: it holds a model, and computes a part at a time."""

    def __init__(self, model: Model, source: Source, work: Work, folder: Path, device: str) -> None:
        self.model, self.source = model.to(device), source
        self.work, self.folder = work, folder

    def __call__(self, part: dict[str, Any]) -> dict[str, Any]:
        for start, stop in zip(part["start"], part["stop"], strict=True):
            rows = np.arange(start, stop)
            write_pieces(self.model, self.source, rows, self.work, self.folder, lambda: False)
        return part


def write_pieces_on_ray(job: Job, model: Model, work: Work) -> None:
    """Compute the rows that remain."""
    ray = import_ray()
    if not ray.is_initialized():
        ray.init(include_dashboard=False, log_to_driver=False, logging_level="warning")
    gpu = next(model.parameters()).is_cuda
    workers = int(ray.cluster_resources().get("GPU" if gpu else "CPU", 0))
    if not workers:
        raise ConfigError(f"the Ray cluster has no {'GPU' if gpu else 'CPU'}")
    parts = split_parts(runs(job.remaining))
    if not parts:
        return
    with redirect_stdout(sys.stderr):  # Ray reports workers that died on standard output, where results go
        hand_out(ray, parts, job, model, work, workers)


def hand_out(ray: Any, parts: list[dict[str, int]], job: Job, model: Model, work: Work, workers: int) -> None:
    """Compute parts on the workers."""
    gpu = next(model.parameters()).is_cuda
    ray.data.DataContext.get_current().enable_progress_bars = False
    computed = ray.data.from_items(parts, override_num_blocks=len(parts)).map_batches(
        Predictor,
        batch_size=1,
        concurrency=min(workers, len(parts)),
        fn_constructor_args=(
            model.cpu(),
            job.listing.source,
            work,
            job.folder.absolute(),
            "cuda" if gpu else "cpu",
        ),
        max_restarts=-1,
        max_task_retries=RETRIES,
        **({"num_gpus": 1} if gpu else {"num_cpus": 1}),
    )
    try:
        for _ in progress(computed.iter_rows(), len(parts), "predict"):
            pass
    except ray.exceptions.RayError as error:
        reason = str(error).strip().split("\n")[-1].rstrip(".")[:500]
        raise TrainingError(f"a worker of Ray failed: {reason}. The same command again continues") from error


def split_parts(ranges: Sequence[tuple[int, int]]) -> list[dict[str, int]]:
    """Return ranges of rows cut into parts of at most PART."""
    return [
        {"start": at, "stop": min(at + PART, stop)}
        for start, stop in ranges
        for at in range(start, stop, PART)
    ]


def import_ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise ConfigError("Ray is not installed: pip install 'vitrail[ray]'") from error
    return ray
