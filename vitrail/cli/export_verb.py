"""The verb that writes a model as a file of another runtime: export."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from vitrail.cli.verb import COMMON, Common, ModelPath, Output, Reading

Target = Literal["onnx", "openvino", "torch", "aoti", "executorch"]
ExportPrecision = Literal["float32", "float16", "bf16", "int8", "int8_weights", "fp8"]


@dataclass(frozen=True)
class ExportReading(Reading):
    """Settings for reading the checkpoint."""

    # resample the position embeddings for this size; one number, or height and width; dynamic: prepared images of any
    # size that the patches divide, with --input tensor
    image_size: tuple[int | Literal["dynamic"], ...] = ()  # type: ignore[assignment]


READING = ExportReading()


def export(
    model: ModelPath,
    out: Annotated[Positional[str], arg(metavar="OUT")],
    *,
    to: Target = "onnx",
    precision: ExportPrecision = "float32",
    input: Literal["pixels", "tensor"] = "pixels",
    batch: Literal["dynamic"] | int = "dynamic",
    rollout: bool = False,
    calibrate: str | None = None,
    calibrate_split: str = "train",
    verify: str | None = None,
    verify_split: str | None = None,
    max_drop: float = 0.5,
    timing: bool = True,
    reading: ExportReading = READING,
    common: Common = COMMON,
) -> Output:
    """Write a model as a file that runs without PyTorch, or without Python; compared with the model first.

    Args:
        model: an included model (ti8-64), a bundle, a run, or any supported checkpoint
        out: a new folder, for the file, a program that runs it, a README.md and a report.json; nothing is left of a
            file that is not close enough to the model (exit code 1)
        to: onnx (ONNX Runtime and others), openvino, torch (torch.export), aoti (compiled for this kind of machine),
            executorch (phones)
        precision: of the computation; int8: weights and activations; int8_weights: stored so;
            fp8: 8-bit floats on a GPU (--device cuda), by the scales of `vitrail calibrate`
        input: pixels: uint8 images of any size, which the file prepares itself; tensor: prepared images
        batch: images at a time: dynamic, or a number
        rollout: also give the attention rollout, a map of each image
        calibrate: images to measure the range of activations on, for int8: the training set, or a folder of images
            like them; if unset, the training set that the model records, if it is here unchanged
        calibrate_split: which part of them
        verify: labelled images to compare accuracies on, such as the validation set
        verify_split: which part of them; if unset, the test split or else validation
        max_drop: points of top-1 accuracy that the file may lose on them
        timing: measure the speed of both on this machine
    """
    from vitrail.checkpoints.formats import load
    from vitrail.exporting.export import export as run
    from vitrail.runtime.device import pick

    # On the CPU unless a GPU is asked for: most files are for one.
    device = "cpu" if common.device == "auto" else common.device
    dynamic = reading.image_size == ("dynamic",)
    fields = (replace(reading, image_size=()) if dynamic else reading).arguments()
    loaded = load(model, **fields).to(pick(device))
    report = run(
        loaded, out, to, precision=precision, input=input, batch=batch,
        image_size="dynamic" if dynamic else None, rollout=rollout, calibrate=calibrate,
        calibrate_split=calibrate_split, verify_on=verify, verify_split=verify_split, max_drop=max_drop,
        timing=timing,
    )  # fmt: skip
    after = [f"{out}/{report.file}: {to}, {precision}, input {input}", *report.lines()]
    after.append(f"Next: vitrail predict {out} IMAGE; or, without vitrail, {out}/README.md")
    return Output(common, [], [], {"model": model, **asdict(report)}, after=after)
