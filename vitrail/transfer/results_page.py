"""results.md of a fine-tuning: the scores over seeds, the accuracy of each class, and how a sweep chose its lr."""

from __future__ import annotations

from typing import Any

from vitrail.checkpoints.license import describe_license
from vitrail.data.readers.class_names import readable
from vitrail.evaluators.accuracy import MOST_MISTAKES
from vitrail.evaluators.score import format_score, score_label
from vitrail.train.held_out import describe_calibration
from vitrail.transfer.tables import escape_markdown


def results_page(results: dict[str, Any]) -> str:
    """Return the page, in Markdown. Accuracies of classes are means over seeds, the worst first."""
    columns, rows = score_table(results)
    lines = [
        f"| {' | '.join(row)} |" for row in [[c.lstrip(">") for c in columns], ["---"] * len(columns), *rows]
    ]
    n = results.get("test_examples")
    tested = f"tested on {n:,} ({results['test_split']})" if results.get("test_split") else "not tested"
    lines.append(
        f"\nTrained on {results['train_examples']:,} images for {results['steps']:,} steps at lr {results['lr']:g}; "
        f"{tested}."
    )
    if calibrated := describe_calibration(results.get("calibration", {})):
        lines.append(f"\n{escape_markdown(calibrated)}.")
    lines.append(f"\nLicense: {escape_markdown(describe_license(results['license']))}")
    if results["per_class"]:
        lines += ["\n| class | images | accuracy |", "|---|---|---|"]
        for one in sorted(results["per_class"], key=lambda one: float(one["accuracy"])):
            lines.append(f"| {escape_markdown(readable(one['name']))} | {one['n']} | {one['accuracy']:.1%} |")
    if results["untested"]:
        names = [escape_markdown(readable(name)) for name in results["untested"]]
        lines.append(f"\nNot tested, because there are no test images: {', '.join(names)}")
    if results.get("wrong"):
        lines.append(f"\n{describe_mistakes(results, 'mistakes.jsonl')}")
    if results["sweep"]:
        lines += [f"\n| lr | val_top1 | val_loss | on {results['dev']:.0%} of train |", "|---|---|---|---|"]
        for lr, scores in results["sweep"].items():
            chosen = "chosen" if float(lr) == results["lr"] else ""
            top1, loss = (format_score(name, scores[name]) for name in ("val_top1", "val_loss"))
            lines.append(f"| {lr} | {top1} | {loss} | {chosen} |")
        if remark := describe_tie(results["sweep"]):
            lines.append(f"\n{remark}")
    return "\n".join(lines) + "\n"


def score_table(results: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return the columns and rows of the scores: of one seed with their intervals, of several with their spread."""
    n, rows = results.get("test_examples"), []
    if results["seeds"] == 1:
        rows = [
            [score_label(name), format_score(name, s["mean"], n)] for name, s in results["scores"].items()
        ]
        return ["score", ">value"], rows
    for name, score in results["scores"].items():
        mean, std, *values = (format_score(name, x) for x in (score["mean"], score["std"], *score["values"]))
        rows.append([score_label(name), mean, std, ", ".join(values)])
    return ["score", ">mean", ">std", f"values of {results['seeds']} seeds"], rows


def describe_mistakes(results: dict[str, Any], where: object) -> str:
    """Return a line on how many test images were classified wrongly, and where they are listed."""
    scope = " of the first seed" if results["seeds"] > 1 else ""
    most = f", the most confident {MOST_MISTAKES:,}" if results["wrong"] > MOST_MISTAKES else ""
    return f"Mistakes{scope}: {results['wrong']:,}, listed in {where}{most}"


def describe_tie(sweep: dict[str, Any]) -> str:
    """Return a remark if several lrs have the best accuracy; else nothing."""
    best = max(scores["val_top1"] for scores in sweep.values())
    equal = [lr for lr, scores in sweep.items() if scores["val_top1"] == best]
    if len(equal) == 1:
        return ""
    return f"lr {', '.join(equal)} have the same val_top1, {best:.1%}: the one with the lowest val_loss is chosen"
