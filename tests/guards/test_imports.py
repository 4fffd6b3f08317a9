"""Who may import whom: downward only. Imports inside functions count too."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "vitrail"
# From the top down; a folder may import what stands below it, and itself.
LAYERS = [
    {"__main__"},
    {"cli"},
    {"demo"},
    {"api"},
    {"setting_keywords"},
    {"studies"},
    {"recipes"},
    {"serve"},
    {"curate", "transfer", "inspection", "bench"},
    {"train", "exporting"},
    {"objectives"},
    {"evaluators"},
    {"inference"},
    {"checkpoints"},
    {"models", "data"},
    {"runtime"},
    {"errors"},
]
# `models` could be lifted out as a folder.
ONLY = {"models": {"models", "errors"}}
# Packages that live in one place each; in two: torchvision, a source of data sets and a peer; onnx, to write files
# and to quantise them; openvino, to run files and to write them.
ONE_PLACE = {
    "matplotlib": {"inspection/drawing.py"},
    "tensorboard": {"runtime/log.py"},
    "torchvision": {"data/catalog.py", "bench/peers.py"},
    "timm": {"bench/peers.py"},
    "ray": {"inference/on_ray.py", "studies/cluster.py"},
    "huggingface_hub": {"checkpoints/repositories.py"},
    "starlette": {"serve/app.py", "serve/bodies.py", "serve/json_answer.py", "serve/learning_app.py"},
    "uvicorn": {"serve/server.py"},
    "onnx": {"exporting/onnx.py", "exporting/quantise.py"},
    "onnxruntime": {"inference/runtimes.py"},
    "openvino": {"inference/runtimes.py", "exporting/openvino.py"},
    "nncf": {"exporting/openvino.py"},
    "executorch": {"inference/runtimes.py", "exporting/executorch.py"},
    "openTSNE": {"curate/projection.py"},
}


def level(part):
    return next(i for i, layer in enumerate(LAYERS) if part in layer)


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


FILES = sorted(p for p in PACKAGE.rglob("*.py") if p != PACKAGE / "__init__.py")


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_go_down(path):
    part = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    for name in imports(path):
        if name.startswith("vitrail."):
            other = name.split(".")[1]
            assert other == part or level(other) > level(part), f"{path.name} imports {name}"
            assert other in ONLY.get(part, {other}), f"{path.name} imports {name}"
        elif name.split(".")[0] in ONE_PLACE:
            assert str(path.relative_to(PACKAGE)) in ONE_PLACE[name.split(".")[0]], (
                f"{path.name} imports {name}"
            )


def test_every_folder_has_its_layer():
    for path in PACKAGE.iterdir():
        if path.suffix == ".py" or (path.is_dir() and path.name not in ("__pycache__", "assets")):
            assert path.name == "__init__.py" or level(path.name.removesuffix(".py")) >= 0


def test_data_draws_nothing():
    """Results are returned; the command line draws them."""
    for path in FILES:
        if path.relative_to(PACKAGE).parts[0] == "data":
            assert not [name for name in imports(path) if name.split(".")[0] in ("rich", "matplotlib")], path
