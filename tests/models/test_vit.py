import pytest
import torch

from tests.randomise import randomise
from vitrail.errors import ConfigError
from vitrail.models.names import build, make_config
from vitrail.models.vit import VARIANTS, AttentionPool, Head, PatchEmbedding, ViTConfig, patchify

TINY = {
    "width": 24,
    "depth": 2,
    "mlp_dim": 40,
    "heads": 3,
    "patch_size": 8,
    "image_size": (16, 24),
    "classes": 5,
}


@pytest.mark.parametrize("pool", ["token", "mean", "attention"])
@pytest.mark.parametrize("norm_at", ["encoder", "pooled"])
def test_forward_is_the_seams_in_order(pool, norm_at):
    model = randomise(build(make_config("B/16", **TINY, pool=pool, norm_at=norm_at))).eval()
    x = torch.randn(2, 3, 16, 24)
    patches = model.patches(x)
    assert patches.shape == (2, 6, 24)
    tokens = model.tokens(patches)
    assert tokens.shape == (2, model.config.tokens, 24)
    y = model.pool(model.encode(tokens))
    torch.testing.assert_close(model.features(x), y)
    torch.testing.assert_close(model(x), model.head(y))
    assert model(x).shape == (2, 5)


def test_the_class_token_comes_first_and_is_what_is_pooled():
    model = randomise(build(make_config("B/16", **TINY))).eval()
    z = model.tokens(torch.zeros(2, 6, 24))
    torch.testing.assert_close(z[:, 0], (model.cls + model.positions.table[:, :1])[:, 0].expand(2, -1))
    assert torch.equal(model.pool(z), z[:, 0])


def test_dropout_after_the_positions_are_added():
    model = randomise(build(make_config("B/16", **TINY, dropout=0.5)))
    z = torch.randn(20, 6, 24)
    whole, dropped = model.eval().tokens(z), model.train().tokens(z)
    zeros = dropped == 0
    torch.testing.assert_close(dropped, torch.where(zeros, 0.0, 2 * whole))
    assert zeros.float().mean().item() == pytest.approx(0.5, abs=0.05)


def test_mean_pooling_leaves_the_class_token_out():
    model = build(make_config("B/16", **TINY, pool="mean", class_token=True))
    z = torch.randn(2, 7, 24)
    torch.testing.assert_close(model.pool(z), z[:, 1:].mean(1))


def test_norm_after_pooling_is_not_the_norm_before_it():
    before, after = (
        randomise(build(make_config("B/16", **TINY, pool="mean", norm_at=at))) for at in ("encoder", "pooled")
    )
    z = torch.randn(2, 6, 24)
    torch.testing.assert_close(after.pool(z), after.pooled_norm(z.mean(1)))
    torch.testing.assert_close(before.pool(before.encoder.norm(z)), before.encoder.norm(z).mean(1))


def test_patchify_orders_patches_by_row_and_pixels_by_row_column_channel():
    x = torch.arange(2 * 3 * 4 * 6).reshape(2, 3, 4, 6)
    x_p = patchify(x, 2)
    assert x_p.shape == (2, 6, 12)
    # patch 4 is the second of the lower row: rows 2-3, columns 2-3
    expected = [x[1, c, i, j].item() for i in (2, 3) for j in (2, 3) for c in range(3)]
    assert x_p[1, 4].tolist() == expected


def test_embedding_is_x_p_times_E():
    torch.manual_seed(0)
    embedding = PatchEmbedding(channels=3, width=10, patch_size=4)
    x = torch.randn(2, 3, 8, 12)
    E = embedding.weight.permute(2, 3, 1, 0).reshape(4 * 4 * 3, 10)  # (P*P*C, D)
    torch.testing.assert_close(embedding(x), patchify(x, 4) @ E + embedding.bias, rtol=1e-5, atol=1e-5)


def test_attention_pool_is_the_probe_attending_to_all_tokens():
    pool = randomise(AttentionPool(width=8, heads=2, mlp_dim=12, norm_eps=1e-6, activation="gelu_tanh"))
    z = torch.randn(3, 5, 8)
    k, v = pool.kv(z).chunk(2, dim=-1)
    q = pool.q(pool.probe)[0, 0]
    rows = []
    for b in range(3):
        heads = []
        for h in range(2):
            part = slice(4 * h, 4 * h + 4)
            a = (k[b, :, part] @ q[part] / 2).softmax(0)
            heads.append(a @ v[b, :, part])
        rows.append(pool.out(torch.cat(heads)))
    y = torch.stack(rows)
    torch.testing.assert_close(pool(z), y + pool.mlp(pool.norm(y)), rtol=1e-4, atol=1e-5)


def test_head_with_and_without_its_parts():
    y = torch.randn(2, 8)
    whole = randomise(Head(8, pre_logits=6, classes=3))
    torch.testing.assert_close(whole(y), whole.classifier(torch.tanh(whole.pre_logits(y))))
    assert whole.representation(y).shape == (2, 6)
    assert randomise(Head(8, 0, 3)).representation(y) is y
    assert Head(8, 0, 0)(y) is y


VARIED = [
    {},
    {"pool": "mean", "positions": "2d"},
    {"pool": "attention", "positions": "sincos", "positions_at": "every"},
    {"positions": "relative", "positions_at": "shared", "pre_logits": 7},
    {"pool": "mean", "block": "axial", "positions": "none"},
]


COMPILED = [VARIED[0], *(pytest.param(overrides, marks=pytest.mark.long) for overrides in VARIED[1:])]


@pytest.mark.parametrize("overrides", COMPILED, ids=str)
def test_forward_and_backward_compile_as_one_graph(overrides):
    model = randomise(build(make_config("B/16", **TINY, **overrides)))
    x = torch.randn(2, 3, 16, 24)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
    compiled(x).sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_variants_of_the_paper():
    assert VARIANTS["B"] == (768, 12, 3072, 12)
    assert VARIANTS["L"] == (1024, 24, 4096, 16)
    assert VARIANTS["H"] == (1280, 32, 5120, 16)
    half = VARIANTS["B-half"]
    assert half[0] == 768 // 2
    assert half[2] == 3072 // 2
    assert half[3] == 12


BAD = {
    "not a multiple of 16": {"image_size": 225},
    "for 225 take 224 or 240": {"image_size": (225, 224)},
    "for 230 take 224 or 240": {"image_size": (224, 230)},
    "for 8 take 16$": {"image_size": 8},
    "not divisible into 5 heads": {"heads": 5},
    "pool='max' is not one of token, mean, attention": {"pool": "max"},
    "needs the class token": {"class_token": False},
    "are part of attention": {"positions": "relative", "positions_at": "stem"},
    "neither a class token": {"block": "axial"},
    r"dropout must be in \[0, 1\), not 1.0": {"dropout": 1.0},
    "depth must be a whole number of at least 1, not 0": {"depth": 0},
    "heads must be a whole number of at least 1, not '2'": {"heads": "2"},
    r"image_size=\(64, 64, 64\) is neither a whole number nor": {"image_size": (64, 64, 64)},
    "image_size=224.0 is neither": {"image_size": 224.0},
    "depth must be at most 1000, not 1001": {"depth": 1001},
    f"classes must be at most {2**24}, not {2**63}": {"classes": 2**63},
    "image_size=70000 is more than 65536 pixels": {"image_size": 70000},
    "an even width, half of it for x and half for y, not 5": {"positions": "2d", "width": 5, "heads": 1},
    "a width of 8 or more that 4 divides, not 6": {"positions": "sincos", "width": 6, "heads": 2},
    "8 or more that 4 divides, not 4": {"positions": "sincos", "width": 4, "heads": 2},
}


@pytest.mark.parametrize(("message", "fields"), BAD.items())
def test_what_is_not_allowed_is_said_in_words(message, fields):
    with pytest.raises(ConfigError, match=message):
        ViTConfig(**fields)


@pytest.mark.parametrize("shape", [(1, 3, 16, 25), (1, 3, 12, 24), (1, 1, 16, 24), (3, 16, 24)])
def test_images_that_patches_do_not_divide_are_refused(shape):
    with pytest.raises(ConfigError, match=r"H and W multiples of 8, not"):
        build(make_config("B/16", **TINY))(torch.zeros(shape))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")  # of torch's compiler itself
@pytest.mark.parametrize("name", ["Ti/16", "R26+S/32", "R50x1"])
def test_compiled_and_fused_on_a_gpu_as_on_the_cpu(name):
    """One graph by the real compiler, forward and backward; float32 logits as the CPU has them."""
    torch.compiler.reset()  # graphs of the tests before count towards the most that are compiled
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    model = randomise(build(make_config(name, classes=10))).eval()
    x = torch.randn(4, 3, 224, 224)
    with torch.no_grad():
        expected = model(x)
    model.cuda()
    compiled = torch.compile(model, fullgraph=True)
    got = compiled(x.cuda())
    torch.testing.assert_close(got.detach().cpu(), expected, rtol=1e-3, atol=2e-4)
    got.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_recorded_and_fused_paths_agree_on_a_gpu_in_bf16():
    model = randomise(build(make_config("Ti/16", depth=3))).eval().cuda()
    z = model.tokens(model.patches(torch.randn(2, 3, 224, 224, device="cuda")))
    with torch.autocast("cuda", torch.bfloat16), torch.no_grad():
        torch.testing.assert_close(model.encode(z, record={}), model.encode(z), rtol=5e-2, atol=5e-2)
