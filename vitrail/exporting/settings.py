"""Settings of an export: format x precision x input. Combinations that are not listed here are refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from vitrail.errors import ConfigError
from vitrail.models.names import Model
from vitrail.models.resnet import StdConv
from vitrail.models.vit import ViT

Target = Literal["onnx", "openvino", "torch", "aoti", "executorch"]
Precision = Literal["float32", "float16", "bf16", "int8", "int8_weights", "fp8"]
Input = Literal["pixels", "tensor"]

# target: precisions, the name of its file, the extra that writes and verifies it
TARGETS: dict[str, tuple[tuple[str, ...], str, str]] = {
    "onnx": (("float32", "float16", "int8", "int8_weights"), "model.onnx", "onnx"),
    "openvino": (("float32", "float16", "int8", "int8_weights"), "model.xml", "openvino"),
    "torch": (("float32", "bf16", "fp8"), "model.pt2", ""),
    "aoti": (("float32", "bf16", "fp8"), "model.pt2", ""),
    "executorch": (("float32",), "model.pte", "executorch"),
}
INPUTS = ("pixels", "tensor")
MOST_BATCH = 4096
PLANNED_BATCH = 16  # the largest that ExecuTorch plans memory for, where any batch is asked for


@dataclass(frozen=True)
class ExportSettings:
    """How a model is exported."""

    to: Target = "onnx"
    precision: Precision = "float32"
    input: Input = "pixels"  # pixels: uint8 images of any size, prepared in the file; tensor: prepared images
    batch: int | None = None  # images at a time; None: any number
    dynamic_size: bool = False  # prepared images of any sides that the patches divide; with input tensor
    rollout: bool = False  # also give the attention rollout, (B, rows, columns)

    def check(self, model: Model) -> None:
        """Raise ConfigError for what cannot be exported."""
        if self.to not in TARGETS:
            raise ConfigError(f"format {self.to!r} is not one of {', '.join(TARGETS)}")
        precisions = TARGETS[self.to][0]
        if self.precision not in precisions:
            raise ConfigError(
                f"{self.to} files are written in {', '.join(precisions)}, not in {self.precision!r}"
            )
        if self.input not in INPUTS:
            raise ConfigError(f"input {self.input!r} is not one of {', '.join(INPUTS)}")
        if self.batch is not None and self.batch not in range(1, MOST_BATCH + 1):
            raise ConfigError(f"batch must be from 1 to {MOST_BATCH:,}, or dynamic, not {self.batch!r}")
        if self.to == "executorch" and (self.input == "pixels" or self.dynamic_size):
            raise ConfigError(
                "executorch files take prepared images of one size, since memory is planned for the largest: "
                "--input tensor, and no dynamic image size"
            )
        if self.dynamic_size and self.input == "pixels":
            raise ConfigError(
                "a dynamic image size is for input tensor: with input pixels, images of any size are resized to the "
                "model's"
            )
        if self.dynamic_size and isinstance(model, ViT) and model.config.positions == "relative":
            raise ConfigError(
                "relative positions have no counterpart at another size: the image size is fixed"
            )
        if self.rollout and not (isinstance(model, ViT) and model.config.block == "standard"):
            raise ConfigError("attention rollout is for ViTs with standard blocks")
        in_bytes = (self.to, self.precision) == ("onnx", "int8")
        if in_bytes and any(isinstance(part, StdConv) for part in model.modules()):
            raise ConfigError(f"{self.to} in {self.precision} is for ViTs without a ResNet")
        if model.config.channels != 3:
            raise ConfigError(
                f"a model of {model.config.channels} channels cannot be exported: images have 3"
            )

    @property
    def most_batch(self) -> int:
        """Largest dynamic batch."""
        return PLANNED_BATCH if self.to == "executorch" else MOST_BATCH

    @property
    def file(self) -> str:
        """Name of the file that is written."""
        return TARGETS[self.to][1]
