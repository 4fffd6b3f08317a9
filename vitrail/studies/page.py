"""Results -> figure.png, figure.svg, page.html, page.md: the paper's statement, our figure, the paper's numbers
beside ours, what each claim rests on, and one sentence."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from vitrail.inspection.charts import Dot, Panel, draw_panels
from vitrail.inspection.report import data_uri, write_page
from vitrail.runtime.files import atomic_file
from vitrail.runtime.html_page import text
from vitrail.studies.claims import Answer, PointResult, fit_power_law, verdict
from vitrail.studies.plan import Plan
from vitrail.studies.results import Results
from vitrail.studies.study import Study
from vitrail.transfer.tables import escape_markdown

FIGURE = "figure"
ANSWERS = {True: "holds", False: "does not hold", None: "cannot be told"}
SHORT = {"top1": "top-1", "linear": "linear probe"}
LABELS = {
    "top1": "top-1 accuracy on the test split",
    "linear": "accuracy of a linear probe on frozen features",
}


@dataclass(frozen=True)
class Page:
    """Content of the page: headings with paragraphs (text) and tables (rows, the first of them the heading)."""

    title: str
    verdict: str
    sections: dict[str, list[str | list[list[str]]]]


def score_name(score: str) -> str:
    shots = score.partition("-")[0]
    return LABELS.get(score, f"{shots}-shot accuracy (least squares on frozen features)")


def answer_claims(study: Study, results: Results) -> list[Answer]:
    points = results.points[study.scores[0]]
    return [claim.test(points) for claim in study.claims]


def conclude(study: Study, results: Results) -> str:
    """Return the sentence: holds, does not hold, or cannot be told, and why."""
    sentence, holds = verdict(answers := answer_claims(study, results))
    if holds:
        return sentence
    why = [a.why for a in answers if a.holds is holds]
    return f"{sentence[:-1]}: {'; '.join(dict.fromkeys(why))}." if why else sentence


def draw_figure(study: Study, plan: Plan, results: Results, folder: Path) -> None:
    """Draw ours and, beside it, the paper's numbers where it prints any."""
    score, figure = study.scores[0], study.figure
    points = results.points[score]
    counts = [len(p.values) for p in points.values()] or [0]
    seeds = f"{max(counts)}" if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"
    n = f"mean of {seeds} seeds; bars: ± 1 standard error" if max(counts) > 1 else "one seed: no error bars"
    names = tuple(points)
    series: dict[str, list[Dot]] = {}
    curves: dict[str, list[tuple[float, float]]] = {}
    for k, (name, point) in enumerate(points.items()):
        place = results.places.get(name, math.nan) if figure.x else float(k)
        error = 0.0 if math.isnan(point.se) else 100 * point.se
        family = point.family if figure.x else "vitrail"
        series.setdefault(family or "vitrail", []).append(Dot(place, 100 * point.mean, error))
    for family, dots in series.items():
        if figure.x:
            series[family] = sorted(dots, key=lambda dot: dot.x)
        law = fit_power_law([p for p in points.values() if p.family == family]) if figure.fit else None
        if law is not None:
            xs = np.geomspace(series[family][0].x, series[family][-1].x, 20)
            curves[family] = [(float(x), 100 * (1 - law.error(float(x)))) for x in xs]
    y_label, rows = f"{SHORT.get(score, score)} accuracy (%)", () if figure.x else names
    title = f"vitrail, {plan.size}, {Path(plan.data.partition('?')[0]).name}\n{n}"
    log_x = bool(figure.x) and min((d.x for dots in series.values() for d in dots), default=0) > 0
    panels = [Panel(title, figure.x_label, y_label, series, rows, log_x, curves=curves)]
    if (paper := paper_panel(study, names)) is not None:
        panels.append(paper)
    draw_panels(panels, [folder / f"{FIGURE}.png", folder / f"{FIGURE}.svg"], title=study.title)


def paper_panel(study: Study, names: Sequence[str]) -> Panel | None:
    """Return the paper's numbers as a panel: in the rows of ours, or over a number."""
    paper = study.paper
    if paper is None:
        return None
    series: dict[str, list[Dot]] = {}
    in_rows = not study.figure.x
    rows = tuple(dict.fromkeys([*names, *(str(place) for _, place, _ in paper.numbers)])) if in_rows else ()
    for family, place, percent in paper.numbers:
        x = float(rows.index(str(place))) if in_rows else float(place)
        series.setdefault(family or "paper", []).append(Dot(x, percent))
    series = {name: sorted(dots, key=lambda dot: dot.x) for name, dots in series.items()}
    return Panel(
        f"the paper\n{paper.source}", paper.x_label, "accuracy (%)", series, rows, not in_rows, hollow=True,
        joined=not study.figure.fit,
    )  # fmt: skip


def make_page(study: Study, plan: Plan, results: Results, command: str) -> Page:
    answers = answer_claims(study, results)
    sections: dict[str, list[str | list[list[str]]]] = {}
    sections["The paper"] = [f"{study.statement} (section {study.section})"]
    sections["Results"] = [conclude(study, results)]
    if results.left:
        planned = len(plan.pieces)
        sections["Results"].append(
            f"Unfinished: {planned - len(results.left)} of {planned} runs. The same command continues."
        )
    sections["Figure"] = []
    described = "; ".join(f"{SHORT.get(score, score)}: {score_name(score)}" for score in study.scores)
    sections["Numbers"] = [
        numbers_table(study, results),
        f"Mean ± standard error (number of seeds). {described}.",
    ]
    if study.paper is not None and study.figure.x:
        rows = [
            [family, format_place(place), f"{percent:.2f}"] for family, place, percent in study.paper.numbers
        ]
        head = ["model", study.paper.x_label, "accuracy (%)"]
        sections["The paper's numbers"] = [f"{study.paper.source}.", [head, *rows]]
    elif study.paper is None:
        sections["Numbers"].append(
            "The paper shows this in a figure or in words, and prints no numbers to put beside ours."
        )
    if study.figure.fit:
        sections["Power law"] = power_laws(study, results)
    if study.claims:
        rows = [[claim.text, ANSWERS[a.holds], a.why] for claim, a in zip(study.claims, answers, strict=True)]
        sections["What the statement claims"] = [[["claim", "at this scale", "because"], *rows], RULE]
    if results.trials:
        sections["Learning rates"] = learning_rates(results)
    if results.failed:
        rows = [[name, why] for name, why in results.failed.items()]
        sections["Failed runs"] = [
            [["run", "why"], *rows],
            "Remove the folder of a run, in runs/, to try it again.",
        ]
    sections["How it was done"] = how(study, plan, results, command)
    return Page(study.title, conclude(study, results), sections)


RULE = (
    "A difference of less than two standard errors is called none. With fewer than three seeds, or where families "
    "are compared whose learning rates were not tuned alike, nothing is concluded."
)


def numbers_table(study: Study, results: Results) -> list[list[str]]:
    """Return a row for each point with all scores, the paper's number where it has the same point, and the cost."""
    paper = {str(place): percent for _, place, percent in study.paper.numbers} if study.paper else {}
    beside = not study.figure.x and study.paper is not None
    head = [
        "",
        *(f"{SHORT.get(score, score)} (%)" for score in study.scores),
        *(["the paper"] if beside else []),
    ]
    table = [[*head, "lr", "training images", "GFLOPs", "exaFLOPs a run", "seconds a run"]]
    for name in results.points[study.scores[0]]:
        row = next(
            row for row in results.rows if row["point"] == name and row["kind"] == "run" and not row["failed"]
        )
        cells = [name, *(format_point(results.points[score][name]) for score in study.scores)]
        if beside:
            cells.append(f"{paper[name]:.2f}" if name in paper else "-")
        cells += [f"{row['lr']:g}", f"{row['train_examples']:,}", f"{row['gflops']:.3g}"]
        table.append([*cells, f"{row['exaflops']:.3g}", f"{row['seconds']:.0f}"])
    return table


def format_point(point: PointResult) -> str:
    error = "" if math.isnan(point.se) else f" ± {100 * point.se:.1f}"
    return f"{100 * point.mean:.1f}{error} ({len(point.values)})"


def format_place(place: str | float) -> str:
    return place if isinstance(place, str) else f"{place:,.10g}"


def power_laws(study: Study, results: Results) -> list[str | list[list[str]]]:
    points = results.points[study.scores[0]]
    rows = [["family", "error = a C^-b", "b, 95% interval"]]
    for family in dict.fromkeys(p.family for p in points.values()):
        law = fit_power_law([p for p in points.values() if p.family == family])
        if law is None:
            rows.append([family, "needs two amounts of compute", "-"])
        else:
            rows.append([family, f"{law.a:.3g} C^-{law.b:.3f}", f"{law.low:.3f} to {law.high:.3f}"])
    return [
        rows,
        "C in exaFLOPs of training; least squares on logarithms; intervals by resampling the seeds of each point.",
    ]


def learning_rates(results: Results) -> list[str | list[list[str]]]:
    rows, at_end = [["family", "lr: accuracy on held-out train", "chosen"]], []
    for family, tried in results.trials.items():
        name, good = family or "all points", {lr: top1 for lr, top1 in tried.items() if top1 is not None}
        chosen = min(good, key=lambda lr: (-good[lr], lr), default=math.nan)
        cells = [f"{lr:g}: {format_top1(top1)}" for lr, top1 in sorted(tried.items())]
        rows.append([name, ", ".join(cells), f"{chosen:g}" if good else "-"])
        if chosen in (min(tried), max(tried)):
            at_end.append(name)
    parts: list[str | list[list[str]]] = [rows]
    parts.append("One run with a seed of its own for each; the runs above have other seeds.")
    if at_end:
        parts.append(
            f"At an end of the rates that were tried, beyond which a better one may lie: {', '.join(at_end)}."
        )
    return parts


def format_top1(top1: float | None) -> str:
    return "failed" if top1 is None else f"{100 * top1:.1f}%"


def how(study: Study, plan: Plan, results: Results, command: str) -> list[str | list[list[str]]]:
    runs = [row for row in results.rows if row["kind"] == "run"]
    rows = [["command", command], ["data", plan.data or "-"]]
    if any(score != "top1" for score in study.scores):
        same = plan.transfer == (plan.data,)
        rows.append(["probes on", "the same data" if same else ", ".join(plan.transfer)])
    for name, key in (("computed", "computed"), ("commit", "commit"), ("numerics", "numerics")):
        values = dict.fromkeys(str(row[key]) for row in results.rows if row[key] != "")
        rows.append([name, ", ".join(values) or "-"])
    seconds = sum(results.seconds.values())
    rows.append(["time", f"{seconds:,.0f} s in {len(results.seconds)} runs, added up"])
    if any(row["changed"] for row in runs):
        rows.append(["code", "had changes that were not committed"])
    parts: list[str | list[list[str]]] = [[["", ""], *rows]]
    return [*parts, *study.remarks, "Every run is a row of results.csv."]


def write_pages(page: Page, folder: Path) -> None:
    """Write page.html, which needs no other file, and page.md."""
    with Image.open(folder / f"{FIGURE}.png") as image:
        picture = data_uri(np.asarray(image.convert("RGB")), "PNG")
    figure = f'<figure><div class="chart"><img src="{picture}" alt="{text(page.title)}"></div></figure>'
    sections = {
        heading: figure if heading == "Figure" else "\n".join(map(html_part, parts))
        for heading, parts in page.sections.items()
    }
    write_page(folder / "page.html", page.title, sections)
    lines = [f"# {escape_markdown(page.title)}", ""]
    for heading, parts in page.sections.items():
        lines += [f"## {heading}", ""]
        lines += [f"![{page.title}]({FIGURE}.png)", ""] if heading == "Figure" else []
        for part in parts:
            lines += [markdown_part(part), ""]
    with atomic_file(folder / "page.md") as path:
        path.write_text("\n".join(lines), encoding="utf-8")


def html_part(part: str | list[list[str]]) -> str:
    if isinstance(part, str):
        return f"<p>{text(part)}</p>"
    head, *rows = part
    lines = ["<table>"]
    lines += ["<tr>" + "".join(f"<th>{text(cell)}</th>" for cell in head) + "</tr>"] if any(head) else []
    lines += ["<tr>" + "".join(f"<td>{text(cell)}</td>" for cell in row) + "</tr>" for row in rows]
    return "\n".join([*lines, "</table>"])


def markdown_part(part: str | list[list[str]]) -> str:
    if isinstance(part, str):
        return re.sub(r"([\\<>*_`])", r"\\\1", part)
    head, *rows = ([escape_markdown(cell) or " " for cell in row] for row in part)
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
