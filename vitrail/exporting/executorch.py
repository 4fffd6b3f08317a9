"""ExecuTorch files, model.pte, for phones and small devices: the traced graph, for XNNPACK's kernels for CPUs.

Memory is planned when the file is written, for its largest batch (settings.py), so a file takes prepared images of
one size. The card is the answer of a method of its own: a file has no other place for it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch.export import ExportedProgram

from vitrail.exporting.graph import quiet
from vitrail.inference.runtimes import CARD


def write_executorch(graph: ExportedProgram, path: Path, card: Mapping[str, Any]) -> None:
    """Write a graph as model.pte."""
    with quiet():
        from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
        from executorch.exir import to_edge_transform_and_lower

        program = to_edge_transform_and_lower(
            graph, partitioner=[XnnpackPartitioner()], constant_methods={CARD: json.dumps(card)}
        ).to_executorch()
    path.write_bytes(program.buffer)
