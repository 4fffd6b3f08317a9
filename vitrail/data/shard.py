"""Any source to Parquet shards in the Hugging Face layout: what `vitrail data shard SRC DST` does.

    Source ──plan──► ranges of examples ──one shard at a time──► DST/train-00002-of-00010.parquet

The number of shards is planned from the sizes of some examples; each shard is a range of examples. A shard is
written under a hidden name, flushed to the disk and then renamed, so that a file with its final name is
whole. The manifest `.shard-train.json` notes the fingerprint of the source and every finished shard; a second
run with the same source goes on where the first one stopped, and the files are equal, byte for byte, to those
of a run that never stopped. A folder made from other data, or with other settings, or that holds anything else, is
refused.

Encoded images keep their bytes. Arrays become PNG, which is lossless and read everywhere (lossless WebP is
smaller, but slower to write). Every image is decoded once to see that it can be; a broken one is left out and
listed, with the reason, in `bad_files.jsonl`. Row groups are small and stored plainly: see parquet_rows.py.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from vitrail.data.decode import decode
from vitrail.data.foreign_files import parse_object, read_text
from vitrail.data.readers.fingerprint import digest
from vitrail.data.shard_manifest import FORMAT, Manifest, write_whole
from vitrail.data.sources import Source, open_source, split_options
from vitrail.data.splits import parse_split
from vitrail.errors import ConfigError, DataError
from vitrail.runtime.files import HOUR, atomic_file, remove_unfinished
from vitrail.runtime.progress import progress as show_progress

ROW_GROUP_BYTES, ROW_GROUP_ROWS = 2 << 20, 1000
LIST = "bad_files.jsonl"
WRITTEN = r".+-\d{5}-of-\d{5}\.parquet|\.shard-.+\.json|bad_files\.jsonl"  # names
SAMPLED = 256  # examples whose sizes are looked at to plan the shards
BATCH = 64  # examples that are read and checked together


@dataclass(frozen=True)
class Report:
    """What a run of `shard` left behind."""

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
    workers: int | None = None,
    progress: bool = False,
) -> Report:
    """Write a source, or a split of the data set of that name, to Parquet shards of about `shard_mb` MB.

    `check` decodes every image, in `workers` threads (None: one per core); without it only what cannot be read
    is found. The files are named after the split, without what follows its name: `train[:98%]` is train.
    """
    folder = Path(folder).expanduser()
    name = parse_split(split)[0].name
    if shard_mb < 1:
        raise ConfigError(f"shard_mb {shard_mb}; at least 1 is allowed")
    if isinstance(source, str | Path):
        base, _ = split_options(str(source))
        if folder.resolve().is_relative_to(Path(base).expanduser().resolve()):
            raise ConfigError(
                f"{folder} lies inside of {source}: the shards would become part of what is read"
            )
        source = open_source(source, split)
    folder.mkdir(parents=True, exist_ok=True)
    _check_own(folder)
    _check_list(folder / LIST)
    remove_unfinished(folder, WRITTEN, HOUR)
    manifest = _plan(source, folder, name, shard_mb, check)
    kept = sum(done is not None for done in manifest.done)
    with ThreadPoolExecutor(workers or os.cpu_count()) as pool:
        for number, (start, stop) in enumerate(manifest.ranges()):
            if manifest.done[number] is not None:
                continue
            path = folder / manifest.file_name(number)
            rows = _rows(source, start, stop, check, pool)
            shown = show_progress(rows, stop - start, path.name) if progress else rows
            manifest.done[number] = _write_shard(path, source.class_names, shown)
            manifest.save(folder)
    _list_broken(folder)
    done = [shard for shard in manifest.done if shard is not None]
    broken = sum(len(shard["broken"]) for shard in done)
    return Report(folder, name, len(done), sum(shard["rows"] for shard in done), broken, kept)


def _plan(source: Source, folder: Path, split: str, shard_mb: int, check: bool) -> Manifest:
    """The manifest of an earlier run with this source and these settings, else a new one."""
    fresh = Manifest(
        format=FORMAT,
        split=split,
        source=source.name,
        fingerprint=source.fingerprint(),
        classes=digest(*source.class_names),
        examples=len(source),
        shard_mb=shard_mb,
        check=check,
        done=[],
    )
    found = {manifest.split: manifest for manifest in Manifest.all_in(folder)}
    for manifest in found.values():
        if manifest.classes != fresh.classes:
            raise DataError(f"{folder}: its split {manifest.split!r} has other classes than {source.name}")
    if split in found:
        found[split].check_same(fresh, folder)
        found[split].forget_changed(folder)
        return found[split]
    shards = round(_estimate_bytes(source) / (shard_mb * 1_000_000))
    fresh.done = [None] * min(max(shards, 1), len(source))
    fresh.save(folder)
    return fresh


def _estimate_bytes(source: Source) -> float:
    """The size of all encoded images, from examples at even distances."""
    sizes = []
    for index in np.unique(np.linspace(0, len(source) - 1, SAMPLED).astype(int)):
        try:
            sizes.append(len(_encoded(source.read(int(index)).image)))
        except DataError:
            continue
    return float(np.mean(sizes)) * len(source) if sizes else 0.0


@dataclass(frozen=True)
class Row:
    """One example, ready to be written; broken: why it cannot be."""

    index: int
    key: str
    label: int
    data: bytes
    broken: str | None = None


def _rows(source: Source, start: int, stop: int, check: bool, pool: ThreadPoolExecutor) -> Iterator[Row]:
    """The examples of a range in order, read here, encoded and checked by the threads of the pool."""
    for first in range(start, stop, BATCH):
        rows = [_read(source, index) for index in range(first, min(first + BATCH, stop))]
        yield from pool.map(_checked, rows) if check else rows


def _read(source: Source, index: int) -> Row:
    key, label = source.key(index), int(source.labels[index])
    try:
        return Row(index, key, label, _encoded(source.read(index).image))
    except DataError as error:
        return Row(index, key, label, b"", str(error))


def _checked(row: Row) -> Row:
    if row.broken is not None:
        return row
    try:
        decode(row.data, name=row.key)
    except DataError as error:
        return Row(row.index, row.key, row.label, b"", str(error))
    return row


def _encoded(image: bytes | np.ndarray) -> bytes:
    if isinstance(image, bytes):
        return image
    stream = BytesIO()
    Image.fromarray(image).save(stream, "PNG")
    return stream.getvalue()


def _write_shard(path: Path, class_names: list[str], rows: Iterator[Row]) -> dict[str, Any]:
    """Write one shard, whole or not at all; what it holds, for the manifest."""
    schema = _schema(class_names)
    count, broken = 0, []
    plain = {"compression": "none", "use_dictionary": False, "write_statistics": False}
    with atomic_file(path) as temporary, pq.ParquetWriter(temporary, schema, **plain) as writer:
        group: list[Row] = []
        for row in rows:
            if row.broken is not None:
                broken.append({"index": row.index, "key": row.key, "reason": row.broken})
                continue
            group.append(row)
            if len(group) == ROW_GROUP_ROWS or sum(len(row.data) for row in group) >= ROW_GROUP_BYTES:
                writer.write_table(_table(group, schema))
                count, group = count + len(group), []
        if group:
            writer.write_table(_table(group, schema))
    return {"rows": count + len(group), "bytes": path.stat().st_size, "broken": broken}


def _table(rows: list[Row], schema: pa.Schema) -> pa.Table:
    images = [{"bytes": row.data, "path": row.key} for row in rows]
    return pa.Table.from_arrays(
        [pa.array(images, schema.field("image").type), pa.array([row.label for row in rows], pa.int64())],
        schema=schema,
    )


def _schema(class_names: list[str]) -> pa.Schema:
    """The columns, and the names of the classes as the Hugging Face `datasets` package notes them."""
    features = {"image": {"_type": "Image"}, "label": {"names": class_names, "_type": "ClassLabel"}}
    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    note = json.dumps({"info": {"features": features}})
    return pa.schema([("image", image), ("label", pa.int64())], metadata={"huggingface": note})


def _list_broken(folder: Path) -> None:
    """`bad_files.jsonl`: the broken examples of all splits in this folder; no file where there are none."""
    lines = [
        json.dumps({"split": manifest.split, **broken}, ensure_ascii=False) + "\n"
        for manifest in Manifest.all_in(folder)
        for done in manifest.done
        if done is not None
        for broken in done["broken"]
    ]
    if lines:
        write_whole(folder / LIST, "".join(lines).encode("utf-8", "backslashreplace"))
    else:
        (folder / LIST).unlink(missing_ok=True)


def _check_own(folder: Path) -> None:
    """Refuse a folder that holds anything but shards, which would become part of another data set, or hide it."""
    own = {LIST} | {m.file_name(number) for m in Manifest.all_in(folder) for number in range(len(m.done))}
    strangers = sorted(p.name for p in folder.iterdir() if not p.name.startswith(".") and p.name not in own)
    if strangers:
        raise DataError(f"{folder}: {strangers[0]} was not written by this command; choose another folder")


def _check_list(path: Path) -> None:
    """Refuse a folder whose list of broken examples is not ours to replace: every line has to be of this command."""
    if not path.exists() and not path.is_symlink():
        return
    for number, line in enumerate(filter(None, read_text(path, "broken examples").split("\n")), 1):
        where = f"{path}: line {number} was not written by this command; choose another folder"
        if set(parse_object(line, where)) != {"split", "index", "key", "reason"}:
            raise DataError(where)
