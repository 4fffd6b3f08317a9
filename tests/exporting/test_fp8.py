"""Files in fp8: the graph that is traced has the numbers of `--precision fp8`; only a GPU computes them as such."""

import pytest
import torch

import vitrail
from tests.exporting.small import photographs, small_model
from tests.inference.test_fp8 import calibrated
from vitrail.errors import ConfigError
from vitrail.exporting.graph import example, trace, traceable
from vitrail.exporting.programs import write_torch
from vitrail.exporting.settings import ExportSettings
from vitrail.inference.engine import forward_pass, transform
from vitrail.inference.runtimes import open_file

SETTINGS = ExportSettings("torch", "fp8", "tensor")


def fp8_model():
    model = small_model()
    return calibrated(model, torch.stack([transform(model)(image) for image in photographs(16)]))


def test_the_traced_module_has_the_numbers_of_fp8():
    model = fp8_model()
    x = example(model, SETTINGS)
    with forward_pass(model, precision="fp8") as forward:
        expected = forward(x)
    with torch.no_grad():
        logits = traceable(model, SETTINGS)(x)["logits"]
        far = (logits - model(x)).std() / model(x).std()
    torch.testing.assert_close(logits, expected, rtol=0.05, atol=0.05)
    assert 1e-3 < far < 0.2
    assert model.encoder.blocks[0].mlp.fc1.weight.dtype == torch.float32


def test_the_graph_is_written_and_read_again(tmp_path):
    """With the products emulated, on a CPU: 8-bit weights, and any batch."""
    model = fp8_model()
    graph = trace(model, SETTINGS)
    weights = [t for t in graph.constants.values() if t.dtype == torch.float8_e4m3fn]
    assert len(weights) == 7
    write_torch(graph, tmp_path / "model.pt2", {})
    x = torch.randn(5, 3, 32, 32)
    with torch.no_grad():
        expected = traceable(model, SETTINGS)(x)["features"]
    features = open_file(tmp_path / "model.pt2").run(x.numpy())["features"]
    torch.testing.assert_close(torch.from_numpy(features), expected, rtol=0.05, atol=0.05)


def test_what_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="--device cuda"):
        vitrail.export(fp8_model(), tmp_path / "out", "aoti", precision="fp8")
    with pytest.raises(ConfigError, match="written in"):
        vitrail.export(fp8_model(), tmp_path / "out", "onnx", precision="fp8")
    with pytest.raises(ConfigError, match="no scales"):
        traceable(small_model(), SETTINGS)
    assert not list(tmp_path.iterdir())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("to", ["torch", "aoti"])
@pytest.mark.parametrize("input", ["tensor", "pixels"])
def test_a_file_on_a_gpu(to, input, tmp_path):
    """Compared with eager PyTorch by the export itself."""
    model = fp8_model().to("cuda")
    report = vitrail.export(model, tmp_path / "out", to, precision="fp8", input=input)
    assert report.differences.batches == [1, 3, 16]
