"""The exceptions for errors that a user can fix. Broken internal invariants are `assert`s.

VitrailError                    caught by the command line: one line on standard error, exit code 2
├── ConfigError (ValueError)    a name, a setting or a flag that is not allowed
├── CheckpointError             a file of weights that cannot be read, or does not fit
├── TrainingError               a run that cannot continue
├── CheckFailed                 a result that is worse than allowed; exit code 1
├── Interrupted                 a run that was interrupted, and saved; exit code 128 + the signal's number
└── DataError                   a data set that cannot be used
    └── ImageError              one image that cannot be used

Each message says what was given, what is allowed, and where it came from.
"""

from __future__ import annotations


class VitrailError(Exception):
    """An error that the caller can fix."""


class ConfigError(VitrailError, ValueError):
    """A name, a setting or a flag that is not allowed."""


class CheckpointError(VitrailError):
    """A file of weights that cannot be read, or does not fit the model."""


class TrainingError(VitrailError):
    """A run that cannot continue: a loss that is not finite, a process that was killed."""


class CheckFailed(VitrailError):  # noqa: N818 - nothing is broken
    """A result that is worse than allowed."""


class Interrupted(VitrailError):  # noqa: N818 - it is no error
    """A run that was interrupted. It saved first; the same call again continues it."""

    def __init__(self, by: str, reached: str, folder: str) -> None:
        super().__init__(f"{by}: saved at {reached} in {folder}; the same command again continues")
        self.by = by


class DataError(VitrailError):
    """A data set that cannot be used."""


class ImageError(DataError):
    """One image that cannot be used."""
