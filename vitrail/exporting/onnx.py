"""ONNX files: written from the traced graph, in the precision that is asked for.

    write_onnx(program, path, card)         float32
    round_onnx(path)                        float16 inside, float32 at its inputs and outputs

Operators are those of ONNX itself, opset OPSET; no runtime's own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx
import torch
from torch.export import ExportedProgram

from vitrail.errors import ConfigError
from vitrail.exporting.graph import quiet
from vitrail.inference.runtimes import CARD

OPSET = 20
MOST_BYTES = 2**31 - 1  # of a file: a limit of its format
INPUT = "images"


def write_onnx(program: ExportedProgram, path: Path, outputs: list[str]) -> None:
    """Write a graph as one file, weights included."""
    size = sum(t.numel() * t.element_size() for t in program.state_dict.values())
    if size > MOST_BYTES:
        raise ConfigError(
            f"an ONNX file holds at most 2 GiB, and the weights have {size / 2**30:.1f}: use openvino"
        )
    with quiet():
        exported = torch.onnx.export(
            program,
            dynamo=True,
            input_names=[INPUT],
            output_names=outputs,
            opset_version=OPSET,
            verbose=False,
        )
        assert exported is not None
        exported.save(str(path), external_data=False)


def add_card(path: Path, card: Mapping[str, Any]) -> None:
    """Store the card, and who wrote the file, in its metadata."""
    model = onnx.load(path)
    model.producer_name, model.producer_version = "vitrail", str(card["vitrail"])
    for node in model.graph.node:  # where in the source code each operator comes from
        del node.metadata_props[:]
        node.doc_string = ""
    del model.graph.metadata_props[:]
    onnx.helper.set_model_props(model, {CARD: json.dumps(card)})
    onnx.checker.check_model(model)
    onnx.save(model, path)
