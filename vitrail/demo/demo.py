"""The demo: the model in the box at work, in four stages.

    pictures    what the model says of pictures                                    OUT/pictures/
    fewshot     1, 5, 10 examples of each class, its features and random weights   OUT/features/
    finetune    trained on the data by the one loop                                OUT/finetuned/
    report      what it looks at: a page, and a summary of all                     OUT/report/, OUT/demo.png

A stage is finished when OUT/NAME.json is there. The same call again goes on where it was stopped, in fine-tuning from
the step that was saved; a finished demo is shown at once. Nothing is fetched, and nothing is written outside OUT.
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

from vitrail.checkpoints.json_files import read_object
from vitrail.checkpoints.run import Run
from vitrail.checkpoints.torch_files import save_json
from vitrail.demo.material import Material
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

TOP = 3  # classes that are kept of each picture
RANDOM = "random weights"
TUNED = "finetuned"  # its folder


@dataclass(frozen=True)
class Demonstrated:
    """`results`: of each stage, by its name, with the seconds that it took."""

    folder: Path
    results: dict[str, Any]
    before: bool  # all of it was there already


def run_demo(
    settings: Demo = DEMO, out: str | Path = "vitrail-demo", *, device: Device = "auto"
) -> Demonstrated:
    """Interrupted, it raises `Interrupted` or KeyboardInterrupt; called again, it continues."""
    folder = Path(out).expanduser()
    material = Material.open(settings, folder, device)
    data = material.train.fingerprint(), material.train.class_names
    with closing(Run.open(folder, material.identity(), data=data)) as run:
        done = run.results(Results)
        if done is not None:
            check_complete(done, str(settings.model), str(folder))
            if lacks_model(folder / TUNED):
                fine_tune(material)
            return Demonstrated(folder, done, before=True)
        results: dict[str, Any] = {}
        try:
            for name in STAGES:
                with interruptible():
                    results[name] = staged(name, material)
        except KeyboardInterrupt as stop:
            raise Interrupted("SIGINT", f"stage {len(results)} of {len(STAGES)}", str(folder)) from stop
        check_complete(results, str(settings.model), str(folder))
        run.finish(results)
    return Demonstrated(folder, results, before=False)


def staged(name: str, material: Material) -> dict[str, Any]:
    """What a stage found, computed now where it was not before."""
    path, number = material.folder / f"{name}.json", list(STAGES).index(name)
    if not path.exists():
        what, stage = STAGES[name]
        note(f"{number + 1} of {len(STAGES)}: {what}")
        start = time.perf_counter()
        found = stage(material)
        with atomic_file(path) as temporary:
            save_json(found | {"seconds": time.perf_counter() - start}, temporary)
    return read_object(path, KINDS[name])


def classify(material: Material) -> dict[str, Any]:
    pictures = material.pictures
    for picture in pictures:
        if not picture.path.exists():
            with atomic_file(picture.path) as temporary:
                Image.fromarray(picture.pixels).save(temporary, "PNG")
    answers = predict(material.model, [picture.pixels for picture in pictures], TOP)
    return {
        "of": material.pictures_are,
        "drawn": material.is_drawn,
        "classes": material.model.config.classes,
        "pictures": [
            {"name": picture.name, "path": within(picture.path, material.folder), "meant": picture.meant}
            | {"top": [{"name": name, "probability": p} for name, p in answer]}
            for picture, answer in zip(pictures, answers, strict=True)
        ],
    }


def within(path: Path, folder: Path) -> str:
    """Counted from the demo's folder, so that this can be moved; a person's own image: where it is."""
    return str(path.relative_to(folder) if path.is_relative_to(folder) else path.absolute())


def few_shot(material: Material) -> dict[str, Any]:
    m = material
    extraction = Extraction(cache=m.folder / "features")
    evaluator = FewShot(m.few, m.test, m.shots, m.settings.seeds, extraction=extraction)
    models = {RANDOM: fresh(m.model), m.settings.model: m.model}
    return {
        "train": m.few.name,
        "test": m.test.name,
        "test_examples": len(m.test),
        "seeds": m.settings.seeds,
        "scores": {name: [vars(score) for score in evaluator(model)] for name, model in models.items()},
    }


def fresh(model: Model) -> Model:
    """The same architecture before any training; always the same weights."""
    device = next(model.parameters()).device
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made = build(model.config)
    made.preprocess = model.preprocess
    return made.to(device)


def fine_tune(material: Material) -> dict[str, Any]:
    given = material.settings
    prepared = prepare(
        given.data, given.model, device=material.device, test=material.test_split, steps=given.steps,
        batch_size=material.batch, lr=given.rate, image_size=min(material.model.config.image_size),
    )  # fmt: skip
    tuned = run_finetuning(prepared, material.folder / TUNED, device=material.device, figures=figures)
    names = ("steps", "train_examples", "test_examples")
    return {
        "split": material.test_split,
        "top1": tuned.results["scores"]["top1"]["mean"],
        **{name: tuned.results[name] for name in names},
    }


def explain(material: Material) -> dict[str, Any]:
    """Pictures and weights of the model as it came; the summary also shows the fine-tuned one."""
    folder, pictures = material.folder / "report", material.pictures
    names = [picture.name for picture in pictures]
    images = [picture.pixels for picture in pictures]
    seen = inspect(material.model, images, names=names, name=material.settings.model, closely=len(images))
    report.write_report(seen, figures.draw_inspection(seen, folder), folder / "report.html")
    draw_summary(material, seen, material.folder / "demo.png")
    return {"files": {"report": "report/report.html", "summary": "demo.png"}}


# name: (what it does, in words; how). In this order; each stage may use what those before it have written.
STAGES: dict[str, tuple[str, Callable[[Material], dict[str, Any]]]] = {
    "pictures": ("the model looks at pictures", classify),
    "fewshot": ("few-shot: what its frozen features are worth, beside random weights", few_shot),
    "finetune": ("fine-tuning", fine_tune),
    "report": ("a page that shows what it looks at", explain),
}
