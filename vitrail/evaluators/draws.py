"""Examples that few-shot learns from: orders of the examples of a class, of which the first `shots` are taken.

    vitrail      shuffled by (seed, class), the same from one release of numpy to the next
    big_vision   shuffled as big_vision does (evaluators/fewshot_lsr.py): its seeds are these seeds
    scenic       in the order of the data, whatever the seed (train_lib/transfer/fewshot_utils.py)

Their examples are drawn where the data is in their order, that of TFDS. numpy is imported when it is needed, so that
`--help`, which names the choices, answers at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import numpy as np

Draws = Literal["vitrail", "big_vision", "scenic"]


def ordered_classes(labels: np.ndarray, classes: int, seed: int, draws: Draws) -> list[np.ndarray]:
    """Return the examples of each class in the order in which they are taken."""
    import numpy as np

    from vitrail.data.splits import class_members, shuffled_classes

    if draws == "vitrail":
        return shuffled_classes(labels, classes, seed)
    members = class_members(labels, classes)
    if draws == "scenic":
        return members
    rng = np.random.default_rng(seed)  # one for all classes, in their order
    return [rng.permutation(those) for those in members]
