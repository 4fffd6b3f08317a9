"""Figures as files: the only module that imports matplotlib.

    rows of metrics.jsonl ──► loss_curve
    counts (K, K)         ──► confusion_matrix
    pictures              ──► captioned, labelled
    distances (n, L, h)   ──► draw_attention_distances             Fig. 7 right, Fig. 11
    places (n, 2), groups ──► draw_map

Figures are matplotlib's objects, never its global state, so any thread may draw. The suffix of the path is the format
(PNG if there is none); each file is written completely or not at all.
"""

from __future__ import annotations

import itertools
import math
import textwrap
import unicodedata
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, PowerNorm
from matplotlib.figure import Figure
from matplotlib.font_manager import fontManager
from matplotlib.image import AxesImage
from matplotlib.patches import ConnectionPatch
from matplotlib.text import Text
from matplotlib.ticker import PercentFormatter

from vitrail.evaluators.score import format_accuracy
from vitrail.inspection.pictures import heat
from vitrail.runtime.files import atomic_file
from vitrail.runtime.log import note, visible

INK, PALE, FAINT = "#1f2933", "#9db4c8", "#e4e9ee"
COLOURS = ("#0b6e99", "#d1495b", "#edae49", "#3a7d44", "#7d5ba6", "#8c564b", "#5c6f82", "#c05c9e")
DPI = 120
SMOOTHED = 20  # rows from which on a loss has a smoothed line
CELL = 2.2  # inches across a picture with a caption
LINE = 30  # letters of a line below it
LABELLED = 40  # classes of a confusion matrix that are named
# matplotlib's own font, then those of people's machines with the letters of China, Japan and Korea.
FONTS = (
    "DejaVu Sans", "Noto Sans CJK JP", "Noto Sans CJK SC", "Noto Sans JP", "Noto Sans SC", "Noto Sans KR",
    "Source Han Sans", "WenQuanYi Micro Hei", "WenQuanYi Zen Hei", "IPAexGothic", "IPAGothic", "NanumGothic",
    "Droid Sans Fallback", "Hiragino Sans", "Hiragino Sans GB", "PingFang SC", "Apple SD Gothic Neo", "Yu Gothic",
    "MS Gothic", "Microsoft YaHei", "SimHei", "Malgun Gothic", "Arial Unicode MS",
)  # fmt: skip
MOST_LAYERS = 24  # with a name below the axis; of more, some
MOST_CLASSES = 2_000  # of a confusion matrix that is drawn: a pixel or two for each


def loss_curve(rows: Sequence[Mapping[str, Any]], path: Path, *, title: str = "") -> None:
    """Draw loss, scores and learning rate over the steps of a run, from the rows of its metrics.jsonl.

    Loss: `loss` of training rows, with a smoothed line where there are enough of them, and every `..._loss` of an
    evaluation (`val_loss`). Scores: `top1` of training batches, and what evaluations measure as a fraction
    (`val_top1`).
    """
    training: dict[str, tuple[list[float], list[float]]] = {}  # name: steps, values
    evaluated: dict[str, tuple[list[float], list[float]]] = {}
    for row in rows:
        for name, value in row.items():
            if not (is_number(value) and is_number(row.get("step"))):
                continue
            # A number is of an evaluation in a row without a training loss, or where it is named for its split.
            in_training = "loss" in row and not name.startswith(("val_", "test_"))
            curves = training if in_training or name in ("step", "epoch", "lr") else evaluated
            steps, values = curves.setdefault(name, ([], []))
            steps.append(row["step"])
            values.append(value)
    losses = [name for name in evaluated if name.endswith("loss")]
    scores = [n for n, (_, ys) in evaluated.items() if n not in losses and all(0 <= y <= 1 for y in ys)]
    panels = {"loss": ("loss", losses), "score": ("top1", scores), "learning rate": ("lr", [])}
    panels = {
        panel: (own, more) for panel, (own, more) in panels.items() if own in {"loss", *training} or more
    }

    figure = Figure(figsize=(8, 1 + 2.4 * len(panels)), layout="constrained")
    axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    figure.suptitle(escape_dollars(title), color=INK)
    for ax, (panel, (own, more)) in zip(axes, panels.items(), strict=True):
        steps, values = training.get(own, ([], []))
        # A single point, which has no line, is marked.
        style: dict[str, Any] = {"linewidth": 1, "marker": "o" if len(values) == 1 else "", "markersize": 4}
        if panel == "learning rate":
            ax.plot(steps, values, color=COLOURS[6], **style)
        elif len(values) >= SMOOTHED:
            ax.plot(steps, values, color=PALE, label="training", **style)
            ax.plot(steps, smoothed(values), color=COLOURS[0], label="training, smoothed")
        elif values:
            ax.plot(steps, values, color=COLOURS[0], label="training", **style)
        for name, colour in zip(more, itertools.cycle(COLOURS[1:])):
            steps, values = evaluated[name]
            last = f"{values[-1]:.4g}" if panel == "loss" else format_accuracy(values[-1])
            ax.plot(
                steps, values, color=colour, label=escape_dollars(f"{name}: {last}"), marker="o", markersize=3
            )
        if panel == "score":
            ax.yaxis.set_major_formatter(PercentFormatter(1, decimals=None))
        ax.set_ylabel(panel)
        dress(ax)
    axes[-1].set_xlabel("step")
    save_figure(figure, path)


def confusion_matrix(
    confusion: np.ndarray,
    class_names: Sequence[str],
    path: Path,
    *,
    pairs: Sequence[tuple[str, str, int, int]] = (),
) -> None:
    """Draw how often a class (row) was taken for another (column): counts (K, K), coloured by the share of the row.

    Up to LABELLED classes have their names, and cells their counts. With more classes, names would be too small:
    `pairs` (true class, predicted class, how often, of how many) are listed beside the matrix instead.
    """
    K = len(class_names)
    assert confusion.shape == (K, K) and 0 < K <= MOST_CLASSES
    share = confusion / np.maximum(confusion.sum(axis=1, keepdims=True), 1)  # (K, K)
    named = K <= LABELLED
    names = [escape_dollars(shorten(name, 28)) for name in class_names] if named else [""]
    side = float(np.clip(0.5 * K if K <= 20 else 0.36 * K, 2.5, 14.4)) if named else 7.5  # inches
    margin = 0.45 + 0.075 * max(map(len, names)) if named else 0.8  # inches, to the left and below
    listed = 0.0 if named or not pairs else 4.6
    width, height = side + margin + 1 + listed, side + margin + 0.4
    figure = Figure(figsize=(width, height))
    ax = figure.add_axes((margin / width, margin / height, side / width, side / height))
    # A square root: one in a hundred must be seen beside ninety-nine.
    norm = PowerNorm(0.5, 0, 1)
    image = ax.imshow(
        pooled(share, 800), cmap="Blues", norm=norm, interpolation="nearest", extent=(0, K, K, 0)
    )
    if named:
        places = np.arange(K) + 0.5
        ax.set_xticks(places, names, rotation=90, fontsize=9)
        ax.set_yticks(places, names, fontsize=9)
        for i, j in np.argwhere(confusion):
            colour = "white" if share[i, j] > 0.4 else INK
            text, size = f"{confusion[i, j]:,}", 8 if K <= 20 else 6
            ax.text(j + 0.5, i + 0.5, text, ha="center", va="center", color=colour, fontsize=size)
    else:
        numbers = range(0, K, max(10, round(K / 80) * 10))
        ax.set_xticks(numbers)
        ax.set_yticks(numbers)
    ax.tick_params(length=0 if named else 3, colors=INK)
    right, n = int(np.trace(confusion)), int(confusion.sum())
    ax.set_title(f"accuracy: {format_accuracy(right / max(n, 1), n)}", color=INK, fontsize=11)
    unit = "" if named else " (number of the class)"
    middle = margin + side / 2
    figure.text(middle / width, 0.1 / height, f"predicted{unit}", color=INK, ha="center", va="bottom")
    figure.text(0.1 / width, middle / height, f"true{unit}", color=INK, va="center", rotation=90)
    draw_scale(figure, image, ax, "share of the true class\n(square-root scale)", 9)
    if listed:
        left, top = (margin + side + 1.2) / width, ax.get_position().y1
        figure.text(left, top, "most confused", color=INK, fontsize=11, va="bottom")
        for row, (true, predicted, count, total) in enumerate(pairs[: int((height * top - 0.5) / 0.34)]):
            y = top - (0.1 + 0.34 * row) / height
            line = f"{shorten(true, 44)}\n   as {shorten(predicted, 40)}: {count:,} of {total:,}"
            figure.text(left, y, escape_dollars(line), color=INK, fontsize=8, va="top", linespacing=1.3)
    save_figure(figure, path)


def pooled(values: np.ndarray, most: int) -> np.ndarray:
    """Return a matrix (K, K) with no side longer than `most`: of neighbours the greatest, so that none is lost."""
    K = len(values)
    by = math.ceil(K / most)
    starts = np.arange(0, K, by)
    return np.maximum.reduceat(np.maximum.reduceat(values, starts, axis=0), starts, axis=1)


def captioned(images: Sequence[np.ndarray], captions: Sequence[str], path: Path, *, title: str = "") -> None:
    """Draw a page of pictures, uint8 (H, W, 3) of any sizes, each with a caption below: `\\n` between its items.

    Each item of a caption is wrapped into at most two lines; a longer one is cut off. The last row is centred.
    """
    n = max(1, len(images))
    columns = n if n <= 4 else min(range(6, 3, -1), key=lambda c: -n % c)
    rows = math.ceil(n / columns)
    texts = [
        "\n".join(line for item in caption.split("\n") for line in wrapped(item, CELL - 0.1, 8)[:2])
        for caption in captions
    ]
    lines = max((text.count("\n") + 1 for text in texts), default=0)
    heading = wrapped(title, columns * CELL - 0.2, 11)
    top, below = 0.15 + 0.19 * len(heading), 0.12 + 0.135 * lines  # inches
    tall = max((image.shape[0] / max(image.shape[:2]) for image in images), default=1.0) * (CELL - 0.2)
    width, height = max(4, columns * CELL), top + rows * (tall + below + 0.1)
    figure = Figure(figsize=(width, height))
    figure.text(
        0.5,
        1 - 0.08 / height,
        escape_dollars("\n".join(heading)),
        color=INK,
        fontsize=11,
        ha="center",
        va="top",
    )
    for i, (image, text) in enumerate(zip(images, texts, strict=True)):
        row, column = divmod(i, columns)
        in_row = min(columns, len(images) - row * columns)
        left = (width - in_row * CELL) / 2 + column * CELL + 0.1
        bottom = height - top - (row + 1) * (tall + below + 0.1) + below
        ax = figure.add_axes((left / width, bottom / height, (CELL - 0.2) / width, tall / height), anchor="S")
        ax.axis("off")
        ax.imshow(image, interpolation="nearest" if max(image.shape[:2]) < 96 else "antialiased")
        middle = (left + CELL / 2 - 0.1) / width
        figure.text(
            middle,
            (bottom - 0.05) / height,
            escape_dollars(text),
            fontsize=8,
            color=INK,
            ha="center",
            va="top",
        )
    save_figure(figure, path)


def draw_attention_distances(panels: Mapping[str, tuple[np.ndarray, Sequence[str]]], path: Path) -> None:
    """Draw Fig. 7 right and Fig. 11: a panel for each model, of (n, L, h) distances in pixels and the names of its
    L layers, with a dot for each head: the mean over the n images."""
    figure = Figure(figsize=(0.8 + 4.2 * len(panels), 3.6), layout="constrained")
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for ax, (name, (distances, layers)) in zip(axes, panels.items(), strict=True):
        n, L, h = distances.shape
        mean = distances.mean(axis=0)  # (L, h)
        for head in range(h):
            dot = {"color": COLOURS[head % len(COLOURS)], "markersize": 4, "alpha": 0.85}
            ax.plot(range(1, L + 1), mean[:, head], "o", **dot)
        ax.set_title(escape_dollars(name), color=INK, fontsize=11)
        ax.set_xlabel("layer")
        every = math.ceil(L / MOST_LAYERS)
        turn = 90 if max(map(len, layers)) > 2 else 0  # "1 column" is longer than its place
        ax.set_xticks(range(1, L + 1, every), layers[::every], fontsize=8, rotation=turn)
        ax.set_xlim(0.5, L + 0.5)
        counts = f"{n:,} image{'s' * (n != 1)}, {h:,} head{'s' * (h != 1)}"
        ax.annotate(counts, (0.98, 0.02), xycoords="axes fraction", ha="right", fontsize=8)
        dress(ax)
    axes[0].set_ylabel("mean attention distance (pixels)")
    axes[0].set_ylim(bottom=0)
    save_figure(figure, path)


def labelled(
    picture: np.ndarray,
    path: Path,
    *,
    title: str = "",
    rows: Sequence[str] = (),
    columns: Sequence[str] = (),
    above: Sequence[str] = (),
    axes: tuple[str, str] = ("", ""),
    scale: tuple[float, float, str] | None = None,
) -> None:
    """Draw a picture, pixel for pixel, with labels along its sides, `columns` below it.

    `axes`: what is counted down and across. `scale`: what its colours mean: from, to, of what.
    """
    H, W = picture.shape[:2]
    left = 0.25 + 0.085 * max(map(len, rows), default=0) + 0.2 * bool(axes[0])  # inches, as the others
    bottom, right = (0.35 if columns else 0.1) + 0.2 * bool(axes[1]), 1 if scale else 0.15
    width = W / DPI + left + right
    lines = wrapped(title, width - 0.35, 10)
    top = 0.1 + (0.17 + 0.18 * len(lines) if lines else 0) + (0.3 if above else 0)
    height = H / DPI + bottom + top
    figure = Figure(figsize=(width, height))
    ax = figure.add_axes((left / width, bottom / height, W / DPI / width, H / DPI / height))
    # For the scale; the picture has its own.
    colours = ListedColormap(heat(np.linspace(0, 1, 256)[None])[0] / 255)
    image = ax.imshow(picture, cmap=colours, aspect="auto")
    ax.set_xticks(middles(len(columns), W), list(map(escape_dollars, columns)), fontsize=8, color=INK)
    ax.set_yticks(middles(len(rows), H), list(map(escape_dollars, rows)), fontsize=8, color=INK)
    over = ax.secondary_xaxis("top")
    over.set_xticks(middles(len(above), W), list(map(escape_dollars, above)), fontsize=8, color=INK)
    for one in (ax, over):
        one.tick_params(length=0)
        one.spines[:].set_visible(False)
    ax.set_xlabel(axes[1], fontsize=8, color=INK)
    ax.set_ylabel(axes[0], fontsize=8, color=INK)
    figure.text(
        0.25 / width, 1 - 0.13 / height, escape_dollars("\n".join(lines)), color=INK, fontsize=10, va="top"
    )
    if scale is not None:
        image.set_clim(*scale[:2])
        label = wrapped(scale[2], H / DPI + 2 * min(top, bottom), 8)
        draw_scale(figure, image, ax, "\n".join(label), 8)
    save_figure(figure, path)


def joined(
    images: Sequence[np.ndarray],
    ends: Sequence[np.ndarray],
    path: Path,
    *,
    names: Sequence[str],
    title: str = "",
) -> None:
    """Draw two images, uint8 (H, W, 3), side by side, and lines between places (m, 2), row and column in pixels."""
    figure = Figure(figsize=(9, 0.9 + 4.2 * max(image.shape[0] / image.shape[1] for image in images)))
    axes = figure.subplots(1, 2)
    figure.subplots_adjust(0.02, 0.02, 0.98, 0.86, wspace=0.08)
    figure.suptitle(escape_dollars("\n".join(wrapped(title, 8.5, 11))), color=INK, fontsize=11)
    for ax, image, name in zip(axes, images, names, strict=True):
        ax.imshow(image, interpolation="nearest")
        ax.set_title(escape_dollars(shorten(name, LINE)), color=INK, fontsize=9)
        ax.axis("off")
    for number, (one, other) in enumerate(zip(*ends, strict=True)):
        colour = COLOURS[number % len(COLOURS)]
        for ax, (y, x) in zip(axes, (one, other), strict=True):
            ax.plot(x, y, "o", color=colour, markeredgecolor="white", markersize=6)
        line = ConnectionPatch(one[::-1], other[::-1], "data", "data", axesA=axes[0], axesB=axes[1])
        line.set(color=colour, linewidth=1, alpha=0.7)
        figure.add_artist(line)
    save_figure(figure, path)


def draw_map(
    xy: np.ndarray,
    groups: np.ndarray,
    names: Sequence[str],
    colours: Sequence[str],
    path: Path,
    *,
    title: str = "",
    about: str = "",
) -> None:
    """Draw points (n, 2), from 0 to 1, coloured by their groups, int (n,), later groups above.

    Up to LABELLED groups are named beside the map; of more, each is named at the middle of its points.
    """
    present = [int(k) for k in np.unique(groups)]
    listed = len(present) <= LABELLED
    across, down = np.maximum(np.ptp(xy, axis=0), 1e-6)
    height = float(np.clip(8 * down / across, 4, 10))
    figure = Figure(figsize=(8.4 + 2.6 * listed, height + 0.8), layout="constrained")
    ax = figure.subplots()
    side = float(np.clip(600 / math.sqrt(max(1, len(xy))), 3, 30))  # square points
    for k in present:
        x, y = xy[groups == k].T
        label = escape_dollars(shorten(names[k], LINE))
        dots: dict[str, Any] = {
            "color": colours[k],
            "s": side,
            "linewidths": 0,
            "alpha": 0.85,
            "label": label,
        }
        ax.scatter(x, y, **dots)
        if not listed:
            place = (float(np.median(x)), float(np.median(y)))
            box = {"boxstyle": "round,pad=0.1", "facecolor": "white", "alpha": 0.65, "linewidth": 0}
            ax.annotate(label, place, fontsize=6, color=INK, ha="center", va="center", bbox=box)
    ax.set_aspect("equal", "datalim")
    ax.set_xticks([])
    ax.set_yticks([])
    ax.spines[:].set_color(FAINT)
    ax.set_title(escape_dollars("\n".join(wrapped(title, 8, 11))), color=INK, fontsize=11)
    ax.set_xlabel(escape_dollars("\n".join(wrapped(about, 8, 8))), color=INK, fontsize=8)
    if listed:
        scale = math.sqrt(40 / side)
        ax.legend(frameon=False, fontsize=8, markerscale=scale, loc="center left", bbox_to_anchor=(1.0, 0.5))
    save_figure(figure, path)


def wrapped(text: str, inches: float, size: float) -> list[str]:
    """Break a text into lines of about this length, in letters of `size` points; at least 10 letters a line."""
    wide = any(unicodedata.east_asian_width(letter) in "WF" for letter in text)  # Chinese, Japanese, Korean
    letters = max(10, int(inches / (0.008 * size * (2 if wide else 1))))
    return [line for part in text.split("\n") for line in textwrap.wrap(part, letters)]


def new_axes(
    columns: int, width: float, height: float, *, share_y: bool = False
) -> tuple[Figure, list[Axes]]:
    """Return a figure, its size in inches, with axes side by side."""
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, list(figure.subplots(1, columns, squeeze=False, sharey=share_y)[0])


def middles(n: int, length: int) -> np.ndarray:
    """Return the middles of n tiles along a side of `pixels` pixels."""
    return (np.arange(n) + 0.5) * length / max(n, 1) - 0.5


def draw_scale(figure: Figure, image: AxesImage, ax: Axes, label: str, size: float) -> None:
    """Draw the colour scale of an image in a bar to the right of it."""
    box, width = ax.get_position(), figure.get_figwidth()
    place = figure.add_axes((box.x1 + 0.012 * size / width, box.y0, 0.014 * size / width, box.height))
    bar = figure.colorbar(image, cax=place)
    bar.set_label(label, color=INK, fontsize=size)
    bar.ax.tick_params(labelsize=size, colors=INK)
    bar.outline.set_visible(False)


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def smoothed(values: Sequence[float]) -> np.ndarray:
    """Return a running mean over the past, about a thirtieth of the curve long, unbiased at its start."""
    keep = 1 - 1 / max(5, len(values) / 30)
    total = weight = 0.0
    means = []
    for value in values:
        total, weight = keep * total + value, keep * weight + 1
        means.append(total / weight)
    return np.array(means)


def dress(ax: Axes) -> None:
    ax.grid(color=FAINT, linewidth=0.8)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(colors=INK)
    if ax.get_legend_handles_labels()[0]:
        ax.legend(frameon=False, fontsize=8)


def escape_dollars(text: str) -> str:
    """Return text for matplotlib, with dollar signs escaped, which would begin a formula."""
    return "\n".join(map(visible, text.split("\n"))).replace("$", r"\$")


def shorten(name: str, most: int) -> str:
    """Return a name of at most `most` letters: a longer one loses its middle, as its end may tell it from others."""
    name = " ".join(name.split())
    end = (most - 1) // 2
    return name if len(name) <= most else f"{name[: most - 1 - end]}…{name[-end:]}"


def save_figure(figure: Figure, path: Path) -> None:
    path = Path(path)
    # Fonts that have the letters of the names; where none has, boxes are drawn, and a note says so.
    installed = set(fontManager.get_font_names())
    for text in figure.findobj(Text):
        if not text.get_text().isascii():
            text.set_fontfamily([name for name in FONTS if name in installed])
    with atomic_file(path) as temporary, warnings.catch_warnings(record=True) as caught:
        warnings.filterwarnings("always", message="Glyph")
        figure.savefig(temporary, format=path.suffix[1:] or "png", dpi=DPI, facecolor="white")
    if any(str(warning.message).startswith("Glyph") for warning in caught):
        note_boxes()


@cache  # once for all figures
def note_boxes() -> None:
    note(
        "no installed font has some letters of names in the figures, which are drawn as boxes: install one that has "
        "them, such as Noto Sans CJK"
    )
