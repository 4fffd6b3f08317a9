"""A progress bar on anything that may take more than a few seconds."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TimeRemainingColumn
from rich.text import Text

from vitrail.runtime.log import visible

T = TypeVar("T")


def progress(items: Iterable[T], total: int, what: str) -> Iterator[T]:
    """The items, while a bar on standard error shows how far it is; nothing where that is not a terminal."""
    with bars() as bar:
        task = bar.add_task(what, total=total)
        for item in items:
            yield item
            bar.advance(task)


def bars() -> Progress:
    """A place for bars, for those that add their own."""
    columns = (Description(), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(file=sys.stderr)
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


class Description(ProgressColumn):
    """What a bar is about, as it is: in the name of a folder rich would see its own marks."""

    def render(self, task: Task) -> Text:
        return Text(visible(task.description))
