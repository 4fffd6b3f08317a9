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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from vitrail.checkpoints.json_files import read_object, save_json
from vitrail.checkpoints.run import Run
from vitrail.demo.material import Material, is_drawn
from vitrail.demo.results import KINDS, Results, check_complete
from vitrail.demo.settings import DEMO, Demo
from vitrail.demo.summary import draw_summary
from vitrail.errors import Interrupted
from vitrail.evaluators.fewshot import FewShot
from vitrail.inference.feature_cache import Extraction
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
    data = material.train.fingerprint(), material.train.class_names
    with closing(Run.open(folder, material.identity(), data=data)) as run:
        done = run.results(Results)
        if done is not None:
            check_complete(done, str(settings.model), str(folder))
            if lacks_model(folder / TUNED):
                fine_tune(material)
            return DemoResult(folder, done, finished_before=True)
        results: dict[str, Any] = {}
        try:
            for name in STAGES:
                with interruptible():
                    results[name] = run_stage(name, material)
        except KeyboardInterrupt as stop:
            raise Interrupted("SIGINT", f"stage {len(results)} of {len(STAGES)}", str(folder)) from stop
        check_complete(results, str(settings.model), str(folder))
        run.finish(results)
    return DemoResult(folder, results, finished_before=False)


def run_stage(name: str, material: Material) -> dict[str, Any]:
    """Return the results of a stage; compute and write them first if they are not there."""
    path = material.folder / f"{name}.json"
    if not path.exists():
        description, stage = STAGES[name]
        note(f"stage {list(STAGES).index(name) + 1} of {len(STAGES)}: {description}")
        start = time.perf_counter()
        results = stage(material)
        with atomic_file(path) as temporary:
            save_json(results | {"seconds": time.perf_counter() - start}, temporary)
    return read_object(path, KINDS[name])


def classify(material: Material) -> dict[str, Any]:
    pictures = material.pictures
    for picture in pictures:
        if not picture.path.exists():
            with atomic_file(picture.path) as temporary:
                Image.fromarray(picture.pixels).save(temporary, "PNG")
    answers = predict(material.model, [picture.pixels for picture in pictures], TOP)
    return {
        "description": material.description,
        "drawn": is_drawn(material.settings.data),
        "classes": material.model.config.classes,
        "pictures": [
            {
                "name": picture.name,
                "path": relative_path(picture.path, material.folder),
                "label": picture.label,
            }
            | {"top": [{"name": name, "probability": p} for name, p in answer]}
            for picture, answer in zip(pictures, answers, strict=True)
        ],
    }


def relative_path(path: Path, folder: Path) -> str:
    """Return a path relative to the demo's folder, which may be moved; the absolute path of a user's own image."""
    return str(path.relative_to(folder) if path.is_relative_to(folder) else path.absolute())


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


# name: (description, function), in this order; a stage may use the files of those before it.
STAGES: dict[str, tuple[str, Callable[[Material], dict[str, Any]]]] = {
    "pictures": ("classifying pictures", classify),
    "fewshot": ("evaluating frozen features with few examples, beside random weights", few_shot),
    "finetune": ("fine-tuning", fine_tune),
    "report": ("showing what the model looks at", explain),
}
