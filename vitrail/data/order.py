"""Order of the examples: an endless stream of positions, and the generators that everything random is drawn from.

    position p -> (epoch, index)       each epoch a permutation of its own, from (seed, epoch)

loader.py makes batches of it.
"""

from __future__ import annotations

import numpy as np

# Purpose of a random generator: the last word of its seed, so that no two of these share a stream.
ORDER, EXAMPLE, MIX, MASK = range(4)


class Order:
    """position -> (epoch, index): each epoch a permutation of its own; without a seed, one pass in order."""

    def __init__(self, n: int, seed: int | None) -> None:
        self.n, self.seed = n, seed
        self.permutations: dict[int, np.ndarray] = {}  # of the epochs in use

    def at(self, position: int) -> tuple[int, int]:
        """Return (epoch, index); past the end of a pass in order there is padding, index -1."""
        epoch, place = divmod(position, self.n)
        if self.seed is None:
            return 0, place if not epoch else -1
        if epoch not in self.permutations:
            # A batch lies in one or two epochs, but for tiny data: keep the last few.
            self.permutations = {e: p for e, p in self.permutations.items() if epoch - 2 <= e <= epoch + 2}
            rng = generator(self.seed, epoch, 0, ORDER)
            self.permutations[epoch] = rng.permutation(self.n).astype(np.int64)
        return epoch, int(self.permutations[epoch][place])


def generator(seed: int, epoch: int, index: int, purpose: int, number: int = 0) -> np.random.Generator:
    """Return the generator of draw `number` of an example; the key of the first draw has no number."""
    return np.random.default_rng((seed, epoch, index, purpose, *([number] if number else [])))


def with_partners(slots: np.ndarray, partner: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Map own slots to the slots to read, own first, and for each own one the row of its partner among them."""
    beyond = np.setdiff1d(partner[slots], slots)
    read = np.concatenate([slots, beyond])
    row = {int(slot): i for i, slot in enumerate(read)}
    return read, np.array([row[int(p)] for p in partner[slots]])
