"""The progress of a training run: a bar on a terminal, elsewhere a line of text every 15 seconds.

train  ━━━━━━━━  1200/10000  loss 2.31  lr 9.8e-04  4,310 images/s  MFU 41%  ETA 0:12:03
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from vitrail.runtime.log import Board

LINE_SECONDS = 15.0  # between lines of text
ACCURACIES = ("top1", "top5", "-shot")  # endings of the names of scores that are shown in percent
RECENT = 50  # steps that the speed is measured over


@dataclass
class Work:
    """The amount of work of a run."""

    steps: int
    batch_size: int  # images in a step
    flops: float = 0.0  # of one training image
    peak: float = 0.0  # FLOPs that the devices together can do in a second; 0: unknown


class TrainingDisplay:
    """Show progress on standard error, and in TensorBoard when there is a `board`. `broken` counts broken files."""

    def __init__(
        self, work: Work, *, shown: bool = True, broken: Callable[[], int] = int, board: Board | None = None
    ) -> None:
        self.work, self.shown, self.broken, self.board = work, shown, broken, board
        # (step, when) of the last steps without an evaluation between, and of the first since the run was started
        self.times: list[tuple[int, float]] = []
        self.first: tuple[int, float] | None = None
        self.when: dict[int, float] = {}  # of steps that are computed and not shown yet
        self.last_line = time.perf_counter()
        console = Console(file=sys.stderr)
        text = TextColumn("{task.fields[text]}", markup=False)
        self.live = shown and console.is_terminal
        self.bar = Progress(
            TextColumn("train"), BarColumn(), MofNCompleteColumn(), text,
            console=console, transient=True, disable=not self.live,
        )  # fmt: skip
        self.task = self.bar.add_task("train", total=work.steps, text="")

    def __enter__(self) -> TrainingDisplay:
        self.bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.bar.stop()
        if self.board is not None:
            self.board.close()

    def computed(self, step: int) -> None:
        """Note the time of a step. Its metrics are shown later, and those of two steps may be at once."""
        self.when[step] = time.perf_counter()

    def step(self, row: dict[str, Any]) -> None:
        """Show the metrics of a training step."""
        now = time.perf_counter()
        self.times = [*self.times[-RECENT:], (row["step"], self.when.pop(row["step"], now))]
        self.first = self.first or self.times[0]
        text = self.text(row)
        self.bar.update(self.task, completed=row["step"], text=text)
        if self.shown and not self.live and now - self.last_line >= LINE_SECONDS:
            self.last_line = now
            print(f"step {row['step']}/{self.work.steps}  {text}", file=sys.stderr, flush=True)

    def scores(self, row: dict[str, Any]) -> None:
        """Show the scores of an evaluation, whose time does not count for the speed of training."""
        self.times = []
        text = "  ".join(
            f"{name} {value:.1%}" if name.endswith(ACCURACIES) else f"{name} {value:.4g}"
            for name, value in row.items()
            if name != "step"
        )
        if self.live:
            self.bar.console.print(f"step {row['step']}: {text}", markup=False, highlight=False)
        elif self.shown:
            print(f"step {row['step']}/{self.work.steps}  {text}", file=sys.stderr, flush=True)

    def record(self, row: dict[str, Any]) -> None:
        """Write a row of metrics to TensorBoard."""
        if self.board is not None:
            self.board.add(row)

    def speed(self) -> dict[str, float]:
        """Return the images per second over the last steps and, where the peak is known, the MFU."""
        if len(self.times) < 2:
            return {}
        (first, begin), (last, end) = self.times[0], self.times[-1]
        images = (last - first) * self.work.batch_size / max(end - begin, 1e-9)
        peak = self.work.peak
        return {"images_per_second": images} | ({"mfu": images * self.work.flops / peak} if peak else {})

    def remaining(self) -> timedelta | None:
        """Return the time left, evaluations included, estimated from the steps since the start or resumption."""
        if self.first is None or not self.times or self.times[-1][0] == self.first[0]:
            return None
        (first, begin), (last, end) = self.first, self.times[-1]
        return timedelta(seconds=round((self.work.steps - last) * (end - begin) / (last - first)))

    def text(self, row: dict[str, Any]) -> str:
        words = [f"loss {row['loss']:.4g}", f"lr {row['lr']:.2e}"]
        speed = self.speed()
        if speed:
            images = speed["images_per_second"]
            words.append(f"{images:,.0f} images/s" if images >= 10 else f"{images:.1f} images/s")
        if "mfu" in speed:
            words.append(f"MFU {speed['mfu']:.0%}")
        if (remaining := self.remaining()) is not None:
            words.append(f"ETA {remaining}")
        if broken := self.broken():
            words.append(f"{broken} broken files")
        return "  ".join(words)
