"""The defaults of fine-tuning beside what a person could choose instead, on ten cases (docs/results/defaults.md).

    python -m benchmarks.defaults make --data DATA --cases CASES             makes the cases: 92 MB, 54 as .tar.xz
    python -m benchmarks.defaults run --cases CASES --out GRID --parallel 4  runs what is missing in the grid
    python -m benchmarks.defaults show --out GRID                            prints the table and the verdicts

A run is a (case, alternative, seed): `vitrail finetune` in a process of its own, whose line is added to
GRID/runs.jsonl when it is finished. The same command continues: an interrupted run resumes in its folder. Further
alternatives, while rules are tuned: `--variant short "steps=100 augment=light"`.

It needs torch, numpy, Pillow and safetensors alone; PYTHONPATH=CASES/packages where rich is not installed.
"""

from __future__ import annotations

import argparse
import ast
import json
import math
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from benchmarks.default_cases import CASES, make_cases
from vitrail.runtime.device import device_name, pick
from vitrail.transfer.finetune import prepare, run_finetuning

MODEL, MODEL_SIZE = "ti8-64", 64
PLAIN = {"protocol": "plain"}  # what the default was when the cases were fixed
ALTERNATIVES: dict[str, dict[str, Any]] = {
    "default": PLAIN,
    "full": PLAIN | {"image_size": MODEL_SIZE},
    "head": PLAIN | {"image_size": MODEL_SIZE, "tune": "head", "sweep": True, "lrs": (0.01, 0.1, 1.0)},
    "double": PLAIN | {"image_size": 2 * MODEL_SIZE},
    "auto": {},  # the rules that are judged, which are the default now
}
OTHERS = ("full", "head", "double")  # that `auto` is judged against
ERRORS = 2.0  # standard errors that may lie between it and the best of them
RUNS = "runs.jsonl"
Key = tuple[str, str, int]  # case, alternative, seed


def parse_settings(text: str) -> dict[str, Any]:
    """Read "steps=100 augment=light" as keywords of `vitrail.finetune`."""
    settings: dict[str, Any] = {}
    for word in text.split():
        name, equals, value = word.partition("=")
        if not equals:
            raise SystemExit(f"{word!r} is not a setting: write name=value")
        try:
            settings[name] = ast.literal_eval(value)
        except (SyntaxError, ValueError):
            settings[name] = value
    return settings


def run_one(options: argparse.Namespace) -> dict[str, Any]:
    """Fine-tune, and return the line of the run."""
    case, name, seed = options.one
    settings = json.loads(options.keywords)
    folder = Path(options.out) / "runs" / f"{case}-{name}-{seed}"
    began = time.perf_counter()
    where = {"device": options.device, "out": folder}
    prepared = prepare(options.cases / case, MODEL, **where, seed=int(seed), **settings)
    results = run_finetuning(prepared, folder, device=options.device).results
    seconds = time.perf_counter() - began
    experiment = prepared.finetuning.experiment
    classes = [one["accuracy"] for one in results["per_class"]]
    return {
        "case": case,
        "alternative": name,
        "seed": int(seed),
        **{score: results["test"][score] for score in ("top1", "loss", "ece")},
        "balanced": statistics.fmean(classes),
        "seconds": round(seconds, 1),  # of this sitting: of all, where there was one
        "training_seconds": round(results["seconds"], 1),  # of the first seed's run, without the sweep's
        "steps": results["steps"],
        "kept_step": results["kept_step"],
        "lr": results["lr"],
        "train_examples": results["train_examples"],
        "test_examples": results["test_examples"],
        "image_size": experiment.model.image_size,
        "tune": experiment.optimizer.tune,
        "preprocess": experiment.data.preprocess or experiment.data.augment,
        "balance": experiment.objective.balance,
        "settings": settings,
        "device": device_name(pick(options.device)),
        "torch": torch.__version__,
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "parallel": options.parallel,
    }


def run_grid(options: argparse.Namespace) -> None:
    alternatives = ALTERNATIVES | {name: parse_settings(text) for name, text in options.variant or []}
    chosen = [name for name, _ in options.variant or []] + (options.alternatives or [])
    chosen = chosen or list(ALTERNATIVES)
    if unknown := set(chosen) - set(alternatives):
        raise SystemExit(f"no alternative {', '.join(unknown)}: there are {', '.join(alternatives)}")
    cases = options.only or [case.name for case in CASES if case.judging or not options.judging]
    cases = [name for name in cases if options.only or not options.tuning or not is_judging(name)]
    shared = parse_settings(options.settings)
    if pick(options.device).type == "cuda":
        shared = {"num_workers": max(1, (os.cpu_count() or 1) // options.parallel)} | shared
    done = {key_of(row) for row in read_rows(options.out)}
    todo = [
        (case, name, seed)
        for seed in range(options.seeds)
        for case in cases
        for name in chosen
        if (case, name, seed) not in done
    ]
    print(f"{len(done)} runs are done, {len(todo)} to do", flush=True)
    options.out.mkdir(parents=True, exist_ok=True)

    def start(key: Key) -> None:
        case, name, seed = key
        command = [sys.executable, "-m", "benchmarks.defaults", "run", "--one", case, name, str(seed)]
        command += ["--cases", str(options.cases), "--out", str(options.out), "--device", options.device]
        command += ["--keywords", json.dumps(shared | alternatives[name])]
        command += ["--parallel", str(options.parallel)]
        finished = subprocess.run(command, capture_output=True, text=True, check=False)
        if finished.returncode:
            print(f"{key} failed: {finished.stderr[-1500:]}", flush=True)
            return
        row = json.loads(finished.stdout.splitlines()[-1])
        with (options.out / RUNS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        shutil.rmtree(options.out / "runs" / f"{case}-{name}-{seed}", ignore_errors=True)
        print(f"{case:20} {name:10} {seed}   {row['top1']:.1%}   {row['seconds']:.0f} s", flush=True)

    with ThreadPoolExecutor(options.parallel) as pool:
        for _ in pool.map(start, todo):
            pass


def is_judging(name: str) -> bool:
    return next(case.judging for case in CASES if case.name == name)


def read_rows(out: Path) -> list[dict[str, Any]]:
    if not (out / RUNS).exists():
        return []
    return [json.loads(line) for line in (out / RUNS).read_text(encoding="utf-8").splitlines()]


def key_of(row: dict[str, Any]) -> Key:
    return row["case"], row["alternative"], row["seed"]


def mean_and_error(values: list[float]) -> tuple[float, float]:
    """Return the mean and its standard error, nan of a single run."""
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return statistics.fmean(values), error


def verdict(scores: dict[str, tuple[float, float]], judged: str) -> str:
    """Say whether the judged alternative is no worse than the best of the others on a case."""
    others = {name: scores[name] for name in OTHERS if name in scores}
    if judged not in scores or len(others) < len(OTHERS):
        return ""
    best = max(others, key=lambda name: others[name][0])
    (mean, error), (other, its_error) = scores[judged], others[best]
    allowed = ERRORS * math.hypot(error, its_error)
    word = "no worse" if mean >= other - allowed else "WORSE"
    return f"{word} than {best} ({100 * (mean - other):+.1f}, allowed {-100 * allowed:.1f})"


def show(options: argparse.Namespace) -> None:
    rows = read_rows(options.out)
    names = list(dict.fromkeys(row["alternative"] for row in rows))
    print("| case | " + " | ".join(names) + f" | {options.judge} |")
    print("|---" * (len(names) + 2) + "|")
    for case in CASES:
        scores, cells = {}, []
        for name in names:
            mine = [row for row in rows if (row["case"], row["alternative"]) == (case.name, name)]
            if not mine:
                cells.append("")
                continue
            scores[name] = mean, error = mean_and_error([row[options.score] for row in mine])
            seconds = statistics.fmean(row["seconds"] for row in mine)
            cells.append(f"{100 * mean:.1f} ± {100 * error:.1f} (n={len(mine)}, {seconds:.0f} s)")
        if scores:
            print(f"| `{case.name}` | " + " | ".join(cells) + f" | {verdict(scores, options.judge)} |")
    for half in (False, True):
        means = {}
        for name in names:
            each = [
                [r[options.score] for r in rows if (r["case"], r["alternative"]) == (case.name, name)]
                for case in CASES
                if case.judging == half
            ]
            if all(each):
                means[name] = statistics.fmean(map(statistics.fmean, each))
        if means:
            text = ", ".join(f"{name} {100 * mean:.1f}" for name, mean in means.items())
            print(f"\nMean over the {'judging' if half else 'tuning'} cases: {text}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    make = verbs.add_parser("make", help="make the cases")
    make.add_argument("--data", type=Path, required=True)
    make.add_argument("--cases", type=Path, required=True)
    make.add_argument("--only", nargs="+")
    run = verbs.add_parser("run", help="run what is missing in the grid")
    run.add_argument("--cases", type=Path, required=True)
    run.add_argument("--out", type=Path, required=True)
    run.add_argument("--only", nargs="+", help="cases")
    run.add_argument("--tuning", action="store_true", help="the five tuning cases")
    run.add_argument("--judging", action="store_true", help="the five judging cases")
    run.add_argument("--alternatives", nargs="+", help="of default, full, head, double, auto")
    run.add_argument("--variant", nargs=2, action="append", metavar=("NAME", "SETTINGS"))
    run.add_argument("--settings", default="", help='of all runs, such as "compile=off"')
    run.add_argument("--seeds", type=int, default=3)
    run.add_argument("--parallel", type=int, default=1, help="processes at once")
    run.add_argument("--device", default="auto")
    run.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    run.add_argument("--keywords", help=argparse.SUPPRESS)
    table = verbs.add_parser("show", help="print the table")
    table.add_argument("--out", type=Path, required=True)
    table.add_argument("--score", default="top1", choices=["top1", "balanced"])
    table.add_argument("--judge", default="auto", help="the alternative that is judged")
    return parser.parse_args()


if __name__ == "__main__":
    chosen = parse()
    if chosen.verb == "make":
        make_cases(chosen.data, chosen.cases, chosen.only)
    elif chosen.verb == "show":
        show(chosen)
    elif chosen.one:
        print(json.dumps(run_one(chosen)))
    else:
        run_grid(chosen)
