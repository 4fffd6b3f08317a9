"""A run on disk: its folder (folder.py), run.json and metrics (records.py), checkpoints (state.py), its summary."""

from vitrail.checkpoints.run.folder import Run

__all__ = ["Run"]
