"""`vitrail search` against faiss-cpu's flat indexes: 1,000,000 features of 384, in one run.

    python -m benchmarks.search

Features are those of clusters, a few coordinates larger than the others, rounded to float16; queries are others of
the same clusters. Each method is a process of its own, with its index on the disk, by turns:

    float16   ours, exact                                   Flat   faiss.IndexFlatIP on the same features in float32
    int8      ours, in 8 bits, ranked again in float16      8-bit  faiss.IndexScalarQuantizer, QT_8bit

Opening is outside of the time, and one search before it reads the files. For batches of 1, 16 and 256 queries the
time is printed, and those of ours beside those of faiss.

Claims held: float16 gives the answers of Flat: at each rank a neighbour of the same cosine, in float64, but for the
rounding of float32; int8 has recall@10 of at least 0.999, and takes at most 1.2x the time of 8-bit.
The numbers of a quiet machine: docs/results/search.md. faiss is not a dependency: without it, our own times are all
there is, and the answers are compared with those of evaluators/knn.py.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from vitrail.curate.build_index import append, arrays_of
from vitrail.evaluators.knn import neighbours

K = 10
CLUSTERS = 1000
CHUNK = 50_000  # features that are made at a time
OURS = """
from vitrail.curate.index import open_index
index = open_index(folder + "/{name}")
search = lambda q: index.nearest(q, k)[1]
"""
FAISS = """
import faiss
index = faiss.read_index(folder + "/{name}.faiss")
search = lambda q: index.search(q, k)[1]
"""
MEASURE = """
import json, sys, time
import numpy as np
folder, k, batches = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
queries = np.load(folder + "/queries.npy")
{open}
search(queries[:1])
seconds = dict()
for n in batches:
    search(queries[:n])
    began = time.perf_counter()
    found = search(queries[:n])
    seconds[n] = time.perf_counter() - began
np.save(folder + "/{name}-found.npy", found)
print(json.dumps(seconds))
"""


class Numbered:
    """What an index asks of a source: labels and keys."""

    def __init__(self, n: int) -> None:
        self.labels = np.zeros(n, np.int64)

    def key(self, row: int) -> str:
        return f"{row:08}.jpg"


def main(
    n: int = 1_000_000, width: int = 384, repeats: int = 3, batches: tuple[int, ...] = (1, 16, 256)
) -> None:
    names = {"float16": OURS, "int8": OURS}
    if importlib.util.find_spec("faiss"):
        names |= {"Flat": FAISS, "8-bit": FAISS}
    else:
        print("faiss-cpu is not installed: nothing to compare with")
    seconds: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), n, width, max(batches), with_faiss="Flat" in names)
        for turn in range(repeats):
            for name, opening in names.items():
                code = MEASURE.format(open=opening.format(name=name), name=name)
                command = [sys.executable, "-c", code, folder, str(K), json.dumps(batches)]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                seconds[name].append(json.loads(done.stdout))
                shown = "   ".join(f"{q} queries {s:8.4f} s" for q, s in seconds[name][-1].items())
                print(f"  turn {turn + 1}  {name:8} {shown}", flush=True)
        print(f"{n:,} x {width}, the {K} nearest; {repeats} turns, {os.cpu_count()} cores, medians")
        report_times(seconds, batches)
        report_answers(Path(folder), [*names])


def features(n: int, width: int, seed: int) -> np.ndarray:
    """Return float16 (n, width): clusters, and some coordinates far larger than others, as transformers' features."""
    larger = np.where(np.arange(width) % 97 == 0, 4, 1)
    centres = np.random.default_rng(0).standard_normal((CLUSTERS, width), np.float32) * larger
    rng = np.random.default_rng([1, seed])
    x = centres[rng.integers(0, CLUSTERS, n)] + rng.standard_normal((n, width), np.float32)
    return x.astype(np.float16)


def write(folder: Path, n: int, width: int, queries: int, *, with_faiss: bool) -> None:
    """Write the queries, float16 values in float32, and the indexes of all methods."""
    np.save(folder / "queries.npy", features(queries, width, 1 << 20).astype(np.float32))
    source, about = Numbered(n), {"class_names": [], "thumbnails": 0}
    reached = {"rows": 0, "key_bytes": 0, "thumbnail_bytes": 0}
    for precision in ("float16", "int8"):
        (folder / precision).mkdir()
        with arrays_of(folder / precision, precision, 0, width, reached) as arrays:  # type: ignore[arg-type]
            for begin in range(0, n, CHUNK):
                places = np.arange(begin, min(begin + CHUNK, n))
                append(arrays, features(len(places), width, begin), places, source, about)  # type: ignore[arg-type]
            for array in arrays.values():
                array.save()
        card = {
            "format": "vitrail index", "version": 1, "model": "", "fingerprint": "", "preprocess": "", "which": "",
            "precision": precision, "data": "", "split": "", "data_fingerprint": "", "folder": None, "images": n,
            "broken": 0, "width": width, "thumbnails": 0, "class_names": [],
        }  # fmt: skip
        (folder / precision / "index.json").write_text(json.dumps(card))
    if with_faiss:
        import faiss

        flat = faiss.IndexFlatIP(width)
        coded = faiss.IndexScalarQuantizer(width, faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_INNER_PRODUCT)
        coded.train(unit(features(min(n, CHUNK), width, 0)))
        for begin in range(0, n, CHUNK):
            x = unit(features(min(CHUNK, n - begin), width, begin))
            flat.add(x)
            coded.add(x)
        faiss.write_index(flat, str(folder / "Flat.faiss"))
        faiss.write_index(coded, str(folder / "8-bit.faiss"))


def unit(x: np.ndarray) -> np.ndarray:
    x = x.astype(np.float32)
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def report_times(seconds: dict[str, list[dict[str, float]]], batches: tuple[int, ...]) -> None:
    for name, theirs in (("float16", "Flat"), ("int8", "8-bit")):
        for n in map(str, batches):
            own = [turn[n] for turn in seconds[name]]
            line = f"{name:8} {n:>5} queries  {statistics.median(own):8.4f} s"
            if theirs in seconds:
                others = [turn[n] for turn in seconds[theirs]]
                ratios = [one / other for one, other in zip(own, others, strict=True)]
                line += (
                    f"   {theirs:6} {statistics.median(others):8.4f} s   ours / its time "
                    f"{statistics.median(ratios):.2f}x ({min(ratios):.2f} to {max(ratios):.2f})"
                )
            print(line)


def report_answers(folder: Path, names: list[str]) -> None:
    """Compare the neighbours of the largest batch with the exact ones."""
    keys = np.load(folder / "float16" / "features.npy", mmap_mode="r")
    queries = np.load(folder / "queries.npy")
    s, exact = neighbours(keys, queries, K)  # (n, K) each
    for name in names:
        found = np.load(folder / f"{name}-found.npy")  # (n, K)
        x = keys[found].astype(np.float64)  # (n, K, D)
        q = queries.astype(np.float64)
        lengths = np.linalg.norm(x, axis=2) * np.linalg.norm(q, axis=1)[:, None]
        cosines = np.einsum("nkd,nd->nk", x, q) / lengths  # (n, K)
        recall = np.mean([len(np.intersect1d(a, b)) for a, b in zip(found, exact, strict=True)]) / K
        print(
            f"{name:8} recall@{K} {recall:.4f}   rows that differ from the exact ones: "
            f"{int((found != exact).any(axis=1).sum())} of {len(found)}, by at most "
            f"{np.abs(cosines - s).max():.1e} in the cosine of a rank"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    for name, default in {"n": 1_000_000, "width": 384, "repeats": 3}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    main(**vars(parser.parse_args()))
