"""One HTML page that explains a model: facts, scores, figures, and attention to play with.

    Inspection + figures (PNG) [+ evaluation] ──► report.html

The page is one file that needs nothing else: pictures are data URIs, style and script are inside, and its security
policy forbids it to fetch anything. page/ holds its parts; all text that comes from outside is escaped.
It names its maker, by which the folder is known as one that may be written to again, and the figures beside it, which
go before others are drawn.
"""

from __future__ import annotations

import base64
import html
import io
import json
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
from PIL import Image

from vitrail.checkpoints.run.run_json import flatten
from vitrail.data.readers.class_names import readable
from vitrail.errors import ConfigError
from vitrail.evaluators.accuracy import Evaluation
from vitrail.inspection.figures import views_of
from vitrail.inspection.inspect import Inspection, Subject
from vitrail.inspection.pictures import MOST_TILES, SCALE, thumbnail, to_bytes
from vitrail.models.cost import cost
from vitrail.models.hybrid import HybridConfig
from vitrail.models.resnet import BiTConfig
from vitrail.models.vit import ViTConfig
from vitrail.runtime.files import atomic_file
from vitrail.runtime.log import visible

PAGE = Path(__file__).parent / "page"
NAME = "report.html"
MAKER = b'<meta name="generator" content="vitrail">'
MOST_CELLS = 24  # along a side of a map on the page; larger ones are averaged
SIDE = 320  # pixels of a picture on the page
LARGE = 1000  # pixels across, from which on a figure fitted to a small page cannot be read

# figure: (heading, caption)
CAPTIONS = {
    "training": ("Training", "Loss, scores and learning rate over the steps of the run."),
    "confusion": ("Confusion matrix", "Rows are true classes, columns what the model said."),
    "right": ("Best examples", "Right answers that the model was surest of."),
    "wrong": ("Worst examples", "Mistakes that the model was surest of."),
    "filters": ("Filters", "The principal components of what first sees the pixels (Fig. 7, left)."),
    "positions": (
        "Position embeddings",
        f"A tile for each patch position, in a large grid for {MOST_TILES} x {MOST_TILES} of them: how alike its "
        "embedding is to that of every position (Fig. 7, centre).",
    ),
    "attention_distance": (
        "Attention distance",
        "How far each head looks: pixels from a patch to what it attends to, the mean over images (Fig. 7, right).",
    ),
}
BEFORE_IMAGES = ("training", "confusion", "right", "wrong")
# The names of figures, and the list of them in a page's head.
FIGURE = re.compile(rf"(?:{'|'.join(CAPTIONS)}|image-\d+(?:-heads)?)\.png")
LISTED = re.compile(rb'<meta name="figures" content="([^"]*)">')
HEAD = 1 << 20  # bytes of a page in which its list has to stand


def write_report(
    seen: Inspection, figures: Mapping[str, Path], path: Path, evaluation: Evaluation | None = None
) -> None:
    """`figures`: PNG files by name, those of CAPTIONS and of the images."""
    sections = {"Model": facts(seen)}
    if evaluation is not None or seen.metrics:
        sections["Scores"] = scores(seen, evaluation)
    sections |= {CAPTIONS[name][0]: chart(name, figures[name]) for name in BEFORE_IMAGES if name in figures}
    if any(subject.maps is not None for subject in seen.subjects):
        sections["Attention, head by head"] = explorer(seen)
    if seen.subjects:
        sections["Images"] = f'<div class="cards">{"".join(card(one, seen) for one in seen.subjects)}</div>'
    others = [name for name in CAPTIONS if name not in BEFORE_IMAGES and name in figures]
    sections |= {CAPTIONS[name][0]: chart(name, figures[name]) for name in others}
    if seen.notes:
        sections["Not shown"] = "".join(f"<p>{text(note[:1].upper() + note[1:])}.</p>" for note in seen.notes)
    write_page(path, seen.name, sections, figures)


def begin_report(seen: Inspection, path: Path) -> None:
    """The page while its figures are drawn, without those of the page before it: if that is interrupted, the folder
    is known as ours, and so is all that may have been drawn."""
    remove_figures(path)
    images = [f"image-{number:02}" for number in range(1, len(seen.subjects) + 1)]
    may_come = [*CAPTIONS, *images, *(f"{image}-heads" for image in images)]
    write_page(path, seen.name, {"Figures": "<p>They are being drawn.</p>"}, may_come)


def remove_figures(page: Path) -> None:
    """Those that a page of ours lists: they are of another model, or of other images."""
    if not is_ours(page):
        return
    with page.open("rb") as file:
        listed = LISTED.search(file.read(HEAD))
    for name in [] if listed is None else listed[1].decode("ascii", "replace").split():
        if FIGURE.fullmatch(name) and (page.parent / name).is_file():
            (page.parent / name).unlink()


def write_page(path: Path, title: str, sections: Mapping[str, str], figures: Iterable[str] = ()) -> None:
    """`sections`: HTML by heading; `figures`: the names of those beside it."""
    page = Template((PAGE / "report.html").read_text(encoding="utf-8")).substitute(
        title=text(title),
        figures=text(" ".join(f"{name}.png" for name in figures)),
        style=(PAGE / "report.css").read_text(encoding="utf-8"),
        links="".join(f'<a href="#{anchor(name)}">{text(name)}</a>' for name in sections),
        sections="\n".join(
            f'<section id="{anchor(name)}"><h2>{text(name)}</h2>\n{body}\n</section>'
            for name, body in sections.items()
        ),
    )
    with atomic_file(path) as temporary:
        temporary.write_text(page, encoding="utf-8")


def check_own(folder: Path) -> None:
    """Figures are written over files of the same names: in a new folder, or in one that has a page of ours."""
    held = sorted(p.name for p in folder.iterdir()) if folder.is_dir() else []
    held = [name for name in held if not name.startswith(".")]
    if held and not is_ours(folder / NAME):
        raise ConfigError(
            f"{folder} holds {', '.join(held[:3])}{', ...' if len(held) > 3 else ''} and no {NAME} of an earlier "
            "inspection: figures are written to a folder of their own"
        )


def is_ours(page: Path) -> bool:
    if not page.is_file():
        return False
    with page.open("rb") as file:
        return MAKER in file.read(1_000)


def facts(seen: Inspection) -> str:
    c, bill = seen.config, cost(seen.config)
    H, W = c.image_size
    rows = {"image_size": f"{H} x {W}", "preprocess": seen.preprocess, "classes": f"{c.classes:,}"}
    if isinstance(c, BiTConfig):
        rows = {
            "architecture": "BiT ResNet",
            "units": str(c.units),
            "width_factor": f"{c.width_factor:g}",
        } | rows
    else:
        kind = f"hybrid: ResNet {c.stem.units}, then ViT" if isinstance(c, HybridConfig) else "ViT"
        fields = ("width", "depth", "mlp_dim", "heads", "patch_size", "pool", "positions")
        rows = {"architecture": kind} | {name: str(getattr(c, name)) for name in fields} | rows
        rows["tokens"] = f"{c.tokens:,}, one for {c.stride} x {c.stride} pixels"
    rows["parameters"] = f"{bill.parameters:,}"
    rows["forward"] = f"{bill.flops / 1e9:,.2f} GFLOPs = {bill.macs / 1e9:,.2f} GMACs an image"
    return table(rows)


def scores(seen: Inspection, evaluation: Evaluation | None) -> str:
    rows = {name: show(value) for name, value in flatten(seen.metrics).items() if value not in (None, {}, [])}
    if evaluation is None:
        return table(rows)
    measured = {score.name: f"{score.value:.4f} (n = {score.n:,})" for score in evaluation.scores()}
    measured |= {"data": evaluation.data, "broken": f"{evaluation.broken:,} examples"}
    worst = sorted(evaluation.per_class, key=lambda one: one.accuracy)[:5]
    measured["worst classes"] = ", ".join(f"{one.name} {one.accuracy:.1%} of {one.n:,}" for one in worst)
    return table(rows | measured)


def chart(name: str, path: Path) -> str:
    """A figure on white, whatever the theme: its ink is dark. A very large one can be brought to its full size."""
    with Image.open(path) as image:
        width, height = image.size
    uri = "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode()
    heading, caption = CAPTIONS[name]
    picture = f'<img src="{uri}" alt="{text(heading)}" width="{width}" height="{height}">'
    if width > LARGE:
        caption += " Press it to see it in full size."
        picture = (
            f'<label class="chart large"><input type="checkbox" aria-label="full size">{picture}</label>'
        )
    else:
        picture = f'<div class="chart">{picture}</div>'
    return f"<figure>{picture}<figcaption>{text(caption)}</figcaption></figure>"


def explorer(seen: Inspection) -> str:
    """Sliders over layers and heads for a chosen image."""
    subjects = [one for one in seen.subjects if one.maps is not None]
    L, h, rows, columns = small_maps(subjects[0]).shape
    c = seen.config
    assert isinstance(c, ViTConfig)  # only these have maps
    data = {
        "grid": [rows, columns],
        "layers": seen.layers,
        "depth": c.depth,
        "heads": h - 1,
        "alike": 1 / c.tokens,
        "scale": SCALE.tolist(),
        "images": [
            {
                "name": one.name,
                "picture": picture_uri(one.picture),
                "maps": atlas_uri(one),
                "peaks": peaks(one),
            }
            for one in subjects
        ],
    }
    options = "".join(f'<option value="{i}">{text(one.name)}</option>' for i, one in enumerate(subjects))
    what = {
        "token": "the class token attends to",
        "mean": "the average patch attends to",
        "attention": "what the pooling takes attends to",
    }[c.pool]
    inside = json.dumps(data, allow_nan=False).replace("<", "\\u003c")  # no tag can end the script
    return f"""<p>Where {what}, by layer and head; bright is more. Each map is scaled to its own brightest patch.</p>
<div class="explorer">
<canvas id="view" role="img" width="448" height="448"></canvas>
<div>
<label for="image">Image<select id="image">{options}</select></label>
<label for="layer">Layer <output id="layer-is"></output><input type="range" id="layer" min="1" max="{L}" value="{L}"></label>
<label for="head">Head <output id="head-is"></output><input type="range" id="head" min="0" max="{h - 1}" value="0"></label>
<label for="strength">Strength <output id="strength-is"></output><input type="range" id="strength" min="0" max="100" value="60"></label>
<label for="smooth"><span><input type="checkbox" id="smooth" checked> smooth between patches</span></label>
<p class="soft" id="peak"></p>
</div>
</div>
<script type="application/json" id="maps">{inside}</script>
<script>
{(PAGE / "report.js").read_text(encoding="utf-8")}</script>"""  # noqa: E501


def card(subject: Subject, seen: Inspection) -> str:
    views = "".join(
        f'<figure><img src="{picture_uri(picture)}" alt="{text(caption)}" loading="lazy">'
        f"<figcaption>{text(caption)}</figcaption></figure>"
        for caption, picture in views_of(subject, seen.config).items()
    )
    bars = "".join(
        f'<li style="background-size: {100 * p:.1f}% 100%"><span>{text(name)}</span><span>{p:.1%}</span></li>'
        for name, p in ((readable(name), p) for name, p in subject.top)
    )
    bars = f'<ul class="bars">{bars}</ul>' if bars else ""
    true = "" if subject.true is None else f"<p>true: {text(readable(subject.true))}</p>"
    below = f'<div class="views">{views}</div>{true}{bars}'
    return f'<article class="card"><h3>{text(subject.name)}</h3>{below}</article>'


def maps_and_mean(subject: Subject) -> np.ndarray:
    """(L, 1 + h, rows, columns): the mean of the heads first."""
    assert subject.maps is not None
    return np.concatenate([subject.maps.mean(axis=1, keepdims=True), subject.maps], axis=1)


def small_maps(subject: Subject) -> np.ndarray:
    """The same with large grids averaged down, to cells that are all of one size and fill the image."""
    maps = maps_and_mean(subject)
    by = math.ceil(max(maps.shape[2:]) / MOST_CELLS)
    down, across = (shares(n, math.ceil(n / by)) for n in maps.shape[2:])
    return down @ maps @ across.T  # (L, 1 + h, rows, columns)


def shares(n: int, cells: int) -> np.ndarray:
    """(cells, n): how much of a cell each of n patches fills, both spread over the same length; rows sum to 1."""
    ends = np.arange(1, cells + 1)[:, None] * n / cells  # (cells, 1), in patches
    over = np.minimum(ends, np.arange(1, n + 1)) - np.maximum(ends - n / cells, np.arange(n))  # (cells, n)
    return np.maximum(over, 0) * cells / n


def atlas_uri(subject: Subject) -> str:
    """All maps of an image in one grey picture: layers down, heads across, each scaled to its own brightest."""
    maps = small_maps(subject)
    L, h, rows, columns = maps.shape
    scaled = maps / np.maximum(maps.max(axis=(2, 3), keepdims=True), 1e-12)
    return data_uri(to_bytes(scaled.transpose(0, 2, 1, 3).reshape(L * rows, h * columns)), "PNG")


def peaks(subject: Subject) -> list[list[float]]:
    """The brightest patch of each map, (L, 1 + h)."""
    return [[float(f"{value:.4g}") for value in layer] for layer in maps_and_mean(subject).max(axis=(2, 3))]


def picture_uri(picture: np.ndarray) -> str:
    return data_uri(thumbnail(picture, SIDE), "WEBP")


def data_uri(picture: np.ndarray, kind: str) -> str:
    made = io.BytesIO()
    Image.fromarray(picture).save(made, kind, **({"quality": 82} if kind == "WEBP" else {"optimize": True}))
    return f"data:image/{kind.lower()};base64,{base64.b64encode(made.getvalue()).decode()}"


def table(rows: Mapping[str, str]) -> str:
    cells = "".join(f"<tr><th>{text(name)}</th><td>{text(value)}</td></tr>" for name, value in rows.items())
    return f"<table>{cells}</table>"


def show(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def text(given: str) -> str:
    return html.escape(visible(given))


def anchor(name: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in name.lower())
