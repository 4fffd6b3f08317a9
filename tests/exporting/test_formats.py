"""Every format and precision: written, compared with the model, and run as a model."""

import numpy as np
import pytest

import vitrail
from tests.exporting.small import photographs, small_model
from vitrail.errors import CheckpointError, ConfigError
from vitrail.exporting import verify
from vitrail.inference.images import Pictures

pytest.importorskip("onnxruntime")
FAST = [("onnx", "int8"), ("onnx", "float16"), ("torch", "float32")]
ALL = [
    ("onnx", "int8_weights"), ("torch", "bf16"),
    *(("openvino", precision) for precision in ("float32", "float16", "int8", "int8_weights")),
]  # fmt: skip


@pytest.mark.parametrize(
    ("to", "precision"), [*FAST, *(pytest.param(*one, marks=pytest.mark.long) for one in ALL)]
)
@pytest.mark.parametrize("kind", ["ViT"])
def test_a_format(to, precision, kind, tmp_path, monkeypatch):
    monkeypatch.setitem(verify.AGREEMENT, "int8", 0.5)  # the classes of this model are close to each other
    check_format(to, precision, kind, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["hybrid", "BiT", "attention pool, sincos"])
@pytest.mark.parametrize("to", ["openvino", "torch"])
def test_formats_of_other_models(kind, to, tmp_path):
    check_format(to, "float32", kind, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize(
    "kind", ["ViT", "attention pool, sincos", "mean pool, 2d, hidden layer", "hybrid", "BiT"]
)
def test_openvino_takes_images_of_any_size(kind, tmp_path):
    """Compared at three sizes by the export itself."""
    pytest.importorskip("openvino")
    vitrail.export(
        small_model(kind), tmp_path / "out", "openvino", input="tensor", image_size="dynamic", timing=False
    )


def check_format(to, precision, kind, tmp_path):
    pytest.importorskip("openvino" if to == "openvino" else "onnx")
    model, images = small_model(kind), photographs(24)
    calibrate = Pictures(images) if precision == "int8" else None
    out = tmp_path / "out, exported"
    vitrail.export(model, out, to, precision=precision, calibrate=calibrate, timing=False)
    ours, theirs = vitrail.predict(model, images[:4]), vitrail.predict(out, images[:4])
    far = {"float32": verify.PROBABILITY, "float16": 0.01, "bf16": 0.05}.get(precision, 0.15)
    for one, other in zip(ours, theirs, strict=True):
        assert dict(other) == pytest.approx(dict(one), abs=far)
    assert (out / "README.md").read_text().startswith("# model.")


@pytest.mark.long
def test_machine_code_is_written_and_compared_but_never_read(tmp_path):
    model = small_model()
    vitrail.export(model, tmp_path / "out", "aoti", timing=False)
    with pytest.raises(CheckpointError, match="not read"):
        vitrail.predict(tmp_path / "out", photographs(1))


def test_a_resnet_is_not_quantised_for_onnx(tmp_path):
    with pytest.raises(ConfigError, match="ResNet"):
        vitrail.export(
            small_model("BiT"), tmp_path / "out", precision="int8", calibrate=Pictures(photographs())
        )


def test_int8_needs_images_that_can_be_read(tmp_path):
    broken = Pictures([b"no picture", b"nor this"])
    with pytest.raises(vitrail.DataError, match="calibrate"):
        vitrail.export(small_model(), tmp_path / "out", precision="int8", calibrate=broken)
    assert not list(tmp_path.iterdir())


def test_rounding_stays_within_seven_bits():
    from vitrail.exporting.quantise import MOST_BESIDE_BYTES, rounded

    W = np.random.default_rng(0).normal(size=(64, 32)).astype(np.float32)
    W8, s = rounded(W, MOST_BESIDE_BYTES)
    assert np.abs(W8).max() == 63
    assert np.abs(W8 * s - W).max() <= s.max() / 2 * 1.0001
