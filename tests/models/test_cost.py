import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from tests.randomise import randomise
from vitrail.models.cost import accelerator_days, cost
from vitrail.models.names import MODELS, build, make_config
from vitrail.models.resnet import BiTConfig, StemConfig
from vitrail.models.vit import ViT

VARIED = [
    make_config("mu/8", image_size=(16, 40), depth=2, classes=5),
    make_config("mu/8", image_size=32, pool="mean", positions="2d", positions_at="every", depth=3),
    make_config("mu/8", image_size=32, pool="attention", positions="sincos", classes=0),
    make_config("mu/8", image_size=32, positions="relative", depth=2, pre_logits=9),
    make_config("mu/8", image_size=32, positions="relative", positions_at="shared", depth=2),
    make_config("mu/8", image_size=(32, 16), pool="mean", block="axial", depth=2, norm_at="pooled"),
    make_config(
        "R50+B/16", width=32, depth=1, heads=2, mlp_dim=64, image_size=(64, 96), stem=StemConfig((1, 2), 0.5)
    ),
    make_config("R+Ti/16", depth=1, image_size=64),
    make_config("mu/8", image_size=32, depth=2, registers=3, layer_scale=0.1, pre_norm=True, norm="rms"),
    make_config(
        "mu/8", image_size=32, depth=2, mlp="gated", activation="silu", mlp_norm=True, dense_bias=False
    ),
    make_config(
        "mu/8", image_size=32, depth=2, rotary="unit", qkv_bias="qv", attention_norm=True, qk_norm=True
    ),
    make_config("mu/8", image_size=32, depth=2, rotary="learned", qkv_bias="none", norm_at="none"),
    make_config("mu/8", image_size=32, depth=2, block="parallel", layer_scale=0.1, embedding_norm=True),
    make_config("mu/8", image_size=32, depth=2, block="twin", embedding_bias=False),
    make_config("mu/8", image_size=32, depth=2, block="post_norm", patch_stride=4, pool="token_and_mean"),
    make_config("mu/8", image_size=32, depth=2, positions="relative_bias", distillation_token=False),
    make_config("mu/8", image_size=32, pool="attention_patches", registers=2, pool_heads=4, pool_mlp_dim=50),
    make_config("mu/8", image_size=32, pool="token_and_distillation", distillation_token=True),
    BiTConfig((1, 2, 1), 0.5, (64, 96), classes=11),
]


def whole(model, x):
    """The logits with every token of the last layer, also those that a class token's head does not read."""
    if isinstance(model, ViT):
        grid = model.grid(x)
        return model.head(model.pool(model.encode(model.tokens(model.patches(x), grid), grid)))
    return model(x)


@pytest.mark.parametrize("config", [*VARIED, *map(make_config, MODELS)], ids=str)
def test_parameters_are_those_of_the_model(config):
    with torch.device("meta"):
        model = build(config)
    assert cost(config).parameters == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("config", VARIED, ids=str)
def test_flops_are_those_torch_counts(config):
    model = randomise(build(config)).eval()
    x = torch.randn(1, 3, *config.image_size)
    with (
        FlopCounterMode(display=False) as counter,
        torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH),
    ):
        whole(model, x)
    assert cost(config).flops == pytest.approx(counter.get_total_flops(), rel=1e-3)
    assert cost(config).training_flops == 3 * cost(config).flops


@pytest.mark.parametrize(
    "config", [c for c in VARIED if "relative" not in getattr(c, "positions", "")], ids=str
)
def test_activations_are_what_autograd_keeps(config):
    """Each tensor that autograd saves, counted once by its storage; parameters and masks apart."""
    model, x = randomise(build(config)).train(), torch.randn(7, 3, *config.image_size)
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept = {}

    def keep(saved):
        if saved.is_floating_point() and saved.shape and saved.shape[0] % 7 == 0:
            kept[saved.untyped_storage().data_ptr()] = (saved.untyped_storage().nbytes(), saved)
        return saved

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda saved: saved):
        loss = whole(model, x).sum()
    total = sum(n for pointer, (n, _) in kept.items() if pointer not in own) / 4 / 7
    assert loss.requires_grad
    assert cost(config).activations == pytest.approx(total, rel=0.15)


def test_activations_of_a_layer_by_hand():
    """T = 17 tokens, D = 32, mlp_dim = 128: the inputs of 2 norms, of qkv and fc1, q, k, v, the output of attention,
    8 x 32 of each token; and the hidden layer before and after the GELU, 2 x 128."""
    one, two = (cost(make_config("mu/8", image_size=32, depth=depth)).activations for depth in (1, 2))
    assert two - one == 17 * (8 * 32 + 2 * 128) == 8704


def test_days_of_an_accelerator():
    assert accelerator_days(86_400e12, peak_flops=1e12, utilisation=0.5) == 2.0
