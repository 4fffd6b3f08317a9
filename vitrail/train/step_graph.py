"""A training step as one CUDA graph: recorded once, replayed for every batch, so that the host has nothing to do.

A small model's kernels are shorter than the time that the host needs to launch them. What is recorded reads the batch
from fixed buffers; learning rate and decay of the average are tensors; the generator's seed is read anew by each
replay. To record, the step has to be run first: for the compiler, and for libraries that allocate at first use. These
runs are undone.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

WARMUP = 3  # runs before recording, as PyTorch's documentation has it

Batch = dict[str, Tensor]


class StepGraph:
    """step(batch) -> tensor, recorded when it is first called; later batches must have the same shapes."""

    def __init__(self, step: Callable[[Batch], Tensor], tensors: Callable[[], dict[str, Tensor]]) -> None:
        self.step, self.tensors = step, tensors  # `tensors`: all that a step changes
        self.graph: torch.cuda.CUDAGraph | None = None
        self.batch: Batch = {}
        self.result: Tensor

    def __call__(self, batch: Batch) -> Tensor:
        if self.graph is None:
            self.graph = self.record(batch)
        for name, t in batch.items():
            self.batch[name].copy_(t, non_blocking=True)
        self.graph.replay()
        return self.result

    def record(self, batch: Batch) -> torch.cuda.CUDAGraph:
        self.batch = {name: t.clone() for name, t in batch.items()}
        before = {name: t.clone() for name, t in self.tensors().items()}
        random = torch.cuda.get_rng_state()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARMUP):
                self.step(dict(self.batch))
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.result = self.step(dict(self.batch))
        with torch.no_grad():
            for name, t in self.tensors().items():
                t.copy_(before[name])
        torch.cuda.set_rng_state(random)
        return graph
