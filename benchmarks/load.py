"""Loading a 330 MB `.npz`: `vitrail.load` against `numpy.load` plus copying the arrays, in one run.

    python -m benchmarks.load

Claims held: at most 1.3x the time; a peak of at most 2.5x the file in memory. Each measurement is a process of
its own, the two by turns, with the file in the page cache; imports are not counted. Memory is the growth of the
process's peak resident set (Linux: VmHWM) over what it was before loading.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

NUMPY = """
with np.load(path) as file:
    made = {name: np.array(file[name]) for name in file.files}
"""
VITRAIL = "made = vitrail.load(path)"
MEASURE = """
import json, time
import numpy as np, torch, vitrail
from vitrail.checkpoints import formats
path = {path!r}
def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
before = peak()
start = time.perf_counter()
{work}
seconds = time.perf_counter() - start
print(json.dumps([seconds, peak() - before]))
"""


def measure(work: str, path: Path) -> tuple[float, float]:
    code = MEASURE.format(path=str(path), work=work)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    seconds, grown = json.loads(done.stdout)
    return seconds, grown


def main(model: str = "B/16", repeats: int = 7) -> None:
    import vitrail

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.npz"
        vitrail.save(vitrail.create(model), path, to="npz")
        size = path.stat().st_size
        measure(NUMPY, path)
        pairs = [(measure(NUMPY, path), measure(VITRAIL, path)) for _ in range(repeats)]
    print(f"{model}: {size / 1e6:.0f} MB, {repeats} repeats, medians")
    for i, name in enumerate(("numpy.load + copy", "vitrail.load")):
        seconds = statistics.median(pair[i][0] for pair in pairs)
        memory = statistics.median(pair[i][1] for pair in pairs)
        print(f"  {name:18} {seconds:6.3f} s   peak + {memory / 1e6:6.0f} MB = {memory / size:.2f}x the file")
    ratios = [ours[0] / theirs[0] for theirs, ours in pairs]
    print(
        f"  time ratio {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}); at most 1.3"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="B/16")
    parser.add_argument("--repeats", type=int, default=7)
    main(**vars(parser.parse_args()))
