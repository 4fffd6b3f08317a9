"""ExecuTorch files: written, compared, opened again in a process of their own, damaged. Takes half a minute."""

import numpy as np
import pytest
import torch

import vitrail
from tests.exporting.small import photographs, small_model
from vitrail.errors import CheckpointError

pytest.importorskip("executorch")
pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore")]  # its own warnings


@pytest.mark.parametrize("kind", ["ViT", "attention pool, sincos", "BiT"])
def test_a_file_is_the_model(kind, tmp_path):
    model, images = small_model(kind), photographs(20)
    vitrail.export(model, tmp_path / "out", "executorch", input="tensor", timing=False)
    for one, other in zip(
        vitrail.predict(model, images), vitrail.predict(tmp_path / "out", images), strict=True
    ):
        assert dict(other) == pytest.approx(dict(one), abs=1e-4)
    exported = vitrail.features(tmp_path / "out" / "model.pte", images)
    np.testing.assert_allclose(exported, vitrail.features(model, images), rtol=1e-3, atol=1e-3)


def test_more_images_than_memory_is_planned_for_and_a_damaged_file(tmp_path):
    from vitrail.inference.exported import read_exported

    model = small_model()
    vitrail.export(model, tmp_path / "out", "executorch", input="tensor", timing=False)
    x = torch.randn(37, 3, 32, 32)
    file = tmp_path / "out" / "model.pte"
    torch.testing.assert_close(read_exported(file)(x), model(x).detach(), rtol=1e-3, atol=1e-3)
    content = file.read_bytes()
    for damaged in (b"", b"no program", content[: len(content) // 2]):
        file.write_bytes(damaged)
        with pytest.raises(CheckpointError, match=r"cannot be run|damaged"):
            read_exported(file)
