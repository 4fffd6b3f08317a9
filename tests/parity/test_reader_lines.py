"""What `convert` says that readers do with an image, against the transforms of the libraries themselves."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.parity.comparing import as_rgb
from tests.peers import torchvision_or_skip
from tests.randomise import randomise
from vitrail.checkpoints.checkpoint import from_model
from vitrail.checkpoints.formats import create, reader_line, save
from vitrail.checkpoints.transforms import line_to_transform
from vitrail.data.decode import decode
from vitrail.data.preprocess import parse
from vitrail.models.names import Model

# Ours, whose resize does not antialias; one that squashes; one whose rounding is not timm's.
LINES = [
    "resize_small(73)|central_crop(64)|uint8|to_range(-1, 1)",
    "resize(64, area)|uint8|to_range(0, 1)",
    "resize_small(72, pillow_bicubic)|central_crop(64)|uint8|normalize((0.1, 0.2, 0.3), 0.5)",
]


def model(line: str) -> Model:
    made = randomise(create("Ti/16", depth=1, image_size=64, classes=3)).eval()
    made.preprocess = line
    return made


def ours(made: Model, to: str, photo: bytes) -> Tensor:
    return parse(reader_line(from_model(made), to))(decode(photo))


@pytest.mark.parametrize("line", LINES)
def test_timm(line: str, photos: list[bytes], tmp_path: Path) -> None:
    torchvision_or_skip()
    timm = pytest.importorskip("timm")
    made = model(line)
    save(made, tmp_path / "m", to="timm")
    theirs = timm.create_model(f"local-dir:{tmp_path / 'm'}", pretrained=True)
    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(theirs))
    for photo in photos:
        assert torch.allclose(ours(made, "timm", photo), transform(as_rgb(photo)), atol=1e-5)


def test_timm_where_its_file_cannot_say_it(photos: list[bytes], tmp_path: Path) -> None:
    torchvision_or_skip()
    timm = pytest.importorskip("timm")
    made = model("resize(80, pillow_bilinear)|crop(3, 4, 64, 64)|uint8|to_range(-1, 1)")
    save(made, tmp_path / "m", to="timm")
    theirs = timm.create_model(f"local-dir:{tmp_path / 'm'}", pretrained=True)
    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(theirs))
    for photo in photos:
        assert torch.allclose(ours(made, "timm", photo), transform(as_rgb(photo)), atol=1e-5)


@pytest.mark.parametrize("line", LINES)
def test_transformers(line: str, photos: list[bytes], tmp_path: Path) -> None:
    torchvision_or_skip()
    transformers = pytest.importorskip("transformers")
    made = model(line)
    save(made, tmp_path / "m", to="huggingface")
    prepare = transformers.ViTImageProcessorPil.from_pretrained(tmp_path / "m")
    for photo in photos:
        wanted = prepare(as_rgb(photo), return_tensors="pt")["pixel_values"][0]
        assert torch.allclose(ours(made, "huggingface", photo), wanted, atol=1e-5)


@pytest.mark.parametrize("line", LINES)
def test_torchvision(line: str, photos: list[bytes]) -> None:
    torchvision_or_skip()
    from torchvision.transforms import v2

    made = model(line)
    t, _ = line_to_transform(line, "nearest")
    assert t is not None
    method = v2.InterpolationMode[t.method.upper()]
    size = t.resize if isinstance(t.resize, int) else list(t.resize)
    steps = [
        v2.Resize(size, method),
        v2.CenterCrop(64),
        v2.PILToTensor(),
        v2.ToDtype(torch.float32, scale=True),
    ]
    transform = v2.Compose([*steps, v2.Normalize(list(t.mean), list(t.std))])
    for photo in photos:
        assert torch.allclose(ours(made, "torchvision", photo), transform(as_rgb(photo)), atol=1e-5)
