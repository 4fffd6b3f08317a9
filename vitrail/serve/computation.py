"""A model of vitrail, or an exported file -> the computation of a predictor: features and logits of a batch.

A model that is served is prepared once, for any number of images: packed weights on a CPU, recorded kernels for
batches of 1, 2, 4, ... images on CUDA. An exported file is run by its own runtime, on the CPU. B images, D width,
K classes.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import numpy as np
import torch
from torch import Tensor

from vitrail.data.decode import decode
from vitrail.errors import CheckpointError, ConfigError
from vitrail.inference.engine import (
    CPU_PIXELS,
    MOST_THREADS,
    MOST_WORKERS,
    check_finite,
    evaluation_pipeline,
    forward_pass,
)
from vitrail.inference.exported import Exported, Runnable
from vitrail.inference.precision import Precision
from vitrail.models.names import Model
from vitrail.runtime.cuda_graph import Recorded
from vitrail.serve.predictor import Computation, Outputs, batch_sizes

MANY = 1 << 30  # images that may come
LARGEST = 64  # images of a batch on a GPU
# While kernels are recorded, no other thread may start any: neither a batch, nor an explanation.
COMPUTING, EXPLAINING = threading.Lock(), threading.Lock()


def computation_of(model: Runnable, precision: Precision = "auto") -> Computation:
    """Return how a model is computed, after a first image."""
    if isinstance(model, Exported):
        if precision not in ("auto", "float32"):
            raise ConfigError(
                f"precision {precision!r}: an exported file has the one that it was exported with"
            )
        return ExportedComputation(model)
    return ModelComputation(model, precision)


class ModelComputation:
    """images (B, 3, h, w) -> features (B, D), logits (B, K) of a model, on its device."""

    def __init__(self, model: Model, precision: Precision = "auto") -> None:
        self.model, self.pipeline = model, evaluation_pipeline(model)
        self.device = next(model.parameters()).device
        H, W = model.config.image_size
        cores = torch.get_num_threads()
        self.computes_apart = self.device.type != "cpu"
        self.threads = min(MOST_WORKERS if self.computes_apart else MOST_THREADS, cores)
        self.batch_size = LARGEST if self.computes_apart else max(1, CPU_PIXELS // (H * W))
        self.prepared = ExitStack()
        self.forward = self.prepared.enter_context(
            forward_pass(model, self.outputs, precision=precision, n=MANY, steps=MANY)
        )
        self.recorded: dict[int, Recorded] = {}
        try:
            self.try_out((H, W))
        except BaseException:
            self.close()
            raise

    def outputs(self, x: Tensor) -> Tensor:
        """Return features and logits side by side, (B, D + K)."""
        head = self.model.head
        y = head.representation(self.model.features(x))  # (B, D)
        return y if head.classifier is None else torch.cat([y, head.classifier(y)], dim=1)  # (B, D + K)

    def try_out(self, size: tuple[int, int]) -> None:
        """Compute grey images in batches of all sizes, for each of which a device keeps something."""
        x = torch.zeros(1, 3, *size, device=self.device)
        if self.device.type == "cuda":
            for B in batch_sizes(LARGEST):
                self.recorded[B] = Recorded(lambda inputs: self.forward(inputs["image"]))
                with COMPUTING, EXPLAINING:
                    self.recorded[B]({"image": x.expand(B, -1, -1, -1)})
            y = self.forward(x)
        else:
            with ThreadPoolExecutor(1) as pool:  # with as many threads as a batch will have
                y = pool.submit(self.compute_sizes, x).result()
        check_finite(y, "outputs on a grey image")

    def compute_sizes(self, x: Tensor) -> Tensor:
        """Return the outputs of one image, after those of larger batches: smaller ones fit into their memory."""
        if self.threads > 1:
            torch.set_num_threads(1)
        for B in reversed(batch_sizes(self.batch_size)[1:]):
            self.forward(x.expand(B, -1, -1, -1).contiguous())
        return self.forward(x)  # (1, D + K)

    def load(self, image: bytes, name: str) -> Tensor:
        return self.pipeline.load(image, name=name)  # (3, h, w)

    def __call__(self, x: Tensor) -> Outputs:
        B = len(x)
        x = self.pipeline.device(x.to(self.device))  # (B, 3, h, w)
        if self.recorded:
            size = 1 << (B - 1).bit_length()
            padded = torch.cat([x, x.new_zeros(size - B, *x.shape[1:])])  # (size, 3, h, w)
            with COMPUTING:
                y = self.recorded[size]({"image": padded})[:B].cpu()  # (B, D + K)
        else:
            y = self.forward(x).cpu()  # (B, D + K)
        if not y.isfinite().all():
            raise CheckpointError("the outputs of the model are not finite")
        K = self.model.config.classes
        D = y.shape[1] - K
        return Outputs(y[:, :D].numpy(), y[:, D:].numpy() if K else None)

    def close(self) -> None:
        self.recorded.clear()
        self.prepared.close()


class ExportedComputation:
    """images (B, 3, h, w), or pixels (1, h, w, 3) for a file that prepares them itself -> its features and logits."""

    computes_apart = False

    def __init__(self, model: Exported) -> None:
        self.model = model
        self.pipeline = None if model.takes_pixels else evaluation_pipeline(model)
        self.threads = min(MOST_THREADS, torch.get_num_threads())
        H, W = model.config.image_size
        # Pixels have any size, so that two images cannot be in one batch.
        self.batch_size = 1 if model.takes_pixels else max(1, CPU_PIXELS // (H * W))
        shape = (1, H, W, 3) if model.takes_pixels else (1, 3, H, W)
        self(torch.full(shape, 128, dtype=torch.uint8))

    def load(self, image: bytes, name: str) -> Tensor:
        if self.pipeline is None:
            return torch.from_numpy(np.ascontiguousarray(decode(image, name=name)))  # (h, w, 3)
        return self.pipeline.load(image, name=name)  # (3, h, w)

    def __call__(self, x: Tensor) -> Outputs:
        outputs = self.model.run(x if self.pipeline is None else self.pipeline.device(x))
        y, logits = outputs["features"], outputs.get("logits")  # (B, D), (B, K)
        check_finite(y if logits is None else torch.cat([y, logits], dim=1), "outputs")
        return Outputs(y.numpy(), None if logits is None else logits.numpy())

    def close(self) -> None:
        """Nothing was prepared."""
