"""PyTorch's own files, model.pt2: a graph and its weights (torch), or machine code made of them (aoti).

A graph runs wherever PyTorch does, on the device that the model was on, in Python or C++. Machine code runs on the
kind of machine that it was made on, faster; it can do anything that a program can, so vitrail runs only its own, to
compare.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.export import ExportedProgram

from vitrail.errors import ConfigError
from vitrail.exporting.graph import quiet
from vitrail.inference.runtimes import CARD, Arrays, Opened


def write_torch(graph: ExportedProgram, path: Path, card: Mapping[str, Any]) -> None:
    """Write a graph with its weights, and without what a reader would have to unpickle or to evaluate."""
    graph._example_inputs, graph._guards_code = None, []
    for node in graph.graph.nodes:
        for name in (
            "stack_trace",
            "nn_module_stack",
            "source_fn_stack",
            "torch_fn",
        ):  # files of this machine
            node.meta.pop(name, None)
    with quiet():
        torch.export.save(graph, path, extra_files={f"{CARD}.json": json.dumps(card)})


def write_aoti(graph: ExportedProgram, path: Path, card: Mapping[str, Any]) -> None:
    """Compile a graph; ConfigError without a C++ compiler."""
    from torch._inductor.exc import InvalidCxxCompiler

    settings = {"aot_inductor.metadata": {CARD: json.dumps(card)}}
    try:
        with quiet():
            torch._inductor.aoti_compile_and_package(graph, package_path=str(path), inductor_configs=settings)
    except InvalidCxxCompiler as error:
        raise ConfigError("aoti needs a C++ compiler, such as g++") from error


def open_aoti(path: Path, device: torch.device) -> Opened:
    """Open a file that write_aoti wrote."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch._inductor.aoti_load_package(str(path))

    def run(images: np.ndarray) -> Arrays:
        with torch.no_grad():
            results = program(torch.from_numpy(images).to(device))
        return {name: t.float().cpu().numpy() for name, t in results.items()}

    return Opened(program.get_metadata()[CARD], run)
