"""Against numbers that the published code (JAX, TensorFlow) computed."""

import numpy as np
import pytest
import torch

import vitrail
from vitrail.checkpoints.npz import read_npz
from vitrail.models.positions import resample

MODELS = ["vit_token", "vit_pre_logits", "vit_gap", "hybrid", "hybrid_stage4", "bit"]


def logits_of(path, images):
    with torch.inference_mode():
        return vitrail.load(path)(torch.from_numpy(images).permute(0, 3, 1, 2)).numpy()


@pytest.mark.parametrize("name", MODELS)
def test_logits(fixtures, name):
    with np.load(fixtures / f"{name}.io.npz") as io:
        got = logits_of(fixtures / f"{name}.npz", io["images_nhwc"])
        assert np.abs(io["logits"]).max() > 0.5
        np.testing.assert_allclose(got, io["logits"], rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_swapping_two_tensors_of_one_shape_is_noticed(fixtures, tmp_path, name):
    arrays = read_npz(fixtures / f"{name}.npz")
    by_shape = {}
    for key, a in arrays.items():
        by_shape.setdefault((a.shape, key.split("/")[-1]), []).append(key)
    kernels = max((keys for (_, last), keys in by_shape.items() if last == "kernel"), key=len)
    a, b = kernels[0], kernels[-1]
    np.savez(tmp_path / "swapped.npz", **(arrays | {a: arrays[b], b: arrays[a]}))
    with np.load(fixtures / f"{name}.io.npz") as io:
        got = logits_of(tmp_path / "swapped.npz", io["images_nhwc"])
        assert np.abs(got - io["logits"]).max() > 1e-3


@pytest.mark.parametrize("name", MODELS)
def test_written_back_bit_by_bit(fixtures, tmp_path, name):
    model = vitrail.load(fixtures / f"{name}.npz")
    vitrail.save(model, tmp_path / "bundle")
    vitrail.save(vitrail.load(tmp_path / "bundle"), tmp_path / "again.npz", to="npz")
    old, new = read_npz(fixtures / f"{name}.npz"), read_npz(tmp_path / "again.npz")
    assert set(old) == set(new)
    for key, a in old.items():
        assert (a.dtype, a.shape, a.tobytes()) == (new[key].dtype, new[key].shape, new[key].tobytes()), key


@pytest.mark.parametrize(("name", "old", "new"), [("posembed_14_to_24", 14, 24), ("posembed_7_to_12", 7, 12)])
def test_resampled_positions(fixtures, name, old, new):
    with np.load(fixtures / f"{name}.npz") as file:
        got = resample(torch.from_numpy(file["old"]), (old, old), (new, new)).numpy()
        np.testing.assert_allclose(got, file["new"], rtol=0, atol=1e-6)
