"""The demo on the command line: demo."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from vitrail.cli.verb import COMMON, Common, Shown
from vitrail.demo.settings import DEMO, Demo

if TYPE_CHECKING:
    from rich.console import Group


def demo(settings: Demo = DEMO, *, out: str = "vitrail-demo", common: Common = COMMON) -> Shown:
    """The model in the box at work, offline, in about a minute: classifying, measured, fine-tuned, explained.

    Args:
        out: the demo's folder; the same command again continues there, or shows what was found
    """
    from vitrail.demo.demo import run_demo

    made = run_demo(settings, out, device=common.device)
    result = {"model": settings.model, "data": settings.data, "folder": str(made.folder), **made.results}
    commands = next_commands(result)
    after = [*places(result), "Next:", *(f"  {command}    # {why}" for command, why in commands.items())]
    if made.before:
        again = f"rm -r {quote(str(made.folder))}, or another --out"
        after.append(f"All of this was found before, and is only shown. To start anew: {again}.")
    result["next"] = list(commands)
    return Shown(common, [], [], result, tables(result), after)


def tables(result: dict[str, Any]) -> Group:
    """What the model says of the pictures, and how good it is on the data."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from vitrail.data.readers.class_names import readable

    model, looked, few, tuned = (result[name] for name in ("model", "pictures", "fewshot", "finetune"))
    said = Table("picture", box=SIMPLE_HEAD)
    said.add_column(Text(f"{model} says"))
    for picture in looked["pictures"]:
        answers = (f"{readable(one['name'])} {one['probability']:.0%}" for one in picture["top"])
        said.add_row(Text(readable(picture["meant"] or picture["name"])), Text(", ".join(answers)))
    scored = Table("", box=SIMPLE_HEAD)
    for column in (*(one["name"] for one in few["scores"][model]), "fine-tuned"):
        scored.add_column(column, justify="right")
    for name, scores in few["scores"].items():
        cells = [f"{one['value']:.1%}" + (f" ± {one['std']:.1%}" if one["std"] else "") for one in scores]
        scored.add_row(Text(name), *cells, f"{tuned['top1']:.1%}" if name == model else "-")
    n = len(looked["pictures"])
    return Group(
        Text(f"What {model}, which knows {looked['classes']:,} classes, says of {n} {looked['of']}:"),
        said,
        Text(
            f"Accuracy on {tuned['test_examples']:,} images of {few['test']}: frozen features with a few examples of "
            f"each class ({few['seeds']} draws), and fine-tuned on {tuned['train_examples']:,} images:"
        ),
        scored,
    )


def places(result: dict[str, Any]) -> list[str]:
    """Where everything is, and how long it took."""
    files = {name: Path(result["folder"], file) for name, file in result["report"]["files"].items()}
    seconds = {name: result[name]["seconds"] for name in ("pictures", "fewshot", "finetune", "report")}
    took = ", ".join(f"{name} {value:.0f}" for name, value in seconds.items())
    return [
        f"Page:       {files['report']} (open it in a browser: what the model looks at)",
        f"Picture:    {files['summary']} (all of it on one page)",
        f"Fine-tuned: {Path(result['folder'], 'finetuned')} (model, run, curves, what it gets right and wrong)",
        f"Seconds:    {sum(seconds.values()):.0f} ({took})",
    ]


def next_commands(result: dict[str, Any]) -> dict[str, str]:
    """Command -> what it is for. Each can be typed as it stands, but for FOLDER where no data was given."""
    folder = Path(result["folder"])
    picture = str(folder / result["pictures"]["pictures"][0]["path"])
    data, split = result["data"], result["finetune"]["split"]
    tuned, model = quote(str(folder / "finetuned")), quote(result["model"])
    own, why = quote(data), "in earnest: as many steps as the data calls for"
    if result["pictures"]["drawn"]:
        own, why = "FOLDER", "FOLDER: of your photographs, a folder for each class"
    return {
        f"vitrail predict {tuned}/model {quote(picture)}": "what the fine-tuned model says",
        f"vitrail inspect {tuned} --data {quote(data)} --split {quote(split)} --out {tuned}-page": "its own page",
        f"vitrail finetune --data {own} --model {model}": why,
    }
