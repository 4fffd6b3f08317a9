"""Which patches of an example are corrupted, for masked patch prediction (appendix B.1.2).

Half of the patch embeddings are corrupted: 80% of those become a learnable [mask] embedding, 10% another patch's
embedding, 10% stay as they are; all of the corrupted are predicted. The number of corrupted patches is the same
for every example (shapes stay fixed); which of the three happens is drawn for each patch by itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vitrail.errors import ConfigError

# Codes of `corruption`.
INTACT, MASKED, REPLACED, KEPT = range(4)


@dataclass(frozen=True)
class Masking:
    patches: int  # N
    corrupted: float = 0.5  # part of the patches that are corrupted, and predicted
    masked: float = 0.8  # of these: become the [mask] embedding
    replaced: float = 0.1  # of these: become another patch of the same image; the rest is kept

    def __post_init__(self) -> None:
        if self.patches < 2 or not 0 < self.corrupted <= 1 or min(self.masked, self.replaced) < 0:
            raise ConfigError(f"{self}: at least 2 patches, corrupted in (0, 1], no negative part")
        if self.masked + self.replaced > 1:
            raise ConfigError(f"masked {self.masked} and replaced {self.replaced} are together more than 1")

    @property
    def count(self) -> int:
        """Corrupted patches of an example."""
        return max(1, round(self.patches * self.corrupted))


def draw_mask(masking: Masking, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """corruption, int8 (N,): a code for each patch; other, int64 (N,): whose embedding a replaced one gets."""
    N = masking.patches
    chosen = rng.permutation(N)[: masking.count]
    u = rng.random(len(chosen))
    corruption = np.zeros(N, np.int8)
    corruption[chosen] = np.where(
        u < masking.masked, MASKED, np.where(u < masking.masked + masking.replaced, REPLACED, KEPT)
    )
    other = (np.arange(N) + rng.integers(1, N, size=N)) % N  # never itself
    return corruption, np.where(corruption == REPLACED, other, np.arange(N))
