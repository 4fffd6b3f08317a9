"""What a person sees of a run: on a terminal a bar, elsewhere a plain line now and then.

train  ━━━━━━━━  1200/10000  loss 2.31  rate 9.8e-04  4,310 images/s  MFU 41%  0:12:03 left
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from vitrail.runtime.log import Board

LINE_SECONDS = 15.0  # between plain lines


@dataclass
class Work:
    """What the numbers are made of."""

    steps: int
    batch: int  # images in a step
    flops: float = 0.0  # of one training image
    peak: float = 0.0  # FLOPs that the devices together can do in a second; 0: unknown


class TrainingDisplay:
    """On standard error, and for TensorBoard where there is a `board`. `broken` counts broken files."""

    def __init__(
        self,
        work: Work,
        *,
        shown: bool = True,
        broken: Callable[[], int] = int,
        board: Board | None = None,
    ) -> None:
        self.work, self.shown, self.broken, self.board = work, shown, broken, board
        self.times: list[tuple[int, float]] = []  # (step, when) of the last while
        self.last_line = time.perf_counter()
        console = Console(file=sys.stderr)
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
        more = (TextColumn("{task.fields[text]}", markup=False), TimeRemainingColumn())
        self.live = shown and console.is_terminal
        self.bar = Progress(*columns, *more, console=console, transient=True, disable=not self.live)
        self.task = self.bar.add_task("train", total=work.steps, text="")

    def __enter__(self) -> TrainingDisplay:
        self.bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.bar.stop()
        if self.board is not None:
            self.board.close()

    def step(self, row: dict[str, Any]) -> None:
        now = time.perf_counter()
        self.times = [*self.times[-50:], (row["step"], now)]
        text = self.text(row)
        self.bar.update(self.task, completed=row["step"], text=text)
        if self.shown and not self.live and now - self.last_line >= LINE_SECONDS:
            self.last_line = now
            print(f"step {row['step']}/{self.work.steps}  {text}", file=sys.stderr, flush=True)

    def scores(self, row: dict[str, Any]) -> None:
        """Of an evaluation. The time that it took is not the training's."""
        self.times = []
        text = "  ".join(f"{name} {value:.4g}" for name, value in row.items() if name != "step")
        if self.live:
            self.bar.console.print(f"step {row['step']}: {text}", markup=False, highlight=False)
        elif self.shown:
            print(f"step {row['step']}/{self.work.steps}  {text}", file=sys.stderr, flush=True)

    def record(self, row: dict[str, Any]) -> None:
        if self.board is not None:
            self.board.add(row)

    def speed(self) -> dict[str, float]:
        """Images a second over the last steps, and the part of the peak that this is."""
        if len(self.times) < 2:
            return {}
        (first, begin), (last, end) = self.times[0], self.times[-1]
        images = (last - first) * self.work.batch / max(end - begin, 1e-9)
        peak = self.work.peak
        return {"images_per_second": images} | ({"mfu": images * self.work.flops / peak} if peak else {})

    def text(self, row: dict[str, Any]) -> str:
        parts = [f"loss {row['loss']:.4g}", f"rate {row['rate']:.2e}"]
        speed = self.speed()
        if speed:
            parts.append(f"{speed['images_per_second']:,.0f} images/s")
        if "mfu" in speed:
            parts.append(f"MFU {speed['mfu']:.0%}")
        if broken := self.broken():
            parts.append(f"{broken} broken")
        return "  ".join(parts)
