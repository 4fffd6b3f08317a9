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
        if panel.log_x:
            ax.set_xscale("log")
        places = sorted({dot.x for dots in panel.series.values() for dot in dots})
        if 0 < len(places) <= MOST_TICKS:
            ax.set_xticks(places, [format_number(x) for x in places])
            ax.xaxis.set_minor_formatter("")
        elif panel.log_x:
            ax.xaxis.set_major_formatter(lambda x, _: format_number(x))
            ax.xaxis.set_minor_formatter("")
        ax.set_xlabel(panel.x_label)
        ax.set_ylabel(panel.y_label)
    ax.set_title(escape_dollars("\n".join(wrapped(panel.title, WIDTH - 0.4, 10))), color=INK, fontsize=10)
    if panel.note:
        ax.annotate(
            escape_dollars("\n".join(wrapped(panel.note, WIDTH - 0.4, 8))),
            (0, 0), (0, -46), xycoords="axes fraction", textcoords="offset points", fontsize=8, color=INK, va="top",
        )  # fmt: skip


def format_number(x: float) -> str:
    """Return a number as a label: 9,000 as 9k, 303e6 as 303M."""
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if abs(x) >= size * (1 if unit == "M" else 10):
            return f"{x / size:.3g}{unit}"
    return (
        f"{x:,.4g}"
        if x == 0 or abs(x) >= 1e-3
        else f"{x:.0e}".replace("e-0", "e-")
        if math.isfinite(x)
        else ""
    )
