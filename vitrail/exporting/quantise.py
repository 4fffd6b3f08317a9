"""8-bit ONNX files: dense layers multiply bytes; everything else stays in float32.

    y = s_x s_w (x_8 - o) W_8 + b       x_8 = round(x / s_x) + o in 0..255, W_8 = round(W / s_w) in -63..63

Weights have a scale for each output, and 7 of their 8 bits: products of two 8-bit numbers, added in pairs, would
overflow the 16 bits in which x86 CPUs without VNNI add them. The input of a layer has one scale and one offset,
measured on images: its range is cut where rounding and cutting off together lose least.

Some layers stay in float32. All are ranked by the error of their own output; as few of the worst are kept as it takes
to bring the whole model close enough, on images that nothing was measured on.

    quantise(path, inputs)      as above
    weights_only(path)          the weights alone, in 8 bits; the arithmetic stays in float32

M rows of an input, K its width, N outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, helper, numpy_helper

from vitrail.errors import ConfigError
from vitrail.inference.runtimes import open_onnx
from vitrail.runtime.progress import progress

MOST_BESIDE_BYTES, MOST_ALONE = 63, 127  # magnitudes of a weight
KEPT = (0, 2, 4, 8, 16, 32)  # layers that may stay in float32
CLOSE = 0.1  # mean difference of outputs, as a share of their standard deviation, that is close enough
HELD_OUT = 32  # inputs that nothing is measured on
SHARES = (1.0, 0.9999, 0.999, 0.995)  # of the numbers of an input that are within its range
ROWS = 512  # of the inputs of a layer that are looked at
LEAST = 1024  # numbers of a weight: less is not worth it


@dataclass
class Layer:
    """x W of a constant W."""

    node: NodeProto
    weight: np.ndarray  # float32 (K, N)
    scale: float = 0.0  # of its input
    offset: int = 0
    error: float = 0.0  # of its output, as a share of it


def quantise(path: Path, inputs: Sequence[np.ndarray], threads: int = 1) -> int:
    """Quantise a float32 file in place, by inputs of one image each; return how many layers stay in float32."""
    if len(inputs) < 2:
        raise ConfigError("int8 needs at least 2 images to calibrate on")
    held_out = min(HELD_OUT, len(inputs) // 2)
    layers = dense_layers(onnx.load(path))
    measure(path, layers, inputs[held_out:], threads)
    layers.sort(key=lambda layer: -layer.error)
    run = open_onnx(path, threads).run
    expected = [run(x) for x in inputs[:held_out]]
    model = onnx.load(path)
    for kept in [k for k in KEPT if k < len(layers)] or [0]:
        candidate = path.with_suffix(".candidate.onnx")
        onnx.save(with_bytes(model, layers[kept:]), candidate)
        run = open_onnx(candidate, threads).run
        results = [run(x) for x in inputs[:held_out]]
        candidate.replace(path)
        if distance(expected, results) <= CLOSE:
            break
    return kept


def dense_layers(model: ModelProto) -> list[Layer]:
    """Return the products with a constant matrix."""
    constants = {one.name: one for one in model.graph.initializer}
    layers = []
    for node in model.graph.node:
        if node.op_type == "MatMul" and node.input[1] in constants:
            weight = numpy_helper.to_array(constants[node.input[1]])
            if weight.ndim == 2 and weight.size >= LEAST:
                layers.append(Layer(node, weight))
    return layers


def measure(path: Path, layers: list[Layer], inputs: Sequence[np.ndarray], threads: int) -> None:
    """Set scale, offset and error of each layer, by its input on some images."""
    names = list(dict.fromkeys(layer.node.input[0] for layer in layers))
    model, watched = onnx.load(path), path.with_suffix(".watched.onnx")
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    onnx.save(model, watched)
    run = open_onnx(watched, threads).run
    rng = np.random.default_rng(0)
    seen: dict[str, list[np.ndarray]] = {name: [] for name in names}
    for x in progress(inputs, len(inputs), "calibrate"):
        results = run(x)
        for name in names:
            rows = results[name].reshape(-1, results[name].shape[-1])  # (M, K)
            # The rows of an image that are furthest from zero, and as many at random.
            most = max(1, ROWS // len(inputs))
            chosen = [np.argsort(-np.abs(rows).max(axis=1))[:most], rng.integers(0, len(rows), most)]
            seen[name].append(rows[np.concatenate(chosen)])
    watched.unlink()
    for layer in layers:
        choose_range(layer, np.concatenate(seen[layer.node.input[0]]))


def choose_range(layer: Layer, x: np.ndarray) -> None:
    """Choose the range of the input x (M, K) with the least error of the output."""
    W, s = rounded(layer.weight, MOST_BESIDE_BYTES)
    W = W * s  # (K, N)
    y = x @ layer.weight  # (M, N)
    layer.error = np.inf
    for share in SHARES:
        low, high = (float(q) for q in np.quantile(x, [1 - share, share]))
        scale = max(max(high, 0.0) - min(low, 0.0), 1e-9) / 255
        offset = round(-min(low, 0.0) / scale)
        x8 = (np.rint(x / scale) + offset).clip(0, 255)  # (M, K)
        error = float(np.linalg.norm((x8 - offset) * scale @ W - y) / max(float(np.linalg.norm(y)), 1e-12))
        if error < layer.error:
            layer.scale, layer.offset, layer.error = scale, offset, error


def rounded(weight: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Return W_8, whole numbers as float32 (K, N), and s_w (N,)."""
    scale = np.maximum(np.abs(weight).max(axis=0), 1e-12) / most  # (N,)
    return np.rint(weight / scale), scale.astype(np.float32)


def with_bytes(model: ModelProto, layers: list[Layer]) -> ModelProto:
    """Return the model with the layers in 8 bits: inputs and weights pass through pairs of operators that round."""
    result = ModelProto()
    result.CopyFrom(model)
    chosen = {layer.node.output[0]: layer for layer in layers}
    nodes, constants = [], {one.name: one for one in result.graph.initializer}
    inputs: dict[tuple[str, float, int], str] = {}
    for node in result.graph.node:
        if layer := chosen.get(node.output[0]):
            x = node.input[0]
            key = (x, layer.scale, layer.offset)
            if key not in inputs:
                inputs[key] = f"{x}.bytes.{len(inputs)}"
                nodes += input_nodes(inputs[key], layer, x, constants)
            nodes.append(weight_node(node.output[0], layer.weight, MOST_BESIDE_BYTES, constants))
            node.input[0], node.input[1] = inputs[key], nodes[-1].output[0]
        nodes.append(node)
    return assembled(result, nodes, constants)


def input_nodes(name: str, layer: Layer, x: str, constants: dict[str, onnx.TensorProto]) -> list[NodeProto]:
    for part, value in (("scale", np.float32(layer.scale)), ("offset", np.uint8(layer.offset))):
        constants[f"{name}.{part}"] = numpy_helper.from_array(np.array(value), f"{name}.{part}")
    by = [f"{name}.scale", f"{name}.offset"]
    return [
        helper.make_node("QuantizeLinear", [x, *by], [f"{name}.q"], f"{name}.quantize"),
        helper.make_node("DequantizeLinear", [f"{name}.q", *by], [name], f"{name}.dequantize"),
    ]


def weight_node(
    name: str, weight: np.ndarray, most: int, constants: dict[str, onnx.TensorProto]
) -> NodeProto:
    """Return the node that makes a weight of its bytes."""
    W, s = rounded(weight, most)
    names = [f"{name}.weight.{part}" for part in ("bytes", "scale", "offset")]
    for one, value in zip(names, (W.astype(np.int8), s, np.zeros(len(s), np.int8)), strict=True):
        constants[one] = numpy_helper.from_array(value, one)
    return helper.make_node("DequantizeLinear", names, [f"{name}.weight"], f"{name}.weights", axis=1)


def assembled(
    model: ModelProto, nodes: list[NodeProto], constants: dict[str, onnx.TensorProto]
) -> ModelProto:
    """Put nodes and the constants that they use into a model."""
    copies = [NodeProto.FromString(node.SerializeToString()) for node in nodes]
    used = {name for node in copies for name in node.input} | {port.name for port in model.graph.output}
    kept = [onnx.TensorProto.FromString(one.SerializeToString()) for n, one in constants.items() if n in used]
    del model.graph.node[:], model.graph.initializer[:]
    model.graph.node.extend(copies)
    model.graph.initializer.extend(kept)
    return model


def distance(expected: Sequence[dict[str, np.ndarray]], results: Sequence[dict[str, np.ndarray]]) -> float:
    """Return the mean difference of logits, or of features, as a share of their standard deviation."""
    name = "logits" if "logits" in expected[0] and np.ptp(expected[0]["logits"]) > 0 else "features"
    a, b = (np.concatenate([one[name] for one in outputs]) for outputs in (expected, results))
    return float(np.abs(a - b).mean() / a.std())


def weights_only(path: Path) -> None:
    """Store every matrix and every filter of a float32 file in 8 bits, in place."""
    model = onnx.load(path)
    nodes, constants = [], {one.name: one for one in model.graph.initializer}
    done: dict[str, str] = {}
    for node in model.graph.node:
        place = {"MatMul": 1, "Conv": 1, "Gemm": 1}.get(node.op_type)
        name = node.input[place] if place is not None else ""
        weight = numpy_helper.to_array(constants[name]) if name in constants else np.zeros(0)
        if weight.size >= LEAST and name not in done:
            by_filter = node.op_type == "Conv" or any(a.name == "transB" and a.i for a in node.attribute)
            flat = weight.reshape(len(weight), -1).T if by_filter else weight  # (K, N)
            W, s = rounded(flat, MOST_ALONE)
            W = (W.T.reshape(weight.shape) if by_filter else W).astype(np.int8)
            parts = [f"{name}.{part}" for part in ("bytes", "scale", "offset")]
            for one, value in zip(parts, (W, s, np.zeros(len(s), np.int8)), strict=True):
                constants[one] = numpy_helper.from_array(np.ascontiguousarray(value), one)
            done[name] = f"{name}.weight"
            axis = 0 if by_filter else 1
            nodes.append(
                helper.make_node("DequantizeLinear", parts, [done[name]], f"{name}.weights", axis=axis)
            )
        if name in done:
            assert place is not None
            node.input[place] = done[name]
        nodes.append(node)
    onnx.save(assembled(model, nodes, constants), path)
