"""The models that come with the package, known by name: vitrail.load("ti8-64") needs no file and no network.

    path or name  --locate_weights-->  the path; for a run, its model/; for an included model, vitrail/assets/NAME/;
                                       for hub:OWNER/NAME, where repositories.py has put it

Such a folder holds a bundle in half precision (bundle.py) and a README.md, the model's card. A path takes precedence:
a name means an included model only if there is no file or folder of that name.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vitrail.checkpoints.bundle import CARD, WEIGHTS, read_card
from vitrail.checkpoints.repositories import fetch, is_hub_name
from vitrail.errors import CheckpointError
from vitrail.runtime.files import restore_folder

ASSETS = Path(__file__).parents[1] / "assets"
# name: description
INCLUDED: dict[str, str] = {
    "ti8-64": "a Ti/8 for images of 64 pixels, trained on the 200 classes of Tiny-ImageNet",
}


def locate_weights(path_or_name: str | Path) -> Path | None:
    """Return where the weights are; None if there are none, as for the name of an architecture."""
    if is_hub_name(path_or_name):
        return fetch(str(path_or_name)).folder
    path = Path(path_or_name)
    restore_folder(path)
    if path != Path() and path.exists():
        if not (path / "run.json").is_file() or not (path / "model").is_dir():
            return path
        if (path / "model").is_symlink():  # perhaps in somebody else's run
            raise CheckpointError(f"{path / 'model'} is a link, which is not followed: use its target")
        return path / "model"
    return ASSETS / str(path_or_name) if str(path_or_name) in INCLUDED else None


def list_included() -> list[dict[str, Any]]:
    """Return for each included model its name, description, bytes, metrics and license."""
    models = []
    for name, about in INCLUDED.items():
        size = sum((ASSETS / name / file).stat().st_size for file in (WEIGHTS, CARD))
        card = read_card(ASSETS / name / CARD)
        entry = {"name": name, "about": about, "bytes": size}
        models.append(entry | {"metrics": card["metrics"], "license": card["license"]})
    return models
