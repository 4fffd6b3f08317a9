"""Progress bars for whatever may take more than a few seconds."""

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
    """Yield the items while a bar on standard error shows the progress, if that is a terminal."""
    columns = (Description(), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(file=sys.stderr)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=total)
        for item in items:
            yield item
            bar.advance(task)


class Description(ProgressColumn):
    """The description of a bar as plain text: a folder may have a name that looks like rich's markup."""

    def render(self, task: Task) -> Text:
        return Text(visible(task.description))
