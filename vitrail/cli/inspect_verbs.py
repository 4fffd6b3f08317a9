"""Looking inside a model: inspect."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, arg

from vitrail.cli.verb import COMMON, READING, Common, ModelPath, Reading, Shown
from vitrail.errors import ConfigError

if TYPE_CHECKING:
    from vitrail.data.sources import Source
    from vitrail.evaluators.accuracy import Evaluation
    from vitrail.inspection.inspect import Inspection

IMAGES = 128  # of a data set, where no images are named: as many as the paper's Fig. 11 has


def inspect(
    model: ModelPath,
    images: Annotated[Positional[tuple[str, ...]], arg(metavar="[IMAGE...]")] = (),
    *,
    out: str = "inspection",
    data: str | None = None,
    split: str | None = None,
    beside: tuple[str, ...] = (),
    closely: int = 8,
    reading: Reading = READING,
    common: Common = COMMON,
) -> Shown:
    """The paper's figures for a model, and one page that explains it.

    Args:
        model: a name in the box (ti8-64), a bundle, a run, or anyone's checkpoint
        images: files, folders or glob patterns to look at; without any, images of --data, or the weights alone
        out: the folder for the figures and report.html
        data: a labelled data set, for scores, the confusion matrix, best and worst examples
        split: of the data set; its test or validation split where nothing is said
        beside: other models, whose attention distances are drawn beside this one's
        closely: how many of the images get maps, rollout and occlusion
    """
    from vitrail.checkpoints.formats import load
    from vitrail.checkpoints.run_metrics import rows as metrics_of
    from vitrail.inspection import figures, report
    from vitrail.inspection.inspect import inspect as look
    from vitrail.runtime.device import pick
    from vitrail.runtime.files import check_writable

    if closely < 0:
        raise ConfigError(f"--closely must be at least 0, not {closely}")
    folder, device = Path(out), pick(common.device)
    check_writable(folder)
    report.check_own(folder)
    loaded = load(model, **reading.arguments()).to(device)
    name, *labels = labels_of((model, *beside))
    others = {k: load(one).to(device) for k, one in zip(labels, beside, strict=True)}
    source, evaluation = (None, None) if data is None else evaluated(loaded, data, split)
    chosen, names, problems = images_of(images, source, evaluation)
    seen = look(loaded, chosen, names=names, name=name, beside=others, closely=closely)

    report.begin_report(name, folder / report.NAME)
    made: dict[str, Path] = {}
    if rows := metrics_of(Path(model, "metrics.jsonl")):  # of a run
        made |= figures.draw_run(rows, folder, name)
    if source is not None and evaluation is not None:
        made |= figures.draw_evaluation(evaluation, source, folder)
    made |= figures.draw_inspection(seen, folder)
    report.write_report(seen, made, folder / report.NAME, evaluation)

    made["report"] = folder / report.NAME
    result = {"model": model, **as_json(seen), "files": {figure: str(path) for figure, path in made.items()}}
    files = [[figure, str(path)] for figure, path in made.items()]
    after = [f"{note[:1].upper()}{note[1:]}." for note in seen.notes]
    return Shown(common, ["figure", "file"], files, result | {"errors": problems}, None, after, problems)


def as_json(seen: Inspection) -> dict[str, Any]:
    """The numbers of an inspection that are few enough to print."""
    return {
        "attention_distance": {
            name: {"n": len(d), "pixels": d.mean(axis=0).tolist()} for name, d in seen.distances.items()
        },
        "images": [
            {"name": one.name, "top": [{"name": name, "probability": p} for name, p in one.top]}
            for one in seen.subjects
        ],
        "notes": seen.notes,
    }


def labels_of(models: tuple[str, ...]) -> list[str]:
    """The names of their files or folders, of a run's model that of the run; all as given, where two are the same."""
    paths = [Path(model).resolve() for model in models]
    labels = [path.parent.name if path.name == "model" else path.name for path in paths]
    return labels if len(set(labels)) == len(labels) else list(models)


def evaluated(model: Any, data: str, split: str | None) -> tuple[Source, Evaluation]:
    from vitrail.evaluators.accuracy import evaluate, open_split

    source = open_split(data, split)
    return source, evaluate(model, source)


def images_of(
    given: tuple[str, ...], source: Source | None, evaluation: Evaluation | None
) -> tuple[list[Any], list[str], list[str]]:
    """Images to look at, their names, and what is wrong with those that cannot be read.

    Named ones; else some of the data set, evenly taken, of those that could be read.
    """
    from vitrail.errors import ImageError
    from vitrail.evaluators.predict import find_images, pixels_or_error
    from vitrail.inspection.pictures import evenly
    from vitrail.runtime.progress import progress

    if not given and source is not None and evaluation is not None:
        places = evaluation.predictions.index
        chosen = [int(i) for i in places[evenly(len(places), IMAGES)]]
        return [source.read(i).image for i in chosen], [source.key(i) for i in chosen], []
    if not given:
        return [], [], []
    readable, problems = [], []
    paths = find_images(given)
    for path in progress(paths, len(paths), "reading"):
        image = pixels_or_error(path)
        if isinstance(image, ImageError):
            problems.append(str(image))
        else:
            readable.append(path)
    if not readable:
        raise ImageError(problems[0])
    return readable, [path.name for path in readable], problems
