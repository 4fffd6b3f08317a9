"""One HTML page for a browser without a network: style, script and data are inside.

    page/NAME.html, the body  ─┐
    look.css, page/NAME.css   ─┼──► head, body ──► file
    scripts, data             ─┘

Its content security policy lets it fetch nothing. What comes from outside is strangers' text: escaped (`text`), or
data for a script (`script_data`), which makes text of it, never HTML.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Sequence
from pathlib import Path
from string import Template

from vitrail.runtime.files import atomic_file
from vitrail.runtime.log import visible

LOOK = Path(__file__).parents[1] / "assets" / "look" / "look.css"  # which the page of `vitrail serve` has too
GENERATOR = b'<meta name="generator" content="vitrail">'  # by which a page of ours is known
HEAD = f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
{GENERATOR.decode()}
$more<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; base-uri 'none'; form-action 'none'; \
img-src $images; style-src 'unsafe-inline'; script-src '$allowed'">
<title>$title</title>
<style>
$style
</style>
</head>
"""


def write_html(
    path: Path,
    body: Path,
    *,
    title: str,
    scripts: Sequence[Path] = (),
    images: str = "data:",
    more: str = "",
    **values: str,
) -> None:
    """Write a page: the template of its body, with the style beside that.

    `scripts`: joined to one, which the policy allows by its digest, and no other; without any, all that are in the
    body. `images`: where pictures come from. `more`: HTML for the head. `values`: HTML for the template.
    """
    script, allowed = "", "unsafe-inline"
    if scripts:
        parts = "\n".join(part.read_text(encoding="utf-8") for part in scripts)
        script = f'"use strict";\n{{\n{parts}}}\n'
        allowed = f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}"
    style = "".join(one.read_text(encoding="utf-8") for one in (LOOK, body.with_suffix(".css")))
    values |= {"title": text(title), "script": script, "style": style}
    values |= {"images": images, "allowed": allowed, "more": more}
    page = Template(HEAD + body.read_text(encoding="utf-8")).substitute(values)
    with atomic_file(path) as temporary:
        temporary.write_text(page, encoding="utf-8", newline="\n")


def text(words: str) -> str:
    return html.escape(visible(words))


def script_data(contents: object) -> str:
    """Return JSON for <script type="application/json">: no tag in it can end the script."""
    return json.dumps(contents, allow_nan=False).replace("<", "\\u003c")
