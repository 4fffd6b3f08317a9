"""The demo: the included model at work, in four stages.

    pictures    classify pictures                                                     OUT/pictures/
    fewshot     evaluate frozen features, beside those of random weights              OUT/features/
    finetune    fine-tune on the data                                                 OUT/finetuned/
    report      show what the model looks at: a page, and a summary of all stages     OUT/report/, OUT/demo.png

A stage is finished when OUT/NAME.json exists. The same call resumes a demo that was stopped, fine-tuning at the step
that was saved, and returns the results of a finished one at once. Nothing is downloaded or written outside OUT.
Data of any size is subsampled, so that evaluating takes seconds: some examples per class for few-shot, and a part of
the test split in which every class keeps its share. Fine-tuning uses all of train, for a fixed number of steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import torch
from PIL import Image

import vitrail
from vitrail.checkpoints.checkpoint import model_digest
from vitrail.checkpoints.formats import load
from vitrail.checkpoints.json_files import Count, read_object, save_json
from vitrail.checkpoints.run import Run
from vitrail.data.readers.class_names import readable
from vitrail.data.sources import Source, find_test_split, open_source, split_options
from vitrail.demo import DEMO, Demo
from vitrail.errors import CheckpointError, ConfigError, DataError, ImageError, Interrupted
from vitrail.evaluators.fewshot import FewShot
from vitrail.inference.features import Extraction
from vitrail.inference.images import decode_example, find_images, pixels
from vitrail.inference.predict import Prediction, predict
from vitrail.inspection import drawing, figures, pictures, report
from vitrail.inspection.attention import rollout
from vitrail.inspection.inspect import Inspection, inspect, model_input
from vitrail.models.names import Model, build
from vitrail.models.vit import ViT
from vitrail.runtime.device import Device, pick
from vitrail.runtime.files import atomic_file
from vitrail.runtime.interrupts import interruptible
from vitrail.runtime.log import note
from vitrail.train.run import lacks_model
from vitrail.transfer.facts import check_counts
from vitrail.transfer.finetune import prepare, run_finetuning

# Pictures of things that the included model was trained to name, rendered to look like photographs.
RENDERED = Path(__file__).parents[1] / "assets" / "pictures"
THINGS = ("orange", "banana", "lemon", "ladybug", "mushroom", "basketball", "obelisk", "dumbbell")
TOP = 3  # classes per picture in the results
RANDOM = "random weights"
TUNED = "finetuned"  # folder of the fine-tuning
SIDE = 160  # pixels of a picture of the summary
LETTERS = 18  # letters of a caption as wide as a picture


# Types of the results: of each stage in OUT/NAME.json, of all stages in OUT/run.json.
class Timed(TypedDict):
    seconds: float


class Answer(TypedDict):
    name: str
    probability: float


class PictureResult(TypedDict):
    name: str
    path: str
    label: str | None
    top: list[Answer]


class PicturesResult(Timed):
    description: str
    drawn: bool
    classes: Count
    pictures: list[PictureResult]


class ScoreResult(TypedDict):
    name: str
    value: float
    std: float | None


class FewshotResult(Timed):
    test: str
    seeds: Count
    scores: dict[str, list[ScoreResult]]  # by the name of a model


class FinetuneResult(Timed):
    split: str
    top1: float
    train_examples: Count
    test_examples: Count


class Files(TypedDict):
    report: str
    summary: str


class ReportResult(Timed):
    files: Files


class Results(TypedDict):
    pictures: PicturesResult
    fewshot: FewshotResult
    finetune: FinetuneResult
    report: ReportResult


@dataclass(frozen=True)
class DemoResult:
    """The folder of a demo, and the results of each stage by its name, with the seconds that it took."""

    folder: Path
    results: dict[str, Any]
    finished_before: bool  # by an earlier call


def run_demo(
    settings: Demo = DEMO, out: str | Path = "vitrail-demo", *, device: Device = "auto"
) -> DemoResult:
    """Run the demo, or its remaining stages. Raise `Interrupted` or KeyboardInterrupt if it is interrupted."""
    folder = Path(out).expanduser()
    material = Material.open(settings, folder, device)
    # A folder is resumed only where all of this is equal.
    version = {"weights": model_digest(material.model), "vitrail": vitrail.__version__}
    data = material.train.fingerprint(), material.train.class_names
    with closing(Run.open(folder, asdict(settings) | version, data=data)) as run:
        results = run.results(Results)
        finished_before = results is not None
        if results is None:
            results = {}
            try:
                for number, (name, (description, stage, kind)) in enumerate(STAGES.items(), 1):
                    with interruptible():
                        path = folder / f"{name}.json"
                        if not path.exists():
                            note(f"stage {number} of {len(STAGES)}: {description}")
                            start = time.perf_counter()
                            result = stage(material)
                            with atomic_file(path) as temporary:
                                save_json(result | {"seconds": time.perf_counter() - start}, temporary)
                        results[name] = read_object(path, kind)
            except KeyboardInterrupt as stop:
                raise Interrupted("SIGINT", f"stage {len(results)} of {len(STAGES)}", str(folder)) from stop
        if not results["pictures"]["pictures"] or settings.model not in results["fewshot"]["scores"]:
            raise CheckpointError(
                f"{folder}: no pictures, or no scores of {settings.model}; remove this folder to run the demo again"
            )
        if not finished_before:
            run.finish(results)
        elif lacks_model(folder / TUNED):
            fine_tune(material)
    return DemoResult(folder, results, finished_before)


@dataclass(frozen=True)
class Picture:
    """A picture to classify."""

    name: str  # to show
    path: Path  # its file, which may not be written yet
    pixels: np.ndarray  # uint8 (H, W, 3)
    label: str | None  # its class, if known


@dataclass(frozen=True)
class Material:
    """Everything that the stages use."""

    settings: Demo
    folder: Path
    device: Device
    model: ViT  # on its device
    train: Source
    few: Source  # part of train for few-shot
    test: Source
    test_split: str
    shots: tuple[int, ...]  # those for which every class has enough examples
    pictures: list[Picture]

    @classmethod
    def open(cls, settings: Demo, folder: Path, device: Device) -> Material:
        settings.check()
        model = load(settings.model).to(pick(device))
        if not isinstance(model, ViT) or not model.config.classes:
            raise ConfigError(f"--model {settings.model}: the demo needs a ViT with a classifier")
        train = open_source(settings.data, "train")
        check_counts(train)
        few = open_source(settings.data, few_split(train, settings))
        name = find_test_split(settings.data)
        test_split = share_split(name, open_source(settings.data, name), settings.max_images)
        test = open_source(settings.data, test_split)
        if train.class_names != test.class_names:
            raise DataError(f"{train.name} and {test.name} do not have the same classes")
        least = int(np.bincount(few.labels).min())
        shots = tuple(n for n in settings.shots if n <= least)
        if not shots:
            raise ConfigError(f"shots {settings.shots}: {train.name} allows at most {least}")
        if dropped := [str(n) for n in settings.shots if n > least]:
            note(f"{train.name} has a class with {least} images only; skipping {', '.join(dropped)}-shot")
        pictures = choose_pictures(settings, test, folder)
        return cls(settings, folder, device, model, train, few, test, test_split, shots, pictures)


def few_split(train: Source, settings: Demo) -> str:
    """Return a part of train with equally many examples per class: about `max_images`, and enough for all shots."""
    classes = len(train.class_names)
    least = int(np.bincount(train.labels, minlength=classes).min())
    each = min(least, max(settings.max_images // classes, *settings.shots))
    return "train" if each * classes == len(train) else f"train[:{each} per class]"


def share_split(name: str, source: Source, max_images: int) -> str:
    """Return a part of a split with about `max_images` images, in proportion to its classes, at least one."""
    if len(source) <= max_images:
        return name
    percent = 100 * max(max_images / len(source), 1 / int(np.bincount(source.labels).max()))
    return f"{name}[:{percent:.3g}% per class]"


def choose_pictures(settings: Demo, test: Source, folder: Path) -> list[Picture]:
    """Return the user's images; without any, rendered pictures if the data are drawings, else test images."""
    if settings.images:
        paths = find_images(settings.images)
        chosen = [paths[i] for i in pictures.evenly(len(paths), settings.pictures)]
        return [Picture(path.name, path, pixels(path), None) for path in chosen]
    if is_drawn(settings.data):
        return [
            Picture(name, folder / "pictures" / f"{name}.png", pixels(RENDERED / f"{name}.png"), name)
            for name in THINGS[: settings.pictures]
        ]
    images = read_some(test, settings.pictures)
    return [
        Picture(test.key(i), folder / "pictures" / f"{number:02}.png", x, test.class_names[test.labels[i]])
        for number, (i, x) in enumerate(images.items(), 1)
    ]


def is_drawn(data: str) -> bool:
    """Return whether the package draws the data; a model trained on photographs has no name for such images."""
    return split_options(data)[0].split(":")[0] == "shapes"


def read_some(source: Source, count: int) -> dict[int, np.ndarray]:
    """Return index -> pixels of up to `count` readable examples: the first of each class, then the second, ..."""
    labels = source.labels
    images: dict[int, np.ndarray] = {}
    order = np.argsort(labels, kind="stable")  # class by class
    first = np.searchsorted(labels[order], labels[order])  # where the class begins
    for i in order[np.argsort(np.arange(len(labels)) - first, kind="stable")].tolist():
        if len(images) == count:
            break
        try:
            images[i] = decode_example(source, i)
        except (ImageError, DataError):
            continue  # training and evaluation count them
    if not images:
        raise DataError(f"{source.name}: none of its images can be read")
    return images


def classify_pictures(material: Material) -> dict[str, Any]:
    settings, folder = material.settings, material.folder
    answers = predict(material.model, [picture.pixels for picture in material.pictures], TOP)
    pictures = []
    for picture, answer in zip(material.pictures, answers, strict=True):
        if not picture.path.exists():
            with atomic_file(picture.path) as temporary:
                Image.fromarray(picture.pixels).save(temporary, "PNG")
        # Relative to the demo's folder, which may be moved; a user's own image is elsewhere.
        inside = picture.path.is_relative_to(folder)
        path = picture.path.relative_to(folder) if inside else picture.path.absolute()
        top = [{"name": name, "probability": p} for name, p in answer]
        pictures.append({"name": picture.name, "path": str(path), "label": picture.label, "top": top})
    drawn = is_drawn(settings.data)
    description = "rendered pictures" if drawn else f"images of {material.test.name}"
    return {
        "description": "of your images" if settings.images else description,
        "drawn": drawn,
        "classes": material.model.config.classes,
        "pictures": pictures,
    }


def few_shot(material: Material) -> dict[str, Any]:
    m = material
    extraction = Extraction(cache=m.folder / "features")
    evaluator = FewShot(m.few, m.test, m.shots, m.settings.seeds, extraction=extraction)
    models = {RANDOM: with_random_weights(m.model), m.settings.model: m.model}
    return {
        "train": m.few.name,
        "test": m.test.name,
        "test_examples": len(m.test),
        "seeds": m.settings.seeds,
        "scores": {name: [vars(score) for score in evaluator(model)] for name, model in models.items()},
    }


def with_random_weights(model: Model) -> Model:
    """Return an untrained model of the same architecture, with the same weights each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        untrained = build(model.config)
    untrained.preprocess = model.preprocess
    return untrained.to(next(model.parameters()).device)


def fine_tune(material: Material) -> dict[str, Any]:
    settings = material.settings
    # A small data set needs a smaller batch, which the protocol of fine-tuning chooses.
    small = len(material.train) < 8 * settings.batch_size
    batch_size: dict[str, Any] = {} if small else {"batch_size": settings.batch_size}
    prepared = prepare(
        settings.data, settings.model, device=material.device, test=material.test_split, steps=settings.steps,
        lr=settings.lr, image_size=min(material.model.config.image_size), **batch_size,
    )  # fmt: skip
    tuned = run_finetuning(prepared, material.folder / TUNED, device=material.device, figures=figures)
    names = ("steps", "train_examples", "test_examples")
    return {
        "split": material.test_split,
        "top1": tuned.results["scores"]["top1"]["mean"],
        **{name: tuned.results[name] for name in names},
    }


def explain(material: Material) -> dict[str, Any]:
    """Write the report of the model before fine-tuning, and the summary of it and the fine-tuned one."""
    folder = material.folder / "report"
    names = [picture.name for picture in material.pictures]
    images = [picture.pixels for picture in material.pictures]
    seen = inspect(material.model, images, names=names, name=material.settings.model, closely=len(images))
    report.write_report(seen, figures.draw_inspection(seen, folder), folder / "report.html")
    draw_summary(material, seen)
    return {"files": {"report": "report/report.html", "summary": "demo.png"}}


def draw_summary(material: Material, seen: Inspection) -> None:
    """Draw demo.png: predictions and attention, before and after fine-tuning. `seen`: the inspection of the pictures.

    predictions of the model                 ┐
    pictures                                 │ a picture in each column
    pictures, lit by the attention rollout   ┘
    test images                              ┐
    test images, lit by the rollout          │ a test image in each column
    predictions of the fine-tuned model      ┘
    """
    m = material
    tuned = load(m.folder / TUNED / "model").to(pick(m.device))
    tests = read_some(m.test, m.settings.pictures)
    images, labels = list(tests.values()), [m.test.class_names[m.test.labels[i]] for i in tests]
    columns = max(len(images), len(seen.subjects))
    page = np.full((4, columns, SIDE, SIDE, 3), pictures.PAPER, np.uint8)
    for k, one in enumerate(seen.subjects):
        assert one.rollout is not None  # the model is a ViT
        page[:2, k] = plain_and_lit(one.picture, one.rollout)
    for k, (image, weights) in enumerate(zip(images, rollout(tuned, images), strict=True)):
        page[2:, k] = plain_and_lit(model_input(tuned, image), weights)
    names = [one.label or one.name for one in m.pictures]
    drawing.labelled(
        pictures.tiled(page, SIDE),
        m.folder / "demo.png",
        title=f"{m.settings.model}: predictions and attention; below, after fine-tuning on {m.train.name}",
        rows=["picture", "attention", "test image", "attention"],
        above=captions(names, [one.top for one in seen.subjects], columns),
        columns=captions(labels, predict(tuned, images, 1), columns),
    )


def plain_and_lit(picture: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return a picture, uint8 (H, W, 3), and a copy with the brightness of a map over it: (SIDE, SIDE, 3) each."""
    large = np.asarray(Image.fromarray(picture).resize((SIDE, SIDE), Image.Resampling.BICUBIC))
    return large, pictures.lit(large, weights)


def captions(names: Sequence[str], predictions: Sequence[Prediction], columns: int) -> list[str]:
    """Return a caption for each column: the name of the picture and, in a second line, the prediction."""
    texts = [""] * columns
    for k, (name, ((answer, probability), *_)) in enumerate(zip(names, predictions, strict=True)):
        answer = drawing.shorten(readable(answer), LETTERS - 7)
        texts[k] = f"{drawing.shorten(readable(name), LETTERS)}\n→ {answer} {probability:.0%}"
    return texts


# name: (description, function, type of its results), in this order; a stage may use the files of those before it.
STAGES: dict[str, tuple[str, Callable[[Material], dict[str, Any]], Any]] = {
    "pictures": ("classifying pictures", classify_pictures, PicturesResult),
    "fewshot": (
        "evaluating frozen features with few examples, beside random weights",
        few_shot,
        FewshotResult,
    ),
    "finetune": ("fine-tuning", fine_tune, FinetuneResult),
    "report": ("showing what the model looks at", explain, ReportResult),
}
