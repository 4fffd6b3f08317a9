"""Predicting photographs on a CPU, from files to classes: `vitrail.predict` beside timm's eager model, in one run.

    python -m benchmarks.predict [--photos FOLDER] [--model S/16]

Both have the same weights, random and distinct, and the same tanh GELU; both resize the short side to 256 and take
the middle 224 pixels. timm runs its model eagerly in batches of 32 under inference_mode, with the images decoded by
Pillow and prepared by timm's own transform: in the same process, or in the processes of a DataLoader. Rounds
alternate. Without --photos, photographs are drawn (JPEG, 500x375). timm is not a dependency.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

import vitrail
from vitrail.bench.peers import import_torchvision
from vitrail.bench.photographs import write_photographs
from vitrail.inference.images import find_images

BATCH_SIZE, CLASSES, TOP = 32, 1000, 5
LINE = "resize_small(256)|central_crop(224)|uint8|to_range(-1, 1)"
TIMM_NAMES = {
    "Ti/16": "vit_tiny_patch16_224",
    "S/16": "vit_small_patch16_224",
    "B/16": "vit_base_patch16_224",
}


class Files(Dataset[torch.Tensor]):
    def __init__(self, files: list[Path], transform: Callable[[Any], torch.Tensor]) -> None:
        self.files, self.transform = files, transform

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> torch.Tensor:
        with Image.open(self.files[index]) as image:
            return self.transform(image.convert("RGB"))


def timm_predictor(
    name: str, weights: Path, files: list[Path], num_workers: int
) -> Callable[[], list[list[int]]]:
    """Return what predicts all files by timm: the classes of each, the most probable first."""
    timm = importlib.import_module("timm")
    transforms = importlib.import_module("timm.data")
    model = timm.create_model(TIMM_NAMES[name], num_classes=CLASSES, act_layer="gelu_tanh")
    timm.models.load_checkpoint(model, str(weights))
    model.eval()
    half = (0.5, 0.5, 0.5)
    transform = transforms.create_transform(
        (3, 224, 224), interpolation="bilinear", mean=half, std=half, crop_pct=0.875
    )
    data = DataLoader(Files(files, transform), BATCH_SIZE, num_workers=num_workers)

    def predict() -> list[list[int]]:
        answers: list[list[int]] = []
        with torch.inference_mode():
            for images in data:
                answers += model(images).softmax(dim=1).topk(TOP)[1].tolist()
        return answers

    return predict


def main(model: str = "S/16", photos: str | None = None, count: int = 192, rounds: int = 5) -> None:
    import_torchvision()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(photos) if photos else write_photographs(Path(folder) / "photos", seed=0)
        found = find_images([str(place)])
        files = [found[i % len(found)] for i in range(count)]
        torch.manual_seed(0)
        ours = vitrail.create(model, classes=CLASSES)
        ours.preprocess, ours.class_names = LINE, [str(i) for i in range(CLASSES)]
        with torch.no_grad():
            for p in ours.parameters():
                p.add_(0.02 * torch.randn_like(p))
        vitrail.save(ours, Path(folder) / "timm", to="timm")
        weights = next((Path(folder) / "timm").glob("*.safetensors"))
        ways: dict[str, Callable[[], list[list[int]]]] = {
            "vitrail": lambda: [
                [int(name) for name, _ in answer] for answer in vitrail.predict(ours, files, TOP)
            ],
            "timm, one process": timm_predictor(model, weights, files, 0),
            "timm, 2 loading processes": timm_predictor(model, weights, files, 2),
        }
        answers = {name: predict() for name, predict in ways.items()}  # the first run of each is not timed
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(rounds):
            for name, predict in ways.items():
                began = time.perf_counter()
                predict()
                seconds[name].append(time.perf_counter() - began)
    print(
        f"{model}, {count} files, {torch.get_num_threads()} threads, torch {torch.__version__}, {rounds} rounds"
    )
    for name, times in seconds.items():
        ratios = [theirs / own for own, theirs in zip(seconds["vitrail"], times, strict=True)]
        same = np.mean([a[0] == b[0] for a, b in zip(answers[name], answers["vitrail"], strict=True)])
        print(
            f"  {name:26} {count / statistics.median(times):6.1f} images/s   its time / ours "
            f"{statistics.median(ratios):.2f}x ({min(ratios):.2f} to {max(ratios):.2f})   same class: {same:.1%}"
        )
    print(json.dumps(seconds))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="S/16", choices=list(TIMM_NAMES))
    parser.add_argument("--photos", help="a folder of images")
    parser.add_argument("--count", type=int, default=192)
    parser.add_argument("--rounds", type=int, default=5)
    main(**vars(parser.parse_args()))
