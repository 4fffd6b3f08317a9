"""Training from files to weights: images per second of whole runs of a small model, beside timm's, in one run.

    python -m benchmarks.end_to_end --data tiny-imagenet [--images 12500] [--model-size Ti] [--only NAME...]

JPEGs of 64 pixels are written to a folder of classes, and to Parquet shards. Each contestant is a process of its own,
by turns: ours are `vitrail pretrain`, with the ordinary loader or with the images on the device, with CUDA graphs or
without; timm's has its own loader and model, compiled, in `default` and `reduce-overhead`. The same for all: random
crops, flips, RandAugment of two layers, erasing, batches of 512 of a Ti/8, 16 processes to read, bf16 and fused AdamW
on CUDA, clipping. The speed of a run is the median over its second half, the start and the compiler left out.
"""

from __future__ import annotations

import argparse
import importlib
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn

from vitrail.bench.peers import import_torchvision
from vitrail.data.decode import decode
from vitrail.data.sources import open_source

PIXELS, PATCH = 64, 8
LINE = (
    f"inception_crop({PIXELS})|flip_lr|uint8|randaugment(2, 15)|random_erasing(0.25, fill=grey)|"
    "uint8|to_range(-1, 1)"
)
ON_DEVICE = ["--resident"]
GRAPHS = ["--compile", "graphs"]
OURS = {  # name: (data, flags)
    "vitrail, folder": ("folder", []),
    "vitrail, folder, graphs": ("folder", GRAPHS),
    "vitrail, Parquet, graphs": ("shards", GRAPHS),
    "vitrail, on the device": ("folder", ON_DEVICE),
    "vitrail, on the device, graphs": ("folder", ON_DEVICE + GRAPHS),
}
THEIRS = {"timm, compiled": "default", "timm, reduce-overhead": "reduce-overhead"}


def write_images(data: str, count: int, place: Path) -> None:
    """Write `count` training images as JPEGs, place/folder/train/CLASS/i.jpg, and as shards, place/shards."""
    source = open_source(data, "train")
    for i in range(min(count, len(source))):
        example = source.read(i)
        image = example.image
        pixels = Image.fromarray(decode(image) if isinstance(image, bytes) else image)
        folder = place / "folder" / "train" / f"{int(example.label):04}"
        folder.mkdir(parents=True, exist_ok=True)
        buffer = io.BytesIO()
        pixels.convert("RGB").resize((PIXELS, PIXELS)).save(buffer, "JPEG", quality=90)
        (folder / f"{i}.jpg").write_bytes(buffer.getvalue())
    command = ["-m", "vitrail", "data", "shard", str(place / "folder"), str(place / "shards")]
    subprocess.run(
        [sys.executable, *command], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def our_speed(name: str, place: Path, options: argparse.Namespace) -> float:
    """Return images per second of a run of `vitrail pretrain`."""
    data, flags = OURS[name]
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        settings = {
            "data": place / data,
            "out": run,
            "device": options.device,
            "model": f"{options.model_size}/{PATCH}@{PIXELS}",
            "preprocess": LINE,
            "train": "train",
            "val": "none",
            "test": "none",
            "batch-size": options.batch_size,
            "steps": options.steps,
            "log-every": max(1, options.steps // 20),
            "num-workers": options.num_workers,
            "evaluate-every": 0,
            "save-every": 0,
        }
        words = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
        command = ["-m", "vitrail", "pretrain", *words, *flags]
        done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{name}: {done.stderr[-2000:]}")
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return statistics.median(row["images_per_second"] for row in rows[len(rows) // 2 :])


def timm_speed(mode: str, place: Path, options: argparse.Namespace) -> float:
    """Return images per second of timm's loader and model; a process calls it once."""
    import_torchvision()
    timm, data = importlib.import_module("timm"), importlib.import_module("timm.data")
    device, names = torch.device(options.device), {"Ti": "tiny", "S": "small", "B": "base"}
    images = data.create_dataset("", str(place / "folder" / "train"), is_training=True)
    loader = data.create_loader(
        images,
        (3, PIXELS, PIXELS),
        options.batch_size,
        is_training=True,
        re_prob=0.25,
        auto_augment="rand-m15-n2",
        scale=(0.05, 1.0),
        mean=(0.5, 0.5, 0.5),
        std=(0.5, 0.5, 0.5),
        num_workers=options.num_workers,
        persistent_workers=options.num_workers > 0,
        use_prefetcher=device.type == "cuda",
        device=device,
    )
    model = timm.create_model(
        f"vit_{names[options.model_size]}_patch16_224",
        patch_size=PATCH,
        img_size=PIXELS,
        num_classes=len(list((place / "folder" / "train").iterdir())),
        act_layer="gelu_tanh",
    ).to(device)
    call = torch.compile(model, mode=mode) if device.type == "cuda" else model
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.1, fused=device.type == "cuda")

    def batches() -> Iterator[Any]:
        while True:
            yield from loader

    every, began, speeds = max(1, options.steps // 20), time.perf_counter(), []
    for step, (x, labels) in zip(range(1, options.steps + 1), batches(), strict=False):
        torch.compiler.cudagraph_mark_step_begin()
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            loss = F.cross_entropy(call(x.to(device)), labels.to(device))
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % every == 0:
            float(loss.detach())  # waits for the device
            now = time.perf_counter()
            speeds.append(every * options.batch_size / (now - began))
            began = now
    return statistics.median(speeds[len(speeds) // 2 :])


def main(options: argparse.Namespace) -> None:
    names = options.only or [*THEIRS, *OURS]
    if options.device == "cpu":
        names = [name for name in names if "graphs" not in name and name != "timm, reduce-overhead"]
    speeds: dict[str, list[float]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as folder:
        write_images(options.data, options.images, Path(folder))
        for _ in range(options.rounds):
            for name in names:
                if name in OURS:
                    speed = our_speed(name, Path(folder), options)
                else:
                    again = [*sys.argv[1:], "--timm", name, "--place", folder]
                    command = [sys.executable, "-m", "benchmarks.end_to_end", *again]
                    done = subprocess.run(command, capture_output=True, text=True, check=False)
                    if done.returncode:
                        raise SystemExit(f"{name}: {done.stderr[-2000:]}")
                    speed = json.loads(done.stdout.splitlines()[-1])
                speeds[name].append(speed)
                print(f"  {name:32} {speed:10,.0f} images/s", flush=True)
    for name, values in speeds.items():
        print(
            f"{name:32} {statistics.median(values):10,.0f} ({min(values):,.0f} to {max(values):,.0f})", end=""
        )
        for other in (other for other in THEIRS if other in speeds and name in OURS):
            print(f"   {statistics.median(values) / statistics.median(speeds[other]):.2f}x {other}", end="")
        print()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Whole training runs of a small model, beside timm's.")
    parser.add_argument("--data", default="shapes:shape?n=2000&image_size=64")
    parser.add_argument("--images", type=int, default=12_500)
    parser.add_argument("--model-size", default="Ti", choices=["Ti", "S", "B"])
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--num-workers", type=int, default=min(16, os.cpu_count() or 1))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--only", nargs="+", choices=[*THEIRS, *OURS])
    parser.add_argument("--timm", choices=THEIRS, help=argparse.SUPPRESS)
    parser.add_argument("--place", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.timm:
        print(json.dumps(timm_speed(THEIRS[chosen.timm], chosen.place, chosen)))
    else:
        main(chosen)
