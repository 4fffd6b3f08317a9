"""A study of a second or two, which other tests run."""

import csv

from vitrail.studies import Choices, Claim, Point, Scale, Study, higher, run_study
from vitrail.studies.names import STUDIES
from vitrail.studies.scales import TINY

DATA = "shapes:colour?n=240&image_size=32"
SMALLER = ("steps=3", "batch_size=8", "log_every=1", "save_every=1")

# A study of a person's own, as docs/studies.md has it.
PATCHES = Study(
    name="patches",
    title="Large or small patches?",
    section="3.1",
    statement="Smaller patches are better.",
    scales={
        "tiny": Scale(
            points=(Point("8 pixels", {"patch_size": 8}), Point("16 pixels", {"patch_size": 16})),
            settings=TINY | {"width": 16, "heads": 2, "depth": 1},
            data=DATA,
            lrs=(1e-3, 3e-3),
        )
    },
    claims=(Claim("8 pixels are better than 16", higher("8 pixels", "16 pixels")),),
)


def run(study, out, machine=None, **choices):
    """Run a study quickly."""
    choices = {"seeds": 1, "override": SMALLER, "data": DATA} | choices
    return run_study(study, Choices(**choices), out, machine, device="cpu")


def two_points(name):
    """Return two points of a study at tiny that are quick: plain ViTs where there are any, of two families."""
    points = [point for point in STUDIES[name].scales["tiny"].points if point.scored]
    return points[0].name, points[1 if name == "optimizer" else -1].name


def table(folder):
    """Return results.csv without what the clock says."""
    with (folder / "results.csv").open(newline="") as file:
        return [{k: v for k, v in row.items() if k != "seconds"} for row in csv.DictReader(file)]
