"""A model of each kind of later ViT does what the plain one does: a step of training, inspection, saving, serving,
export."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from tests.randomise import randomise
from vitrail.inference.images import pixels
from vitrail.serve.computation import ModelComputation

KINDS: dict[str, dict[str, Any]] = {
    "DINOv2": {"registers": 2, "layer_scale": 0.1},
    "DINOv3": {"registers": 2, "layer_scale": 0.1, "rotary": "unit", "positions": "none", "qkv_bias": "qv"},
    "EVA-02": {
        "rotary": "grid",
        "mlp": "gated",
        "activation": "silu",
        "mlp_norm": True,
        "attention_norm": True,
    },
    "RoPE-ViT": {"rotary": "learned", "positions": "none"},
    "BEiT": {"positions": "relative_bias", "qkv_bias": "qv", "layer_scale": 0.1},
    "CLIP": {"pre_norm": True, "embedding_bias": False, "activation": "quick_gelu"},
    "SigLIP": {"pool": "attention"},
    "DeiT": {"distillation_token": True, "pool": "token_and_distillation"},
    "ViT-22B": {"block": "parallel", "norm": "rms", "qk_norm": True, "qkv_bias": "none"},
    "twin": {"block": "twin"},
    "post-norm": {"block": "post_norm"},
    "AIMv2": {"norm": "rms", "embedding_norm": True, "dense_bias": False, "pool": "mean_all", "registers": 1},
    "patches of the probe": {"pool": "attention_patches", "registers": 1},
    "overlapping": {"patch_stride": 4, "pool": "token_and_mean"},
}


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    for i in range(8):
        (folder / "ab"[i % 2]).mkdir(exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (24, 24, 3), np.uint8)).save(folder / "ab"[i % 2] / f"{i}.png")
    return folder


FEW = ("DINOv3", "BEiT", "DeiT")


@pytest.mark.parametrize(
    "kind", [kind if kind in FEW else pytest.param(kind, marks=pytest.mark.long) for kind in KINDS]
)
def test_fine_tuned_and_inspected(kind: str, photos: Path, tmp_path: Path) -> None:
    model = randomise(vitrail.create("mu/8", depth=2, classes=3, image_size=16, **KINDS[kind])).eval()
    vitrail.save(model, tmp_path / "m")
    again = vitrail.load(tmp_path / "m")
    assert again.config == model.config
    x = torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        assert torch.equal(again(x), model(x))
        assert model.feature_map(x).shape[1:] == (32, *model.config.grid)
    settings = {"steps": 1, "batch_size": 4, "lrs": (0.01,), "num_workers": 0, "evaluate_every": 1}
    vitrail.finetune(f"{photos}?validation=0.25&test=0.25", tmp_path / "m", out=tmp_path / "run", **settings)
    tuned = vitrail.load(tmp_path / "run" / "model")
    assert tuned.config.registers == model.config.registers
    images = [photos / "a" / "0.png"]
    assert vitrail.features(tuned, images).shape == (1, model.config.pooled_width)
    looked = vitrail.inspect(tuned, images, figures=("weights", "attention", "images", "pca"))
    assert looked.patches is not None
    assert np.isfinite(looked.subjects[0].occlusion).all()
    served = ModelComputation(tuned)
    x = served.pipeline.host(pixels(images[0]))[None]  # (1, 3, 16, 16)
    answer = served(x)
    served.close()
    with torch.no_grad():
        logits = tuned(served.pipeline.device(x)).numpy()
    assert answer.logits is not None
    np.testing.assert_allclose(answer.logits, logits, rtol=0, atol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_exported(kind: str, tmp_path: Path) -> None:
    """The comparison that the export makes is of few numbers in so small a model: one of our own, too."""
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime")
    model = randomise(vitrail.create("mu/8", depth=2, classes=3, image_size=16, **KINDS[kind])).eval()
    model.preprocess = "resize(16)|uint8|to_range(-1, 1)"
    vitrail.export(model, tmp_path / "o", timing=False)
    image = np.random.default_rng(0).integers(
        0, 256, (16, 16, 3), np.uint8
    )  # not resized, which may differ by a level
    ours, theirs = (dict(vitrail.predict(each, [image])[0]) for each in (model, tmp_path / "o"))
    assert ours == pytest.approx(theirs, abs=1e-5)
