"""How good a model is: evaluate."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, arg

from vitrail.cli.verb import COMMON, READING, Common, ModelPath, Reading, Shown
from vitrail.errors import ConfigError

if TYPE_CHECKING:
    from vitrail.evaluators.accuracy import Evaluation

WORST = 5  # classes shown
NAMED = 5  # broken files shown


@dataclass(frozen=True)
class Passing:
    """Flags of a pass over the images."""

    batch_size: int = 64  # images at a time
    num_workers: int | None = None  # processes that decode images (default: as many as help)
    max_bad: float = 0.01  # share of the images that may be broken before it stops


PASSING = Passing()


def evaluate(
    model: ModelPath,
    data: Annotated[Positional[str], arg(metavar="DATA")],
    *,
    split: str | None = None,
    mapping: str | None = None,
    real: str | None = None,
    out: str | None = None,
    passing: Passing = PASSING,
    reading: Reading = READING,
    common: Common = COMMON,
) -> Shown:
    """How often a model is right on a labelled data set, how sure it is, and where it fails.

    Args:
        model: a name in the box (ti8-64), a bundle, a run, or anyone's checkpoint
        data: a folder, Parquet or tar shards, an .npz, or a name of the catalog
        split: which part, such as test or train[98%:]; the test split, else validation, where nothing is said
        mapping: a JSON file {data class: [model classes, ...]} where names differ; or `order`: class k is class k
        real: the file of ReaL labels (real.json), for ImageNet's validation images
        out: a JSON file for the whole result, not there yet
    """
    from vitrail.checkpoints.formats import load
    from vitrail.evaluators.accuracy import evaluate as run
    from vitrail.evaluators.accuracy import open_split
    from vitrail.runtime.device import pick
    from vitrail.runtime.distributed import group, rank

    if out is not None and Path(out).exists():
        raise ConfigError(f"--out {out} exists; nothing is overwritten")
    source = open_split(data, split)
    with group(pick(common.device)) as device:
        loaded = load(model, **reading.arguments()).to(device)
        made = run(loaded, source, mapping=mapping, real=real, **vars(passing))
        first = rank() == 0
    result = {"model": model, "preprocess": loaded.preprocess, **made.as_json()}
    shown = Shown(common, ["", f">{source.name}"], rows_of(made), result, after=lines_of(made))
    if out is not None and first:
        mistakes = made.mistakes(source)
        write_json(Path(out), {**result, "mistakes": mistakes})
        surest = f", the surest {len(mistakes):,} of them named" if len(mistakes) < result["wrong"] else ""
        shown.after.append(f"The whole result, with {result['wrong']:,} mistakes{surest}: {out}")
    return shown


def rows_of(made: Evaluation) -> list[list[str]]:
    rows = [
        ["top-1", f"{made.top1:.2%}"],
        [f"top-{min(5, len(made.model_class_names))}", f"{made.top5:.2%}"],
        ["loss", f"{made.loss:.4f}"],
        ["ECE", f"{made.ece:.4f}"],
        ["images", f"{made.n:,}"],
        ["broken", f"{made.broken:,}"],
    ]
    if made.left_out:
        rows.append(["left out: not in the mapping", f"{made.left_out:,}"])
    if made.real is not None:
        rows.append([f"ReaL, {made.real_n:,} images", f"{made.real:.2%}"])
    return rows


def lines_of(made: Evaluation) -> list[str]:
    """The worst classes, and the files that could not be read."""
    from vitrail.data.readers.class_names import readable

    worst = sorted(made.per_class, key=lambda one: one.accuracy)[:WORST]
    words = [f"{readable(one.name)} {one.accuracy:.1%} of {one.n:,}" for one in worst if one.correct < one.n]
    lines = [f"Worst classes: {', '.join(words)}"] if words else []
    if made.bad:
        more = f"; and {made.broken - NAMED:,} more" if made.broken > NAMED else ""
        lines.append(f"Broken: {'; '.join(bad.reason for bad in made.bad[:NAMED])}{more}")
    return lines


def write_json(path: Path, result: dict[str, Any]) -> None:
    import json

    from vitrail.runtime.files import atomic_file

    with atomic_file(path) as file:
        file.write_text(json.dumps(result, allow_nan=False, indent=1) + "\n", encoding="utf-8")
