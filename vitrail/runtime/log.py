"""What the package says to a person who calls it from Python: one logger, `vitrail`; and to TensorBoard.

Without any set-up Python prints warnings to standard error, so `note` is seen; the command line prints it too.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitrail.errors import ConfigError

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

logger = logging.getLogger("vitrail")


def note(text: str) -> None:
    """Something that the person should know, and that is not an error."""
    logger.warning("note: %s", text)


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
