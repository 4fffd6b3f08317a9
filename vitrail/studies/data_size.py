"""How much data a ViT needs: Figures 3 and 4.

Models of one cost, as many steps for each, on growing random subsets; the step that is best on held-out train is
kept."""

from __future__ import annotations

from typing import Any

from vitrail.recipes.pretraining import TABLE_3
from vitrail.recipes.recipe import JFT
from vitrail.studies.claims import Claim, first, higher, last
from vitrail.studies.scales import COLOURS, NO_VIT, SAME_DATA, SMALL, SMALL_DATA, SMALL_LRS, TINY, TINY_LRS
from vitrail.studies.study import Figure, Paper, Point, Scale, Study
from vitrail.transfer.paper_scores import PAPER

STOP: dict[str, Any] = {"evaluate_every": "20%", "monitor": "val_top1", "patience": 2}


def points(models: dict[str, dict[str, Any]], percents: tuple[float, ...]) -> tuple[Point, ...]:
    """Return every family on every subset; random, class by class, others for each seed."""
    last_percent = f"{percents[-1]:g}%: per class, seed {{seed}}]"
    return tuple(
        Point(
            f"{family}, {percent:g}%",
            {
                **{name: value for name, value in own.items() if name != "recipe"},
                "train": f"train[:{percent:g}% per class, seed {{seed}}]",
                "val": f"train[{last_percent}",
            },
            family,
            tune=percent == percents[-1],
            recipe=own.get("recipe", ""),
        )
        for family, own in models.items()
        for percent in percents
    )


TINY_MODELS: dict[str, dict[str, Any]] = {
    "ViT": {},
    "ResNet": NO_VIT | {"model": "R26x0.5@32"},
    "hybrid": {"model": "R+Ti/16@32", "patch_size": 2, "depth": 6, "width": 96, "mlp_dim": 192},
}
SMALL_MODELS: dict[str, dict[str, Any]] = {
    "ViT": {"depth": 6},
    "ResNet": {"model": "R26x1@64"},
    "hybrid": {"model": "R+Ti/16@64", "patch_size": 2, "depth": 6},
}
PAPER_MODELS: dict[str, dict[str, Any]] = {
    family: {"recipe": recipe}
    for family, recipe in {"ViT": "vit-b32-jft", "ResNet": "r50x1-jft", "hybrid": "r50-b32-jft"}.items()
}
FIGURE_3 = tuple(
    (model, examples, PAPER[f"{model} {data}"][0])
    for model in ("B/32", "B/16", "L/32", "L/16", "H/14")
    for data, examples in (("i1k", 1.28e6), ("i21k", 14e6), ("JFT", 303e6))
    if f"{model} {data}" in PAPER
)

DATA_SIZE = Study(
    name="data-size",
    title="How much data does a Vision Transformer need?",
    section="4.3, Figures 3 and 4",
    statement="On small pre-training sets ResNets are better; Vision Transformers overfit more, and overtake them as "
    "the pre-training set grows.",
    scales={
        "tiny": Scale(points(TINY_MODELS, (3, 10, 30, 90)), TINY | STOP, COLOURS, lrs=TINY_LRS),
        "small": Scale(
            points(SMALL_MODELS, (3, 10, 30, 95)), SMALL | STOP | {"steps": 1800}, lrs=SMALL_LRS, **SMALL_DATA
        ),
        "paper": Scale(
            points(PAPER_MODELS, (3, 10, 30, 99)),
            STOP | {"steps": 7 * JFT.examples // 4096},
            transfer=("imagenet",),
            published=JFT,
        ),
    },
    scores=("5-shot", "linear", "top1"),
    figure=Figure("train_examples", "images to pre-train on"),
    paper=Paper(
        FIGURE_3,
        "Fig. 3, numbers of Table 5: ViTs pre-trained on ImageNet, ImageNet-21k, JFT-300M; top-1 on ImageNet after "
        "fine-tuning",
        "images to pre-train on",
    ),
    claims=(
        Claim(
            "On the smallest subset the ResNet is better than the ViT", higher(first("ResNet"), first("ViT"))
        ),
        Claim("On the largest subset the ViT is better than the ResNet", higher(last("ViT"), last("ResNet"))),
    ),
    remarks=(
        "All runs have as many steps; training stops early when held-out accuracy no longer rises, and the best step "
        "is kept. The learning rate of each family is chosen on the largest subset.",
        SAME_DATA,
    ),
)
assert set(PAPER_MODELS) == set(SMALL_MODELS) and all(
    own["recipe"] in TABLE_3 for own in PAPER_MODELS.values()
)
