"""Convert any source to Parquet shards in the Hugging Face layout: `vitrail data shard SRC DST`.

    Source ──plan──► ranges of examples ──one shard at a time──► DST/train-00002-of-00010.parquet

The number of shards is planned from the sizes of some examples; each shard is a range of examples. A shard is
written under a hidden name, flushed to the disk and then renamed, so that a file with its final name is complete. The
manifest `.shard-train.json` records the fingerprint of the source and every finished shard; a second run with the
same source continues where the first one stopped, and the files are equal, byte for byte, to those of an
uninterrupted run. A folder made from other data, or with other settings, or that holds anything else, is an error.

Encoded images keep their bytes. Arrays become PNG, which is lossless and read everywhere (lossless WebP is smaller,
but slower to write). Every image is decoded once to check it; a broken one is left out and listed in
`bad_files.jsonl` with the reason. Row groups are small and uncompressed, so that readers/parquet.py reads single
images by their place.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import partial
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from vitrail.data.bad_files import FIELDS, BadExample
from vitrail.data.bounded_files import parse_object, read_text, wrong_fields
from vitrail.data.decode import decode
from vitrail.data.map_images import map_images
from vitrail.data.readers.fingerprint import digest
from vitrail.data.several_labels import refuse_several
from vitrail.data.sources import Source, open_source, split_options
from vitrail.data.splits import parse_split
from vitrail.errors import ConfigError, DataError
from vitrail.runtime.files import HOUR, atomic_file, remove_unfinished
from vitrail.runtime.progress import progress

# Fields of a manifest, of what it records of a finished shard, and of a line of the list.
MANIFEST = {
    "format": int, "split": str, "source": str, "fingerprint": str, "classes": str, "examples": int,
    "shard_mb": int, "check": bool, "done": list,
}  # fmt: skip
DONE = {"rows": int, "bytes": int, "broken": list}
LINE = {"split": str, **FIELDS}
FORMAT = 1  # of the manifest and of what is written: another one counts as other settings
ROW_GROUP_BYTES, ROW_GROUP_ROWS = 2 << 20, 1000
LIST = "bad_files.jsonl"
WRITTEN = r".+-\d{5}-of-\d{5}\.parquet|\.shard-.+\.json|bad_files\.jsonl"  # names
SAMPLED = 256  # examples whose sizes are looked at to plan the shards


@dataclass(frozen=True)
class Report:
    """The result of `shard`."""

    folder: Path
    split: str
    shards: int
    examples: int  # written, over all shards
    broken: int  # left out, and listed in bad_files.jsonl
    kept: int  # shards that an earlier run had finished


def shard(
    source: Source | str | Path,
    folder: str | Path,
    *,
    split: str = "train",
    shard_mb: int = 256,
    check: bool = True,
    num_workers: int | None = None,
) -> Report:
    """Write a source, or a split of the data set of that name, to Parquet shards of about `shard_mb` MB.

    `check` decodes every image, in `num_workers` threads (None: one per core); without it only files that cannot be
    read are found. The files are named after the split, without its slice: `train[:98%]` is train.
    """
    folder = Path(folder).expanduser()
    name = parse_split(split)[0].name
    if shard_mb < 1:
        raise ConfigError(f"shard_mb is {shard_mb}; it must be at least 1")
    if isinstance(source, str | Path):
        base, _ = split_options(str(source))
        if folder.resolve().is_relative_to(Path(base).expanduser().resolve()):
            raise ConfigError(
                f"{folder} is inside {source}: the shards would become part of it; choose another"
            )
        source = open_source(source, split)
    refuse_several(source, "a shard")
    folder.mkdir(parents=True, exist_ok=True)
    _check_contents(folder)
    remove_unfinished(folder, WRITTEN, HOUR)
    manifest = _plan(source, folder, name, shard_mb, check)
    kept = sum(done is not None for done in manifest.done)
    for number, (start, stop) in enumerate(manifest.ranges()):
        if manifest.done[number] is not None:
            continue
        path = folder / manifest.file_name(number)
        encode = partial(_encode, check=check)
        encoded = map_images(source, encode, indices=range(start, stop), threads=num_workers)
        rows = enumerate(progress(encoded, stop - start, path.name), start)
        manifest.done[number] = _write_shard(path, source, rows)
        manifest.save(folder)
    _list_broken(folder)
    shards = [shard for shard in manifest.done if shard is not None]
    broken = sum(len(shard["broken"]) for shard in shards)
    return Report(folder, name, len(shards), sum(shard["rows"] for shard in shards), broken, kept)


@dataclass
class Manifest:
    """The plan of one split and how much of it is done; `.shard-SPLIT.json` in the folder, which readers skip."""

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
        """Return the examples of each shard: as equal in number as possible."""
        shards = len(self.done)
        return list(pairwise(self.examples * i // shards for i in range(shards + 1)))

    def file_name(self, number: int) -> str:
        return f"{self.split}-{number:05d}-of-{len(self.done):05d}.parquet"

    def save(self, folder: Path) -> None:
        with atomic_file(folder / f".shard-{self.split}.json") as temporary:
            temporary.write_text(json.dumps(asdict(self), indent=1))

    @classmethod
    def read_all(cls, folder: Path) -> list[Manifest]:
        """Read the manifests of all splits in a folder."""
        manifests = []
        for path in sorted(folder.glob(".shard-*.json")):
            what = f"{path}: not a manifest of shards"
            manifest = cls(**parse_object(read_text(path, "a manifest of shards"), what, MANIFEST))
            shards: list[Any] = [shard for shard in manifest.done if shard is not None]
            described = all(isinstance(shard, dict) and not wrong_fields(shard, DONE) for shard in shards)
            if not described or not 1 <= len(manifest.done) <= max(1, manifest.examples):
                raise DataError(f"{what}: `done` must describe each shard")
            if not all(isinstance(broken, dict) for shard in shards for broken in shard["broken"]):
                raise DataError(f"{what}: `broken` must list examples")
            if path.name != f".shard-{manifest.split}.json":
                raise DataError(f"{path}: the manifest of another split, {manifest.split!r}")
            manifests.append(manifest)
        return manifests


def _plan(source: Source, folder: Path, split: str, shard_mb: int, check: bool) -> Manifest:
    """Return the manifest of an earlier run with this source and these settings, else a new one."""
    classes = digest(*source.class_names)
    new = Manifest(
        FORMAT, split, source.name, source.fingerprint(), classes, len(source), shard_mb, check, done=[]
    )
    manifests = {manifest.split: manifest for manifest in Manifest.read_all(folder)}
    for manifest in manifests.values():
        if manifest.classes != classes:
            raise DataError(f"{folder}: its split {manifest.split!r} has other classes than {source.name}")
    if split not in manifests:
        shards = round(_estimate_bytes(source) / (shard_mb * 1_000_000))
        new.done = [None] * min(max(shards, 1), len(source))
        new.save(folder)
        return new
    old = manifests[split]
    same_data = (old.fingerprint, old.examples) == (new.fingerprint, new.examples)
    if not same_data or (old.format, old.shard_mb, old.check) != (new.format, new.shard_mb, new.check):
        raise DataError(
            f"{folder}: its split {split!r} was made {'with other settings' if same_data else 'from other data'}: "
            f"{old.source}, {old.examples} examples, shard_mb {old.shard_mb}, check {old.check}; choose another "
            "folder, or empty this one"
        )
    for number, done in enumerate(old.done):
        file = folder / old.file_name(number)
        if done is not None and not (file.exists() and file.stat().st_size == done["bytes"]):
            old.done[number] = None  # gone, or changed
    return old


def _estimate_bytes(source: Source) -> float:
    """Estimate the size of all encoded images from examples at even distances."""
    sizes = []
    for index in np.unique(np.linspace(0, len(source) - 1, SAMPLED).astype(int)):
        try:
            sizes.append(len(_encode(source.read(int(index)).image, source.key(int(index)), check=False)))
        except DataError:
            continue
    return float(np.mean(sizes)) * len(source) if sizes else 0.0


def _encode(image: bytes | np.ndarray, key: str, *, check: bool) -> bytes:
    if not isinstance(image, bytes):
        stream = BytesIO()
        Image.fromarray(image).save(stream, "PNG")
        image = stream.getvalue()
    if check:
        decode(image, name=key)
    return image


def _write_shard(
    path: Path, source: Source, rows: Iterable[tuple[int, bytes | BadExample]]
) -> dict[str, Any]:
    """Write one shard, completely or not at all, from the encoded images by their indices; return its entry in the
    manifest."""
    features = {"image": {"_type": "Image"}, "label": {"names": source.class_names, "_type": "ClassLabel"}}
    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}  # as `datasets` writes it
    schema = pa.schema([("image", image), ("label", pa.int64())], metadata=metadata)
    plain = {"compression": "none", "use_dictionary": False, "write_statistics": False}
    count, broken = 0, []
    group: dict[int, bytes] = {}

    def write_group() -> None:
        images = [{"bytes": data, "path": source.key(index)} for index, data in group.items()]
        arrays = [pa.array(images, image), pa.array(source.labels[list(group)], pa.int64())]
        writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
        group.clear()

    with atomic_file(path) as temporary, pq.ParquetWriter(temporary, schema, **plain) as writer:
        for index, data in rows:
            if isinstance(data, BadExample):
                broken.append(asdict(data))
                continue
            group[index] = data
            count += 1
            if len(group) == ROW_GROUP_ROWS or sum(map(len, group.values())) >= ROW_GROUP_BYTES:
                write_group()
        if group:
            write_group()
    return {"rows": count, "bytes": path.stat().st_size, "broken": broken}


def _list_broken(folder: Path) -> None:
    """Write `bad_files.jsonl`: the broken examples of all splits in this folder; no file where there are none."""
    lines = [
        json.dumps({"split": manifest.split, **broken}, ensure_ascii=False) + "\n"
        for manifest in Manifest.read_all(folder)
        for done in manifest.done
        if done is not None
        for broken in done["broken"]
    ]
    if not lines:
        (folder / LIST).unlink(missing_ok=True)
        return
    with atomic_file(folder / LIST) as temporary:
        temporary.write_bytes("".join(lines).encode("utf-8", "backslashreplace"))


def _check_contents(folder: Path) -> None:
    """Refuse a folder with other contents than this command wrote: shards, and its list of broken examples."""
    own = {LIST} | {m.file_name(n) for m in Manifest.read_all(folder) for n in range(len(m.done))}
    others = sorted(p.name for p in folder.iterdir() if not p.name.startswith(".") and p.name not in own)
    if others:
        raise DataError(f"{folder}: {others[0]} was not written by this command; choose another folder")
    path = folder / LIST
    if path.exists() or path.is_symlink():
        for number, line in enumerate(filter(None, read_text(path, "broken examples").split("\n")), 1):
            parse_object(
                line, f"{path}: line {number} was not written by this command; choose another folder", LINE
            )
