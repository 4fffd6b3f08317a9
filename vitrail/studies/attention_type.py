"""Attention along rows and columns instead of over all patches: appendix D.6, Figure 13.

An axial block is two, one along rows and one along columns, each with an MLP: half as many of them cost as much.
"""

from __future__ import annotations

from typing import Any

from vitrail.recipes.recipe import JFT
from vitrail.studies.claims import Claim, higher
from vitrail.studies.scales import COLOURS, SAME_DATA, SMALL, SMALL_DATA, SMALL_LRS, TINY, TINY_LRS
from vitrail.studies.study import Figure, Point, Scale, Study

STANDARD, AXIAL = "attention over all patches", "attention along rows and columns"


def points(depth: int, patches: dict[str, int], recipes: dict[str, str] | None = None) -> tuple[Point, ...]:
    """Return both kinds at equal FLOPs, and the axial one at equal depth, for each patch size."""
    kinds: dict[str, tuple[str, dict[str, Any]]] = {
        "standard": (STANDARD, {"depth": depth}),
        "axial, equal FLOPs": (AXIAL, {"depth": depth // 2, "block": "axial"}),
        "axial, equal depth": (AXIAL, {"depth": depth, "block": "axial"}),
    }
    return tuple(
        Point(
            f"{kind}, {name}",
            {**own, "patch_size": patch, "pool": "mean", "class_token": False},
            family,
            recipe=(recipes or {}).get(name, ""),
        )
        for kind, (family, own) in kinds.items()
        for name, patch in patches.items()
    )


LARGE, FINE = "large patches", "small patches"

ATTENTION_TYPE = Study(
    name="attention-type",
    title="Attention over all patches, or along rows and columns?",
    section="D.6, Figure 13",
    statement="Axial models are more accurate than ViTs of as many blocks, at the cost of more compute, as each "
    "block becomes two.",
    scales={
        "tiny": Scale(points(4, {LARGE: 8, FINE: 4}), TINY, COLOURS, lrs=TINY_LRS),
        "small": Scale(
            points(8, {LARGE: 16, FINE: 8}), SMALL | {"steps": "16ep"}, lrs=SMALL_LRS, **SMALL_DATA
        ),
        "paper": Scale(
            points(12, {LARGE: 32, FINE: 16}, {LARGE: "vit-b32-jft", FINE: "vit-b16-jft"}),
            {},
            transfer=("imagenet",),
            published=JFT,
        ),
    },
    scores=("5-shot", "linear", "top1"),
    figure=Figure("gflops", "GFLOPs of a forward pass"),
    claims=tuple(
        Claim(
            f"At equal depth, axial is better than standard ({name})",
            higher(f"axial, equal depth, {name}", f"standard, {name}"),
        )
        for name in (LARGE, FINE)
    ),
    remarks=(
        "All read the mean of the patches, as axial attention has no class token. Each kind has its own learning "
        "rate, of as many trials. The figure also has axial models at equal FLOPs, which the paper does not compare.",
        SAME_DATA,
    ),
)
