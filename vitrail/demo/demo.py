"""The demo: the included model at work, in four stages.

    pictures    classify pictures                                                     OUT/pictures/
    fewshot     evaluate frozen features, beside those of random weights              OUT/features/
    finetune    fine-tune on the data                                                 OUT/finetuned/
    report      show what the model looks at: a page, and a summary of all stages     OUT/report/, OUT/demo.png

A stage is finished when OUT/NAME.json exists. The same call resumes a demo that was stopped, fine-tuning at the step
that was saved, and returns the results of a finished one at once. Nothing is downloaded or written outside OUT.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypedDict

import torch
from PIL import Image

import vitrail
from vitrail.checkpoints.json_files import Count, read_object, save_json
from vitrail.checkpoints.run import Run
from vitrail.demo.material import Material, is_drawn
from vitrail.demo.settings import DEMO, Demo
from vitrail.demo.summary import draw_summary
from vitrail.errors import CheckpointError, Interrupted
from vitrail.evaluators.fewshot import FewShot
from vitrail.inference.features import Extraction, model_digest
from vitrail.inference.predict import predict
from vitrail.inspection import figures, report
from vitrail.inspection.inspect import inspect
from vitrail.models.names import Model, build
from vitrail.runtime.device import Device
from vitrail.runtime.files import atomic_file
from vitrail.runtime.interrupts import interruptible
from vitrail.runtime.log import note
from vitrail.train.results import lacks_model
from vitrail.transfer.finetune import prepare, run_finetuning

TOP = 3  # classes per picture in the results
RANDOM = "random weights"
TUNED = "finetuned"  # folder of the fine-tuning


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
    """Run the demo, or what is left of it. Raise `Interrupted` or KeyboardInterrupt when it is interrupted."""
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
                for name in STAGES:
                    with interruptible():
                        results[name] = run_stage(name, material)
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


def run_stage(name: str, material: Material) -> dict[str, Any]:
    """Return the results of a stage; compute and write them first if they are not there."""
    path = material.folder / f"{name}.json"
    description, stage, kind = STAGES[name]
    if not path.exists():
        note(f"stage {list(STAGES).index(name) + 1} of {len(STAGES)}: {description}")
        start = time.perf_counter()
        results = stage(material)
        with atomic_file(path) as temporary:
            save_json(results | {"seconds": time.perf_counter() - start}, temporary)
    return read_object(path, kind)


def classify(material: Material) -> dict[str, Any]:
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
    folder, pictures = material.folder / "report", material.pictures
    names = [picture.name for picture in pictures]
    images = [picture.pixels for picture in pictures]
    seen = inspect(material.model, images, names=names, name=material.settings.model, closely=len(images))
    report.write_report(seen, figures.draw_inspection(seen, folder), folder / "report.html")
    draw_summary(material, seen, material.folder / "demo.png")
    return {"files": {"report": "report/report.html", "summary": "demo.png"}}


# name: (description, function, type of its results), in this order; a stage may use the files of those before it.
STAGES: dict[str, tuple[str, Callable[[Material], dict[str, Any]], Any]] = {
    "pictures": ("classifying pictures", classify, PicturesResult),
    "fewshot": (
        "evaluating frozen features with few examples, beside random weights",
        few_shot,
        FewshotResult,
    ),
    "finetune": ("fine-tuning", fine_tune, FinetuneResult),
    "report": ("showing what the model looks at", explain, ReportResult),
}
