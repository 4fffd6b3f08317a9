"""Nearest neighbours against faiss-cpu's flat index: 10,000 queries among 50,000 features of 384, in one run.

    python -m benchmarks.knn

Both get float32 features of length 1 and find the 20 of highest cosine; faiss's index is filled outside its time.
Each is a process of its own, by turns, since their thread pools disturb each other. Ours also ranks by float64, and
so gives the exact neighbours: how many rows of the answers differ is printed.

0.92x the time of faiss on an AMD EPYC with AVX-512, 1.21x with AVX2 only (docs/results/speed.md).
faiss is not a dependency: without it, our own time is all there is.
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

OURS = """
from vitrail.evaluators.knn import neighbours
began = time.perf_counter()
_, index = neighbours(keys, queries, k)
"""
FAISS = """
import faiss
flat = faiss.IndexFlatIP(keys.shape[1])
flat.add(keys)
began = time.perf_counter()
_, index = flat.search(queries, k)
"""
MEASURE = """
import json, sys, time
import numpy as np
folder, k = sys.argv[1], int(sys.argv[2])
keys, queries = np.load(folder + "/keys.npy"), np.load(folder + "/queries.npy")
{work}
seconds = time.perf_counter() - began
np.save(folder + "/{name}.npy", index)
print(json.dumps(seconds))
"""


def main(keys: int = 50_000, queries: int = 10_000, width: int = 384, k: int = 20, repeats: int = 3) -> None:
    methods = {"vitrail": OURS}
    if importlib.util.find_spec("faiss"):
        methods["faiss"] = FAISS
    else:
        print("faiss-cpu is not installed: nothing to compare with")
    seconds: dict[str, list[float]] = {name: [] for name in methods}
    with tempfile.TemporaryDirectory() as folder:
        rng = np.random.default_rng(0)
        for name, n in {"keys": keys, "queries": queries}.items():
            x = rng.standard_normal((n, width), np.float32)
            np.save(Path(folder) / f"{name}.npy", x / np.linalg.norm(x, axis=1, keepdims=True))
        for _ in range(repeats):
            for name, work in methods.items():
                code = MEASURE.format(work=work, name=name)
                command = [sys.executable, "-c", code, folder, str(k)]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                seconds[name].append(json.loads(done.stdout))
                print(f"  {name:8} {seconds[name][-1]:6.2f} s", flush=True)
        found = {name: np.load(Path(folder) / f"{name}.npy") for name in methods}
    print(
        f"{queries:,} queries, {keys:,} x {width}, k = {k}; {repeats} repeats, {os.cpu_count()} cores, medians"
    )
    for name, times in seconds.items():
        ratios = [own / theirs for own, theirs in zip(seconds["vitrail"], times, strict=True)]
        differ = int((found[name] != found["vitrail"]).any(axis=1).sum())
        print(
            f"{name:8} {statistics.median(times):6.2f} s   ours / its time {statistics.median(ratios):.2f}x "
            f"({min(ratios):.2f} to {max(ratios):.2f})   rows that differ from ours: {differ}"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    for name, default in {"keys": 50_000, "queries": 10_000, "width": 384, "k": 20, "repeats": 3}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    main(**vars(parser.parse_args()))
