"""The metadata of an exported file, and the README.md and the program beside it."""

from __future__ import annotations

from pathlib import Path

import vitrail
from vitrail.checkpoints.checkpoint import config_to_json, model_digest
from vitrail.checkpoints.license import complete_license, describe_license
from vitrail.exporting.graph import stride_of
from vitrail.exporting.settings import ExportSettings
from vitrail.inference.exported import VERSION, Card
from vitrail.models.calibration import Calibration
from vitrail.models.names import Model

PROGRAM = "run.py"
PACKAGES = {
    "onnx": "onnxruntime numpy pillow",
    "openvino": "openvino numpy pillow",
    "torch": "torch numpy pillow",
    "aoti": "torch numpy pillow",
    "executorch": "executorch torch numpy",
}
# How each runtime opens a file, finds its card, and runs images.
OPENING = {
    "onnx": """\
import onnxruntime
session = onnxruntime.InferenceSession(file)
card = json.loads(session.get_modelmeta().custom_metadata_map["vitrail"])
run = lambda images: session.run(["{output}"], {{"images": images}})[0]
""",
    "openvino": """\
import openvino
model = openvino.Core().read_model(file)
card, exactly = json.loads(model.get_rt_info()["vitrail"].value), {{"INFERENCE_PRECISION_HINT": "f32"}}
compiled = openvino.compile_model(model, "CPU", exactly)
run = lambda images: compiled([images])["{output}"]
""",
    "torch": """\
import torch
program = torch.export.load(file, extra_files=(extra := {{"vitrail.json": ""}})).module()
card = json.loads(extra["vitrail.json"])
run = lambda images: program(torch.from_numpy(images){device})["{output}"].cpu().numpy()
""",
    "aoti": """\
import torch
program = torch._inductor.aoti_load_package(file)
card = json.loads(program.get_metadata()["vitrail"])
run = lambda images: program(torch.from_numpy(images){device})["{output}"].cpu().numpy()
""",
    "executorch": """\
import torch
from executorch.runtime import Runtime
program = Runtime.get().load_program(file)
card = json.loads(program.load_method("vitrail").execute([])[0])
forward, place = program.load_method("forward"), card["outputs"].index("{output}")
run = lambda images: forward.execute([torch.from_numpy(images)])[place].numpy()
""",
}
FILE = """\
file = str(pathlib.Path(__file__).with_name("{file}"))
"""
PIXELS = """\
for path in sys.argv[1:]:
    image = ImageOps.exif_transpose(Image.open(path)).convert("RGB")
    y = run(np.array(image)[None]{batch})[0]
"""
TENSORS = """\
for path in sys.argv[1:]:
    y = run(np.load(path)[None]{batch})[0]  # float32 (3, {H}, {W}), prepared
"""
CLASSES = """\
    for k in y.argsort()[::-1][:5]:
        print(path, (card["class_names"] or range(len(y)))[k], f"{y[k]:.1%}")
"""
FEATURES = """\
    print(path, y.shape, y[:5])
"""


def make_card(model: Model, settings: ExportSettings, outputs: list[str], width: int) -> Card:
    """Return the metadata of a file."""
    config = model.config
    return {
        "version": VERSION,
        "vitrail": vitrail.__version__,
        "input": settings.input,
        "batch": settings.batch or 0,
        "image_size": list(config.image_size),
        "stride": stride_of(model) if settings.dynamic_size else 0,
        "outputs": outputs,
        "classes": config.classes,
        "width": width,
        "precision": settings.precision,
        "architecture": config_to_json(config),
        "preprocess": model.preprocess,
        "class_names": model.class_names,
        "provenance": {**model.provenance, "exported": {"weights": model_digest(model)}},
        "metrics": model.metrics,
        "license": complete_license(model.license),
        "calibration": model.calibration.as_json(),
    }


def program(card: Card, settings: ExportSettings, device: str) -> str:
    """Return a program that runs the file without vitrail."""
    H, W = card["image_size"]
    words = {
        "file": settings.file,
        "output": "probabilities" if card["classes"] else "features",
        "device": "" if device == "cpu" else f'.to("{device}")',
        "batch": f".repeat({settings.batch}, axis=0)" if (settings.batch or 1) > 1 else "",
    }
    pillow = "from PIL import Image, ImageOps\n" if settings.input == "pixels" else ""
    text = (
        "import json, pathlib, sys\nimport numpy as np\n"
        + pillow
        + FILE.format(**words)
        + OPENING[settings.to].format(**words)
    )
    text += PIXELS.format(**words) if settings.input == "pixels" else TENSORS.format(**words, H=H, W=W)
    return text + (CLASSES if card["classes"] else FEATURES)


def write_readme(folder: Path, card: Card, settings: ExportSettings, summary: list[str], device: str) -> None:
    """Write the program, and a README.md that shows it and says what goes in and comes out."""
    H, W = card["image_size"]
    batch = f"B = {card['batch']}" if card["batch"] else f"B from 1 to {settings.most_batch:,}"
    if settings.input == "pixels":
        takes = (
            f"uint8 (B, height, width, 3), {batch}: RGB images of one size, any size, as a decoder gives them"
        )
        prepare = f"The file prepares them itself: `{card['preprocess']}`."
        argument = "photo.jpg"
    else:
        size = f"(B, 3, {H}, {W})"
        if card["stride"]:
            size = f"(B, 3, H, W) with H and W multiples of {card['stride']}"
        takes = f"float32 {size}, {batch}: prepared images"
        prepare = f"Prepare them by `{card['preprocess']}`; in Python, `vitrail.transform(model)` does."
        argument = "photo.npy"
    text = program(card, settings, device)
    outputs = {
        "logits": f"(B, {card['classes']})",
        "probabilities": f"(B, {card['classes']}), {describe_probabilities(card)}",
        "rollout": "(B, rows, columns): how much of each patch reaches the output, through all layers",
        "features": f"(B, {card['width']}): the input of the classifier",
    }
    lines = [
        f"# {settings.file}",
        "",
        f"An image model for {RUNTIME[settings.to]}, in {settings.precision}, written by vitrail {card['vitrail']}.",
        "",
        "```sh",
        f"pip install {PACKAGES[settings.to]}",
        f"python {PROGRAM} {argument}",
        "```",
        "",
        "```python",
        text.rstrip("\n"),
        "```",
        "",
        f"- Input `images`: {takes}. {prepare}",
        *(f"- Output `{name}`: {outputs[name]}." for name in card["outputs"]),
        "- Its metadata has, under `vitrail`, class names, preprocessing line, architecture, provenance and license.",
        f"- License: {' '.join(describe_license(card['license']).split())}.",
        "",
        "Compared with the model that it was made from (`report.json` has everything):",
        "",
        *(f"- {line}" for line in summary),
        "",
    ]
    (folder / PROGRAM).write_text(text, encoding="utf-8")
    (folder / "README.md").write_text("\n".join(lines), encoding="utf-8")


def describe_probabilities(card: Card) -> str:
    """Return how the file makes probabilities of logits."""
    calibration = Calibration.from_json(card.get("calibration", {}))
    text = "a sigmoid of each" if calibration.multi_label else "their softmax"
    return text + (f" at temperature {calibration.temperature:.4g}" if calibration.temperature != 1 else "")


RUNTIME = {
    "onnx": "ONNX Runtime, and whatever else reads ONNX",
    "openvino": "OpenVINO",
    "torch": "PyTorch (torch.export)",
    "aoti": "PyTorch (AOTInductor: machine code for the kind of machine that it was written on)",
    "executorch": "ExecuTorch",
}
