"""An exported file, opened by the runtime that it is for: arrays of images -> arrays of outputs, by name.

    open_file(path)      .onnx by ONNX Runtime, .xml by OpenVINO, .pt2 by PyTorch, .pte by ExecuTorch
    python runtimes.py PATH BYTES     opens it and runs one image: the trial of a file that may be a stranger's

A damaged file, or one made to do harm, can crash a runtime, which no `except` catches. So exported.py first runs this
file in a process of its own; it therefore imports nothing of the package, and a runtime only where it is needed.
"""

from __future__ import annotations

import json
import os
import re
import sys
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

CARD = "vitrail"  # the entry of a file's metadata that describes the model: JSON (exported.py)
# The package that runs it.
SUFFIXES = {".onnx": "onnxruntime", ".xml": "openvino", ".pt2": "torch", ".pte": "executorch"}
MOST_CARD = 16 << 20  # bytes
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Opened:
    """A file that is ready to run."""

    card: str  # the text of CARD; empty if the file has none
    run: Callable[[np.ndarray], Arrays]  # in any number of threads at once


def open_file(path: Path, threads: int = 1) -> Opened:
    """Open a file. `threads`: of each run, on a CPU. Raises whatever its runtime raises."""
    by_suffix = {".onnx": open_onnx, ".xml": open_openvino, ".pt2": open_torch, ".pte": open_executorch}
    return by_suffix[path.suffix.lower()](path, threads)


def open_onnx(path: Path, threads: int) -> Opened:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 4  # what is wrong comes as an exception
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    (name,) = [port.name for port in session.get_inputs()]
    outputs = [port.name for port in session.get_outputs()]

    def run(images: np.ndarray) -> Arrays:
        return dict(zip(outputs, session.run(outputs, {name: images}), strict=True))

    return Opened(session.get_modelmeta().custom_metadata_map.get(CARD, ""), run)


def open_openvino(path: Path, threads: int) -> Opened:
    import openvino

    core = openvino.Core()
    model = core.read_model(path)
    info = model.get_rt_info()
    card = str(info[CARD].value) if CARD in info else ""
    settings = {"INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1, "INFERENCE_PRECISION_HINT": "f32"}
    compiled = core.compile_model(model, "CPU", settings)
    names = [port.get_any_name() for port in compiled.outputs]

    def run(images: np.ndarray) -> Arrays:
        results = compiled.create_infer_request().infer([images], share_inputs=True)
        return {name: np.array(results[i]) for i, name in enumerate(names)}

    return Opened(card, run)


def open_torch(path: Path, threads: int) -> Opened:
    check_torch_program(path)
    import torch

    extra: dict[str, Any] = {f"{CARD}.json": ""}
    program = torch.export.load(path, extra_files=extra)
    module, text = program.module(), extra[f"{CARD}.json"]
    device = next(iter(program.state_dict.values())).device

    def run(images: np.ndarray) -> Arrays:
        with torch.no_grad():
            results = module(torch.from_numpy(images).to(device))
        return {name: t.float().cpu().numpy() for name, t in results.items()}

    return Opened(text if isinstance(text, str) else bytes(text).decode(), run)


def open_executorch(path: Path, threads: int) -> Opened:
    import torch
    from executorch.runtime import Runtime

    program = Runtime.get().load_program(path)
    (text,) = program.load_method(CARD).execute([]) if CARD in program.method_names else ("",)
    names = json.loads(text)["outputs"] if text else []
    method, in_use = program.load_method("forward"), Lock()  # its memory is for one batch
    most = method.metadata.input_tensor_meta(0).sizes()[0]  # images

    def run(images: np.ndarray) -> Arrays:
        parts = []
        for start in range(0, len(images), most):
            with in_use:
                results = method.execute([torch.from_numpy(images[start : start + most])])
                parts.append([np.array(t) for t in results])
        return {name: np.concatenate(arrays) for name, *arrays in zip(names, *parts, strict=True)}

    return Opened(text, run)


# Operators of a program: PyTorch's own. Others are looked up by name when it is read, and could be any function.
OPERATOR = re.compile(
    r"torch\.ops\.aten\.\w+\.\w+|_operator\.(getitem|add|sub|mul|floordiv|truediv|mod|neg|eq|ne|ge|gt|le|lt)"
    r"|torch\.sym_(float|int|max|min|not)|math\.(trunc|floor|ceil)|torch\.ops\.higher_order\.wrap_with_set_grad_enabled"
)
# Sizes that depend on the input are expressions, which are evaluated: of these words, numbers and nothing else.
WORDS = "Symbol Integer Rational Add Mul Pow Max Min FloorDiv CleanDiv Mod PythonMod positive integer True False oo"
EXPRESSION = re.compile(
    rf"(?:[\s\d(),=+*/-]|\b(?:{'|'.join(WORDS.split())})\b|'[su]\d{{1,6}}'|\b[su]\d{{1,6}}\b)*"
)
MOST_EXPRESSION = 20_000  # characters
PLAIN = re.compile(
    r"[^/]+/(archive_format|archive_version|version|byteorder|\.format_version|\.storage_alignment|\.data/(version|serialization_id)"
    r"|models/model\.json|data/(weights|constants)/[\w.]+|data/sample_inputs/model\.pt|extra/vitrail\.json)"
)
MOST_GRAPH = 256 << 20  # bytes


def check_torch_program(path: Path) -> None:
    """Raise ValueError unless a .pt2 is tensors and a graph of PyTorch's own operators, as export writes it.

    Anything pickled could run any code when it is read, and so could machine code (an AOTInductor package).
    """
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            if not PLAIN.fullmatch(name):
                raise ValueError(f"it holds {name[:200]!r}, which is not read: only tensors and a graph are")
        for entry in archive.infolist():
            if entry.filename.endswith("/sample_inputs/model.pt") and entry.file_size:
                raise ValueError("it holds pickled examples of its input, which could run any code")
            if entry.compress_type != zipfile.ZIP_STORED:
                raise ValueError(f"{entry.filename[:200]!r} is compressed")
            if not entry.filename.endswith(".json"):
                continue
            if entry.file_size > MOST_GRAPH:
                raise ValueError(f"{entry.filename[:200]!r} has {entry.file_size:,} bytes")
            if entry.filename.endswith(
                f"/extra/{CARD}.json"
            ):  # the card: text, which PyTorch hands over as it is
                continue
            for place, value in entries(json.loads(archive.read(entry))):
                if place == "use_pickle" and value is not False:
                    raise ValueError("it holds pickled objects, which could run any code")
                if place == "guards_code" and value:
                    raise ValueError("it holds Python code")
                if place == "expr_str" and not is_expression(value):
                    raise ValueError(f"it holds {value[:200]!r} where a size should be")
                if place == "target" and isinstance(value, str) and not OPERATOR.fullmatch(value):
                    raise ValueError(f"it calls {value[:200]!r}, which is not an operator of PyTorch")


def is_expression(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= MOST_EXPRESSION and bool(EXPRESSION.fullmatch(value))


def entries(value: Any) -> list[tuple[str, Any]]:
    """List the entries of all objects in a JSON value."""
    found: list[tuple[str, Any]] = []
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, Mapping):
            found += value.items()
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
    return found


def example(card: Mapping[str, Any]) -> np.ndarray:
    """Return zeros of the shape and type that a file takes."""
    H, W = card["image_size"]
    batch = card["batch"] or 1
    if card["input"] == "pixels":
        return np.zeros((batch, H, W, 3), np.uint8)
    return np.zeros((batch, 3, H, W), np.float32)


def try_file(path: Path) -> dict[str, Any]:
    """Open a file, run it once, and return its card and the shapes of its outputs; or what is wrong."""
    opened = open_file(path)
    if not opened.card:
        return {"error": f"it has no entry {CARD!r} in its metadata: `vitrail export` did not write it"}
    if len(opened.card) > MOST_CARD:
        return {"error": f"its entry {CARD!r} has more than {MOST_CARD:,} bytes"}
    card = json.loads(opened.card)
    outputs = opened.run(example(card))
    shapes = {name: [str(a.dtype), *a.shape] for name, a in outputs.items()}
    return {"card": card, "outputs": shapes}


def main(path: Path, most: int) -> None:
    """Print the result of try_file, as the last line; `most`: bytes of memory."""
    if resource is not None:
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        result = try_file(path)
    except ImportError as error:
        result = {"missing": error.name or str(error)}
    except Exception as error:
        result = {"error": f"{type(error).__name__}: {error}"[:2000]}
    if (status := Path("/proc/self/status")).exists():
        result["peak_bytes"] = int(re.findall(r"VmHWM:\s+(\d+) kB", status.read_text())[0]) << 10
    print(json.dumps(result), flush=True)
    os._exit(0)  # without the destructors of a runtime that may have been damaged


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
