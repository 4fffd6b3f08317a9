"""What the comparisons with other libraries share: pictures, files with two tensors swapped, and agreement."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from vitrail.data import preprocess as pp
from vitrail.data.decode import decode

PHOTOS = Path(__file__).parents[3] / "shared" / "data" / "photos"
# 1e-4 is what is promised. Held tighter, so that another GELU or LayerNorm epsilon is seen: 1e-4 and 5e-5 off.
TOLERANCE = 1e-5
RESNET_TOLERANCE = 5e-5


def agree(ours: Tensor, theirs: Tensor, tolerance: float = TOLERANCE) -> bool:
    """To the tolerance; and the outputs are of order 1, so that agreeing means something."""
    assert ours.shape == theirs.shape
    assert 0.05 < float(theirs.std()) < 50
    return float((ours - theirs).abs().max()) < tolerance


def epsilons(model: nn.Module, kind: type[nn.Module]) -> set[float]:
    """Of all modules of a kind that have one."""
    return {module.eps for module in model.modules() if isinstance(module, kind) and hasattr(module, "eps")}


def inputs(image_size: tuple[int, int], channels: int = 3) -> Tensor:
    return torch.randn(2, channels, *image_size, generator=torch.Generator().manual_seed(1))


def swap(weights: Path, one: str, other: str) -> None:
    """Exchange two tensors of one shape in a .safetensors file."""
    tensors = load_file(weights)
    assert tensors[one].shape == tensors[other].shape
    assert not torch.equal(tensors[one], tensors[other])
    tensors[one], tensors[other] = tensors[other], tensors[one]
    save_file(tensors, weights, metadata={"format": "pt"})


@torch.no_grad()
def probabilities(model: nn.Module, photo: bytes) -> tuple[Tensor, Tensor]:
    """From a file's bytes, through the model's own line: the pixels, and softmax of the logits."""
    pixels = pp.parse(model.preprocess)(decode(photo))
    return pixels, model(pixels[None]).softmax(dim=1)


def drawn_jpeg(width: int = 500, height: int = 375, seed: int = 0) -> bytes:
    """Gradients, shapes with hard edges, and noise, as a camera's file would have them."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width] / height
    sky = np.stack([180 - 90 * y, 120 + 60 * x, 200 - 100 * x * y], axis=-1)  # (H, W, 3)
    image = Image.fromarray((sky + rng.normal(0, 12, sky.shape)).clip(0, 255).astype(np.uint8))
    draw = ImageDraw.Draw(image)
    for _ in range(25):
        left, top = rng.integers(0, width), rng.integers(0, height)
        box = (left, top, left + rng.integers(10, 120), top + rng.integers(10, 120))
        shape = draw.ellipse if rng.random() < 0.5 else draw.rectangle
        shape([int(n) for n in box], fill=tuple(int(n) for n in rng.integers(0, 256, 3)))
    file = io.BytesIO()
    image.save(file, "JPEG", quality=90)
    return file.getvalue()


def real_photos(most: int = 3) -> list[bytes]:
    found = sorted(PHOTOS.glob("*.JPEG"))[:most] if PHOTOS.is_dir() else []
    return [path.read_bytes() for path in found]


def as_rgb(photo: bytes) -> Image.Image:
    """As the other libraries are given it."""
    return Image.open(io.BytesIO(photo)).convert("RGB")
