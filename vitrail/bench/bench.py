"""All measurements of a subject, one after the other; each frees its memory before the next."""

from __future__ import annotations

import os
import platform
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

import vitrail
from vitrail.bench import BenchSettings, Kind
from vitrail.bench.infer import inference_task
from vitrail.bench.loader import loader_task
from vitrail.bench.peers import installed_versions
from vitrail.bench.photographs import write_photographs
from vitrail.bench.rounds import Measured, Task, free_memory, measure
from vitrail.bench.subject import Subject
from vitrail.bench.train import training_task
from vitrail.data.sources import Source, open_source
from vitrail.errors import ConfigError
from vitrail.models.cost import cost
from vitrail.runtime.device import Device, device_name, pick
from vitrail.runtime.log import note


@dataclass(frozen=True)
class Report:
    subject: Subject
    measured: list[Measured]

    def as_json(self) -> dict[str, Any]:
        """Return everything: settings, versions, hardware, and the values of each round."""
        subject, device, c = self.subject, self.subject.device, cost(self.subject.config)
        versions = {
            "vitrail": vitrail.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        }
        return {
            "model": subject.name,
            "image_size": list(subject.config.image_size),
            "classes": subject.config.classes,
            "parameters": c.parameters,
            "flops": c.flops,
            "device": device.type,
            "device_name": describe_device(device),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "platform": platform.platform(),
            "versions": versions | installed_versions(),
            "settings": asdict(subject.settings) | {"batch_size": subject.batch_size},
            "measurements": [one.as_json() for one in self.measured],
        }


def run_bench(
    kinds: Sequence[Kind],
    settings: BenchSettings,
    image_size: int | tuple[int, int] | None = None,
    device: Device = "auto",
) -> Report:
    """Measure the given kinds. What is drawn for it lies in a temporary folder, which is removed at the end."""
    subject = Subject.choose(settings, image_size, pick(device))
    if settings.data and "loader" not in kinds:
        raise ConfigError(f"--data {settings.data} is for the loader: vitrail bench loader, or all")
    if settings.precision == "fp8" and set(kinds) != {"infer"}:
        raise ConfigError("--precision fp8 is for inference: vitrail bench infer")
    source = open_source(settings.data, "train") if settings.data else None  # before anything is measured
    H, W = subject.config.image_size
    rounds = "1 round" if settings.rounds == 1 else f"{settings.rounds} rounds"
    beside = ", beside timm and torchvision" if settings.peers else ""
    note(
        f"Measuring {', '.join(kinds)} of {subject.name} at {H}x{W} on {describe_device(subject.device)}{beside}: "
        f"batches of {subject.batch_size}, {rounds} of about {settings.round_seconds:g} s each"
    )
    measured = [one for kind in kinds for one in measure_kind(kind, subject, source)]
    return Report(subject, measured)


def measure_kind(kind: Kind, subject: Subject, source: Source | None) -> Iterator[Measured]:
    settings, device = subject.settings, subject.device
    if kind == "loader":
        # Ctrl-C removes it too. In it are the list of broken files, and photographs where there are no others.
        with tempfile.TemporaryDirectory(prefix="vitrail-bench-", ignore_cleanup_errors=True) as temporary:
            folder = Path(temporary)
            if source is None:
                source = open_source(write_photographs(folder / "photographs", settings.seed), "train")
            task = loader_task(subject, source, folder)
            yield measure(task, settings.rounds, settings.round_seconds, device)
            free_memory(device)  # ends the processes that read the folder
        return
    tasks: list[Callable[[], Task]] = [lambda: training_task(subject)]
    if kind == "infer":
        tasks = [
            lambda: inference_task(subject, subject.batch_size),
            lambda: inference_task(subject, 1, latency=True),
        ]
    for make in tasks:
        yield measure(make(), settings.rounds, settings.round_seconds, device)
        if device.type == "cuda":
            torch.compiler.reset()  # else the next compiles for many sizes at once, and at last not at all
        free_memory(device)


def describe_device(device: torch.device) -> str:
    return device_name(device) if device.type != "cpu" else f"{processor_name()}, {os.cpu_count()} cores"


def processor_name() -> str:
    """Return the name of the processor where the system says it, else its architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return next(filter(None, names), platform.processor() or platform.machine())
