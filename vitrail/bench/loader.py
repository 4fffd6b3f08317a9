"""The loader of a training run: encoded photographs -> random crops -> batches of bytes on the host.

The training line and the number of processes are those of a run on the device. Batches are taken where they leave the
host, before they are copied, normalised and mixed on the device: what other loaders are compared by.
"""

from __future__ import annotations

import statistics
from pathlib import Path

from vitrail.bench import peers
from vitrail.bench.rounds import OURS, Contestant, Step, Task
from vitrail.bench.subject import Subject
from vitrail.data.jpeg import JPEG_DECODER
from vitrail.data.settings import DataSettings
from vitrail.data.sources import Source
from vitrail.train.assemble import build_loader
from vitrail.train.settings import Experiment

PREFETCHED = 2  # batches that torch's DataLoader lets each process make ahead
SAMPLED = 100  # files whose sizes are described


def loader_task(subject: Subject, source: Source, folder: Path) -> Task:
    """Return the loader of a training split; broken files are listed in `folder`."""
    settings = DataSettings(batch_size=subject.batch_size, num_workers=subject.settings.num_workers)
    experiment = Experiment(data=settings, seed=subject.settings.seed)
    cuda = subject.device.type == "cuda"
    loader = build_loader(experiment, source, subject.model(), folder, subject.device)
    num_workers = loader.stream.settings.num_workers or 0
    ready = (PREFETCHED * num_workers + 2) if num_workers else 0

    def build_step() -> Step:
        batches = loader.on_host(pinned=cuda)
        return lambda: next(batches)

    contestants, missing = [Contestant(OURS, build_step, ready)], dict[str, str]()
    if subject.settings.peers:
        others, missing = peers.loader_contestants(subject, source, num_workers, ready)
        contestants += others
    sizes = [
        len(image)
        for i in range(min(SAMPLED, len(source)))
        if isinstance(image := source.read(i).image, bytes)
    ]
    return Task(
        "loader",
        subject.batch_size,
        contestants,
        missing,
        facts={
            "data": source.name,
            "images": len(source),
            "median_bytes": statistics.median(sizes) if sizes else None,
            "line": str(loader.stream.pipeline),
            "num_workers": num_workers,
            "jpeg_decoder": JPEG_DECODER,
        },
    )
