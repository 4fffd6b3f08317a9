"""What the package says to a person who calls it from Python: one logger, `vitrail`; and to TensorBoard.

Without any set-up Python prints warnings to standard error, so `note` is seen; the command line prints it too.
All text that may come from other people's files (names of files, classes, tensors) is shown through `visible`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitrail.errors import ConfigError

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

logger = logging.getLogger("vitrail")

# What a terminal obeys instead of showing it (C0, C1), what ends a line, what turns the order of reading, and
# surrogates: bytes of a file name that are no UTF-8, which cannot be written.
UNSEEN = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
MOST = 4_000  # characters of one text


def note(text: str) -> None:
    """Something that the person should know, and that is not an error."""
    logger.warning("note: %s", visible(text))


def visible(text: str) -> str:
    """One line that a terminal only shows: control characters as \\x1b, a very long text without its middle."""
    if len(text) > MOST:
        text = f"{text[: MOST // 2]} [{len(text) - MOST:,} characters] {text[-MOST // 2 :]}"
    return UNSEEN.sub(escaped, text)


def escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    is_byte = 0xDC80 <= code <= 0xDCFF  # how Python keeps a byte that is no UTF-8
    return f"\\x{code - 0xDC00:02x}" if is_byte else ascii(match[0])[1:-1]


class Board:
    """Numbers for TensorBoard, in files below `folder`: one for each sitting of a run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.writer: SummaryWriter | None = None

    def add(self, row: Mapping[str, Any]) -> None:
        if self.writer is None:
            # A sitting before this one may have gone further than its last checkpoint: that is withdrawn.
            self.writer = summary_writer()(str(self.folder), purge_step=row["step"])
        for name, value in row.items():
            if name != "step" and isinstance(value, int | float):
                self.writer.add_scalar(name, value, row["step"])
        self.writer.flush()  # a checkpoint is never ahead of its numbers, also if the run is killed

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()


def summary_writer() -> type[SummaryWriter]:
    """TensorBoard's; the extra `tensorboard` has to be installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ConfigError("tensorboard is not installed: pip install 'vitrail[tensorboard]'") from error
    return SummaryWriter
