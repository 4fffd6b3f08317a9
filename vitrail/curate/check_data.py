"""Find what is wrong with a data set, and write DIR/findings.json and DIR/thumbnails.

    Source ──copies.py, measures.py──► copies, sizes, blur ──► unreadable, duplicates, odd_images.py, shortcuts.py
       │                                 │ groups, folds.py
       └──model──► features ─────────────┴──► features_checked.py ──► label errors, outliers, pairs, learning curve

Nothing of the data set is changed. Features are kept in the cache of inference/features.py, some thousand images an
entry, so that a check that was interrupted resumes there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from vitrail.checkpoints.json_files import Count, Number
from vitrail.curate.features_checked import check_features
from vitrail.curate.findings import (
    FORMAT,
    NAME,
    THUMBNAILS,
    VERSION,
    Finding,
    Findings,
    Kind,
    SimilarImage,
    read_findings,
    thumbnail_name,
    write_findings,
)
from vitrail.curate.measures import measure
from vitrail.curate.odd_images import Odd, find_blurred, find_bright, find_dark, find_odd_sizes
from vitrail.curate.shortcuts import find_shortcuts
from vitrail.curate.thumbnails import small_jpeg
from vitrail.data.bad_files import BadExample
from vitrail.data.copies import Pair, Scan, find_pairs, scan
from vitrail.data.decode import decode
from vitrail.data.groups import connect
from vitrail.data.map_images import map_images
from vitrail.data.readers.class_names import readable
from vitrail.data.sources import DataSet, Source
from vitrail.data.splits import Joined, Subset, groups_of, parse_split
from vitrail.errors import ConfigError, DataError
from vitrail.inference.exported import Runnable
from vitrail.inference.features import EXTRACTION, Extraction, cache_folder, cached_rows
from vitrail.runtime.files import HOUR, atomic_folder, check_writable, remove_unfinished
from vitrail.runtime.progress import progress

ENTRY = 4096  # images whose features are kept together
SIDE = 256  # pixels of the longer side of a thumbnail
MAX_FINDINGS = 1000  # of a kind
SAME = {
    "bytes": "It is the same file as",
    "near": "It is the same picture as",
    "mirrored": "It mirrors",
}


def check_data(
    model: Runnable,
    data: str | Path,
    out: str | Path,
    *,
    split: str | None = None,
    name: str = "",
    groups: np.ndarray | None = None,
    max_findings: int = MAX_FINDINGS,
    extraction: Extraction = EXTRACTION,
) -> Findings:
    """Check a part of a data set; write the findings to the folder `out`, and return them.

    `split`: if unset, see `usual_split`. `name`: of the model, for people. `groups` (images,): numbers of those that
    belong together, as the pictures of one series; if unset, those of the data. Copies always do. `max_findings`: of
    a kind.
    """
    if max_findings < 1:
        raise ConfigError(f"max_findings must be at least 1, not {max_findings}")
    folder, data_set = Path(out), DataSet(data)
    check_folder(folder, data_set)
    split = split or usual_split(data_set)
    source = data_set.part(split)

    scanned = scan(source, measure=measure)
    pairs = find_pairs(scanned)
    groups = source_groups(source) if groups is None else groups
    joined = connect(len(source), [pair[:2] for pair in pairs], groups)
    x, index = read_features(model, source, scanned, extraction)
    checks = check_features(source, x, index, joined[index], max_findings)
    measures, sizes = [scanned.measures[i] for i in index], scanned.sizes[index]
    shortcuts = find_shortcuts(measures, sizes, source.labels[index], checks.folds, joined[index])

    findings = [
        *checks.labels,
        *list_odd(source, "outlier", checks.outliers, max_findings, checks.neighbours),
        *duplicates(source, pairs, find_leaks(data_set, split, scanned))[:max_findings],
        *list_odd_files(source, scanned, max_findings),
    ]
    contents: Findings = {
        "format": FORMAT,
        "version": VERSION,
        "data": str(data),
        "split": split,
        "fingerprint": source.fingerprint(),
        "model": name,
        "classes": list(source.class_names),
        "images": Count(len(source)),
        "findings": findings,
        "pairs": checks.pairs,
        "curve": checks.curve,
        "shortcuts": shortcuts,
    }
    write_thumbnails(source, findings, folder)
    write_findings(contents, folder)
    return contents


def usual_split(data_set: DataSet) -> str:
    """Return train, or the only split; all of a folder that has no splits of its own, but is cut by vitrail."""
    splits = data_set.splits
    if data_set.reader.cut:
        return "+".join(splits)
    if len(splits) > 1 and "train" not in splits:
        raise ConfigError(f"{data_set.where} has the splits {', '.join(splits)}: name one with --split")
    return "train" if "train" in splits else splits[0]


def source_groups(source: Source) -> np.ndarray | None:
    """Return the groups of a source, or of several that are joined, int64 (n,); None without any."""
    if not isinstance(source, Joined):
        return groups_of(source)
    parts = [source_groups(part) for part in source.parts]
    if all(part is None for part in parts):
        return None
    numbered = [
        np.arange(len(one)) if part is None else part for one, part in zip(source.parts, parts, strict=True)
    ]
    shifts = np.cumsum([0, *(int(part.max()) + 1 for part in numbered)])  # groups of two parts are two
    return np.concatenate([part + shift for part, shift in zip(numbered, shifts[:-1], strict=True)])


def check_folder(folder: Path, data_set: DataSet) -> None:
    """Raise ConfigError unless the folder is outside of the data, and new, empty, or written by an earlier check."""
    base = Path(data_set.base).expanduser()
    if base.is_dir() and folder.resolve().is_relative_to(base.resolve()):
        raise ConfigError(f"{folder} is inside of the data, which is not changed: choose a place outside")
    check_writable(folder)
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    if names and NAME not in names:
        raise ConfigError(f"{folder} has {', '.join(names[:3])} and no {NAME}: choose a new folder")
    if names:
        read_findings(folder)  # DataError if it is another file of this name
        remove_unfinished(folder, f"{THUMBNAILS}|{NAME}", HOUR)


def read_features(
    model: Runnable, source: Source, scanned: Scan, extraction: Extraction
) -> tuple[np.ndarray, np.ndarray]:
    """Return the features x float16 (n, D) of the images that can be read, and which these are, int64 (n,)."""
    images = np.setdiff1d(np.arange(len(source)), list(scanned.broken))
    if not len(images):
        reason = next(iter(scanned.broken.values()))
        raise DataError(f"{source.name}: none of its {len(source):,} images can be read: {reason}")
    cache = cache_folder(None if extraction.cache is None else str(extraction.cache))
    parts = []
    for i in range(0, len(images), ENTRY):
        some = images[i : i + ENTRY]
        x, rows = cached_rows(model, Subset(source, some), extraction, cache)
        parts.append((np.asarray(x), some[rows]))
    x, index = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return x, index


def finding(
    source: Source,
    index: int,
    kind: Kind,
    score: float,
    reason: str,
    *,
    neighbours: list[SimilarImage],
    copy_of: str | None = None,
    suggested: str | None = None,
) -> Finding:
    return {
        "key": source.key(index),
        "index": Count(index),
        "kind": kind,
        "label": source.class_names[source.labels[index]],
        "suggested": suggested,
        "score": Number(round(float(np.clip(score, 0, 1)), 6)),
        "reason": reason,
        "neighbours": neighbours,
        "copy_of": copy_of,
        "thumbnail": None,
    }


def list_odd(
    source: Source, kind: Kind, images: Odd, most: int, neighbours: dict[int, list[SimilarImage]]
) -> list[Finding]:
    """Return findings of a kind, the worst first."""
    worst = sorted(images, key=lambda i: -images[i][0])[:most]
    return [finding(source, i, kind, *images[i], neighbours=neighbours.get(i, [])) for i in worst]


def list_odd_files(source: Source, scanned: Scan, most: int) -> list[Finding]:
    """Return findings of each kind that files and pixels show by themselves."""
    images: dict[Kind, Odd] = {
        "unreadable": {i: (1.0, f"It cannot be read: {why}") for i, why in scanned.broken.items()},
        "blur": find_blurred(scanned.measures),
        "dark": find_dark(scanned.measures),
        "bright": find_bright(scanned.measures),
        "odd_size": find_odd_sizes(scanned.sizes),
    }
    return [one for kind, odd in images.items() for one in list_odd(source, kind, odd, most, {})]


def duplicates(source: Source, pairs: Iterable[Pair], leaks: Iterable[Leak]) -> list[Finding]:
    """Return a finding for each image that copies an earlier one, or one of another split; the worst first.

    Worst is a copy with another label, since one of both is wrong; then one in another split, since what is trained
    on must not be tested on; a copy with the same label only counts twice.
    """
    found: dict[int, Finding] = {}

    def keep(one: Finding) -> None:
        if one["index"] not in found or one["score"] > found[one["index"]]["score"]:
            found[one["index"]] = one

    for pair in pairs:
        key, label = source.key(pair.i), source.class_names[source.labels[pair.i]]
        conflict = bool(source.labels[pair.i] != source.labels[pair.j])
        reason = f"{SAME[pair.how]} {key}"
        reason += f", which has another label: {readable(label)}" if conflict else ""
        similarity = Number(round(pair.score, 4))
        original: SimilarImage = {
            "key": key,
            "index": Count(pair.i),
            "label": label,
            "similarity": similarity,
        }
        score = (1.0 if conflict else 0.5) * pair.score
        suggested = label if conflict else None
        keep(
            finding(
                source, pair.j, "duplicate", score, reason,
                neighbours=[original], copy_of=key, suggested=suggested,
            )
        )  # fmt: skip
    for leak in leaks:
        reason = f"{SAME[leak.pair.how]} {leak.key} of {leak.split}"
        if leak.label != source.class_names[source.labels[leak.pair.i]]:
            reason += f", which has another label: {readable(leak.label)}"
        score = 0.75 * leak.pair.score
        keep(finding(source, leak.pair.i, "duplicate", score, reason, neighbours=[], copy_of=leak.key))
    return sorted(found.values(), key=lambda one: -one["score"])


class Leak(NamedTuple):
    """An image that is in another split too."""

    pair: Pair  # i: in the split that is checked, j: in the other
    split: str
    key: str  # in the other
    label: str


def find_leaks(data_set: DataSet, split: str, scanned: Scan) -> Iterator[Leak]:
    """Yield the copies in the splits that are not checked."""
    checked = {part.name for part in parse_split(split)}
    for name in data_set.splits:
        if name in checked:
            continue
        other = data_set.part(name)
        for pair in find_pairs(scanned, scan(other)):
            yield Leak(pair, name, other.key(pair.j), other.class_names[other.labels[pair.j]])


def write_thumbnails(source: Source, findings: list[Finding], folder: Path) -> None:
    """Write a small picture of each image that the findings name; those of an earlier check are replaced."""
    named = {one["index"] for one in findings}
    named |= {near["index"] for one in findings for near in one["neighbours"]}
    images = np.array(sorted(named), np.int64)

    def shrink(image: bytes | np.ndarray, key: str) -> bytes:
        return small_jpeg(decode(image, name=key) if isinstance(image, bytes) else image, SIDE)

    written = set()
    with atomic_folder(folder / THUMBNAILS) as temporary:
        rows = map_images(Subset(source, images), shrink)
        for index, row in zip(images.tolist(), progress(rows, len(images), "thumbnails"), strict=True):
            if not isinstance(row, BadExample):
                (temporary / Path(thumbnail_name(index)).name).write_bytes(row)
                written.add(index)
    for one in findings:
        one["thumbnail"] = thumbnail_name(one["index"]) if one["index"] in written else None


def count_kinds(findings: Findings) -> dict[str, int]:
    """Return the number of findings of each kind."""
    counts: dict[str, int] = {}
    for one in findings["findings"]:
        counts[one["kind"]] = counts.get(one["kind"], 0) + 1
    return counts
