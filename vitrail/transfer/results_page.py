"""results.md of a fine-tuning: the scores over seeds, the accuracy of each class, and how a sweep chose its rate."""

from __future__ import annotations

from typing import Any

from vitrail.checkpoints.license import in_words
from vitrail.data.readers.class_names import readable
from vitrail.evaluators.accuracy import MOST_MISTAKES
from vitrail.transfer.tables import decimals, in_markdown


def results_page(results: dict[str, Any]) -> str:
    """Markdown."""
    lines = [f"| score | mean | std | n = {results['seeds']} |", "|---|---|---|---|"]
    for name, score in results["scores"].items():
        spread = "" if score["std"] is None else f"{score['std']:.4f}"
        values = ", ".join(map(decimals, score["values"]))
        lines.append(f"| {name} | {decimals(score['mean'])} | {spread} | {values} |")
    tested = (
        f"{results['test_examples']} of {results['test_split']}" if results["test_split"] else "not tested"
    )
    lines.append(
        f"\nrate {results['rate']:g}, {results['steps']} steps, {results['train_examples']} training images, {tested}"
    )
    lines.append(f"\nlicense: {in_markdown(in_words(results['license']))}")
    return "\n".join([*lines, *class_lines(results), *sweep_lines(results)]) + "\n"


def class_lines(results: dict[str, Any]) -> list[str]:
    """The worst first; accuracies are means over seeds."""
    lines = []
    if results["per_class"]:
        lines = ["\n| class | n | accuracy |", "|---|---|---|"]
        for one in sorted(results["per_class"], key=lambda one: float(one["accuracy"])):
            lines.append(f"| {in_markdown(readable(one['name']))} | {one['n']} | {one['accuracy']:.4f} |")
    if results["untested"]:
        names = [in_markdown(readable(name)) for name in results["untested"]]
        lines.append(f"\nnot tested: {', '.join(names)}")
    if results["wrong"]:
        most = f", the surest {MOST_MISTAKES:,}" if results["wrong"] > MOST_MISTAKES else ""
        lines.append(f"\nmistakes of the first seed: {results['wrong']:,}, by name in mistakes.jsonl{most}")
    return lines


def sweep_lines(results: dict[str, Any]) -> list[str]:
    """What the rate was chosen by."""
    if not results["sweep"]:
        return []
    lines = [f"\n| rate | val_top1 | val_loss | on {results['dev']:.0%} of train |", "|---|---|---|---|"]
    for rate, scores in results["sweep"].items():
        chosen = "chosen" if float(rate) == results["rate"] else ""
        lines.append(f"| {rate} | {scores['val_top1']:.4f} | {decimals(scores['val_loss'])} | {chosen} |")
    return [*lines, *([f"\n{said}"] if (said := tie(results["sweep"])) else [])]


def tie(sweep: dict[str, dict[str, float]]) -> str:
    """In words, where several rates have the best accuracy; else nothing."""
    best = max(scores["val_top1"] for scores in sweep.values())
    equal = [rate for rate, scores in sweep.items() if scores["val_top1"] == best]
    if len(equal) == 1:
        return ""
    return (
        f"rates {', '.join(equal)} have the same val_top1 {best:.4f}: the one of the lowest val_loss is taken"
    )
