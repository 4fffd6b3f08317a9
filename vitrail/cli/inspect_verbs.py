"""Looking inside a model: inspect."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, arg

from vitrail.cli.verb import COMMON, READING, Common, ModelPath, Reading, Shown
from vitrail.errors import CheckpointError, ConfigError, VitrailError

if TYPE_CHECKING:
    import numpy as np

    from vitrail.data.sources import Source
    from vitrail.evaluators.accuracy import Evaluation
    from vitrail.inspection.inspect import Inspection
    from vitrail.models.names import Model

PARTS = ("seeds", "sweep")  # folders of a fine-tuning, with runs in them
IMAGES = 128  # of a data set, where no images are named: as many as the paper's Fig. 11 has


def inspect(
    model: ModelPath,
    images: Annotated[Positional[tuple[str, ...]], arg(metavar="[IMAGE...]")] = (),
    *,
    out: str = "inspection",
    data: str | None = None,
    split: str | None = None,
    mapping: str | None = None,
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
        mapping: a JSON file {data class: [model classes, ...]} where names differ; or `order`: class k is class k
        beside: other models, whose attention distances are drawn beside this one's, at the same --image-size
        closely: how many of the images get maps, rollout and occlusion: of --data the surest mistakes, then any
    """
    from vitrail.checkpoints.formats import load
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
    others = {k: load_beside(one, reading).to(device) for k, one in zip(labels, beside, strict=True)}
    source, evaluation = (None, None) if data is None else evaluated(loaded, data, split, mapping)
    chosen, problems = images_of(images, source, evaluation, closely)
    seen = look(loaded, **chosen, name=name, beside=others, closely=closely)

    report.begin_report(seen, folder / report.NAME)
    made: dict[str, Path] = {}
    made |= figures.draw_run(Path(model), folder / "training.png", name)  # where it is a run
    if source is not None and evaluation is not None:
        made |= figures.draw_evaluation(evaluation, source, folder)
    made |= figures.draw_inspection(seen, folder)
    report.write_report(seen, made, folder / report.NAME, evaluation)

    made["report"] = folder / report.NAME
    result = {"model": model, **as_json(seen), "files": {figure: str(path) for figure, path in made.items()}}
    files = [[figure, str(path)] for figure, path in made.items()]
    after = [f"{note[:1].upper()}{note[1:]}." for note in seen.notes]
    return Shown(common, ["figure", "file"], files, result | {"errors": problems}, None, after, problems)


def load_beside(model: str, reading: Reading) -> Model:
    """At the size of the first one: distances in pixels are compared. Where it says what --heads asks, as it says."""
    from vitrail.checkpoints.formats import load

    asked = reading.arguments()
    try:
        try:
            return load(model, **asked)
        except CheckpointError:
            return load(model, image_size=asked["image_size"])
    except VitrailError as error:
        raise type(error)(f"--beside {model}: {error}") from error


def as_json(seen: Inspection) -> dict[str, Any]:
    """The numbers of an inspection that are few enough to print."""
    return {
        "attention_distance": {
            name: {"n": len(d), "pixels": d.mean(axis=0).tolist()} for name, d in seen.distances.items()
        },
        "images": [
            {
                "name": one.name,
                "true": one.true,
                "top": [{"name": name, "probability": p} for name, p in one.top],
            }
            for one in seen.subjects
        ],
        "notes": seen.notes,
    }


def labels_of(models: tuple[str, ...]) -> list[str]:
    """The names of their files or folders, of a run's model that of the run, of a run within a fine-tuning with its
    own; all as given, where two are the same."""
    paths = [Path(model).resolve() for model in models]
    paths = [path.parent if path.name == "model" else path for path in paths]
    labels = ["/".join(path.parts[-3:]) if path.parent.name in PARTS else path.name for path in paths]
    return labels if len(set(labels)) == len(labels) else list(models)


def evaluated(model: Any, data: str, split: str | None, mapping: str | None) -> tuple[Source, Evaluation]:
    from vitrail.evaluators.accuracy import evaluate, open_split

    source = open_split(data, split)
    return source, evaluate(model, source, mapping=mapping, max_bad=1.0)  # the page says how many are broken


def images_of(
    given: tuple[str, ...], source: Source | None, evaluation: Evaluation | None, closely: int
) -> tuple[dict[str, Any], list[str]]:
    """Images to look at, with names and classes, those to be seen closely first; and what is wrong with others.

    Named ones; else some of the data set, of those that could be read: half of those seen closely are the surest
    mistakes, where there are as many, and the rest is taken evenly.
    """
    import numpy as np

    from vitrail.errors import ImageError
    from vitrail.inference.images import find_images, pixels
    from vitrail.runtime.progress import progress

    if not given and source is not None and evaluation is not None:
        said = evaluation.predictions
        wrong = said.mistakes()[: (closely + 1) // 2]
        chosen = near_first(len(said), closely, max(IMAGES, closely), wrong)
        places = said.index[chosen].tolist()
        truths = [evaluation.class_names[label] for label in said.label[chosen]]
        names = [source.key(i) for i in places]
        return {"images": [source.read(i).image for i in places], "names": names, "truths": truths}, []
    if not given:
        return {}, []
    readable, problems = [], []
    paths = find_images(given)
    for path in progress(paths, len(paths), "reading"):
        try:
            pixels(path)
            readable.append(path)
        except ImageError as error:
            problems.append(str(error))
    if not readable:
        raise ImageError(problems[0])
    n = len(readable)
    readable = [readable[i] for i in near_first(n, closely, n, np.array([], np.int64))]
    return {"images": readable, "names": titles_of(readable)}, problems


def near_first(n: int, closely: int, most: int, first: np.ndarray) -> np.ndarray:
    """At most `most` of the places 0..n-1, int64: those that come `first`, then evenly taken ones. Of these, as many
    as make up `closely` go before the rest, evenly taken too."""
    import numpy as np

    from vitrail.inspection.pictures import evenly

    others = np.setdiff1d(np.arange(n), first)
    others = others[evenly(len(others), most - len(first))]
    near = others[evenly(len(others), closely - len(first))]
    return np.concatenate([first, near, np.setdiff1d(others, near)])


def titles_of(paths: list[Path]) -> list[str]:
    """Below the folder that holds them all, as two folders may have files of one name."""
    parents = [path.absolute().parent for path in paths]
    common = os.path.commonpath(parents)
    return [str(path.absolute().relative_to(common)) for path in paths]
