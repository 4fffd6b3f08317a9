"""The speed of this machine on the command line: bench."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import Positional, arg

from vitrail.bench import BENCH, KINDS, BenchSettings
from vitrail.cli.verb import COMMON, Common, Output, parse_image_size
from vitrail.errors import ConfigError

if TYPE_CHECKING:
    from vitrail.bench.bench import Report
    from vitrail.bench.paper import PaperReport
    from vitrail.bench.rounds import Measured

What = Literal["train", "infer", "loader", "all"]
COLUMNS = [
    "", "", ">batch", ">images/s", ">ms", ">p95 ms", ">memory", ">MFU", ">start-up", ">vitrail / this",
]  # fmt: skip


def bench(
    what: Annotated[Positional[What], arg(metavar="{train,infer,loader,all}")] = "all",
    settings: BenchSettings = BENCH,
    *,
    paper: bool = False,
    out: str | None = None,
    common: Common = COMMON,
) -> Output:
    """Measure the speed of training, inference and loading on this machine; with --peers beside timm and torchvision.

    Args:
        what: the training step, the forward pass (a batch, and one image at a time), the loader, or all of them
        paper: instead of these, the paper's two figures (D.5): inference speed and largest batch of its models at
            five image sizes; with --out they are drawn beside the JSON file
        out: a new JSON file for the whole result, with the values of each round
    """
    from vitrail.bench.bench import run_bench
    from vitrail.runtime.files import atomic_file, check_writable

    if out is not None:
        if Path(out).exists():
            raise ConfigError(f"--out {out} exists; nothing is overwritten")
        check_writable(Path(out).parent)
    if paper:
        return bench_paper(settings, out, common)
    image_size = parse_image_size(settings.image_size)
    kinds = KINDS if what == "all" else (what,)
    report = run_bench(kinds, settings, image_size, common.device)
    result = report.as_json()
    output = Output(common, COLUMNS, [], result, after=describe(report))
    for one in report.measured:
        output.rows += describe_rows(one)
    filled = [k for k, heading in enumerate(COLUMNS) if not heading or any(row[k] for row in output.rows)]
    output.columns = [COLUMNS[k] for k in filled]
    output.rows = [[row[k] for k in filled] for row in output.rows]
    if out is not None:
        with atomic_file(Path(out)) as file:
            file.write_text(json.dumps(result, allow_nan=False, indent=1) + "\n", encoding="utf-8")
        output.after.append(f"Whole result, with the values of each round: {out}")
    return output


def bench_paper(settings: BenchSettings, out: str | None, common: Common) -> Output:
    from vitrail.bench.paper import run_paper_bench
    from vitrail.runtime.files import atomic_file

    report = run_paper_bench(settings, settings.image_size, common.device)
    rows = []
    for cell in report.cells:
        batch_size, speed = cell.best
        largest = "not measured" if cell.largest is None else f"{cell.largest:,}"
        rows.append([cell.model, str(cell.image_size), f"{speed:,.1f}", f"{batch_size:,}", largest])
    columns = ["model", ">image size", ">images/s", ">at batch", ">largest batch"]
    result = report.as_json()
    after = [
        f"Inference on {report.device} in {report.cells[0].precision}, not compiled: the speed of the best batch."
    ]
    if all(cell.largest is None for cell in report.cells):
        after.append("The largest batch is measured on CUDA alone, by filling the memory.")
    if out is not None:
        with atomic_file(Path(out)) as file:
            file.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        after.append(f"Whole result: {out}; figures: {', '.join(map(str, draw_paper(report, Path(out))))}")
    return Output(common, columns, rows, result, after=after)


def draw_paper(report: PaperReport, out: Path) -> list[Path]:
    """Draw Figure 12: speed, and the largest batch where it was measured, against the image size."""
    from vitrail.inspection.charts import Dot, Panel, draw_panels

    speeds: dict[str, list[Dot]] = {}
    batches: dict[str, list[Dot]] = {}
    for cell in report.cells:
        speeds.setdefault(cell.model, []).append(Dot(cell.image_size, cell.best[1]))
        if cell.largest:
            batches.setdefault(cell.model, []).append(Dot(cell.image_size, cell.largest))
    figures = {"speed": ("images per second", speeds), "batch": ("largest batch (images)", batches)}
    paths = []
    for name, (label, series) in figures.items():
        if series:
            panel = Panel(
                report.device, "image size (pixels per side)", label, series, log_x=True, log_y=True
            )
            paths.append(out.with_name(f"{out.stem}-{name}.png"))
            draw_panels([panel], paths[-1:], title=f"Inference: {label} (paper: Figure 12)")
    return paths


def describe_rows(measured: Measured) -> list[list[str]]:
    """Return a row for each contestant, also for those that could not take part."""
    rows: list[list[str]] = []
    ours = measured.speeds[0]
    for speed in measured.speeds:
        speeds, times, p95 = speed.images_per_second, speed.milliseconds, speed.p95_milliseconds
        mfu, memory = measured.utilisation(speed), speed.memory_bytes
        rows.append(
            [
                "" if rows else measured.task.kind,
                speed.name,
                str(speed.batch_size),
                speeds.text(0 if speeds.median >= 100 else 1),
                times.text(0 if times.median >= 100 else 1 if times.median >= 10 else 2),
                "" if p95 is None else f"{p95.median:.{0 if p95.median >= 100 else 2}f}",
                "" if memory is None else f"{memory / 2**30:.1f} GiB",
                "" if mfu is None else f"{mfu:.1%}",
                f"{speed.startup_seconds:.1f} s",
                "" if speed is ours else ours.ratio(speed).text(2, "x"),
            ]
        )
    return rows + [["", name, "-", "not measured", *[""] * 6] for name in measured.missing]


def describe(report: Report) -> list[str]:
    """Return the lines below the table: what was measured, and what differs between the contestants."""
    result = report.as_json()
    H, W = result["image_size"]
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    lines = [
        f"{result['model']} at {H}x{W}, {result['parameters']:,} parameters, on {result['device_name']}; {versions}.",
        "Speeds: the median of the rounds (lowest to highest). Start-up: building, compiling and warming up, which "
        "the speeds leave out.",
    ]
    facts = {one.task.kind: one.task.facts for one in report.measured}
    if fact := facts.get("train"):
        how = "not compiled" if fact["compile"] == "off" else "compiled"
        lines.append(
            f"Training: {fact['precision']}, {how}, {fact['optimizer']}, clipping at norm {fact['grad_clip']:g}."
        )
    if fact := facts.get("infer"):
        lines.append(f"Inference: {fact['precision']}; latency: one image at a time, waited for.")
    if fact := facts.get("loader"):
        size = f" of {fact['median_bytes'] / 1000:.0f} kB" if fact["median_bytes"] else ""
        lines.append(
            f"Loading: {fact['images']:,} images{size} ({fact['data']}), {fact['line']}, {fact['num_workers']} "
            f"processes, {fact['jpeg_decoder']}; batches of bytes on the host."
        )
    if not report.subject.settings.peers:
        return lines
    if "train" in facts or "infer" in facts:
        lines.append("Others: the same settings, but torchvision with the exact GELU.")
    for one in report.measured:
        lines += [f"{one.task.kind}: {name} {reason}." for name, reason in one.missing.items()]
        if (fastest := one.fastest_peer()) is not None:
            ratio = one.speeds[0].ratio(fastest).text(2, "x")
            lines.append(
                f"{one.task.kind}: the fastest other is {fastest.name}; vitrail runs at {ratio} its speed."
            )
    return lines
