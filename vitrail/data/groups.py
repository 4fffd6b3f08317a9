"""Groups of images that stay on one side of every split: a series of one thing, frames of one film, copies.

    photos?group={group}_{number}     by the names of the images, in each folder: a pattern (readers/name_patterns.py)
    photos?labels=FILE&group=COLUMN   by a column of a file of labels
    photos?group=copies               by their pixels: near-duplicates (copies.py); reads every image

An image that is in no group is a group of its own. A group belongs to the class that most of its images have, so it
stays together even where they have several. Where vitrail splits a folder, each class gives its shares to validation
and test as nearly as its groups allow; parts by percent of a class (`train[:90% per class]`) end between two groups.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from vitrail.data.readers.name_patterns import parse_pattern
from vitrail.data.sources import Source
from vitrail.data.splits import pieces
from vitrail.errors import ConfigError

COPIES = "copies"
MOST_COMPARED, MOST_BYTES = 3000, 64 << 20  # images, and bytes, that are looked at unasked: a few seconds


def groups_by_pattern(where: str, text: str, keys: Sequence[str]) -> list[str]:
    """Return the group of each image by its name; "" where the pattern does not fit it.

    A pattern of the whole path alone puts images of several folders into one group.
    """
    pattern, names = parse_pattern(text, "group"), []
    for key in keys:
        group = (pattern.match(key) or {}).get("group", "")
        folder = "" if pattern.whole else key.rpartition("/")[0]
        names.append(f"{folder}/{group}" if group else "")
    if keys and not any(names):
        raise ConfigError(
            f"{where}: none of its {len(keys):,} images, such as {keys[0]!r:.200}, has a name of the form {text!r}"
        )
    return names


def number_groups(names: Sequence[str]) -> np.ndarray:
    """Return a number for each name, int64 (n,); those without a name are groups of their own."""
    numbers: dict[str, int] = {}
    return np.array([numbers.setdefault(name, i) if name else i for i, name in enumerate(names)], np.int64)


def groups_of_copies(source: Source) -> np.ndarray:
    """Return the least index of the images that each is a copy of, at one or several removes, int64 (n,)."""
    from vitrail.data.copies import find_pairs, scan

    return connect(len(source), [pair[:2] for pair in find_pairs(scan(source))])


def copies_across(train: Source, other: Source) -> int | None:
    """Count the images of another part that are copies of training images; None where looking would take long."""
    from vitrail.data.copies import find_pairs, scan

    files = [path for part in (train, other) for path in file_paths(part)]
    if not files or len(files) > MOST_COMPARED:
        return None
    try:
        if sum(path.stat().st_size for path in files) > MOST_BYTES:
            return None
    except OSError:  # a link to nowhere
        return None
    return len({pair.j for pair in find_pairs(scan(train), scan(other))})


def file_paths(source: Source) -> list[Path]:
    """Return the files of a part of a folder of images; none where some images are no files."""
    paths = []
    for whole, places in pieces(source):
        if not hasattr(whole, "root"):
            return []
        paths += [Path(whole.root, whole.key(int(i))) for i in places]
    return paths


def connect(n: int, pairs: Iterable[tuple[int, int]], groups: np.ndarray | None = None) -> np.ndarray:
    """Return for each of n images the least index of those that pairs, or its group (n,), connect it with."""
    least = np.arange(n)
    i, j = np.array([*pairs], np.int64).reshape(-1, 2).T
    if groups is not None:
        _, first, place = np.unique(groups, return_index=True, return_inverse=True)
        i, j = np.append(i, first[place]), np.append(j, least)
    while True:
        before = least.copy()
        np.minimum.at(least, i, least[j])
        np.minimum.at(least, j, least[i])
        least = least[least]
        if (least == before).all():
            return least


def classes_of_groups(labels: np.ndarray, groups: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the place of each image's group, int64 (n,), and the class of each group, that of most of it, (G,)."""
    _, place = np.unique(groups, return_inverse=True)  # (n,)
    pairs, counts = np.unique(np.stack([place, labels]), axis=1, return_counts=True)  # (2, m), (m,)
    order = np.lexsort((pairs[1], -counts, pairs[0]))  # of each group its most frequent class first
    first = np.unique(pairs[0][order], return_index=True)[1]
    return place, pairs[1][order][first]


def shuffled_groups(
    labels: np.ndarray, groups: np.ndarray, classes: int, seed: int
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return for each class its images, group by group in an order by (seed, class), and where they end, after 0."""
    place, group_class = classes_of_groups(labels, groups)
    sizes = np.bincount(place, minlength=len(group_class))
    members = np.split(np.argsort(place, kind="stable"), np.cumsum(sizes)[:-1])
    shuffled = []
    for c in range(classes):
        own = np.flatnonzero(group_class == c)
        own = own[np.argsort(np.random.PCG64([seed, c]).random_raw(len(own)), kind="stable")]
        images = [members[k] for k in own]
        ends = np.cumsum([0, *map(len, images)])
        shuffled.append((np.concatenate([np.zeros(0, np.int64), *images]), ends))
    return shuffled


def stratified_groups(
    keys: Sequence[bytes],
    labels: np.ndarray,
    groups: np.ndarray,
    *,
    seed: int,
    validation: float,
    test: float,
) -> dict[str, np.ndarray]:
    """Split one set in three, as `splits.stratified` does, with each group in one of them.

    The groups of a class are ranked by a hash of (seed, their first key). Each is taken for the test set that brings
    it nearer to its share; then for the validation set; the rest, at least one group, is train. With three groups or
    more, no set whose share is above 0 stays without one.
    """
    place, group_class = classes_of_groups(labels, groups)
    sizes = np.bincount(place, minlength=len(group_class))
    firsts: list[bytes | None] = [None] * len(sizes)
    for key, k in zip(keys, place.tolist(), strict=True):
        before = firsts[k]
        firsts[k] = key if before is None or key < before else before
    hashes = [hashlib.blake2b(key or b"", digest_size=8, key=str(seed).encode()).digest() for key in firsts]
    split = np.zeros(len(sizes), np.int64)  # of each group: 0 train, 1 validation, 2 test
    for c in np.unique(group_class).tolist():
        ranked = sorted(np.flatnonzero(group_class == c).tolist(), key=hashes.__getitem__)
        n, left = int(sizes[ranked].sum()), list(ranked)
        for number, share in ((2, test), (1, validation)):
            wanted = round(n * share)
            if not wanted:
                continue
            taken: list[int] = []
            for k in left:
                if len(left) - len(taken) > 1 and sizes[taken].sum() + sizes[k] / 2 <= wanted:
                    taken.append(k)
            if not taken and len(ranked) >= 3 and len(left) > 1:
                taken = [min(left, key=lambda k: (sizes[k], hashes[k]))]
            split[taken] = number
            left = [k for k in left if k not in set(taken)]
    return {name: np.flatnonzero(split[place] == k) for k, name in enumerate(("train", "validation", "test"))}
