"""Accuracies of the paper's fine-tuned models: its Tables 5 and 6, in percent.

A model is named by its architecture and its pre-training data: `B/16 i21k`. Where the tables differ (H/14 on JFT),
Table 5 is used. Three models were trained twice: the plain name is the run of 14 epochs, `L/16 JFT 7ep` the shorter.
"""

from __future__ import annotations

import re
from pathlib import Path

from vitrail.errors import ConfigError

DATA = ("imagenet", "real", "cifar10", "cifar100", "pets", "flowers102")
PAPER: dict[str, tuple[float, ...]] = {
    "B/16 i1k": (77.91, 83.57, 98.13, 87.13, 93.81, 89.49),
    "B/32 i1k": (73.38, 79.56, 97.77, 86.31, 92.04, 85.43),
    "L/16 i1k": (76.53, 82.19, 97.86, 86.35, 93.64, 89.66),
    "L/32 i1k": (71.16, 77.83, 97.94, 87.07, 91.35, 86.36),
    "B/16 i21k": (83.97, 88.35, 98.95, 91.67, 94.43, 99.38),
    "B/32 i21k": (81.28, 86.63, 98.79, 91.97, 93.02, 99.11),
    "L/16 i21k": (85.15, 88.40, 99.16, 93.44, 94.73, 99.61),
    "L/32 i21k": (80.99, 85.65, 99.13, 93.04, 93.09, 99.19),
    "H/14 i21k": (85.13, 88.70, 99.27, 93.82, 94.82, 99.51),
    "B/16 JFT": (84.15, 88.85, 99.00, 91.87, 95.80, 99.56),
    "B/32 JFT": (80.73, 86.27, 98.61, 90.49, 93.40, 99.27),
    "L/16 JFT": (87.12, 89.99, 99.38, 94.04, 97.11, 99.56),
    "L/16 JFT 7ep": (86.30, 89.43, 99.38, 93.46, 96.81, 99.66),
    "L/32 JFT": (84.37, 88.28, 99.19, 92.52, 95.83, 99.45),
    "H/14 JFT": (88.04, 90.33, 99.50, 94.55, 97.56, 99.68),
    "R50x1 JFT": (77.54, 84.56, 97.67, 86.07, 91.11, 94.26),
    "R50x2 JFT": (82.12, 87.94, 98.29, 89.20, 93.43, 97.02),
    "R101x1 JFT": (80.67, 87.07, 98.48, 89.17, 94.08, 95.95),
    "R152x1 JFT": (81.88, 87.96, 98.82, 90.22, 94.17, 96.94),
    "R152x2 JFT": (85.56, 89.89, 99.24, 91.92, 95.75, 98.75),
    "R152x2 JFT 7ep": (84.97, 89.69, 99.06, 92.05, 95.37, 98.62),
    "R200x3 JFT": (87.22, 90.15, 99.34, 93.53, 96.32, 99.04),
    "R50+B/32 JFT": (84.90, 89.15, 99.01, 92.24, 95.75, 99.46),
    "R50+B/16 JFT": (85.58, 89.65, 99.14, 92.63, 96.65, 99.40),
    "R50+L/32 JFT": (85.68, 89.04, 99.24, 92.93, 96.97, 99.43),
    "R50+L/16 JFT": (87.12, 89.76, 99.31, 93.89, 97.36, 99.11),
    "R50+L/16 JFT 7ep": (86.60, 89.72, 99.18, 93.64, 97.03, 99.40),
}
PRETRAINED = {
    "i21k": ("i21k", "imagenet21k", "in21k"),
    "JFT": ("jft",),
    "i1k": ("i1k", "in1k", "imagenet1k", "imagenet2012"),
}
# In names of other models of the same architectures: AugReg's files, shorter training, no labels.
OTHER_TRAINING = ("aug", "300ep", "30ep", "masked")
OTHER_NAMES = {"oxford_iiit_pet": "pets", "oxford_flowers102": "flowers102", "imagenet2012": "imagenet"}


def paper_model(asked: str | None, model: str) -> str | None:
    """Return the row that is named, else the one in a file's name, such as vit-b16-i21k, or None.

    Of two training lengths it is the shorter, as in our recipes, unless the name says 14ep.
    """
    if asked is not None:
        if asked not in PAPER:
            raise ConfigError(f"the paper's Tables 5 and 6 have no {asked!r}; they have: {', '.join(PAPER)}")
        return asked
    name = re.sub(r"[^a-z0-9]|vit", "", Path(model).name.lower())
    if any(word in name for word in OTHER_TRAINING):
        return None
    data = [kind for kind, words in PRETRAINED.items() if any(word in name for word in words)]
    if len(data) != 1:
        return None  # no pre-training data is named, or several, as by a fine-tuned checkpoint
    rows = [row for row in PAPER if row.endswith(f" {data[0]}")]
    fits = [row for row in rows if architecture(row) in name and stem(architecture(row)) == stem(name)]
    row = max(fits, key=lambda row: len(architecture(row)), default=None)  # r50x1 is in r50x10
    return f"{row} 7ep" if f"{row} 7ep" in PAPER and "14ep" not in name else row


def architecture(row: str) -> str:
    return re.sub(r"[^a-z0-9]", "", row.partition(" ")[0].lower())


def stem(name: str) -> str | None:
    """Return the ResNet in a name: r50b16 is not b16."""
    match = re.search("r(26|50|101|152|200)", name)
    return None if match is None else match[0]


def paper_score(row: str | None, data: str) -> float | None:
    """Return the accuracy of a fine-tuned model on a data set; None where the paper has none."""
    name = OTHER_NAMES.get(data, data)
    return None if row is None or name not in DATA else PAPER[row][DATA.index(name)] / 100
