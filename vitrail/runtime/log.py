"""Messages through one logger, `vitrail`, and numbers for TensorBoard.

Without any set-up, Python prints warnings to standard error, and so does the command line: everyone sees a `note`.
Text from untrusted files (names of files, classes, tensors) is shown through `visible`.
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

# Control characters (C0, C1), ends of lines, marks that change the direction of reading, and surrogates: bytes of a
# file name that are not UTF-8.
UNSEEN = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
MOST = 4_000  # characters of one text


def note(text: str) -> None:
    """Tell the user something that is not an error."""
    logger.warning("note: %s", visible(text))


def visible(text: str) -> str:
    """Return text as one safe line: control characters escaped (\\x1b), the middle of a very long text left out."""
    if len(text) > MOST:
        text = f"{text[: MOST // 2]} [{len(text) - MOST:,} characters] {text[-MOST // 2 :]}"
    return UNSEEN.sub(escaped, text)


def escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    is_byte = 0xDC80 <= code <= 0xDCFF  # how Python represents a byte that is not UTF-8
    return f"\\x{code - 0xDC00:02x}" if is_byte else ascii(match[0])[1:-1]


class Board:
    """Write numbers for TensorBoard to `folder`; each start of a run writes its own file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.writer: SummaryWriter | None = None

    def add(self, row: Mapping[str, Any]) -> None:
        if self.writer is None:
            # The run may have gone beyond its last checkpoint before it was resumed: discard those numbers.
            self.writer = summary_writer()(str(self.folder), purge_step=row["step"])
        for name, value in row.items():
            if name != "step" and isinstance(value, int | float):
                self.writer.add_scalar(name, value, row["step"])
        self.writer.flush()  # so that a killed run has the numbers of its last checkpoint

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()


def summary_writer() -> type[SummaryWriter]:
    """Return TensorBoard's writer; raise ConfigError if the extra `tensorboard` is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ConfigError("tensorboard is not installed: pip install 'vitrail[tensorboard]'") from error
    return SummaryWriter
