"""Charts of measured numbers: lines with error bars over a number, or a row for each name; panels side by side.

What is drawn is data (`Panel`); drawing.py has the means.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vitrail.inspection.drawing import COLOURS, INK, dress, escape_dollars, new_axes, save_figure, wrapped

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
MOST_TICKS = 8  # places along x that are each marked
LEAST_GAP = 0.1  # between two of them, as a part of the axis
WIDTH, HEIGHT = 5.4, 4.2  # inches of a panel
ROW = 0.3  # inches of a row


@dataclass(frozen=True)
class Dot:
    x: float  # in a panel with rows: the number of the row
    y: float
    error: float = 0.0  # half the length of its bar
    label: str = ""


@dataclass(frozen=True)
class Panel:
    title: str
    x_label: str
    y_label: str
    series: Mapping[str, Sequence[Dot]]
    rows: tuple[str, ...] = ()  # names; then y is along the horizontal axis
    log_x: bool = False
    log_y: bool = False
    curves: Mapping[str, Sequence[tuple[float, float]]] = field(
        default_factory=dict
    )  # by series, without marks
    joined: bool = True  # dots of a series by a line
    hollow: bool = False  # markers, for numbers of another source
    note: str = ""  # below the axes


def draw_panels(panels: Sequence[Panel], paths: Sequence[Path], *, title: str = "") -> None:
    """Draw panels side by side into files; the suffix of a path is its format."""
    most_rows = max(len(panel.rows) for panel in panels)
    names = max((len(name) for panel in panels for name in panel.rows), default=0)
    height = max(2.4, 1.5 + ROW * most_rows) if most_rows else HEIGHT
    width = WIDTH * len(panels) + 0.07 * names
    share = bool(most_rows) and all(panel.rows == panels[0].rows for panel in panels)
    figure, axes = new_axes(len(panels), width, height + 0.3, share_y=share)
    figure.suptitle(escape_dollars(title), color=INK, fontsize=12)
    colours = dict(zip(dict.fromkeys(name for panel in panels for name in panel.series), itertools.count()))
    for ax, panel in zip(axes, panels, strict=True):
        draw_panel(ax, panel, colours)
    for path in paths:
        save_figure(figure, path)


def draw_panel(ax: Any, panel: Panel, colours: Mapping[str, int]) -> None:
    for name, dots in panel.series.items():
        number = colours[name]
        colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
        style: dict[str, Any] = {
            "color": colour,
            "marker": marker,
            "markersize": 6,
            "capsize": 3,
            "label": escape_dollars(name),
        }
        style |= {"markerfacecolor": "white"} if panel.hollow else {}
        line = "-" if panel.joined and not panel.rows and name not in panel.curves else ""
        xs, ys = [dot.x for dot in dots], [dot.y for dot in dots]
        errors = [dot.error for dot in dots] if any(dot.error for dot in dots) else None
        if panel.rows:
            ax.errorbar(ys, xs, xerr=errors, linestyle="", **style)
        else:
            ax.errorbar(xs, ys, yerr=errors, linestyle=line, **style)
        for dot in dots:
            if dot.label:
                ax.annotate(
                    escape_dollars(dot.label),
                    (dot.x, dot.y),
                    (5, 5),
                    textcoords="offset points",
                    fontsize=7,
                    color=colour,
                )
        if name in panel.curves:
            ax.plot(*zip(*panel.curves[name], strict=True), color=colour, linestyle="--", linewidth=1.2)
    dress(ax)
    if len(panel.series) < 2 and (legend := ax.get_legend()) is not None:
        legend.remove()
    if panel.rows:
        ax.set_yticks(range(len(panel.rows)), list(map(escape_dollars, panel.rows)))
        ax.set_ylim(len(panel.rows) - 0.5, -0.5)
        ax.set_xlabel(panel.y_label)
    else:
        places = sorted({dot.x for dots in panel.series.values() for dot in dots})
        if panel.log_x:
            ax.set_xscale("log")
        if are_apart([math.log(x) for x in places] if panel.log_x else places):
            mark(ax.xaxis, places)
        elif panel.log_x:
            mark(ax.xaxis, round_numbers(*ax.get_xlim()))
        if panel.log_y:
            ax.set_yscale("log")
            mark(ax.yaxis, round_numbers(*ax.get_ylim()))
        ax.set_xlabel(panel.x_label)
        ax.set_ylabel(panel.y_label)
    ax.set_title(escape_dollars("\n".join(wrapped(panel.title, WIDTH - 0.4, 10))), color=INK, fontsize=10)
    if panel.note:
        ax.annotate(
            escape_dollars("\n".join(wrapped(panel.note, WIDTH - 0.4, 8))),
            (0, 0), (0, -46), xycoords="axes fraction", textcoords="offset points", fontsize=8, color=INK, va="top",
        )  # fmt: skip


def are_apart(places: Sequence[float]) -> bool:
    """Return whether the numbers at these places along an axis would not touch each other."""
    gaps = [b - a for a, b in itertools.pairwise(places)]
    return len(places) <= MOST_TICKS and (not gaps or min(gaps) >= LEAST_GAP * (places[-1] - places[0]))


def mark(axis: Any, places: Sequence[float]) -> None:
    """Put numbers at these places of an axis, and nowhere else."""
    if places:
        axis.set_ticks(places, [format_number(x) for x in places])
        axis.set_ticks([], minor=True)


def round_numbers(low: float, high: float) -> list[float]:
    """Return 1, 2 and 5 times powers of ten from low to high; of many the powers alone."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    places = [digit * 10.0**power for power in powers for digit in (1, 2, 5)]
    places = [x for x in places if low <= x <= high]
    return places if len(places) <= MOST_TICKS else [x for x in places if f"{x:e}".startswith("1.")]


def format_number(x: float) -> str:
    """Return a number as a label: 9,000 as 9k, 303e6 as 303M."""
    if abs(x) >= 1e6:
        return f"{x / 1e6:.3g}M"
    if abs(x) >= 1e4:
        return f"{x / 1e3:.3g}k"
    return f"{x:,.4g}" if abs(x) >= 1e-3 or x == 0 else f"{x:.0e}".replace("e-0", "e-")
