"""Settings that the studies share at each size: models, data and lengths that fit it.

tiny     drawn shapes of 32 pixels, a few dozen steps: minutes on two cores of a CPU
small    Tiny-ImageNet at 64 pixels, about 10 epochs: at most 25 minutes of an H200 for a study
paper    the published recipes on their data
"""

from __future__ import annotations

from typing import Any

from vitrail.recipes.tiny_imagenet import TINY as TINY_IMAGENET

TRAIN, VAL = "train[:90% per class]", "train[90%: per class]"
COLOURS = "shapes:colour?n=2000&image_size=32"  # the colour of the thing: learned in a few dozen steps
POSITIONS = "shapes:position?n=2000&image_size=32"  # its place in the picture

TINY: dict[str, Any] = {
    "model": "Ti/4@32",
    "width": 64,
    "depth": 4,
    "heads": 2,
    "mlp_dim": 128,
    "train": TRAIN,
    "val": VAL,
    "preprocess": "inception_crop(32, area=(0.8, 1))|uint8|to_range(-1, 1)",
    "batch_size": 32,
    "num_workers": 0,
    "resident": True,
    "lr": 2e-3,
    "warmup": "10%",
    "weight_decay": 0.05,
    "steps": 40,
    "evaluate_every": 0,
    "save_every": "50%",
    "log_every": "5%",
}
TINY_LRS = (1e-3, 3e-3, 1e-2)

# Ti/8 of 64 pixels has the cost of an R50x1; with half of its layers, that of an R26x1.
SMALL: dict[str, Any] = {
    "model": "Ti/8@64",
    "train": "train[:95% per class]",
    "val": "train[95%: per class]",
    "preprocess": "inception_crop(64, area=(0.25, 1))|flip_lr|uint8|to_range(-1, 1)",
    "batch_size": 512,
    "num_workers": 3,
    "resident": True,
    "compile": "graphs",
    "lr": 1e-3,
    "warmup": "10%",
    "weight_decay": 0.05,
    "steps": "10ep",
    "evaluate_every": "50%",
    "save_every": "20%",
    "keep": 1,
    "log_every": "5%",
}
SMALL_LRS = (3e-4, 1e-3, 3e-3)
SMALL_DATA: dict[str, Any] = {"data": "tiny-imagenet", "published": TINY_IMAGENET}

# B/16 on ImageNet at 384 pixels, as Table 4 has it.
FINETUNING: dict[str, Any] = {
    "model": "B/16",
    "image_size": 384,
    "batch_size": 512,
    "steps": 20_000,
    "warmup": 500,
    "optimizer": "sgd",
    "train": "train[:99% per class]",
    "val": "train[99%: per class]",
}
FINETUNING_LRS = (0.003, 0.01, 0.03, 0.06)

# Settings of models that are no plain ViT: those of TINY and SMALL that do not apply are unset.
NO_VIT: dict[str, Any] = dict.fromkeys(("width", "depth", "heads", "mlp_dim", "patch_size"))

SAME_DATA = (
    "Without --transfer, few-shot and linear probes are on the data that the model was trained on: they learn from "
    "its training images and are tested on images that it has not seen. The paper's are on ImageNet, after JFT-300M."
)
PERCENT = 0.01
