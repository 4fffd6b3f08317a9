"""Hybrids: patches are taken from the feature map of a ResNet stem instead of the image (section 3.1).

The paper has two ways to take features out of a ResNet-50 (4.2): (i) after stage 4, one token for 32 pixels;
(ii) stage 4 left out and its layers moved to stage 3, (3, 4, 9), one token for 16 pixels.

The name R+Ti/16 is misleading: its root halves the image twice and patches of 8 follow, so its tokens are 32 pixels
apart (50 tokens at 224), as the published parameter count confirms.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from torch import Tensor

from vitrail.errors import ConfigError
from vitrail.models.initialisation import initialise
from vitrail.models.resnet import UNITS, Stem, StemConfig
from vitrail.models.vit import ViT, ViTConfig

# name: (units of the stem, ViT variant, patch size on the stem's feature map)
HYBRIDS: dict[str, tuple[tuple[int, ...], str, int]] = {
    "R+Ti/16": ((), "Ti", 8),
    "R50+S/8": ((3, 4), "S", 1),  # not in the paper, for small images: (i) after stage 2; and below, (ii)
    "R50+S/16": ((3, 4, 9), "S", 1),
    "R26+S/32": (UNITS["R26"], "S", 1),
    "R26+B/32": (UNITS["R26"], "B", 1),
    "R50+B/32": (UNITS["R50"], "B", 1),
    "R50+B/16": ((3, 4, 9), "B", 1),
    "R50+L/32": (UNITS["R50"], "L", 1),
    "R50+L/16": ((3, 4, 9), "L", 1),
}


@dataclass(frozen=True)
class HybridConfig(ViTConfig):
    """A ViT with a ResNet stem in front. `patch_size` is counted on the stem's feature map."""

    patch_size: int = 1
    stem: StemConfig = field(default_factory=StemConfig)

    def __post_init__(self) -> None:
        if isinstance(self.stem, dict) and set(self.stem) <= {f.name for f in fields(StemConfig)}:
            object.__setattr__(self, "stem", StemConfig(**self.stem))
        if not isinstance(self.stem, StemConfig):
            raise ConfigError(f"stem={self.stem!r} is neither a StemConfig nor a dict of its fields")
        super().__post_init__()

    @property
    def stride(self) -> int:
        return self.stem.stride * self.patch_size

    @property
    def embedded_channels(self) -> int:
        return self.stem.width


class Hybrid(ViT):
    """images (B, C, H, W) -> logits (B, classes)."""

    config: HybridConfig

    def __init__(self, config: HybridConfig) -> None:
        super().__init__(config)
        self.stem = Stem(config.stem, config.channels)
        initialise(self.stem, prefix="stem.")

    def patches(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, N, D)."""
        return self.embedding(self.stem(x))
