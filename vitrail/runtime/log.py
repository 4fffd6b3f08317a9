"""What the package says to a person who calls it from Python: one logger, `vitrail`; and to TensorBoard.

Without any set-up Python prints warnings to standard error, so `note` is seen; the command line prints it too.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vitrail.errors import ConfigError

logger = logging.getLogger("vitrail")


def note(text: str) -> None:
    """Something that the person should know, and that is not an error."""
    logger.warning("note: %s", text)


class Board:
    """Numbers for TensorBoard; the extra `tensorboard` has to be installed."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ConfigError("tensorboard is not installed: pip install 'vitrail[tensorboard]'") from error
        self.writer = SummaryWriter(str(folder))

    def add(self, row: Mapping[str, Any]) -> None:
        for name, value in row.items():
            if name != "step" and isinstance(value, int | float):
                self.writer.add_scalar(name, value, row["step"])

    def close(self) -> None:
        self.writer.close()
