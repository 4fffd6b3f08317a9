"""Exported files beside the models that they were made from.

    python -m benchmarks.export agree [--photos FOLDER]             a table for docs/results/export.md
    python -m benchmarks.export speed --calibrate DATA [--rounds 7]    images per second, from files to classes

agree: six models whose parameters are all random and distinct, in each format, with either input: outputs in batches
of 1, 3 and 16, of several image sizes where one file takes them, and classes of raw JPEGs by `vitrail.predict`.

speed: 8-bit files and eager PyTorch predict the same JPEGs, on as many threads as torch has (OMP_NUM_THREADS), by
turns. Eager PyTorch decodes with Pillow, prepares with `vitrail.transform` and runs batches of 32 under
inference_mode, in one process. It is also run with vitrail's decoder and threads (`vitrail.predict`).
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from PIL import Image

import vitrail
from vitrail.bench.photographs import write_photographs
from vitrail.data.sources import open_source
from vitrail.exporting.programs import open_aoti
from vitrail.inference.engine import transform
from vitrail.inference.exported import Exported, open_model
from vitrail.inference.images import decode_example, find_images

CLASSES, BATCH_SIZE, SPREAD = 50, 32, 3.0
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "Ti/8@64": ("Ti/8@64", {}),
    "S/16": ("S/16", {}),
    "B/16@384": ("B/16@384", {}),
    "R26+S/32": ("R26+S/32", {}),
    "BiT R50x1": ("R50x1", {}),
    "SigLIP's S/16, attention pooling": ("S/16", {"pool": "attention"}),
    "SigLIP's S/16, mean pooling": ("S/16", {"pool": "mean"}),
}
FORMATS = ("onnx", "openvino", "torch", "aoti", "executorch")
SHORT = {"depth": 2}  # with --short; of ResNets one unit in each group


def random_model(name: str, files: list[Path], *, short: bool) -> Any:
    """Return a model of random parameters, whose logits spread by SPREAD."""
    name, fields = MODELS[name]
    if short:
        fields = fields | ({"units": (1, 1, 1, 1)} if name == "R50x1" else SHORT)
    torch.manual_seed(0)
    model = vitrail.create(name, classes=CLASSES, **fields).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.02 * torch.randn_like(p))
        x = torch.stack([transform(model)(file) for file in files[:8]])
        model.head.classifier.weight *= SPREAD / model(x).std()
    model.class_names = [f"class {k}" for k in range(CLASSES)]
    return model


def agree(options: argparse.Namespace) -> None:
    print("| model | format | input | logits, of their spread | spread | probabilities, from JPEGs | size |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        place = Path(options.photos) if options.photos else write_photographs(Path(folder) / "photos", seed=0)
        files = find_images([str(place)])[: options.count]
        for name in options.models or MODELS:
            model = random_model(name, files, short=options.short)
            expected = [dict(one) for one in vitrail.predict(model, files, CLASSES)]
            for to in options.formats:
                for input in ("tensor", "pixels"):
                    if to == "executorch" and input == "pixels":
                        continue
                    sizes = "dynamic" if input == "tensor" and to != "executorch" else None
                    out = Path(folder) / f"{name} {to} {input}".replace("/", "-")
                    report = vitrail.export(model, out, to, input=input, image_size=sizes, timing=False)
                    exported = own_machine_code(out) if to == "aoti" else out
                    answers = [dict(one) for one in vitrail.predict(exported, files, CLASSES)]
                    both = zip(answers, expected, strict=True)
                    far = max(abs(p - b[k]) for a, b in both for k, p in a.items())
                    d = report.differences
                    print(
                        f"| {name} | {to} | {input} | {d.largest / d.spread:.1e} | {d.spread:.1f} | {far:.1e} | "
                        f"{report.bytes / report.model_bytes:.2f} |",
                        flush=True,
                    )


def own_machine_code(folder: Path) -> Exported:
    """Open an aoti file, which vitrail does not read as a model: this one was written here."""
    opened = open_aoti(folder / "model.pt2", torch.device("cpu"))
    return Exported(opened, json.loads(opened.card), "")


def eager(model: Any, files: list[Path]) -> Callable[[], list[str]]:
    """Return what predicts all files as most people would."""
    prepare = transform(model)

    def predict() -> list[str]:
        names: list[str] = []
        with torch.inference_mode():
            for start in range(0, len(files), BATCH_SIZE):
                x = torch.stack(
                    [prepare(Image.open(f).convert("RGB")) for f in files[start : start + BATCH_SIZE]]
                )
                names += [model.class_names[k] for k in model(x).softmax(dim=1).argmax(dim=1)]
        return names

    return predict


def speed(options: argparse.Namespace) -> None:
    source = open_source(options.calibrate, options.split)
    with tempfile.TemporaryDirectory() as folder:
        files = []
        for i in range(min(options.count, len(source))):
            files.append(Path(folder) / f"{i:05}.jpg")
            Image.fromarray(decode_example(source, i)).save(files[-1], quality=90)
        model = vitrail.load(options.model).eval()
        ways = {"eager PyTorch": eager(model, files), "vitrail.predict": lambda: top(model, files)}
        for to in options.formats:
            for input in ("tensor", "pixels"):
                out = Path(folder) / f"{to} {input}"
                report = vitrail.export(
                    model, out, to, precision="int8", input=input, calibrate=options.calibrate, timing=False
                )
                exported = open_model(out)
                ways[f"{to} int8, {input}"] = lambda exported=exported: top(exported, files)
                print(f"{to} int8, {input}: {report.bytes / report.model_bytes:.2f} of the weights' size")
        answers = {name: predict() for name, predict in ways.items()}  # the first run of each is not timed
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(options.rounds):
            for name, predict in ways.items():
                began = time.perf_counter()
                predict()
                seconds[name].append(time.perf_counter() - began)
    print(
        f"{options.model}, {len(files)} files, {torch.get_num_threads()} threads, {options.rounds} rounds\n"
    )
    print("| | images/s | as fast as eager PyTorch, median (least to most) | same class |")
    print("|---|---|---|---|")
    for name, times in seconds.items():
        ratios = [a / b for a, b in zip(seconds["eager PyTorch"], times, strict=True)]
        same = [a == b for a, b in zip(answers[name], answers["eager PyTorch"], strict=True)]
        print(
            f"| {name} | {len(files) / statistics.median(times):,.0f} | {statistics.median(ratios):.2f}x "
            f"({min(ratios):.2f} to {max(ratios):.2f}) | {sum(same) / len(same):.1%} |"
        )


def top(model: Any, files: list[Path]) -> list[str]:
    return [answer[0][0] for answer in vitrail.predict(model, files, 1)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    kinds = parser.add_subparsers(dest="kind", required=True)
    one = kinds.add_parser("agree")
    one.add_argument("--photos", help="a folder of JPEGs; if unset, drawn ones")
    one.add_argument("--count", type=int, default=24)
    one.add_argument("--formats", nargs="+", default=["onnx", "openvino", "torch"], choices=FORMATS)
    one.add_argument("--models", nargs="+", choices=MODELS)
    one.add_argument("--short", action="store_true", help="2 layers, or a unit for each group of a ResNet")
    two = kinds.add_parser("speed")
    two.add_argument("--calibrate", required=True, help="the training set")
    two.add_argument("--split", default="validation", help="of which images are predicted")
    two.add_argument("--model", default="ti8-64")
    two.add_argument("--formats", nargs="+", default=["onnx", "openvino"], choices=["onnx", "openvino"])
    two.add_argument("--count", type=int, default=1024)
    two.add_argument("--rounds", type=int, default=7)
    chosen = parser.parse_args()
    {"agree": agree, "speed": speed}[chosen.kind](chosen)
