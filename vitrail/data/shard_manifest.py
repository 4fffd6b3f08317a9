"""The record that makes sharding resumable: the plan for a split, the data it is of, and what is done.

It lies in the folder of the shards as `.shard-SPLIT.json`, hidden, so that readers of data pass over it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from vitrail.data.foreign_files import parse_object, read_text
from vitrail.errors import DataError
from vitrail.runtime.files import atomic_file

FORMAT = 1  # of the manifest and of what is written: another one counts as other settings
# Of the fields of a manifest as JSON.
KINDS = {
    "format": int, "split": str, "source": str, "fingerprint": str, "classes": str, "examples": int, "shard_mb": int,
    "check": bool, "done": list,
}  # fmt: skip


@dataclass
class Manifest:
    """The plan of one split and what is done of it; `.shard-SPLIT.json` in the folder."""

    format: int
    split: str
    source: str
    fingerprint: str  # of the source
    classes: str  # digest of the class names
    examples: int
    shard_mb: int
    check: bool
    done: list[dict[str, Any] | None]  # of each shard: rows, bytes, broken examples; None: not yet

    def ranges(self) -> list[tuple[int, int]]:
        """The examples of each shard: as equal as whole numbers allow."""
        shards = len(self.done)
        return list(pairwise(self.examples * i // shards for i in range(shards + 1)))

    def file_name(self, number: int) -> str:
        return f"{self.split}-{number:05d}-of-{len(self.done):05d}.parquet"

    def check_same(self, wanted: Manifest, folder: Path) -> None:
        """Refuse to go on with shards that are not those that are wanted."""
        if (self.fingerprint, self.examples) != (wanted.fingerprint, wanted.examples):
            what = "other data"
        elif (self.format, self.shard_mb, self.check) != (wanted.format, wanted.shard_mb, wanted.check):
            what = "other settings"
        else:
            return
        raise DataError(
            f"{folder}: its split {self.split!r} was made from {what}: {self.source}, {self.examples} examples, "
            f"shard_mb {self.shard_mb}, check {self.check}; choose another folder, or empty this one"
        )

    def forget_changed(self, folder: Path) -> None:
        """Shards that are gone, or not of the size that was noted, count as not done."""
        for number, done in enumerate(self.done):
            file = folder / self.file_name(number)
            if done is not None and not (file.exists() and file.stat().st_size == done["bytes"]):
                self.done[number] = None

    def save(self, folder: Path) -> None:
        write_whole(folder / f".shard-{self.split}.json", json.dumps(asdict(self), indent=1).encode())

    @classmethod
    def all_in(cls, folder: Path) -> list[Manifest]:
        """The manifests of all splits in a folder."""
        return [cls.load(path) for path in sorted(folder.glob(".shard-*.json"))]

    @classmethod
    def load(cls, path: Path) -> Manifest:
        found = parse_object(read_text(path, "a manifest of shards"), f"{path}: not a manifest of shards")
        wrong = [name for name in {**KINDS, **found} if type(found.get(name)) is not KINDS.get(name)]
        if wrong:
            raise DataError(f"{path}: not a manifest of shards: wrong or missing are {', '.join(wrong[:8])}")
        manifest = cls(**found)  # type: ignore[arg-type]
        if not 1 <= len(manifest.done) <= max(1, manifest.examples) or not all(map(_is_done, manifest.done)):
            raise DataError(f"{path}: not a manifest of shards: what is done is not said of each shard")
        if path.name != f".shard-{manifest.split}.json":
            raise DataError(f"{path}: the manifest of another split, {manifest.split!r}")
        return manifest


def _is_done(done: object) -> bool:
    """Whether this says what one shard holds, or None."""
    if done is None:
        return True
    if not isinstance(done, dict) or {type(done.get(name)) for name in ("rows", "bytes")} != {int}:
        return False
    broken = done.get("broken")
    return isinstance(broken, list) and all(isinstance(example, dict) for example in broken)


def write_whole(path: Path, data: bytes) -> None:
    with atomic_file(path) as temporary:
        temporary.write_bytes(data)
