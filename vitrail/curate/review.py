"""The page where a person goes through the findings: keeps, relabels or drops each image, and saves decisions.json.

    DIR/findings.json, DIR/thumbnails/ ──► DIR/review.html ──► decisions.json (vitrail/data/decisions.py)

One page for a browser without a network: style and script are inside, pictures are the files in DIR/thumbnails. Its
content security policy allows that script alone, by its digest, and fetches nothing else. Findings are strangers'
text: they are data for the script, which makes text of them, never HTML. page/ has its parts.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from pathlib import Path
from string import Template

from vitrail.curate.findings import THUMBNAILS, Findings, read_findings, thumbnail_name
from vitrail.runtime.files import atomic_file
from vitrail.runtime.log import visible

NAME = "review.html"
PAGE = Path(__file__).parent / "page"
LOOK = Path(__file__).parents[1] / "assets" / "look" / "look.css"
# In this order: each uses those before it.
SCRIPTS = ("elements.js", "decisions.js", "charts.js", "choice.js", "stage.js", "main.js")


def write_review(folder: str | Path) -> Path:
    """Write DIR/review.html for DIR/findings.json; return its path."""
    folder = Path(folder)
    findings = read_findings(folder)
    contents = findings | {"thumbnails": thumbnails(findings, folder)}
    parts = [(PAGE / name).read_text(encoding="utf-8") for name in SCRIPTS]
    script = '"use strict";\n{\n' + "\n".join(parts) + "}\n"
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    page = Template((PAGE / "review.html").read_text(encoding="utf-8")).substitute(
        title=text(f"Review of {Path(findings['data']).name or findings['data']}"),
        about=text(about(findings)),
        hash=f"sha256-{digest}",
        style="".join(path.read_text(encoding="utf-8") for path in (LOOK, PAGE / "review.css")),
        data=json.dumps(contents, allow_nan=False).replace("<", "\\u003c"),  # no tag can end the script
        script=script,
    )
    path = folder / NAME
    with atomic_file(path) as temporary:
        temporary.write_text(page, encoding="utf-8", newline="\n")
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


def text(words: str) -> str:
    return html.escape(visible(words))
