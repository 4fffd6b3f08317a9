"""One HTML page that explains a model: how accurate it is, where it fails, what it attends to, how it is built.

    Inspection + figures (PNG) [+ evaluation] ──► report.html

The page is self-contained: pictures are data URIs, style and script are inside, and its content security policy
forbids it to fetch anything. page/ has its templates; all text that comes from outside is escaped.
Tags in its head mark it as ours: a folder with such a page may be written to again, and the figures that it lists
are removed before new ones are drawn.
"""

from __future__ import annotations

import base64
import io
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from string import Template

import numpy as np
from PIL import Image

from vitrail.checkpoints.run.records import flatten
from vitrail.data.readers.class_names import readable
from vitrail.errors import ConfigError
from vitrail.evaluators.accuracy import Evaluation
from vitrail.evaluators.score import format_accuracy, format_score, score_label
from vitrail.inspection.figures import INSIDE, PERFORMANCE, draw_views
from vitrail.inspection.inspect import Inspection, Subject
from vitrail.inspection.patches import Patches, reduced
from vitrail.inspection.pictures import SCALE, shrink, to_bytes
from vitrail.models.cost import cost
from vitrail.models.hybrid import HybridConfig
from vitrail.models.resnet import BiTConfig
from vitrail.models.vit import ViTConfig
from vitrail.runtime.html_page import GENERATOR, script_data, text, write_html

PAGE = Path(__file__).parent / "page"
NAME = "report.html"
MOST_CELLS = 24  # along a side of a map on the page; larger ones are averaged
SIDE = 320  # pixels of a picture on the page
DIMENSIONS = 192  # of the features on the page, those that have most of their cosines
PAIRS = 10  # confused classes in the table
LARGE = 1000  # pixels across, from which on a figure fitted to a small page cannot be read

FIGURES = PERFORMANCE | INSIDE
# The names of figures, and the list of them in the head of a page of ours.
FIGURE = re.compile(rf"(?:{'|'.join(FIGURES)}|image-\d+(?:-heads)?)\.png")
LISTED = re.compile(GENERATOR + rb'\s*<meta name="figures" content="([^"]*)">')
HEAD = 1 << 20  # bytes of a page in which its list has to stand


def write_report(
    inspection: Inspection, figures: Mapping[str, Path], path: Path, evaluation: Evaluation | None = None
) -> None:
    """Write the page. `figures`: PNG files by name, those of FIGURES and of the images."""

    def charts(group: Mapping[str, tuple[str, str]]) -> dict[str, str]:
        return {
            heading: chart(heading, caption, figures[name])
            for name, (heading, caption) in group.items()
            if name in figures
        }

    sections: dict[str, str] = {}
    if evaluation is not None or inspection.metrics:
        sections["Accuracy"] = scores(inspection, evaluation)
    sections |= charts(PERFORMANCE)
    pairs = [] if evaluation is None else evaluation.confused_pairs(PAIRS)
    if pairs and "Confusions" in sections:
        counts = {f"{readable(true)} as {readable(wrong)}": f"{n:,} of {k:,}" for true, wrong, n, k in pairs}
        sections["Confusions"] = table(counts) + sections["Confusions"]
    if inspection.subjects and inspection.layers:
        sections["Attention by head"] = explorer(inspection)
    if inspection.patches is not None and "pca" in inspection.figures:
        sections["Alike patches"] = patch_explorer(inspection.patches)
    if inspection.subjects:
        cards = "".join(card(subject, inspection) for subject in inspection.subjects)
        sections["Images"] = f'<div class="cards">{cards}</div>'
    sections["Architecture"] = facts(inspection)
    sections |= charts(INSIDE)
    if inspection.notes:
        notes = (f"<p>{text(note[:1].upper() + note[1:])}.</p>" for note in inspection.notes)
        sections["Not shown"] = "".join(notes)
    write_page(path, inspection.name, sections, figures)


def begin_report(inspection: Inspection, path: Path) -> None:
    """Remove the figures that a page of ours lists, which are of another model or other images, and write a page that
    lists those to come: if drawing is interrupted, the folder is known as ours, and so is every figure in it."""
    for name in listed_figures(path) or []:
        if FIGURE.fullmatch(name) and path.with_name(name).is_file():
            path.with_name(name).unlink()
    images = [f"image-{number:02}" for number in range(1, len(inspection.subjects) + 1)]
    to_come = [*FIGURES, *images, *(f"{image}-heads" for image in images)]
    write_page(path, inspection.name, {"Figures": "<p>They are being drawn.</p>"}, to_come)


def write_page(path: Path, title: str, sections: Mapping[str, str], figures: Iterable[str] = ()) -> None:
    """Write a page of `sections`, HTML by heading; `figures`: the names of those beside it."""
    listed = text(" ".join(f"{name}.png" for name in figures))
    write_html(
        path,
        PAGE / "report.html",
        title=title,
        more=f'<meta name="figures" content="{listed}">\n',
        links="".join(f'<a href="#{anchor(name)}">{text(name)}</a>' for name in sections),
        sections="\n".join(
            f'<section id="{anchor(name)}"><h2>{text(name)}</h2>\n{body}\n</section>'
            for name, body in sections.items()
        ),
    )


def check_report_folder(folder: Path) -> None:
    """Raise ConfigError unless the folder is new, empty or has a page of ours: files are overwritten."""
    names = sorted(p.name for p in folder.iterdir()) if folder.is_dir() else []
    names = [name for name in names if not name.startswith(".")]
    if names and listed_figures(folder / NAME) is None:
        raise ConfigError(
            f"{folder} has {', '.join(names[:3])}{', ...' if len(names) > 3 else ''} and no {NAME} of an earlier "
            "inspection: choose a new folder for the figures"
        )


def listed_figures(page: Path) -> list[str] | None:
    """Return the figures that a page of ours lists in its head; None if it is not ours."""
    if not page.is_file():
        return None
    with page.open("rb") as file:
        listed = LISTED.search(file.read(HEAD))
    return None if listed is None else listed[1].decode("ascii", "replace").split()


def scores(inspection: Inspection, evaluation: Evaluation | None) -> str:
    """Return a table of the scores measured now, then of those that the model's file records."""
    rows: dict[str, str] = {}
    if evaluation is not None:
        e = evaluation
        rows["data"] = e.data
        rows["top-1"] = format_accuracy(e.top1, e.n)
        rows[f"top-{min(5, len(e.model_class_names))}"] = format_accuracy(e.top5, e.n)
        if e.real is not None:
            rows["ReaL"] = format_accuracy(e.real, e.real_n)
        rows |= {"loss": f"{e.loss:.4f}", "calibration error (ECE)": f"{e.ece:.4f}"}
        rows["broken"] = f"{e.broken:,} images"
        if worst := e.worst_classes(5):
            rows["worst classes"] = ", ".join(
                f"{readable(one.name)} {format_accuracy(one.accuracy)} (n = {one.n:,})" for one in worst
            )
    for name, value in flatten(inspection.metrics).items():
        *places, score = name.split(".")
        label = f"recorded: {' '.join([*places, score_label(score.removeprefix('val_'))])}"
        if value not in (None, {}, []) and "interval" not in places:
            rows[label] = format_score(score, value) if isinstance(value, float) else str(value)
    return table(rows)


def facts(inspection: Inspection) -> str:
    """Return a table of the architecture and its cost."""
    c, bill = inspection.config, cost(inspection.config)
    rows: dict[str, str] = {}
    if isinstance(c, BiTConfig):
        rows |= {"architecture": "BiT ResNet", "units": str(c.units), "width_factor": f"{c.width_factor:g}"}
    else:
        stem = f"hybrid: ResNet {c.stem.units}, then " if isinstance(c, HybridConfig) else ""
        rows["architecture"] = f"{stem}ViT"
        fields = ("width", "depth", "mlp_dim", "heads", "patch_size", "pool", "positions")
        rows |= {name: str(getattr(c, name)) for name in fields}
        N = c.grid[0] * c.grid[1]
        more = ", after the class token" if c.tokens > N else ""
        grid = f"{c.grid[0]} x {c.grid[1]} patches of {c.stride} x {c.stride} pixels"
        rows["tokens"] = f"{c.tokens:,}: {grid}{more}"
    rows |= {"image_size": f"{c.image_size[0]} x {c.image_size[1]}", "preprocess": inspection.preprocess}
    rows |= {"classes": f"{c.classes:,}", "parameters": f"{bill.parameters:,}"}
    rows["forward"] = f"{bill.flops / 1e9:,.2f} GFLOPs = {bill.macs / 1e9:,.2f} GMACs per image"
    return table(rows)


def chart(heading: str, caption: str, path: Path) -> str:
    """Return a figure on white in any theme, since its ink is dark. A large one can be shown in full size."""
    with Image.open(path) as image:
        width, height = image.size
    uri = "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode()
    picture = f'<img src="{uri}" alt="{text(heading)}" width="{width}" height="{height}">'
    if width > LARGE:
        caption += " Click the picture to see it in full size."
        full_size = '<input type="checkbox" aria-label="full size">'
        picture = f'<label class="chart large">{full_size}{picture}</label>'
    else:
        picture = f'<div class="chart">{picture}</div>'
    return f"<figure>{picture}<figcaption>{text(caption)}</figcaption></figure>"


def explorer(inspection: Inspection) -> str:
    """Return sliders over layers and heads for a chosen image."""
    c = inspection.config
    assert isinstance(c, ViTConfig)  # only these have maps
    L, h = len(inspection.layers), c.heads
    by = math.ceil(max(c.grid) / MOST_CELLS)
    rows, columns = (math.ceil(n / by) for n in c.grid)
    images, options = [], ""
    for i, one in enumerate(inspection.subjects):
        assert one.maps is not None
        mean = one.maps.mean(axis=1, keepdims=True)  # (L, 1, rows, columns)
        maps = np.concatenate([mean, one.maps], axis=1)  # (L, 1 + h, rows, columns): the heads' mean first
        peaks = [[float(f"{weight:.4g}") for weight in layer] for layer in maps.max(axis=(2, 3))]
        # All maps in one grey picture: layers down, heads across, each scaled to its maximum.
        cells = average_cells(maps, rows, columns)  # (L, 1 + h, rows, columns)
        cells = cells / np.maximum(cells.max(axis=(2, 3), keepdims=True), 1e-12)
        atlas = to_bytes(cells.transpose(0, 2, 1, 3).reshape(L * rows, -1))
        picture = data_uri(shrink(one.picture, SIDE), "WEBP")
        images.append({"name": one.name, "picture": picture, "maps": data_uri(atlas, "PNG"), "peaks": peaks})
        options += f'<option value="{i}">{text(one.name)}</option>'
    data = {"grid": [rows, columns], "layers": inspection.layers, "depth": c.depth, "heads": h}
    data |= {"alike": 1 / c.tokens, "scale": SCALE.tolist(), "images": images}
    # As `attention_maps` draws them: of any other pooling, the mean over the rows of all patches.
    named = {"token": "the class token attends", "attention": "the tokens, weighted by the pooling, attend"}
    what = named.get(c.pool, "the average patch attends")
    grid = f"{c.grid[0]} x {c.grid[1]} patches"
    if (rows, columns) != c.grid:
        grid += f", averaged to {rows} x {columns} cells"
    return fill_template(
        "explorer.html",
        what=what,
        grid=grid,
        options=options,
        layers=L,
        heads=h,
        maps=script_data(data),
        script=(PAGE / "explorer.js").read_text(encoding="utf-8"),
    )


def patch_explorer(patches: Patches) -> str:
    """Return two pictures: a patch to be chosen in one, and the patches like it in the other."""
    n, *grid, _ = patches.features.shape
    rows, columns = (math.ceil(side / math.ceil(max(grid) / MOST_CELLS)) for side in grid)
    cells = average_cells(patches.features.transpose(0, 3, 1, 2), rows, columns)  # (n, D, rows, columns)
    features = reduced(cells.transpose(0, 2, 3, 1), DIMENSIONS).reshape(n, rows * columns, -1)
    most = max(float(np.abs(features).max()), 1e-12)
    grey = np.round(128 + 127 / most * features).astype(np.uint8)
    images, options = [], ""
    for i, name in enumerate(patches.names):
        picture = data_uri(shrink(patches.pictures[i], SIDE), "WEBP")
        images.append({"name": name, "picture": picture, "features": data_uri(grey[i], "PNG")})
        options += f'<option value="{i}">{text(name)}</option>'
    data = {
        "grid": [rows, columns],
        "dimensions": grey.shape[-1],
        "most": most,
        "scale": SCALE.tolist(),
        "images": images,
    }
    by = f"of {grid[0]} x {grid[1]} patches"
    if [rows, columns] != grid:
        by += f", averaged to {rows} x {columns} cells"
    return fill_template(
        "patches.html",
        grid=by,
        options=options,
        data=script_data(data),
        script=(PAGE / "patches.js").read_text(encoding="utf-8"),
    )


def card(subject: Subject, inspection: Inspection) -> str:
    views = ""
    for lines, picture in draw_views(subject, inspection.config).items():
        caption, uri = text(lines.replace("\n", " ")), data_uri(shrink(picture, SIDE), "WEBP")
        image = f'<img src="{uri}" alt="{caption}" loading="lazy">'
        views += f"<figure>{image}<figcaption>{caption}</figcaption></figure>"
    bars = "".join(
        f'<li style="background-size: {100 * p:.1f}% 100%"><span>{text(readable(name))}</span>'
        f"<span>{format_accuracy(p)}</span></li>"
        for name, p in subject.top
    )
    bars = f'<ul class="bars">{bars}</ul>' if bars else ""
    true = "" if subject.true is None else f"<p>true: {text(readable(subject.true))}</p>"
    below = f'<div class="views">{views}</div>{true}{bars}'
    return f'<article class="card"><h3>{text(subject.name)}</h3>{below}</article>'


def average_cells(maps: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """Return maps (..., H, W) averaged down to (..., rows, columns): cells of one size that fill the image."""
    weights = []
    for cells, n in ((rows, maps.shape[-2]), (columns, maps.shape[-1])):
        # How much of each cell each of n patches fills, both spread over the same length: (cells, n).
        ends = np.arange(1, cells + 1)[:, None] * n / cells  # (cells, 1), in patches
        overlap = np.minimum(ends, np.arange(1, n + 1)) - np.maximum(ends - n / cells, np.arange(n))
        weights.append(np.maximum(overlap, 0) * cells / n)
    down, across = weights
    return down @ maps @ across.T


def fill_template(name: str, **values: object) -> str:
    """Return a template of page/ with its values, which are HTML."""
    return Template((PAGE / name).read_text(encoding="utf-8")).substitute(values)


def data_uri(picture: np.ndarray, kind: str) -> str:
    file = io.BytesIO()
    Image.fromarray(picture).save(file, kind, **({"quality": 82} if kind == "WEBP" else {"optimize": True}))
    return f"data:image/{kind.lower()};base64,{base64.b64encode(file.getvalue()).decode()}"


def table(rows: Mapping[str, str]) -> str:
    cells = "".join(f"<tr><th>{text(name)}</th><td>{text(value)}</td></tr>" for name, value in rows.items())
    return f"<table>{cells}</table>"


def anchor(name: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in name.lower())
