"""The page where a person goes through the findings: keeps, relabels or drops each image, and saves decisions.json.

    DIR/findings.json, DIR/thumbnails/ ──► DIR/review.html ──► decisions.json (vitrail/data/decisions.py)

One page for a browser without a network: style and script are inside, pictures are the files in DIR/thumbnails. Its
content security policy allows that script alone, by its digest, and fetches nothing else. Findings are strangers'
text: they are data for the script, which makes text of them, never HTML. page/ has its parts.
"""

from __future__ import annotations

from pathlib import Path

from vitrail.curate.findings import THUMBNAILS, Findings, read_findings, thumbnail_name
from vitrail.runtime.html_page import script_data, text, write_html

NAME = "review.html"
PAGE = Path(__file__).parent / "page"
# In this order: each uses those before it.
SCRIPTS = ("elements.js", "decisions.js", "charts.js", "choice.js", "stage.js", "main.js")


def write_review(folder: str | Path) -> Path:
    """Write DIR/review.html for DIR/findings.json; return its path."""
    folder = Path(folder)
    findings = read_findings(folder)
    contents = findings | {"thumbnails": thumbnails(findings, folder)}
    path = folder / NAME
    write_html(
        path, PAGE / "review.html", title=f"Review of {Path(findings['data']).name or findings['data']}",
        scripts=[PAGE / name for name in SCRIPTS], images="'self' file:", about=text(about(findings)),
        data=script_data(contents),
    )  # fmt: skip
    return path


def about(findings: Findings) -> str:
    """Describe what was checked, in a sentence."""
    f, reviewed = findings, len({one["index"] for one in findings["findings"]})
    return (
        f"{f['data']}, split {f['split']}: {f['images']:,} images in {len(f['classes']):,} classes, checked with "
        f"{f['model']}; {reviewed:,} to review."
    )


def thumbnails(findings: Findings, folder: Path) -> list[int]:
    """Return the images that are named in the findings and have a small picture, by their index."""
    there = {path.name for path in (folder / THUMBNAILS).glob("*.jpg")}
    named = {one["index"] for one in findings["findings"]}
    named |= {near["index"] for one in findings["findings"] for near in one["neighbours"]}
    return sorted(index for index in named if Path(thumbnail_name(index)).name in there)
