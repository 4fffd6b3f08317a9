"""A run on disk: its folder (folder.py), run.json, the checkpoints of its state, its metrics, and its summary."""

from vitrail.checkpoints.run.folder import Run

__all__ = ["Run"]
