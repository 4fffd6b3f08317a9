"""Recipes of the included model, `vitrail.load("ti8-64")`: how it was trained, on Tiny-ImageNet at 64 pixels.

    vitrail pretrain --recipe ti8-64-masked --data DATA
    vitrail pretrain --recipe ti8-64 --data DATA --model runs/DATA-ti8-64-masked/model

First masked patches, without labels; then labels, from those weights. Images stay on the GPU, since so small a model
would wait for them; the second was run with --compile graphs, since it would also wait for kernel launches. A part of
train is held out for every choice; the validation images are only for the reported number. docs/results/ti8-64.md has
the other settings that were tried, with their results.
"""

from __future__ import annotations

from dataclasses import replace

from vitrail.data.settings import DataSettings
from vitrail.objectives.classification import Classification
from vitrail.objectives.masked_patches import MaskedPatches
from vitrail.recipes.pretraining import ADAM
from vitrail.recipes.recipe import PublishedData, Recipe
from vitrail.train.settings import Experiment, ModelSettings, TrainingSettings

TINY = PublishedData("Tiny-ImageNet", 95_000, 200)  # what is trained on, of 100,000
ADAM_005 = replace(ADAM, lr=1e-3, schedule="cosine", weight_decay=0.05, grad_clip=1.0)


def ti8_64_masked() -> Experiment:
    """Ti/8 at 64 pixels, 30 epochs: half of the patches corrupted, their 3-bit mean colours predicted."""
    return Experiment(
        model=ModelSettings("Ti/8@64"),
        data=DataSettings(
            train="train[:99% per class]",
            val="train[99%: per class]",
            preprocess="inception_crop(64, area=(0.25, 1))|flip_lr|uint8|to_range(-1, 1)",
            batch_size=512,
            resident=True,
        ),
        objective=MaskedPatches(),
        optimizer=replace(ADAM_005, warmup="5%"),
        training=TrainingSettings(steps="30ep"),
    )


def ti8_64() -> Experiment:
    """Train further with labels, 361 epochs: crops, RandAugment, erasing; mixup or cutmix, at random per batch. The
    held-out part is evaluated eight times, and the best weights are kept."""
    return Experiment(
        model=ModelSettings("Ti/8@64", drop_path=0.1),
        data=DataSettings(
            train="train[:95%]",
            val="train[95%:]",
            preprocess="inception_crop(64, area=(0.35, 1))|flip_lr|uint8|randaugment(1, 8, 0.2)|"
            "random_erasing(0.25, fill=grey)|uint8|to_range(-1, 1)",
            batch_size=512,
            mixup=0.8,
            cutmix=1.0,
            resident=True,
        ),
        objective=Classification(label_smoothing=0.1),
        optimizer=replace(ADAM_005, warmup="3%", ema=0.999, ema_ramp=True),
        training=TrainingSettings(steps="361ep", evaluate_every="12.5%", monitor="val_top1"),
    )


TINY_IMAGENET = (
    Recipe(
        "ti8-64-masked",
        ti8_64_masked,
        replace(TINY, examples=99_000),
        "the start of the included model: Ti/8 by masked patches on Tiny-ImageNet, 30 epochs; 242 s on an H200, "
        "with the ordinary loader and other work beside it",
    ),
    Recipe(
        "ti8-64",
        ti8_64,
        TINY,
        "the included model: Ti/8 on Tiny-ImageNet from the weights of ti8-64-masked, 361 epochs. Validation "
        "images: 59.01% (n = 1); 1,153 s on an H200, with --compile graphs and other work beside it",
        start="ti8-64-masked",
    ),
)
