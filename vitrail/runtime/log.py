"""What the package says to a person who calls it from Python: one logger, `vitrail`.

Without any set-up Python prints warnings to standard error, so `note` is seen; the command line prints it too.
"""

from __future__ import annotations

import logging

logger = logging.getLogger("vitrail")


def note(text: str) -> None:
    """Something that the person should know, and that is not an error."""
    logger.warning("note: %s", text)
