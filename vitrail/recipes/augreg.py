"""AugReg: "How to train your ViT?" (Steiner et al., arXiv:2106.10270), the recipe of the recommended checkpoints.

All: Adam, lr 1e-3, cosine, warmup of 10,000 steps, batch 4,096, 300 epochs, clipping at norm 1, sigmoid loss;
RandAugment and mixup at one of seven levels. On ImageNet-21k: the settings of the checkpoints that the authors
recommend. On ImageNet: the levels of their released config, which omits the dropout and stochastic depth that, by its
own comments, help B and L; here these have both, at 0.1, as in the paper.

Released files for ImageNet-21k have no layer before the classifier, the config for ImageNet has one. Results are
top-1 on ImageNet after fine-tuning at 384 pixels, as the authors' README has them (n is not stated).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from vitrail.data.preprocess import PRESETS
from vitrail.data.settings import DataSettings
from vitrail.objectives.classification import Classification
from vitrail.recipes.pretraining import ADAM, BATCH_SIZE, HEAD_BIAS
from vitrail.recipes.recipe import I1K, I21K, PublishedData, Recipe
from vitrail.train.settings import Experiment, ModelSettings, TrainingSettings

# level: (the training line, alpha of mixup)
LEVELS: dict[str, tuple[str, float]] = {
    "none": (PRESETS["big_vision_pretrain"], 0.0),
    "light1": (PRESETS["big_vision_pretrain_light1"], 0.0),
    "light2": (PRESETS["big_vision_pretrain_light2"], 0.2),
    "medium1": (PRESETS["big_vision_pretrain_medium"], 0.2),
    "medium2": (PRESETS["big_vision_pretrain_medium"], 0.5),
    "strong1": (PRESETS["big_vision_pretrain_strong"], 0.5),
    "strong2": (PRESETS["big_vision_pretrain_strong"], 0.8),
}


@dataclass(frozen=True)
class Setting:
    """Settings that AugReg recommends for a model."""

    model: str
    data: PublishedData
    level: str
    weight_decay: float
    dropout: float = 0.0  # and stochastic depth
    imagenet: float | None = None  # % after fine-tuning; None: not stated


SETTINGS: dict[str, Setting] = {
    "augreg-ti16-i21k": Setting("Ti/16", I21K, "none", 0.03, imagenet=78.22),
    "augreg-s32-i21k": Setting("S/32", I21K, "none", 0.1, imagenet=79.58),
    "augreg-s16-i21k": Setting("S/16", I21K, "light1", 0.03, imagenet=83.73),
    "augreg-b32-i21k": Setting("B/32", I21K, "light1", 0.1, imagenet=83.59),
    "augreg-b16-i21k": Setting("B/16", I21K, "medium1", 0.1, imagenet=85.49),
    "augreg-b8-i21k": Setting("B/8", I21K, "medium2", 0.1),
    "augreg-l16-i21k": Setting("L/16", I21K, "strong1", 0.1, imagenet=85.59),
    "augreg-r-ti16-i21k": Setting("R+Ti/16", I21K, "none", 0.03, imagenet=75.40),
    "augreg-r26-s32-i21k": Setting("R26+S/32", I21K, "light1", 0.1, imagenet=83.85),
    "augreg-r50-l32-i21k": Setting("R50+L/32", I21K, "medium1", 0.1, dropout=0.1, imagenet=85.99),
    "augreg-ti16-i1k": Setting("Ti/16", I1K, "light1", 0.1),
    "augreg-s32-i1k": Setting("S/32", I1K, "medium1", 0.1),
    "augreg-s16-i1k": Setting("S/16", I1K, "medium2", 0.1),
    "augreg-b32-i1k": Setting("B/32", I1K, "medium2", 0.1, dropout=0.1),
    "augreg-b16-i1k": Setting("B/16", I1K, "medium2", 0.1, dropout=0.1),
    "augreg-l16-i1k": Setting("L/16", I1K, "medium2", 0.1, dropout=0.1),
}


def augreg(setting: Setting) -> Experiment:
    line, mixup = LEVELS[setting.level]
    return Experiment(
        model=ModelSettings(
            setting.model,
            dropout=setting.dropout,
            drop_path=setting.dropout,
            pre_logits=setting.data == I1K,
            head_bias=HEAD_BIAS[setting.data],
        ),
        data=DataSettings(
            preprocess=line,
            evaluate_preprocess=PRESETS["big_vision_eval"],
            batch_size=BATCH_SIZE,
            mixup=mixup,
        ),
        objective=Classification("sigmoid"),
        optimizer=replace(ADAM, lr=1e-3, schedule="cosine", weight_decay=setting.weight_decay, grad_clip=1.0),
        training=TrainingSettings(steps="300ep"),
    )


def claim(setting: Setting) -> str:
    tuned = "no result is stated" if setting.imagenet is None else f"ImageNet {setting.imagenet:.2f}%"
    where = f"{setting.model} on {setting.data.name}, 300 epochs, level {setting.level}"
    return f"AugReg: {where}. Fine-tuned: {tuned}"


AUGREG = tuple(
    Recipe(name, partial(augreg, setting), setting.data, claim(setting)) for name, setting in SETTINGS.items()
)
