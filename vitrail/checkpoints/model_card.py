"""The card of a model: a README.md for the Hugging Face hub or a run, made from what the model knows of itself.

    Checkpoint  --write_card-->  metadata for the hub, then architecture, use, scores, confidence, limits, training,
                              classes, license

Class names, licenses and provenance are strangers' text: all of it is escaped, so that it stays text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from vitrail.checkpoints.checkpoint import Checkpoint, config_to_json
from vitrail.checkpoints.license import complete_license, license_metadata, restrictions
from vitrail.runtime.log import visible

SHOWN = (
    "width",
    "depth",
    "units",
    "width_factor",
    "mlp_dim",
    "heads",
    "patch_size",
    "pool",
)  # of the architecture
LISTED = 1000  # classes that are named
LONGEST = 200  # characters of a text from elsewhere
SCORES = {"top1": "top-1", "top5": "top-5", "loss": "loss", "ece": "ECE",
    "answered": "sure", "answered_top1": "top-1 where sure", "n": "images",
}  # fmt: skip
SHARES = ("top1", "top5", "answered", "answered_top1")
MARKS = re.compile(r"([\\`*_{}\[\]()#+!|<>&~$@])")


def write_card(checkpoint: Checkpoint, title: str, *, load: str, picture: str = "") -> str:
    """Return the card. `load`: a name that vitrail.load takes; `picture`: the name of a file beside the card."""
    c = checkpoint.config
    H, W = c.image_size
    about = (
        f"for images of {H} x {W} pixels, with {f'{c.classes:,} classes' if c.classes else 'no classifier'}"
    )
    kind = {
        "vit": "Vision Transformer",
        "hybrid": "hybrid of ResNet and Vision Transformer",
        "bit": "BiT ResNet",
    }
    family = kind[config_to_json(c)["family"]]
    lines = [*metadata_lines(checkpoint), "", f"# {plain(title)}", "", f"A {family} {about}.", ""]
    if picture:
        lines += [f"![{'What the model answers' if c.classes else 'The model'}]({picture})", ""]
    fields = {name: value for name, value in asdict(c).items() if name in SHOWN}
    lines += ["| | |", "|---|---|"]
    lines += [f"| {name} | {plain(value)} |" for name, value in fields.items()]
    lines += [f"| parameters | {sum(w.numel() for w in checkpoint.weights.values()):,} |"]
    lines += [f"| preprocessing | `{checkpoint.preprocess.replace('`', ' ').replace('|', ' then ')}` |", ""]
    code = f'vitrail.{"predict" if c.classes else "features"}(model, "photo.jpg")'
    lines += ["## Use", "", "```python", "import vitrail", ""]
    lines += [f"model = vitrail.load({json.dumps(load)})", code, "```", ""]
    lines += [*score_lines(checkpoint.metrics), *confidence_lines(checkpoint), *limit_lines(checkpoint)]
    lines += [*training_lines(checkpoint.provenance), *class_lines(checkpoint), *license_lines(checkpoint)]
    return "\n".join([*lines, ""])


def metadata_lines(checkpoint: Checkpoint) -> list[str]:
    """Return what the hub reads: license, task, and the model that it was trained from."""
    task = "image-classification" if checkpoint.config.classes else "image-feature-extraction"
    lines = ["---", *license_metadata(checkpoint.license), "library_name: vitrail"]
    lines += [f"pipeline_tag: {task}", "tags: [vitrail, vision-transformer]"]
    start = checkpoint.provenance.get("start")
    origin = (start if isinstance(start, dict) else checkpoint.provenance).get("hub")
    base = origin.get("repository") if isinstance(origin, dict) else None
    if isinstance(base, str) and re.fullmatch(r"[\w.-]+/[\w.-]+", base):
        lines.append(f"base_model: {base}")
    return [*lines, "---"]


def score_lines(metrics: Mapping[str, Any]) -> list[str]:
    """Return a table of the scores, a row for each split."""
    rows = {
        split: dict(numbers(scores, split)) for split, scores in metrics.items() if isinstance(scores, dict)
    }
    rows = {split: row for split, row in rows.items() if row}
    columns = [name for name in SCORES if any(name in row for row in rows.values())]
    if not columns:
        return []
    headings = " | ".join(SCORES[name] for name in columns)
    lines = ["## Scores", "", f"| split | {headings} |", "|---" * (len(columns) + 1) + "|"]
    for split, row in rows.items():
        intervals = metrics[split].get("interval")
        intervals = intervals if isinstance(intervals, dict) else {}
        cells = (format_score(name, row.get(name), intervals.get(name)) for name in columns)
        lines.append(f"| {plain(split)} | {' | '.join(cells)} |")
    return [*lines, ""]


def format_score(name: str, value: float | None, interval: Any = None) -> str:
    """Return a score as text, with its 95% interval if that is known."""
    if value is None:
        return ""
    if name not in SHARES:
        return f"{value:,.4g}"
    ends = interval if isinstance(interval, list | tuple) and len(interval) == 2 else ()
    if not ends or not all(isinstance(end, int | float) for end in ends):
        return f"{value:.2%}"
    return f"{value:.2%} ({100 * ends[0]:.1f}-{ends[1]:.1%})"


def confidence_lines(checkpoint: Checkpoint) -> list[str]:
    """Return what the model's probabilities mean, and when it is unsure."""
    c, fitted = checkpoint.calibration, checkpoint.calibration.fitted
    if not checkpoint.config.classes:
        return []
    on = ""
    if isinstance(fitted.get("n"), int):
        on = f", fitted on {fitted['n']:,} held-out images ({plain(fitted.get('data', ''))})"
    text = f"Probabilities are {'a sigmoid of each output' if c.multi_label else 'a softmax'}"
    lines = [
        f"{text} at temperature {c.temperature:.3g}{on}."
        if c.temperature != 1 or on
        else f"{text}; no temperature was fitted: they may be too high or too low."
    ]
    before, after = (fitted.get(name) for name in ("before", "after"))
    if isinstance(before, dict) and isinstance(after, dict):
        changes = [
            f"{SCORES[name]} {format_score(name, before[name])} without, {format_score(name, after[name])} with it"
            for name in ("loss", "ece")
            if isinstance(before.get(name), float) and isinstance(after.get(name), float)
        ]
        lines += [f"On these images: {'; '.join(changes)}."] if changes else []
    if any(c.thresholds):
        low, high = min(c.thresholds), max(c.thresholds)
        text = f"A class is an answer from a probability of {low:.2f} to {high:.2f} on, by its threshold"
        if isinstance(wanted := fitted.get("wanted_precision"), float):
            text += f", chosen for a precision of {wanted:.0%}"
        lines.append(f"{text}; otherwise the model is unsure.")
    return ["## Confidence", "", *(f"- {line}" for line in lines), ""]


def limit_lines(checkpoint: Checkpoint) -> list[str]:
    """Return what the scores do not say."""
    c = checkpoint.config
    if not c.classes:
        return []
    H, W = c.image_size
    lines = [
        f"It knows its {c.classes:,} classes alone: a picture of anything else gets one of them too.",
        f"It sees {H} x {W} pixels of a picture: what is too small to be seen there is not seen.",
    ]
    test = checkpoint.metrics.get("test")
    if isinstance(test, dict) and test:
        lines.append(
            "Scores are for pictures like those of the test split; of other cameras, places or times they differ."
        )
    else:
        lines.append("It was not tested: how often it is right is not known.")
    return ["## Limits", "", *(f"- {line}" for line in lines), ""]


def numbers(scores: Mapping[str, Any], split: str) -> Iterator[tuple[str, float]]:
    for name, value in scores.items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            yield name.removeprefix(f"{split}_"), value


def training_lines(provenance: Mapping[str, Any]) -> list[str]:
    """Return where the weights come from: what they were trained on, how long, and from which weights."""
    facts: list[tuple[str, Any]] = []
    if isinstance(hub := provenance.get("hub"), dict):
        facts.append(("read from", f"{hub.get('repository')} at commit {hub.get('revision')}"))
    if isinstance(file := provenance.get("file"), str):
        facts.append(("read from", f"{file} ({provenance.get('format')})"))
    experiment = provenance.get("experiment")
    groups = experiment if isinstance(experiment, dict) else {}
    for group, names in {
        "data": ("data", "train"),
        "training": ("steps",),
        "optimizer": ("optimizer", "lr"),
    }.items():
        settings = groups.get(group)
        for name in names if isinstance(settings, dict) else ():
            if settings and isinstance(value := settings.get(name), str | int | float):
                # Of a path the last part: where the data was on somebody's disk is nobody's business.
                facts.append((name, str(value).rstrip("/").rpartition("/")[2] if name == "data" else value))
    if isinstance(step := provenance.get("step"), int):
        facts.append(("weights of step", f"{step:,}"))
    start = provenance.get("start")
    if isinstance(start, dict) and (origin := start.get("name") or start.get("file")):
        facts.append(("started from", origin))
    if not facts:
        return []
    return [
        "## Origin",
        "",
        "| | |",
        "|---|---|",
        *(f"| {name} | {plain(value)} |" for name, value in facts),
        "",
    ]


def class_lines(checkpoint: Checkpoint) -> list[str]:
    """Return the names of the classes, folded."""
    if not checkpoint.class_names:
        return []
    names = ", ".join(map(plain, checkpoint.class_names[:LISTED]))
    if (more := len(checkpoint.class_names) - LISTED) > 0:
        names += f", and {more:,} more"
    summary = f"<details><summary>{checkpoint.config.classes:,} classes</summary>"
    return ["## Classes", "", summary, "", names, "", "</details>", ""]


def license_lines(checkpoint: Checkpoint) -> list[str]:
    """Return the license of the weights, and what it restricts."""
    license = complete_license(checkpoint.license)
    lines = ["## License", "", *(f"- {part}: {plain(text, 2_000)}" for part, text in license.items())]
    if limits := restrictions(checkpoint.license):
        text = f"By these words, this model is for {limits} only. So are models that are trained from it."
        lines += ["", text]
    return lines


def plain(text: object, most: int = LONGEST) -> str:
    """Return text as one line without a meaning in Markdown or HTML, cut off if it is very long."""
    line = visible(" ".join(str(text).split()))
    line = line if len(line) <= most else line[: most - 1] + "…"
    return MARKS.sub(lambda mark: f"&#{ord(mark[0])};", line)
