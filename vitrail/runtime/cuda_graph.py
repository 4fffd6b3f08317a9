"""A function as a CUDA graph: recorded once, replayed for every call, so that the host has nothing to do.

The kernels of a small model, or of a small batch, are shorter than the time that the host needs to launch them. What
is recorded reads its input from fixed buffers and writes its result to one; random numbers follow the generator's
seed at each replay. Before recording, the function has to be run: for the compiler, and for libraries that allocate
at first use. What these runs change can be undone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

WARMUP = 3  # runs before recording, as in PyTorch's documentation


class Recorded:
    """function(inputs) -> tensor, recorded at its first call; later inputs must have the same shapes and types.

    The result is overwritten by the next call. `changed`: returns all tensors that the function changes in place.
    """

    def __init__(
        self,
        function: Callable[[dict[str, Tensor]], Tensor],
        changed: Callable[[], Mapping[str, Tensor]] = dict,
    ) -> None:
        self.function, self.changed = function, changed
        self.graph: torch.cuda.CUDAGraph | None = None
        self.inputs: dict[str, Tensor] = {}
        self.result: Tensor

    def __call__(self, inputs: Mapping[str, Tensor]) -> Tensor:
        if self.graph is None:
            self.graph = self.record(inputs)
        for name, t in inputs.items():
            self.inputs[name].copy_(t, non_blocking=True)
        self.graph.replay()
        return self.result

    def record(self, inputs: Mapping[str, Tensor]) -> torch.cuda.CUDAGraph:
        self.inputs = {name: t.clone() for name, t in inputs.items()}
        before = {name: t.clone() for name, t in self.changed().items()}
        random = torch.cuda.get_rng_state()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARMUP):
                self.function(dict(self.inputs))
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        # Other threads, such as one that pins batches, may allocate while this one records.
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            self.result = self.function(dict(self.inputs))
        with torch.no_grad():
            for name, t in self.changed().items():
                t.copy_(before[name])
        torch.cuda.set_rng_state(random)
        return graph
