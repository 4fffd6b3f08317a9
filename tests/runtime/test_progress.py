import io

import pytest
from rich.console import Console
from rich.progress import Progress

from vitrail.runtime.progress import Description


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("photos[bold red]:smile:", "photos[bold red]:smile:"),
        ("photos[@click=(x]", "photos[@click=(x]"),
        ("photos\x1b]52;c;eA==\x07", "photos\\x1b]52;c;eA==\\x07"),
    ],
)
def test_a_bar_shows_the_name_of_a_folder_as_it_is(name, shown):
    console = Console(file=io.StringIO(), width=80)
    with Progress(Description(), console=console, disable=True) as bars:
        bars.add_task(name)
        console.print(bars.get_renderable())
    assert console.file.getvalue().strip() == shown
