import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from tests.randomise import randomise
from vitrail.errors import ConfigError
from vitrail.models.names import build, make_config
from vitrail.models.resnet import BiTConfig, StemConfig, pad_same, standardise


@pytest.mark.parametrize("form", ["sqrt_var", "std"])
def test_standardised_filters_have_mean_0_and_variance_1(form):
    w = standardise(torch.randn(6, 4, 3, 3) * 5 + 2, form, 1e-10)
    torch.testing.assert_close(w.mean(dim=(1, 2, 3)), torch.zeros(6), rtol=0, atol=1e-6)
    torch.testing.assert_close(w.var(dim=(1, 2, 3), unbiased=False), torch.ones(6), rtol=1e-5, atol=1e-5)


def test_the_two_forms_of_standardisation():
    w = torch.randn(2, 3, 3, 3)
    centred = w - w.mean(dim=(1, 2, 3), keepdim=True)
    std = centred.flatten(1).std(dim=1, unbiased=False)[:, None, None, None]
    torch.testing.assert_close(standardise(w, "std", 0.5), centred / (std + 0.5))
    torch.testing.assert_close(standardise(w, "sqrt_var", 0.5), centred / (std**2 + 0.5).sqrt())


@given(st.integers(7, 40), st.integers(7, 40), st.sampled_from([1, 3, 7]), st.sampled_from([1, 2]))
def test_same_padding_gives_ceil_of_n_over_stride_with_the_odd_pixel_last(height, width, kernel, stride):
    x = torch.ones(1, 1, height, width)
    padded = pad_same(x, kernel, stride)
    out = F.max_pool2d(padded, kernel, stride)
    assert out.shape[-2:] == (-(-height // stride), -(-width // stride))
    for axis, n in ((2, height), (3, width)):
        line = padded.amax(dim=5 - axis).flatten()
        before = int(line.argmax())
        after = len(line) - before - n
        assert 0 <= after - before <= 1


def test_features_and_head():
    model = randomise(build(BiTConfig((1, 1, 1, 1), 1, (64, 96), classes=7))).eval()
    x = torch.randn(2, 3, 64, 96)
    assert model.features(x).shape == (2, 2048)
    torch.testing.assert_close(model(x), model.head(model.features(x)))


def test_the_max_pool_of_bit_sees_zeros_at_the_border():
    """Where everything is negative, a border of zeros shows."""
    x = -torch.ones(1, 4, 8, 8)
    pooled = F.max_pool2d(F.pad(x, (1, 1, 1, 1)), 3, 2)
    assert pooled[0, 0, 0, 0] == 0
    assert pooled[0, 0, 1, 1] == -1


@pytest.mark.long
def test_resnets_and_hybrids_compile_as_one_graph():
    stem = StemConfig((1, 1), 0.5)
    fields = {"width": 24, "depth": 1, "mlp_dim": 40, "heads": 3, "classes": 4, "image_size": 32}
    for config in (BiTConfig((1, 1), 0.5, 32, classes=4), make_config("R50+B/16", **fields, stem=stem)):
        model, x = randomise(build(config)), torch.randn(2, 3, 32, 32)
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-3, atol=1e-4)
        compiled(x).sum().backward()
        assert all(p.grad is not None for p in model.parameters())


def test_what_bit_alone_does_not_allow():
    with pytest.raises(ConfigError, match="at least 1 for each stage"):
        BiTConfig(units=())
    with pytest.raises(ConfigError, match="at least 32"):
        BiTConfig(image_size=16)


@pytest.mark.parametrize("kind", [BiTConfig, StemConfig])
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"units": (2, 0)}, "a whole number of at least 1 for each stage"),
        ({"units": (2.5,)}, "a whole number of at least 1 for each stage"),
        ({"units": "34"}, "a whole number of at least 1 for each stage"),
        ({"units": (1, 1000)}, "at most 6 stages.*1000 units"),
        ({"units": (1,) * 7}, "at most 6 stages.*1000 units"),
        ({"units": 5}, "a whole number of at least 1 for each stage"),
        ({"norm_eps": -1}, "norm_eps must be in"),
        ({"standardisation_eps": "small"}, "standardisation_eps must be in"),
        ({"width_factor": "2"}, "width_factor must be in"),
        ({"width_factor": float("nan")}, "width_factor must be in"),
        ({"width_factor": 0.51}, "multiple of 32"),
        ({"standardisation": "var"}, "sqrt_var, std"),
    ],
    ids=str,
)
def test_what_neither_bit_nor_stem_allows(kind, fields, message):
    with pytest.raises(ConfigError, match=message):
        kind(**fields)
