"""Workers on a Ray cluster.

Each worker is a Ray task with a part of a GPU. The study's folder must be on a disk that all machines share;
everything else goes through it. When a worker or its machine dies, its lock is gone, Ray starts the task again
elsewhere, and the run is resumed from its checkpoint.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitrail.errors import ConfigError, TrainingError
from vitrail.runtime.device import Device
from vitrail.runtime.log import note
from vitrail.studies.work import work

if TYPE_CHECKING:
    from types import ModuleType

RETRIES = 10  # of a task whose process died


@contextmanager
def ray_workers(
    folder: Path, at_once: int, device: Device, address: str | None
) -> Iterator[Callable[[], bool]]:
    """Start workers, yield a function that tells whether they work on, and stop them at the end.

    `at_once`: the runs that share a GPU; in a cluster without GPUs the runs of all machines together.
    """
    ray = import_ray()
    own = not ray.is_initialized()
    if own:
        connect(ray, address, at_once)
    try:
        gpus = int(ray.cluster_resources().get("GPU", 0)) if device != "cpu" else 0
        count, share = max(1, gpus) * at_once, 1 / at_once if gpus else 0.0
        note(f"{count} workers on a Ray cluster with {len(ray.nodes())} machines and {gpus} GPUs")
        task: Any = ray.remote(num_cpus=1, num_gpus=share, max_retries=RETRIES)(work)
        running = [task.remote(folder.resolve(), device) for _ in range(count)]

        def are_running() -> bool:
            nonlocal running
            done, running = ray.wait(running, num_returns=len(running), timeout=0) if running else ([], [])
            try:
                ray.get(done)
            except ray.exceptions.RayTaskError as error:
                cause = getattr(error, "cause", None) or error
                raise TrainingError(f"a worker on the Ray cluster: {cause}") from error
            return bool(running)

        yield are_running
        for one in running:
            ray.cancel(one)  # interrupts it: it is resumed from its last checkpoint
        time.sleep(0 if not running else 1)
    finally:
        if own:
            ray.shutdown()


def import_ray() -> ModuleType:
    try:
        import ray
    except ImportError as error:
        raise ConfigError("ray is not installed: pip install 'vitrail[ray]'") from error
    module: ModuleType = ray
    return module


def connect(ray: Any, address: str | None, at_once: int) -> None:
    """Connect to a cluster: that of the address, a running one, or a new one on this machine."""
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
    try:
        ray.init(address=address or "auto", **quiet)
    except ConnectionError as error:
        if address:
            raise ConfigError(f"no Ray cluster at {address}: {error}") from error
        ray.init(num_cpus=at_once, include_dashboard=False, **quiet)
