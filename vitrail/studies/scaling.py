"""Accuracy against the compute of pre-training: Figure 5 and Table 6."""

from __future__ import annotations

from typing import Any

from vitrail.recipes.pretraining import TABLE_3
from vitrail.recipes.recipe import JFT
from vitrail.studies.claims import Claim, cheaper, equal, first, higher, last
from vitrail.studies.scales import (
    COLOURS,
    NO_VIT,
    PERCENT,
    SAME_DATA,
    SMALL,
    SMALL_DATA,
    SMALL_LRS,
    TINY,
    TINY_LRS,
)
from vitrail.studies.study import Figure, Paper, Point, Scale, Study

# Table 6: family, model, exaFLOPs of pre-training, top-1 on ImageNet.
TABLE_6 = (
    ("ViT", "B/32", 55, 80.73), ("ViT", "B/16", 224, 84.15), ("ViT", "L/32", 196, 84.37), ("ViT", "L/16", 783, 86.30),
    ("ViT", "L/16", 1567, 87.12), ("ViT", "H/14", 4262, 88.08), ("ResNet", "R50x1", 50, 77.54),
    ("ResNet", "R50x2", 199, 82.12), ("ResNet", "R101x1", 96, 80.67), ("ResNet", "R152x1", 141, 81.88),
    ("ResNet", "R152x2", 563, 84.97), ("ResNet", "R152x2", 1126, 85.56), ("ResNet", "R200x3", 3306, 87.22),
    ("hybrid", "R50+B/32", 106, 84.90), ("hybrid", "R50+B/16", 274, 85.58), ("hybrid", "R50+L/32", 246, 85.68),
    ("hybrid", "R50+L/16", 859, 86.60), ("hybrid", "R50+L/16", 1668, 87.12),
)  # fmt: skip


def points(models: dict[str, dict[str, dict[str, Any]]], lengths: tuple[Any, ...]) -> tuple[Point, ...]:
    """Return every model of each family at every length; the learning rate is chosen on the middle one, short."""
    return tuple(
        Point(
            f"{family}, {name}, {str(length).replace('ep', ' epochs')}{'' if 'ep' in str(length) else ' steps'}",
            own | {"steps": length},
            family,
            tune=length == lengths[0] and name == list(members)[len(members) // 2],
        )
        for family, members in models.items()
        for length in lengths
        for name, own in members.items()
    )


TINY_MODELS: dict[str, dict[str, dict[str, Any]]] = {
    "ViT": {"depth 2": {"depth": 2}, "depth 6": {"depth": 6}},
    "ResNet": {"R14x0.5": NO_VIT | {"model": "R14x0.5@32"}, "R26x0.5": NO_VIT | {"model": "R26x0.5@32"}},
    "hybrid": {
        f"depth {depth}": {
            "model": "R+Ti/16@32",
            "patch_size": 2,
            "depth": depth,
            "width": 96,
            "mlp_dim": 192,
        }
        for depth in (2, 10)
    },
}
SMALL_MODELS: dict[str, dict[str, dict[str, Any]]] = {
    "ViT": {"Ti/16": {"model": "Ti/16@64"}, "Ti/8 of 6 layers": {"depth": 6}, "Ti/8": {}},
    "ResNet": {name: {"model": f"{name}@64"} for name in ("R14x1", "R26x1", "R50x1")},
    "hybrid": {
        f"R+Ti of {depth} layers": {"model": "R+Ti/16@64", "patch_size": 2, "depth": depth}
        for depth in (3, 6, 12)
    },
}

PAPER_POINTS = tuple(
    Point(
        f"{'hybrid' if '+' in row.model else 'ResNet' if row.model.startswith('R') else 'ViT'}, {row.model}, "
        f"{row.epochs} epochs",
        family="hybrid" if "+" in row.model else "ResNet" if row.model.startswith("R") else "ViT",
        recipe=name,
    )
    for name, row in TABLE_3.items()
    if row.data is JFT
)

SCALING = Study(
    name="scaling",
    title="Accuracy against the compute of pre-training",
    section="4.4, Figure 5 and Table 6",
    statement="Vision Transformers need two to four times less compute than ResNets for the same accuracy; hybrids "
    "are a little better than ViTs at small budgets, and the difference vanishes for larger models.",
    scales={
        "tiny": Scale(points(TINY_MODELS, (20, 60)), TINY, COLOURS, lrs=TINY_LRS),
        "small": Scale(points(SMALL_MODELS, ("5ep", "12ep")), SMALL, lrs=SMALL_LRS, **SMALL_DATA),
        "paper": Scale(PAPER_POINTS, {"test": "none"}, transfer=("imagenet",), published=JFT),
    },
    scores=("linear", "5-shot"),
    figure=Figure("exaflops", "exaFLOPs of pre-training", fit=True),
    paper=Paper(
        tuple((family, flops, top1) for family, _, flops, top1 in TABLE_6),
        "Table 6: pre-trained on JFT-300M, top-1 on ImageNet after fine-tuning",
        "exaFLOPs of pre-training",
    ),
    claims=(
        Claim("ViTs need at least two times less compute than ResNets", cheaper("ViT", "ResNet", 2)),
        Claim("Hybrids need less compute than ResNets", cheaper("hybrid", "ResNet")),
        Claim(
            "At the smallest budget the hybrid is better than the ViT", higher(first("hybrid"), first("ViT"))
        ),
        Claim("At the largest it is as good", equal(last("hybrid"), last("ViT"), PERCENT)),
    ),
    remarks=("The learning rate of each family is chosen on its middle model.", SAME_DATA),
)
