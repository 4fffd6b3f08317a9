"""Preprocessing in a graph gives the pixels of the preprocessing line."""

import pytest
import torch
from torch import Tensor

from tests.exporting.small import photographs
from vitrail.data.ops.resize import OF_FRACTIONS
from vitrail.data.preprocess import PRESETS, parse
from vitrail.errors import ConfigError
from vitrail.exporting.pixels import Prepare, quotient

LINES = [
    *(PRESETS[name] for name in PRESETS if not parse(PRESETS[name]).random),
    *(f"resize(40, 52, {method})|uint8|to_range(0, 255)" for method in OF_FRACTIONS),
    *(f"resize(300, {method})|uint8|to_range(0, 255)" for method in OF_FRACTIONS),
    "resize_small(73)|central_crop(64)|uint8|to_range(-1, 1)",
    "crop(3, 5, 40, 50)|resize(32)|to_range(0, 1)",
    "resize(40, antialiased)|crop(0, 0, 35, 35)|to_range(0, 1)",
    "central_crop(60, 50, nearest)|resize(32, area)|uint8(down)|normalize(0.5, (0.2, 0.3, 0.4))",
]


@pytest.mark.parametrize("line", LINES)
def test_the_pixels_are_those_of_the_line(line):
    pipeline = parse(line)
    prepare = Prepare(pipeline)
    level = (prepare.scale * 1.001).abs().amax()  # one of the 256
    for image in photographs():
        ours, theirs = pipeline(image), prepare(torch.from_numpy(image)[None])[0]
        assert ours.shape == theirs.shape
        far = (ours - theirs).abs()
        assert far.max() <= level
        rounds = "uint8" in line
        # Where fractions stay, nothing can fall to the other side; else only few pixels do.
        assert (far > level / 50).float().mean() <= (0.03 if "torch" in line else 0.002 if rounds else 0)


@pytest.mark.parametrize(
    "line",
    [
        "resize_small(64)|to_range(-1, 1)",
        "inception_crop(64)|to_range(-1, 1)",
        "resize(64)|flip_lr|to_range(-1, 1)",
    ],
)
def test_a_line_that_no_graph_can_hold(line):
    with pytest.raises(ConfigError, match="part of a file"):
        Prepare(parse(line))


def test_a_line_without_a_range():
    with pytest.raises(ConfigError, match="range"):
        Prepare(parse("resize(64)"))


def test_quotients_do_not_depend_on_how_a_runtime_divides(monkeypatch):
    """OpenVINO multiplies by the reciprocal, which alone would be wrong in the last digit for many sizes."""
    a, b = torch.arange(1, 1500)[:, None], torch.arange(1, 1024)
    exact = torch.from_numpy(a.numpy().astype("f4") / b.numpy().astype("f4"))
    assert (quotient(a, b) != exact).float().mean() < 1e-3
    monkeypatch.setattr(Tensor, "__truediv__", lambda x, y: x * (1 / torch.as_tensor(y)))
    rough = a.float() / b.float()
    assert (rough != exact).float().mean() > 0.05
    assert (quotient(a, b) != exact).float().mean() < 1e-3
    assert (quotient(torch.tensor(73), b, 73) != exact[72]).sum() == 0
