"""The demo on the command line: demo."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from vitrail.cli.verb import COMMON, Common, Output, table
from vitrail.demo import DEMO, Demo

if TYPE_CHECKING:
    from rich.console import Group


def demo(settings: Demo = DEMO, *, out: str = "vitrail-demo", common: Common = COMMON) -> Output:
    """Show the included model at work, offline, in about two minutes: predictions, accuracy, fine-tuning, attention.

    Args:
        out: folder of the demo; the same command again resumes it, or shows its results
    """
    from vitrail.demo.demo import run_demo

    finished = run_demo(settings, out, device=common.device)
    folder, results = finished.folder, finished.results
    result = {"model": settings.model, "data": settings.data, "folder": str(folder), **results}
    commands = next_commands(result)
    seconds = {name: stage["seconds"] for name, stage in results.items()}
    took = ", ".join(f"{name} {value:.0f}" for name, value in seconds.items())
    files = results["report"]["files"]
    after = [
        f"Page:       {folder / files['report']} (open it in a browser: what the model looks at)",
        f"Picture:    {folder / files['summary']} (everything in one picture)",
        f"Fine-tuned: {folder / 'finetuned'} (model, results, loss curve, mistakes)",
        f"Time:       {sum(seconds.values()):.0f} seconds ({took})",
        "Next:",
        *(f"  {command}    # {why}" for command, why in commands.items()),
    ]
    if finished.finished_before:
        again = f"rm -r {quote(str(folder))}, or choose another --out"
        after.append(f"These are the results of an earlier run. To run the demo again: {again}.")
    result["next"] = list(commands)
    return Output(common, [], [], result, tables(result), after)


def tables(result: dict[str, Any]) -> Group:
    """Return the predictions for the pictures, and the accuracy on the data."""
    from rich.console import Group
    from rich.text import Text

    from vitrail.data.readers.class_names import readable
    from vitrail.evaluators.score import format_accuracy

    model, classified, few, tuned = (result[name] for name in ("model", "pictures", "fewshot", "finetune"))
    predictions = []
    for picture in classified["pictures"]:
        answers = (f"{readable(one['name'])} {format_accuracy(one['probability'])}" for one in picture["top"])
        predictions.append([readable(picture["label"] or picture["name"]), ", ".join(answers)])
    accuracies = []
    for name, scores in few["scores"].items():
        cells = [
            format_accuracy(one["value"]) + (f" ± {one['std']:.1%}" if one["std"] else "") for one in scores
        ]
        accuracies.append([name, *cells, format_accuracy(tuned["top1"]) if name == model else "-"])
    what = f"Predictions of {model} ({classified['classes']:,} classes)"
    return Group(
        Text(f"{what} for {len(predictions)} {classified['description']}:"),
        table(["picture", "prediction"], predictions),
        Text(
            f"Accuracy on {tuned['test_examples']:,} images ({few['test']}), with frozen features and a few examples "
            f"per class (mean of {few['seeds']} draws), and after fine-tuning on {tuned['train_examples']:,} images:"
        ),
        table(["model", *(f">{one['name']}" for one in few["scores"][model]), ">fine-tuned"], accuracies),
    )


def next_commands(result: dict[str, Any]) -> dict[str, str]:
    """Return commands to try next, with comments; FOLDER stands for the user's data where none was given."""
    folder = Path(result["folder"])
    picture = str(folder / result["pictures"]["pictures"][0]["path"])
    data, split = result["data"], result["finetune"]["split"]
    tuned, model = quote(str(folder / "finetuned")), quote(result["model"])
    own, why = quote(data), "full fine-tuning, as long as the data needs"
    if result["pictures"]["drawn"]:
        own, why = "FOLDER", "FOLDER: your photos, one folder per class"
    return {
        f"vitrail predict {tuned}/model {quote(picture)}": "predictions of the fine-tuned model",
        f"vitrail inspect {tuned} --data {quote(data)} --split {quote(split)} --out {tuned}-page": "a page about it",
        f"vitrail finetune --data {own} --model {model}": why,
        f"vitrail serve {model} {tuned} --learn classifiers": "all of it in a browser; needs the extra `serve`",
    }
