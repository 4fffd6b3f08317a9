"""What looking inside costs: memory of attention distance, time of a full inspection.

    python -m benchmarks.inspection

Claims held, on CPU: attention distance of B/16 at 224 needs at most 1 GB above the loaded model, for any number of
images (shown for two numbers of them); the full inspection of Ti/8 at 64 over 256 images, page and figures included,
takes under 60 s on 2 cores. Each measurement is a process of its own. Memory is the growth of the process's peak
resident set (Linux: VmHWM) over what it was with the model loaded. Weights are fresh: no number
depends on their values. Where others share the cores, the seconds of CPU say more than those of the clock.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys

START = """
import json, tempfile, time
from pathlib import Path
import vitrail
from vitrail.data.sources import open_source
from vitrail.inspection import attention, figures, inspect, report
def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
"""
MEMORY = """
model = vitrail.create("B/16").eval()
source = open_source("shapes?n={stored}&image_size=224", "train[:{images}]")
before = peak()
attention.mean_attention_distance(model, source)
print(json.dumps([peak() - before]))
"""
TIME = """
source = open_source("shapes?n={stored}&image_size=64", "train[:{images}]")
images = [source.read(i).image for i in range(len(source))]
start = time.perf_counter(), time.process_time()
model = vitrail.create("Ti/8", image_size=64).eval()
seen = inspect.inspect(model, images, name="Ti/8")
with tempfile.TemporaryDirectory() as folder:
    made = figures.draw_inspection(seen, Path(folder))
    report.write_report(seen, made, Path(folder) / "report.html")
print(json.dumps([time.perf_counter() - start[0], time.process_time() - start[1]]))
"""


def measure(work: str, images: int) -> list[float]:
    code = START + work.format(images=images, stored=2 * images)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    numbers: list[float] = json.loads(done.stdout)
    return numbers


def main(few: int = 32, many: int = 96, seen: int = 256) -> None:
    for images in (few, many):
        (grown,) = measure(MEMORY, images)
        print(
            f"attention distance of B/16 at 224, {images} images: peak + {grown / 1e6:.0f} MB; at most 1,000"
        )
    seconds, cpu = measure(TIME, seen)
    print(
        f"full inspection of Ti/8 at 64, {seen} images: {seconds:.1f} s, {cpu:.1f} s of CPU; under 60 on 2 cores"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--few", type=int, default=32)
    parser.add_argument("--many", type=int, default=96)
    parser.add_argument("--seen", type=int, default=256)
    main(**vars(parser.parse_args()))
