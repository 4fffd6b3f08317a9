"""A model -> a folder with a file for another runtime, proven to be that model.

    OUT/model.onnx      the file (or model.xml and model.bin, model.pt2, model.pte), preprocessing and metadata inside
    OUT/run.py          a program of ten lines that runs it without vitrail
    OUT/README.md       what goes in, what comes out, how it was compared, the license
    OUT/report.json     the whole comparison (verify.py)

    model ──► trace (graph.py) ──► write (write.py) ──► compare (verify.py) ──► OUT

Written completely or not at all: a file that is not close enough to its model leaves nothing.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from vitrail.checkpoints.architecture import Size
from vitrail.checkpoints.checkpoint import from_model, to_model
from vitrail.checkpoints.formats import EXPORTED, as_model, check_new
from vitrail.data.sources import Source
from vitrail.errors import ConfigError
from vitrail.evaluators.accuracy import open_split
from vitrail.exporting import verify
from vitrail.exporting.calibration_images import given_images, training_images
from vitrail.exporting.card import write_readme
from vitrail.exporting.settings import ExportSettings, Input, Precision, Target
from vitrail.exporting.write import check_packages, write
from vitrail.inference.engine import ModelLike, check_finite, evaluation_pipeline
from vitrail.inference.exported import try_in_process
from vitrail.models.names import Model
from vitrail.runtime.files import atomic_folder, check_writable

MAX_DROP = 0.5  # points of top-1 accuracy that a file may lose


@dataclass(frozen=True)
class Report:
    """A written file beside its model."""

    path: str
    file: str
    to: str
    precision: str
    input: str
    bytes: int  # of the file and its weights
    model_bytes: int  # of the model's weights in float32
    differences: verify.Differences
    scores: verify.Scores | None
    speed: list[verify.Speed]
    peak_bytes: int | None  # of a process that opens the file and runs one image

    def lines(self) -> list[str]:
        """Return the report in words."""
        d = self.differences
        lines = [
            f"{d.compared} of {d.images:,} images, in batches of {', '.join(map(str, d.batches))}: at most "
            f"{d.largest:.2g} apart, {d.mean:.2g} on average, with a standard deviation of {d.spread:.2g}; "
            f"probabilities at most {d.probability:.2g}; same class for {d.agreement:.1%}",
            f"size {self.bytes / 2**20:,.1f} MiB, {self.bytes / self.model_bytes:.2f} of the weights in float32",
        ]
        if s := self.scores:
            lines.append(f"top-1 on {s.data} (n = {s.n:,}): {s.file:.2%}, the model {s.model:.2%}")
        lines += [
            f"batch {s.batch}, {s.threads} threads: {s.file_ms:.1f} ms, eager PyTorch {s.model_ms:.1f} ms "
            f"({s.ratio:.2f}x as fast)"
            for s in self.speed
        ]
        if self.peak_bytes:
            lines.append(f"memory of a process that runs one image: {self.peak_bytes / 2**20:,.0f} MiB")
        return lines


def export(
    model: ModelLike,
    path: str | Path,
    to: Target = "onnx",
    *,
    precision: Precision = "float32",
    input: Input = "pixels",
    batch: int | Literal["dynamic"] = "dynamic",
    image_size: Size | Literal["dynamic"] | None = None,
    rollout: bool = False,
    calibrate: Source | str | Path | None = None,
    calibrate_split: str = "train",
    verify_on: Source | str | Path | None = None,
    verify_split: str | None = None,
    max_drop: float = MAX_DROP,
    timing: bool = True,
) -> Report:
    """Write a model as a file of another runtime into the new folder `path`; compare it before it gets its name.

    `to`: onnx, openvino, torch, aoti, executorch. `input`: pixels, images of any size that the file prepares itself,
    or tensor, prepared ones. `batch`: images at a time, or dynamic. `image_size`: another one, with resampled
    positions, or dynamic: prepared images of any size.
    `rollout`: also the attention rollout. `calibrate`: images of the training set, for int8; None: those that the
    model records, if they are there. `verify_on`: labelled
    images to compare accuracies on: the file may lose `max_drop` points. `timing`: also measure speed.
    """
    path, model = Path(path), as_model(model)
    check_place(path)
    settings = ExportSettings(
        to, precision, input, None if batch == "dynamic" else batch, image_size == "dynamic", rollout
    )
    if isinstance(image_size, int | tuple):
        model = resized(model, image_size)
    elif image_size not in (None, "dynamic"):
        raise ConfigError(f"image_size is one number, height and width, or dynamic, not {image_size!r}")
    settings.check(model)
    device = next(model.parameters()).device
    if precision == "fp8" and device.type != "cuda":
        raise ConfigError(f"fp8 files are computed by GPUs, and the model is on {device.type}: --device cuda")
    check_packages(to)
    evaluation_pipeline(model)
    for name, w in model.state_dict().items():
        check_finite(w, name)
    labelled = None if verify_on is None else open_split(verify_on, verify_split)
    images = None
    if precision == "int8":
        images = training_images(model) if calibrate is None else given_images(calibrate, calibrate_split)
    with atomic_folder(path) as folder:
        exported = write(model, settings, folder, images)
        pictures = verify.sample(labelled or images)
        file, can_be_tried = folder / settings.file, to != "aoti" and device.type == "cpu"
        report = Report(
            str(path), settings.file, to, precision, input,
            bytes=sum(f.stat().st_size for f in folder.iterdir()),
            model_bytes=sum(4 * w.numel() for w in model.parameters()),
            differences=verify.compare(model, exported, pictures),
            scores=verify.scores(model, exported, labelled, max_drop / 100) if labelled is not None else None,
            speed=verify.speed(model, exported, pictures) if timing else [],
            peak_bytes=try_in_process(file).get("peak_bytes") if timing and can_be_tried else None,
        )  # fmt: skip
        write_readme(folder, exported.card, settings, report.lines(), device.type)
        (folder / "report.json").write_text(json.dumps(asdict(report), indent=1) + "\n", encoding="utf-8")
    return report


def resized(model: Model, image_size: Size) -> Model:
    """Return a model for images of another size, on the same device."""
    return to_model(from_model(model), image_size=image_size).to(next(model.parameters()).device)


def check_place(path: Path) -> None:
    """Raise an error for a place where no new folder can be made, before any work."""
    if path.suffix.lower() in EXPORTED:
        raise ConfigError(
            f"{path}: name a new folder, without {path.suffix}; it gets the file, a README.md and a program"
        )
    check_new(path)
    check_writable(path.parent)
