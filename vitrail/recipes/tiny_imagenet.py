"""The model in the box: what `vitrail.load("ti8-64")` was trained by, on Tiny-ImageNet at 64 pixels.

    vitrail pretrain --recipe ti8-64 --data PATH

Images stay on the GPU, since a model so small would wait for them; it was run with --compile graphs, since it waits
for its launches too. A part of train is held out for every choice; the validation images are for the reported number
alone. What was tried, and what it gave, is in docs/results/box.md.
"""

from __future__ import annotations

from dataclasses import replace

from vitrail.recipes.pretraining import ADAM
from vitrail.recipes.recipe import DataSet, Recipe
from vitrail.train.experiment import DataChoice, Experiment, ModelChoice, ObjectiveChoice, Training

TINY = DataSet("Tiny-ImageNet", 100_000, 200)


def ti8_64() -> Experiment:
    """Ti/8 at 64 pixels, 85 epochs: mild mixup or cutmix, by a coin for each batch; crops and flips."""
    return Experiment(
        model=ModelChoice("Ti/8@64", drop_path=0.05),
        data=DataChoice(
            train="train[:95%]",
            val="train[95%:]",
            preprocess="inception_crop(64, area=(0.25, 1))|flip_lr|uint8|to_range(-1, 1)",
            batch=256,
            mixup=0.2,
            cutmix=1.0,
            resident=True,
        ),
        objective=ObjectiveChoice("softmax", smoothing=0.1),
        training=Training(
            steps="85ep",
            rate=7e-4,
            decay="cosine",
            warmup="5%",
            optimization=replace(ADAM, weight_decay=0.1),
            clip=1.0,
            average=0.999,
        ),
    )


TINY_IMAGENET = (
    Recipe(
        "ti8-64",
        ti8_64,
        TINY,
        "the model in the box: Ti/8 on Tiny-ImageNet, 85 epochs. Validation images: 44.42% (n = 1); 435 s on an "
        "H200, with --compile graphs",
    ),
)
