"""OpenVINO files, model.xml and model.bin: made from the ONNX file, which is close to the model already.

8 bits are NNCF's: weights and inputs of dense layers and convolutions, by images; or the weights alone.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino

from vitrail.inference.runtimes import CARD

PRODUCTS = ("MatMul", "Convolution")


def write_openvino(
    source: Path, path: Path, card: Mapping[str, Any], precision: str, inputs: Sequence[np.ndarray]
) -> None:
    """Write an ONNX file as model.xml with its model.bin. `inputs`: of one image each, for int8."""
    model = openvino.Core().read_model(source)  # convert_model would split a path at its commas
    if precision in ("int8", "int8_weights"):
        model = in_bytes(model, precision, inputs)
    for port, name in zip(model.outputs, card["outputs"], strict=True):
        port.get_tensor().set_names({name})
    model.set_rt_info(json.dumps(card), CARD)
    openvino.save_model(model, path, compress_to_fp16=precision == "float16")


def in_bytes(model: openvino.Model, precision: str, inputs: Sequence[np.ndarray]) -> openvino.Model:
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        import nncf

        logger = logging.getLogger("nncf")
        level = logger.level
        logger.setLevel(logging.ERROR)
        try:
            if precision == "int8_weights":
                return nncf.compress_weights(model, mode=nncf.CompressWeightsMode.INT8_SYM)
            return nncf.quantize(
                model,
                nncf.Dataset(inputs, lambda x: [x]),
                subset_size=len(inputs),
                model_type=nncf.ModelType.TRANSFORMER,
                ignored_scope=nncf.IgnoredScope(names=before_weights(model), validate=False),
            )
        finally:
            logger.setLevel(level)


def before_weights(model: openvino.Model) -> list[str]:
    """Return the names of all operations before the first product with weights: the preprocessing."""
    first = next(op for op in model.get_ordered_ops() if op.get_type_name() in PRODUCTS and has_weights(op))
    names: set[str] = set()
    waiting = [first.input_value(0).get_node()]
    while waiting:
        op = waiting.pop()
        if op.get_friendly_name() not in names:
            names.add(op.get_friendly_name())
            waiting += [value.get_node() for value in op.input_values()]
    kinds = ("Parameter", "Constant", "Result")
    return sorted(op.get_friendly_name() for op in model.get_ops()
                  if op.get_friendly_name() in names and op.get_type_name() not in kinds)  # fmt: skip


def has_weights(op: Any) -> bool:
    """Return whether the second input of a product is a constant, perhaps converted or transposed."""
    node = op.input_value(1).get_node()
    while node.get_type_name() in ("Convert", "Transpose", "Reshape", "Multiply", "Subtract"):
        node = node.input_value(0).get_node()
    return node.get_type_name() == "Constant"
