"""Images of any shape in one batch are computed as each by itself."""

import pytest
import torch
import torch.nn.functional as F

import vitrail
from tests.randomise import randomise
from vitrail.data.ops.fit_patches import FitPatches
from vitrail.errors import ConfigError
from vitrail.models import packing, strips

GRIDS = ((4, 4), (2, 8), (5, 3), (1, 1), (16, 1))
OP = FitPatches(16, 8)


def model(**fields):
    return randomise(vitrail.create("mu/8", classes=5, image_size=32, depth=3, **fields)).eval()


def batch():
    rng = torch.Generator().manual_seed(0)
    images = [torch.randn(3, 8 * rows, 8 * columns, generator=rng) for rows, columns in GRIDS]
    made, grids = zip(*(OP.strip(x) for x in images), strict=True)
    return images, torch.stack(made), torch.stack(grids)


@pytest.mark.parametrize("pool", ["token", "mean", "attention"])
@pytest.mark.parametrize("positions", ["1d", "2d", "sincos", "none"])
def test_logits_of_a_batch_are_those_of_single_images(pool, positions):
    net = model(pool=pool, positions=positions)
    images, batched, grids = batch()
    assert grids.tolist() == [list(grid) for grid in GRIDS]
    with torch.no_grad():
        together, each = net(batched, grids), torch.cat([net(x[None]) for x in images])
    torch.testing.assert_close(together, each, rtol=1e-5, atol=1e-5)
    assert (each[0] - each[1]).abs().max() > 0.01


def test_parts_of_later_vits_too():
    later = {
        "registers": 2,
        "pre_norm": True,
        "mlp": "gated",
        "norm": "rms",
        "layer_scale": 0.1,
        "qk_norm": True,
    }
    net = model(**later)
    images, batched, grids = batch()
    with torch.no_grad():
        together, each = net(batched, grids), torch.cat([net(x[None]) for x in images])
    torch.testing.assert_close(together, each, rtol=1e-5, atol=1e-5)


def attention_of_each(q, k, v, ends, key_ends, longest, longest_key):
    """What torch says that its kernel computes."""
    assert torch.equal(ends, key_ends)
    assert longest == longest_key == ends.diff().max()
    cuts = ends[1:-1].tolist()
    each = zip(*(t.transpose(0, 1).tensor_split(cuts, dim=1) for t in (q, k, v)), strict=True)
    return torch.cat([F.scaled_dot_product_attention(*qkv) for qkv in each], dim=1).transpose(0, 1)


@pytest.mark.parametrize("later", [{}, {"registers": 2, "qk_norm": True, "mlp": "gated", "pre_norm": True}])
@pytest.mark.parametrize("pool", ["token", "mean", "attention"])
def test_packed_tokens_give_the_features_of_padded_ones(monkeypatch, pool, later):
    net = model(pool=pool, **later)
    _, batched, grids = batch()

    def features_and_gradients():
        net.zero_grad()
        y = net(batched, grids)
        y.square().sum().backward()
        return y.detach(), *(w.grad.clone() for w in net.parameters())

    padded = features_and_gradients()
    monkeypatch.setattr(packing, "varlen_attn", attention_of_each)
    monkeypatch.setattr(strips, "is_packable", lambda *_: True)
    for fast, plain in zip(features_and_gradients(), padded, strict=True):
        torch.testing.assert_close(fast, plain, rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_packed_bf16_is_as_exact_as_single_images():
    net = model(width=64, heads=4)
    images, batched, grids = batch()
    with torch.no_grad():
        exact = torch.cat([net(x[None]) for x in images])
        half = net.to("cuda", torch.bfloat16)
        each = torch.cat([half(x[None].cuda().bfloat16()) for x in images])
        packed = half(batched.cuda().bfloat16(), grids.cuda())
    errors = [(y.float().cpu() - exact).abs().max() for y in (each, packed)]
    assert errors[1] <= 2 * errors[0]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_packed_gradients_on_cuda_are_those_of_padded_tokens(monkeypatch):
    net = model(width=64, heads=4).cuda()
    _, batched, grids = (t.cuda() if isinstance(t, torch.Tensor) else t for t in batch())
    gradients = []
    for packs in (True, False):
        if not packs:
            monkeypatch.setattr(strips, "is_packable", lambda *_: False)
        net.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            net(batched, grids).float().square().sum().backward()
        gradients.append(torch.cat([w.grad.flatten() for w in net.parameters()]))
    assert (gradients[0] - gradients[1]).norm() < 0.05 * gradients[1].norm()


def test_padding_is_no_matter():
    net = model(pool="mean")
    _, batched, grids = batch()
    other = batched.clone()
    for strip, (rows, columns) in zip(other, grids.tolist(), strict=True):
        strip[..., 8 * rows * columns :] = 100.0
    with torch.no_grad():
        assert torch.equal(net(batched, grids), net(other, grids))


def test_gradients_reach_the_positions_of_every_grid():
    net = model()
    _, batched, grids = batch()
    net(batched, grids).square().sum().backward()
    assert net.positions.table.grad.abs().sum(dim=2).min() > 0


@pytest.mark.parametrize(
    "fields",
    [
        {"positions": "relative"},
        {"positions_at": "every"},
        {"rotary": "grid"},
        {"block": "axial", "pool": "mean"},
    ],
)
def test_models_that_need_one_grid_are_refused(fields):
    _, batched, grids = batch()
    with pytest.raises(ConfigError, match="any shape need"):
        model(**fields)(batched, grids)


def test_a_compiler_compiles_once_for_all_grids():
    net = model()
    _, x, grids = batch()
    graphs = []

    def count(graph, inputs):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(lambda x, grids: net(x, grids), backend=count)
    try:
        with torch.no_grad():
            got = compiled(x, grids)
            once = len(graphs)
            torch.testing.assert_close(got, net(x, grids))
            for _ in range(3):
                compiled(x, grids.flip(1).roll(1, 0))
                grids = grids.clamp(max=2).flip(0)
    finally:
        torch.compiler.reset()
    assert len(graphs) == once
