"""findings.json: what `vitrail data check` found in a data set, for the page where it is reviewed.

    DIR/findings.json   what was checked, and the findings, of each kind the most suspicious first
    DIR/thumbnails/     a small JPEG file of each image that is named in it and can be read

The file may come from a stranger: it is read within limits, and checked against these types; each label is one of
its classes, each index one of its images, and a thumbnail is a file in DIR/thumbnails, never elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, TypedDict, get_args

from vitrail.checkpoints.json_files import Count, Number, check_kind, read_object, save_json
from vitrail.errors import CheckpointError, DataError
from vitrail.runtime.files import atomic_file

NAME, FORMAT, VERSION = "findings.json", "vitrail findings", 1
THUMBNAILS = "thumbnails"  # the folder
MAX_BYTES = 64 << 20  # of the file
MAX_NEIGHBOURS = 20  # of a finding

Kind = Literal["label", "outlier", "duplicate", "unreadable", "blur", "dark", "bright", "odd_size"]
KINDS: tuple[Kind, ...] = get_args(Kind)
Origin = Literal["file size", "border", "size", "metadata"]
ORIGINS: tuple[Origin, ...] = get_args(Origin)


class SimilarImage(TypedDict):
    """An image that is near to another."""

    key: str
    index: Count
    label: str
    similarity: Number  # cosine of the features


class Finding(TypedDict):
    """Something that may be wrong with one image."""

    key: str  # as the source names it
    index: Count  # in the source
    kind: str  # one of KINDS
    label: str
    suggested: str | None  # another class
    score: Number  # 0 to 1; higher is worse
    reason: str  # a sentence
    neighbours: list[SimilarImage]  # nearest first
    copy_of: str | None  # key of an image that is the same picture
    thumbnail: str | None  # thumbnails/000123.jpg


class ConfusedPair(TypedDict):
    """Two classes that are mistaken for each other."""

    classes: list[str]  # two
    confused: Count  # images of one that are predicted as the other
    of: Count  # images of both


class Curve(TypedDict):
    """Accuracy by the number of images, with 95% intervals."""

    images_per_class: list[Number]
    accuracy: list[Number]
    low: list[Number]
    high: list[Number]
    more: str  # a sentence: what twice the images would bring


# By call: `from` is a word of Python.
Shortcut = TypedDict(
    "Shortcut",
    {
        "from": str,  # one of ORIGINS
        "accuracy": Number,  # by this alone
        "interval": list[Number],  # low, high
        "chance": Number,
        "reason": str,
    },
)


class Findings(TypedDict):
    """The contents of findings.json."""

    format: str
    version: int
    data: str  # as it was named
    split: str
    fingerprint: str  # of the source
    model: str  # as it was named
    classes: list[str]
    images: Count  # of the source, unreadable ones too
    findings: list[Finding]
    pairs: list[ConfusedPair]  # the most confused first
    curve: Curve | None  # None where there are too few images
    shortcuts: list[Shortcut]


def read_findings(folder: str | Path) -> Findings:
    """Read DIR/findings.json, and check it; DataError where anything is not as `write_findings` wrote it."""
    path = Path(folder) / NAME
    if not path.exists():
        raise DataError(f"{folder} has no {NAME}: it is no folder that `vitrail data check` wrote")
    try:
        contents: Any = read_object(path, most=MAX_BYTES)
        if (contents.get("format"), contents.get("version")) != (FORMAT, VERSION):
            form, version = contents.get("format"), contents.get("version")
            raise DataError(
                f"{path} is of {form!r:.40}, version {version!r:.40}; this vitrail reads {FORMAT!r}, "
                f"version {VERSION}"
            )
        check_kind(contents, Findings, str(path))
    except CheckpointError as error:
        raise DataError(str(error)) from error
    if (problem := next(problems(contents), None)) is not None:
        raise DataError(f"{path}: {problem}: the file is damaged, or was edited by hand")
    findings: Findings = contents
    return findings


def write_findings(findings: Findings, folder: Path) -> Path:
    """Write DIR/findings.json."""
    assert not [*problems(findings)], next(problems(findings))
    with atomic_file(folder / NAME) as temporary:
        save_json(findings, temporary)
    return folder / NAME


def thumbnail_name(index: int) -> str:
    """Return the path of the small picture of an image, relative to the folder."""
    return f"{THUMBNAILS}/{index:06d}.jpg"


def problems(contents: Findings) -> Iterator[str]:
    """Yield what the types do not say and is not right."""
    classes = set(contents["classes"])
    if len(classes) < len(contents["classes"]):
        yield "a class appears twice"
    seen = set()
    for number, finding in enumerate(contents["findings"]):
        where = f"finding {number}"
        yield from (f"{where}: {problem}" for problem in finding_problems(finding, contents, classes))
        if (identity := (finding["kind"], finding["index"])) in seen:
            yield f"{where}: the image {finding['index']} has two findings {finding['kind']!r:.40}"
        seen.add(identity)
    for pair in contents["pairs"]:
        if len(pair["classes"]) != 2 or not classes.issuperset(pair["classes"]):
            yield f"pair {pair['classes']!r:.80} is not of two of the classes"
        if pair["confused"] > pair["of"]:
            yield f"pair {pair['classes']!r:.80}: {pair['confused']} confused of {pair['of']}"
    if (curve := contents["curve"]) is not None:
        lists: list[Any] = [curve[name] for name in ("images_per_class", "accuracy", "low", "high")]
        if len({len(one) for one in lists}) > 1:
            yield "the lists of the curve differ in length"
    for shortcut in contents["shortcuts"]:
        if shortcut["from"] not in ORIGINS or len(shortcut["interval"]) != 2:
            yield f"shortcut from {shortcut['from']!r:.40}"


def finding_problems(finding: Finding, contents: Findings, classes: set[str]) -> Iterator[str]:
    if finding["kind"] not in KINDS:
        yield f"kind {finding['kind']!r:.40} is not one of {', '.join(KINDS)}"
    if not 0 <= finding["score"] <= 1:
        yield f"score {finding['score']} is not between 0 and 1"
    if len(finding["neighbours"]) > MAX_NEIGHBOURS:
        yield f"{len(finding['neighbours'])} neighbours; at most {MAX_NEIGHBOURS} are read"
    suggested = [] if finding["suggested"] is None else [finding["suggested"]]
    for label in (finding["label"], *suggested, *(one["label"] for one in finding["neighbours"])):
        if label not in classes:
            yield f"{label!r:.40} is not one of the classes"
    for index in (finding["index"], *(one["index"] for one in finding["neighbours"])):
        if index >= contents["images"]:
            yield f"index {index} of {contents['images']} images"
    picture = finding["thumbnail"]
    if picture is not None and not re.fullmatch(rf"{THUMBNAILS}/[0-9]{{1,20}}\.jpg", picture):
        yield f"thumbnail {picture!r:.40} is not a file {THUMBNAILS}/NUMBER.jpg"
