"""Which parameters learn, and what that costs."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import vitrail
from vitrail.errors import ConfigError
from vitrail.models.cost import cost
from vitrail.models.names import make_config
from vitrail.objectives.classification import Classification
from vitrail.train.settings import OptimizerSettings
from vitrail.train.state import TrainState
from vitrail.train.tuning import find_layers, parse_tune, select, training_cost

CPU = torch.device("cpu")
HEAD = {"head.classifier.weight", "head.classifier.bias"}


def vit(**fields):
    return vitrail.create("mu/8", classes=5, image_size=16, **fields)


def trained(model):
    return {name for name, p in model.named_parameters() if p.requires_grad}


@pytest.mark.parametrize(
    "text", ["", "body", "last", "last:0", "lora:-1", "lora:", "head:1", "all ", "last:x"]
)
def test_words_that_are_no_choice(text):
    with pytest.raises(ConfigError, match="is not one of all, head, last:N"):
        parse_tune(text)


def test_all_is_everything():
    model = vit()
    select(model, "all")
    assert trained(model) == {name for name, _ in model.named_parameters()}


def test_the_head_alone():
    model = vit()
    select(model, "head")
    assert trained(model) == HEAD
    state = TrainState(Classification().build(model), OptimizerSettings(), CPU)
    assert {name.removeprefix("model.") for name in state.named(state.weights)} == HEAD


def test_the_last_layers_and_what_reads_them():
    model = vit(depth=4, positions="2d", positions_at="every")
    select(model, "last:2")
    parts = (
        "encoder.blocks.2.",
        "encoder.blocks.3.",
        "encoder.positions.2.",
        "encoder.positions.3.",
        "encoder.norm",
    )
    assert trained(model) == {
        name for name, _ in model.named_parameters() if name.startswith((*parts, "head."))
    }
    model = vit(depth=2, pool="attention", norm_at="pooled")
    select(model, "last:1", ["pooled_norm.bias"])
    read_later = ("encoder.blocks.1.", "attention_pool.", "pooled_norm.weight", "head.")
    assert trained(model) == {name for name, _ in model.named_parameters() if name.startswith(read_later)}


def test_adapters_and_the_head():
    model = vit(depth=2)
    select(model, "lora:3")
    layers = ("attention.qkv", "attention.out", "mlp.fc1", "mlp.fc2")
    adapters = {
        f"encoder.blocks.{i}.{layer}.{part}.weight"
        for i in (0, 1)
        for layer in layers
        for part in ("down", "up")
    }
    assert trained(model) == HEAD | adapters


@pytest.mark.parametrize(
    ("name", "tune", "words"),
    [
        ("mu/8@16", "last:2", "the model has 1 layers"),
        ("mu/8@16", "lora:33", "from 1 to 32"),
        ("R50x1@32", "last:1", "no Transformer layers"),
        ("R50x1@32", "lora:2", "layers of a Transformer; this model has none"),
    ],
)
def test_what_a_model_does_not_have(name, tune, words):
    with pytest.raises(ConfigError, match=words):
        select(vitrail.create(name, classes=5), tune)


def test_freezing_parts_by_whole_words():
    model = vit(depth=12)
    everything = trained(model)
    select(model, "all", ["encoder.blocks.1", "cls", "head.classifier.bias"])
    frozen = everything - trained(model)
    assert frozen == {
        n for n in everything if n.startswith("encoder.blocks.1.") or n in ("cls", "head.classifier.bias")
    }
    assert "encoder.blocks.10.mlp.fc1.weight" in trained(model)


def test_a_part_that_is_not_there():
    for part in ("tail", "enc", "body", ""):
        with pytest.raises(ConfigError, match=f"freeze '{part}': no parameter has this prefix; .*encoder"):
            select(vit(), "all", [part])


def test_nothing_left_to_train():
    with pytest.raises(ConfigError, match="tune head with freeze head leaves nothing to train"):
        select(vit(), "head", ["head"])


def test_a_head_of_zeros_cannot_be_frozen_for_nothing_would_learn():
    with pytest.raises(ConfigError, match="freeze head: the head is new and all zeros"):
        select(vit(), "all", ["head"])
    model = vit()
    torch.nn.init.ones_(model.head.classifier.weight)
    select(model, "all", ["head"])
    assert not model.head.classifier.weight.requires_grad


def test_an_adapter_is_in_the_layer_that_it_corrects():
    model = vit(depth=3)
    select(model, "lora:2")
    layers = find_layers(name for name, _ in model.named_parameters())
    assert [layers[f"encoder.blocks.{i}.mlp.fc1.up.weight"] for i in range(3)] == [0, 1, 2]
    assert (layers["embedding.weight"], layers["head.classifier.bias"]) == (-1, 3)


def kept_and_products(model, x):
    """Count the values kept by autograd besides parameters, and the FLOPs of a training step."""
    kept, own = {}, {p.untyped_storage().data_ptr() for p in model.parameters()}

    def pack(t):
        if t.untyped_storage().data_ptr() not in own and t.dtype == torch.float32:
            kept[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes() // 4
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        model(x)
    # The fused attention of CPUs is not counted; written out it is.
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        model(x).sum().backward()
    return sum(kept.values()), counter.get_total_flops()


@pytest.mark.parametrize("tune", ["all", "head", "last:2", "lora:4"])
def test_costs_are_those_of_a_step(tune):
    fields = {"width": 64, "heads": 2, "depth": 6, "mlp_dim": 256, "image_size": 64, "pool": "mean"}
    config = make_config("mu/8", classes=10, **fields)
    expected = training_cost(config, tune)
    model = vitrail.create("mu/8", classes=10, **fields)
    torch.nn.init.ones_(model.head.classifier.weight)
    select(model, tune)
    assert expected.trained == sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert expected.fixed == sum(p.numel() for p in model.parameters() if not p.requires_grad)
    batch = 2
    kept, flops = kept_and_products(model.train(), torch.randn(batch, 3, 64, 64))
    assert flops == pytest.approx(batch * expected.flops, rel=0.12)
    assert kept == pytest.approx(batch * expected.activations, rel=0.3)


def test_what_is_saved():
    config = make_config("B/16")
    everything, last, head, lora = (
        training_cost(config, tune) for tune in ("all", "last:4", "head", "lora:8")
    )
    assert everything.flops == cost(config).training_flops and everything.fixed == 0
    assert head.flops < last.flops < lora.flops < 0.72 * everything.flops
    assert head.activations < last.activations < everything.activations <= lora.activations
    assert lora.trained - 769_000 == 12 * 8 * (4 * 768 + 2 * 768 + 2 * (768 + 3072))
