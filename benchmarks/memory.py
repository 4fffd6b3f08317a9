"""Does memory stay flat over 10,000 batches with workers?

    python -m benchmarks.memory

Batches of small drawn pictures, random crops and mixing on. Prints the memory of this process and its workers
together (proportional set size, Linux) as it goes; the growth from the tenth of the run on is the answer.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
from pathlib import Path

from vitrail.data.loader import Loader
from vitrail.data.preprocess import parse
from vitrail.data.settings import DataSettings
from vitrail.data.sources import open_source


def memory() -> float:
    """MB of this process and its workers, shared pages divided among their owners."""
    total = 0
    for pid in [os.getpid(), *(child.pid for child in multiprocessing.active_children())]:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        total += next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))
    return total / 1024


def main(batches: int, num_workers: int) -> None:
    source = open_source("shapes?n=2000&image_size=32", "train")
    pipeline = parse("inception_crop(32)|flip_lr|uint8|to_range(-1, 1)")
    settings = DataSettings(batch_size=8, num_workers=num_workers, mixup=0.2, cutmix=1.0)
    loader = Loader(source, pipeline, settings)
    seen = []
    for step, _ in enumerate(loader.batches(0, batches), 1):
        if step % (batches // 10) == 0:
            seen.append(memory())
            print(f"{step:7,} batches   {seen[-1]:7.1f} MB", flush=True)
    print(f"grown by {seen[-1] - seen[0]:+.1f} MB from batch {batches // 10:,} to {batches:,}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--batches", type=int, default=10_000)
    parser.add_argument("--num-workers", type=int, default=2)
    main(**vars(parser.parse_args()))
