"""The verb data check: what is wrong with a data set."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, arg

from vitrail.cli.verb import COMMON, READING, Common, Output, Reading, table

if TYPE_CHECKING:
    from vitrail.curate.findings import Findings

SHOWN = 3  # of each kind
PAIRS = 3
TITLES = {
    "label": "label that the other images contradict",
    "outlier": "unlike all other images",
    "duplicate": "copy of another image",
    "unreadable": "unreadable",
    "blur": "blurred",
    "dark": "dark",
    "bright": "washed out",
    "odd_size": "odd size",
}


def data_check(
    data: Annotated[Positional[str], arg(metavar="DATA")],
    *,
    out: str,
    model: str = "ti8-64",
    split: str | None = None,
    max_findings: int = 1000,
    which: str = "pre_logits",
    cache: Path | None = None,
    batch_size: int = 64,
    num_workers: int = 0,
    reading: Reading = READING,
    common: Common = COMMON,
) -> Output:
    """Find what is wrong with a data set: label errors, outliers, copies, broken and odd images, shortcuts.

    Args:
        data: a folder, Parquet or tar shards, an .npz, or a name of the catalog
        out: folder for the findings
        model: an included model (ti8-64), a bundle, a run, any supported checkpoint, or an exported file
        split: which part of the data set; if unset, train, or all of a folder that has no splits of its own
        max_findings: findings of a kind that are listed, the worst
        which: features: pre_logits (the input of the classifier), token, mean, layer3 (any layer), layer3.token,
            layer3.mean
        cache: folder that keeps features; if unset, VITRAIL_CACHE or ~/.cache/vitrail
        batch_size: images in a forward pass
        num_workers: processes that decode
    """
    from vitrail.curate.check_data import check_data
    from vitrail.curate.review import write_review
    from vitrail.inference.features import Extraction

    loaded = reading.open(model, common.device)
    extraction = Extraction(which, cache, batch_size=batch_size, num_workers=num_workers)
    findings = check_data(
        loaded, data, out, split=split, name=model, max_findings=max_findings, extraction=extraction
    )
    page = write_review(out)
    body, lines = describe(findings)
    result: dict[str, Any] = {"out": out, "page": str(page), **findings}
    return Output(common, [], [], result, body=body, after=[*lines, f"Next: open {page}"])


def describe(findings: Findings) -> tuple[Any, list[str]]:
    """Return tables of the findings of each kind with the worst few, and lines on classes, curve and shortcuts."""
    from rich.console import Group
    from rich.text import Text

    from vitrail.curate.check_data import count_kinds
    from vitrail.data.readers.class_names import readable

    counts = count_kinds(findings)
    rows = [[TITLES[kind], f"{count:,}"] for kind, count in counts.items()]
    body: list[Any] = [
        Text(f"{findings['data']}, {findings['split']}: {findings['images']:,} images"),
        table(["finding", ">images"], rows or [["none", "0"]]),
    ]
    lines = []
    for kind in counts:
        some = [one for one in findings["findings"] if one["kind"] == kind][:SHOWN]
        lines += [f"{kind}: {one['key']} ({readable(one['label'])}). {one['reason']}" for one in some]
    if findings["pairs"]:
        pairs = (
            f"{' / '.join(map(readable, pair['classes']))} ({pair['confused']:,} of {pair['of']:,})"
            for pair in findings["pairs"][:PAIRS]
        )
        lines.append(f"Most confused: {', '.join(pairs)}")
    if (curve := findings["curve"]) is not None:
        points = zip(curve["accuracy"], curve["low"], curve["high"], curve["images_per_class"], strict=True)
        accuracies = (f"{a:.1%} ({100 * low:.1f}-{high:.1%}) with {n:.1f}" for a, low, high, n in points)
        lines.append(f"Accuracy by images of a class: {', '.join(accuracies)}. {curve['more']}")
    for shortcut in findings["shortcuts"]:
        low, high = shortcut["interval"]
        lines.append(f"Shortcut: {shortcut['reason']} (95%: {low:.1%} to {high:.1%})")
    return Group(*body), lines
