"""The verb inspect: figures and a page that explain a model."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, arg

from vitrail.cli.verb import COMMON, READING, Common, ModelPath, Output, Reading
from vitrail.errors import CheckpointError, ConfigError, VitrailError

if TYPE_CHECKING:
    import numpy as np

    from vitrail.data.sources import Source
    from vitrail.evaluators.accuracy import Evaluation
    from vitrail.inspection.inspect import Inspection
    from vitrail.models.names import Model

Figures = Literal["weights", "attention", "images", "pca", "correspondence"]
RUN_FOLDERS = ("seeds", "sweep")  # of a fine-tuning, with runs in them
IMAGES = 128  # of a data set, where no images are named: as many as in the paper's Fig. 11


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
    figures: tuple[Figures, ...] = ("weights", "attention", "images", "pca"),
    reading: Reading = READING,
    common: Common = COMMON,
) -> Output:
    """Draw the paper's figures for a model, and write one page that explains it.

    Args:
        model: an included model (ti8-64), a bundle, a run, or any supported checkpoint
        images: files, folders or glob patterns; without any, images of --data, or the weights alone
        out: folder for the figures and report.html
        data: a labelled data set, for accuracy, confusions and mistakes
        split: which part of the data set; if unset, the test split or else validation
        mapping: a JSON file {data class: [model classes, ...]} where names differ; or `order`: class k is class k
        beside: other models to compare attention distances with, at the same --image-size
        closely: images with maps, rollout, occlusion and colours of patches; of --data, up to half are the most
            confident mistakes
        figures: groups to draw: weights (filters, positions), attention (distance), images (maps, rollout,
            occlusion), pca (patch features as colours, and which patches are alike), correspondence (of the patches
            of the first two images)
    """
    from vitrail.checkpoints.formats import load
    from vitrail.evaluators.accuracy import evaluate, open_split
    from vitrail.inspection.inspect import inspect as look
    from vitrail.inspection.report import check_report_folder
    from vitrail.runtime.device import pick
    from vitrail.runtime.files import check_writable

    if closely < 0:
        raise ConfigError(f"--closely must be at least 0, not {closely}")
    folder, device = Path(out), pick(common.device)
    check_writable(folder)
    check_report_folder(folder)
    loaded = load(model, **reading.arguments()).to(device)
    name, *labels = name_models((model, *beside))
    others = {
        label: load_beside(other, reading).to(device) for label, other in zip(labels, beside, strict=True)
    }
    source = None if data is None else open_split(data, split)
    # However many images are broken: the page counts them.
    evaluation = None if source is None else evaluate(loaded, source, mapping=mapping, max_bad=1.0)
    chosen, problems = choose_images(images, source, evaluation, closely)
    inspection = look(loaded, **chosen, name=name, beside=others, closely=closely, figures=figures)
    files = draw_report(inspection, folder, Path(model), source, evaluation)
    paths = {figure: str(path) for figure, path in files.items()}
    rows = [[figure, path] for figure, path in paths.items()]
    result: dict[str, Any] = {"model": model, **as_json(inspection), "files": paths, "errors": problems}
    notes = [f"{note[:1].upper()}{note[1:]}." for note in inspection.notes]
    return Output(common, ["figure", "file"], rows, result, after=notes, problems=problems)


def draw_report(
    inspection: Inspection,
    folder: Path,
    model: Path,
    source: Source | None,
    evaluation: Evaluation | None,
) -> dict[str, Path]:
    """Draw the figures, of a run that of its training too, and write the page; return the files by name."""
    from vitrail.inspection import figures as draw
    from vitrail.inspection import report

    report.begin_report(inspection, folder / report.NAME)
    files = draw.draw_run(model, folder / "training.png", inspection.name)
    if source is not None and evaluation is not None:
        files |= draw.draw_evaluation(evaluation, source, folder)
    files |= draw.draw_inspection(inspection, folder)
    report.write_report(inspection, files, folder / report.NAME, evaluation)
    return files | {"report": folder / report.NAME}


def load_beside(model: str, reading: Reading) -> Model:
    """Load a model at the image size of the first one; flags such as --heads apply to files that lack them."""
    from vitrail.checkpoints.formats import load

    arguments = reading.arguments()
    try:
        try:
            return load(model, **arguments)
        except CheckpointError:
            return load(model, image_size=arguments["image_size"])
    except VitrailError as error:
        raise type(error)(f"--beside {model}: {error}") from error


def as_json(inspection: Inspection) -> dict[str, Any]:
    """Return the numbers of an inspection, without the large arrays."""
    return {
        "attention_distance": {
            name: {"n": len(d), "pixels": d.mean(axis=0).tolist()} for name, d in inspection.distances.items()
        },
        "images": [
            {
                "name": one.name,
                "true": one.true,
                "top": [{"name": name, "probability": p} for name, p in one.top],
            }
            for one in inspection.subjects
        ],
        "notes": inspection.notes,
    }


def name_models(models: tuple[str, ...]) -> list[str]:
    """Return the names of their files or folders, for people; the paths as given where two names are equal.

    The model of a run has the run's name; a run within a fine-tuning has that of the fine-tuning before its own.
    """
    paths = [Path(model).resolve() for model in models]
    paths = [path.parent if path.name == "model" else path for path in paths]
    names = ["/".join(path.parts[-3:]) if path.parent.name in RUN_FOLDERS else path.name for path in paths]
    return names if len(set(names)) == len(names) else list(models)


def choose_images(
    paths: tuple[str, ...], source: Source | None, evaluation: Evaluation | None, closely: int
) -> tuple[dict[str, Any], list[str]]:
    """Return arguments of inspect(): images, names, classes; and what is wrong with images that cannot be read.

    The images are those at `paths`; without any, some that were evaluated: up to half of those seen closely are
    the most confident mistakes, the others are taken evenly.
    """
    import numpy as np

    from vitrail.errors import ImageError
    from vitrail.inference.images import find_images, pixels
    from vitrail.runtime.progress import progress

    if paths:
        files, problems = [], []
        named = find_images(paths)
        for path in progress(named, len(named), "reading"):
            try:
                pixels(path)
                files.append(path)
            except ImageError as error:
                problems.append(str(error))
        if not files:
            raise ImageError(problems[0])
        files = [files[i] for i in near_first(len(files), closely, len(files), np.array([], np.int64))]
        common = os.path.commonpath([path.absolute().parent for path in files])
        # Two folders may have files of one name.
        names = [str(path.absolute().relative_to(common)) for path in files]
        return {"images": files, "names": names}, problems
    if source is None or evaluation is None:
        return {}, []
    p = evaluation.predictions
    mistakes = p.mistakes()[: (closely + 1) // 2]
    chosen = near_first(len(p), closely, max(IMAGES, closely), mistakes)
    places = p.index[chosen].tolist()
    return {
        "images": [source.read(i).image for i in places],
        "names": [source.key(i) for i in places],
        "truths": [evaluation.class_names[label] for label in p.label[chosen]],
    }, []


def near_first(n: int, closely: int, most: int, first: np.ndarray) -> np.ndarray:
    """Return at most `most` of the places 0..n-1, int64: those in `first`, then others, evenly taken.

    Of the others, those that make up `closely` come before the rest, evenly taken too.
    """
    import numpy as np

    from vitrail.inspection.pictures import evenly

    others = np.setdiff1d(np.arange(n), first)
    others = others[evenly(len(others), most - len(first))]
    near = others[evenly(len(others), closely - len(first))]
    return np.concatenate([first, near, np.setdiff1d(others, near)])
