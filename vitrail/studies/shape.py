"""Depth, width, MLP, patch: which to grow? Appendix D.2, Figure 8.

Around a base of few layers with an MLP of twice its width, as the paper's, one dimension at a time is changed, by
amounts that cost about as much.
"""

from __future__ import annotations

from typing import Any

from vitrail.recipes.recipe import JFT
from vitrail.studies.claims import Claim, higher
from vitrail.studies.scales import COLOURS, SAME_DATA, SMALL, SMALL_DATA, SMALL_LRS, TINY, TINY_LRS
from vitrail.studies.study import Figure, Point, Scale, Study

BASE = "base"


def points(variants: dict[str, dict[str, dict[str, Any]]], recipe: str = "") -> tuple[Point, ...]:
    """Return the base, and each dimension at smaller and larger costs."""
    changed = (
        Point(f"{dimension}, {cost}", own, dimension, tune=cost == "double", recipe=recipe)
        for dimension, by_cost in variants.items()
        for cost, own in by_cost.items()
    )
    return (Point(BASE, {}, BASE, recipe=recipe), *changed)


TINY_BASE: dict[str, Any] = {
    "width": 64,
    "depth": 4,
    "heads": 2,
    "mlp_dim": 128,
    "patch_size": 8,
    "steps": 80,
}
TINY_SHAPES: dict[str, dict[str, dict[str, Any]]] = {
    "depth": {"half": {"depth": 2}, "double": {"depth": 8}, "four times": {"depth": 16}},
    "width": {"double": {"width": 104}, "four times": {"width": 160}},
    "MLP": {"double": {"mlp_dim": 384}, "four times": {"mlp_dim": 896}},
    "patch": {"four times": {"patch_size": 4}},
}
SMALL_BASE: dict[str, Any] = {"depth": 6, "mlp_dim": 384, "steps": "12ep"}
SMALL_SHAPES: dict[str, dict[str, dict[str, Any]]] = {
    "depth": {"half": {"depth": 3}, "double": {"depth": 12}, "four times": {"depth": 24}},
    "width": {
        "half": {"width": 128, "heads": 2},
        "double": {"width": 304, "heads": 4},
        "four times": {"width": 464, "heads": 8},
    },
    "MLP": {"half": {"mlp_dim": 64}, "double": {"mlp_dim": 1216}, "four times": {"mlp_dim": 2880}},
    "patch": {"four times": {"patch_size": 4}, "a quarter": {"patch_size": 16}},
}
PAPER_BASE: dict[str, Any] = {"width": 1024, "depth": 8, "heads": 16, "mlp_dim": 2048, "patch_size": 32}
PAPER_SHAPES: dict[str, dict[str, dict[str, Any]]] = {
    "depth": {"half": {"depth": 4}, "double": {"depth": 16}, "four times": {"depth": 32}},
    "width": {"half": {"width": 640}, "double": {"width": 1536}, "four times": {"width": 2304}},
    "MLP": {"double": {"mlp_dim": 6144}, "four times": {"mlp_dim": 14336}},
    "patch": {"four times": {"patch_size": 16}},
}

SHAPE = Study(
    name="shape",
    title="Which dimension of a Vision Transformer should grow?",
    section="D.2, Figure 8",
    statement="More layers help most, more width least; smaller patches, which add no parameters, help robustly.",
    scales={
        "tiny": Scale(points(TINY_SHAPES), TINY | TINY_BASE, COLOURS, lrs=TINY_LRS),
        "small": Scale(points(SMALL_SHAPES), SMALL | SMALL_BASE, lrs=SMALL_LRS, **SMALL_DATA),
        "paper": Scale(
            points(PAPER_SHAPES, "vit-b32-jft"), PAPER_BASE, transfer=("imagenet",), published=JFT
        ),
    },
    scores=("5-shot", "top1"),
    figure=Figure("gflops", "GFLOPs of a forward pass"),
    claims=(
        Claim(
            "At four times the cost, depth is better than width",
            higher("depth, four times", "width, four times"),
        ),
        Claim("Smaller patches are better than the base", higher("patch, four times", BASE)),
        Claim("Four times the layers are better than the base", higher("depth, four times", BASE)),
    ),
    remarks=(
        "The learning rate of each dimension is chosen at double the cost, that of patches on the first of them.",
        SAME_DATA,
    ),
)
