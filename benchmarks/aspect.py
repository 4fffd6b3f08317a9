"""Images with their aspect kept, squashed and cropped: fine-tuning of ti8-64, otherwise the same.

    python -m benchmarks.aspect run --data DATA --out GRID       runs what is missing in the grid
    python -m benchmarks.aspect show --out GRID                  prints the table, for docs/results/aspect.md

DATA holds the folders pets, flowers102 and dtd10. Each way gives the model at most 64 patches of 8 pixels:

    kept       both sides a multiple of 8, at most 64 patches: --image-size any --max-tokens 64
    squashed   64 x 64, whatever the aspect
    cropped    the short side to 64, then the middle 64 x 64

Training flips images, and changes nothing else about them, so that the ways differ in shape alone. A run is a (data
set, way, seed); its line is added to GRID/runs.jsonl when it is finished, and the same command continues, an
interrupted run in its folder.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from vitrail.runtime.device import device_name, pick
from vitrail.transfer.finetune import prepare, run_finetuning

MODEL, SIDE, PATCH = "ti8-64", 64, 8
DATA = ("pets", "flowers102", "dtd10")
RANGE = "uint8|to_range(-1, 1)"
WAYS = {
    "kept": f"fit_patches({(SIDE // PATCH) ** 2}, {PATCH})|{RANGE}",
    "squashed": f"resize({SIDE}, pillow_bilinear)|{RANGE}",
    "cropped": f"resize_small({SIDE}, pillow_bilinear)|central_crop({SIDE})|{RANGE}",
}
RUNS = "runs.jsonl"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("verb", choices=["run", "show"])
    parser.add_argument("--data", type=Path, help="the folder of the data sets")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="+", default=DATA, help="data sets")
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=list(WAYS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, help="of a run; by default those of the protocol")
    parser.add_argument("--compile", default="auto", help="off: compiling may take longer than the run")
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    if options.verb == "show":
        show(options.out)
        return
    if options.data is None:
        parser.error("run needs --data")
    options.out.mkdir(parents=True, exist_ok=True)
    done = {key_of(row) for row in read_rows(options.out)}
    for seed in range(options.seeds):  # so that an interrupted grid has every way
        for data in options.only:
            for way in options.ways:
                if (data, way, seed) not in done:
                    run_one(options, data, way, seed)


def run_one(options: argparse.Namespace, data: str, way: str, seed: int) -> None:
    """Fine-tune, and add the line of the run."""
    kept, folder = way == "kept", options.out / "runs" / f"{data}-{way}-{seed}"
    settings: dict[str, Any] = {
        "image_size": "any" if kept else SIDE, "evaluate_preprocess": WAYS[way], "mixup": 0.0, "cutmix": 0.0,
        "preprocess": f"flip_lr|{WAYS[way]}", "compile": options.compile,
    }  # fmt: skip
    if kept:
        settings |= {"max_tokens": (SIDE // PATCH) ** 2}
    if options.steps:
        settings |= {"steps": options.steps}
    began = time.perf_counter()
    prepared = prepare(options.data / data, MODEL, device=options.device, seed=seed, **settings)
    results = run_finetuning(prepared, folder, device=options.device).results
    row = {
        "data": data, "way": way, "seed": seed, "top1": results["test"]["top1"], "steps": results["steps"],
        "lr": results["lr"], "train_examples": results["train_examples"], "test_examples": results["test_examples"],
        "seconds": round(time.perf_counter() - began, 1), "device": device_name(pick(options.device)),
        "cores": os.cpu_count(), "torch": torch.__version__,
    }  # fmt: skip
    with (options.out / RUNS).open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
    shutil.rmtree(folder, ignore_errors=True)
    print(f"{data:12} {way:10} {seed}   {row['top1']:.1%}   {row['seconds']:.0f} s", flush=True)


def read_rows(out: Path) -> list[dict[str, Any]]:
    path = out / RUNS
    return (
        [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []
    )


def key_of(row: dict[str, Any]) -> tuple[str, str, int]:
    return row["data"], row["way"], row["seed"]


def show(out: Path) -> None:
    rows = read_rows(out)
    if not rows:
        raise SystemExit(f"{out} has no finished runs")
    print("| data | images: train, test | steps | " + " | ".join(WAYS) + " |")
    print("|---" * (3 + len(WAYS)) + "|")
    for data in dict.fromkeys(row["data"] for row in rows):
        own = [row for row in rows if row["data"] == data]
        cells = [cell([row["top1"] for row in own if row["way"] == way]) for way in WAYS]
        first = own[0]
        counts = f"{first['train_examples']:,}, {first['test_examples']:,} | {first['steps']}"
        print(f"| {data} | {counts} | " + " | ".join(cells) + " |")
    machines = sorted({f"{row['device']}, {row['cores']} cores, torch {row['torch']}" for row in rows})
    print(f"\nTop-1 in percent, mean ± standard deviation. {'; '.join(machines)}.")


def cell(values: list[float]) -> str:
    if not values:
        return ""
    spread = f" ± {100 * statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{100 * statistics.fmean(values):.1f}{spread} (n={len(values)})"


if __name__ == "__main__":
    main()
