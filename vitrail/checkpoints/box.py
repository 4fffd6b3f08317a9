"""The models that come with the package, known by name: vitrail.load("ti8-64") needs no file and no network.

    a path or a name  --located-->  the path; of a run, its model/; or for a name in the BOX  vitrail/assets/NAME/

Such a folder holds a bundle in half precision (bundle.py) and a README.md, which is the model's card. What stands on
the disk under the name of a model in the box goes first: the name means the box only where there is no such path.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vitrail.checkpoints.bundle import CARD, WEIGHTS, read_card
from vitrail.errors import CheckpointError
from vitrail.runtime.files import restore_folder

ASSETS = Path(__file__).parents[1] / "assets"
# name: what it is
BOX: dict[str, str] = {
    "ti8-64": "a Ti/8 for images of 64 pixels, trained on the 200 classes of Tiny-ImageNet",
}


def located(path_or_name: str | Path) -> Path | None:
    """Where the weights are that a person means; None where there are none, as for an architecture's name."""
    path = Path(path_or_name)
    restore_folder(path)
    if path != Path() and path.exists():
        if not (path / "run.json").is_file() or not (path / "model").is_dir():
            return path
        if (path / "model").is_symlink():  # in a run of somebody else's
            raise CheckpointError(f"{path / 'model'} is a link, which is not followed: name what it leads to")
        return path / "model"
    return boxed(str(path_or_name))


def boxed(name: str) -> Path | None:
    """The folder of a model in the box; None where the box has none of that name."""
    return ASSETS / name if name in BOX else None


def contents() -> list[dict[str, Any]]:
    """Of each model in the box: name, what it is, bytes of its bundle, and the scores and license that it carries."""
    made = []
    for name, about in BOX.items():
        folder = ASSETS / name
        size = sum((folder / file).stat().st_size for file in (WEIGHTS, CARD))
        card = read_card(folder / CARD)
        told = {"metrics": card["metrics"], "license": card["license"]}
        made.append({"name": name, "about": about, "bytes": size, **told})
    return made
