"""Which parameter is in which group."""

from collections import Counter

import pytest
import torch

import vitrail
from vitrail.errors import ConfigError
from vitrail.objectives.classification import Classification
from vitrail.objectives.masked_patches import MaskedPatches
from vitrail.train.settings import OptimizerSettings
from vitrail.train.state import TrainState
from vitrail.train.tuning import select

CPU = torch.device("cpu")
CLASSIFY, MASK = Classification().build, MaskedPatches().build


def vit(**fields):
    return vitrail.create("mu/8", classes=5, image_size=16, **fields)


OBJECTIVES = {
    "vit": lambda: CLASSIFY(vit()),
    "attention pool": lambda: CLASSIFY(vit(pool="attention")),
    "pre-logits": lambda: CLASSIFY(vit(pre_logits=32)),
    "masked": lambda: MASK(vit()),
    "hybrid": lambda: CLASSIFY(vitrail.create("R26+S/32", classes=5, image_size=32, depth=2)),
    "resnet": lambda: CLASSIFY(vitrail.create("R50x1", classes=5, image_size=32)),
}


def groups(objective, **fields):
    """Parameter name -> its group."""
    names = {id(p): name for name, p in objective.named_parameters()}
    made = TrainState(objective, OptimizerSettings(**fields), CPU).optimizer.param_groups
    counted = Counter(names[id(p)] for group in made for p in group["params"])
    trained = [name for name, p in objective.named_parameters() if p.requires_grad]
    assert counted == Counter(trained)  # each in exactly one
    return {names[id(p)]: group for group in made for p in group["params"]}


@pytest.mark.parametrize("make", OBJECTIVES.values(), ids=OBJECTIVES)
def test_every_parameter_is_in_one_group_and_only_kernels_decay(make):
    objective = make()
    found = groups(objective, weight_decay=0.1)
    shapes = {name: p.shape for name, p in objective.named_parameters()}
    decayed = {name for name, group in found.items() if group["weight_decay"]}
    assert decayed and all(found[name]["weight_decay"] == 0.1 for name in decayed)
    for name in found:
        matrix = name.endswith(".weight") and len(shapes[name]) >= 2
        assert (name in decayed) == matrix, name
    left = {name.split(".")[-1] for name in found.keys() - decayed}
    assert "bias" in left and not any("bias" in name for name in decayed)
    for word in ("cls", "positions", "mask", "norm"):
        assert not any(word in name for name in decayed), word


def test_layer_decay():
    found = groups(CLASSIFY(vit(depth=3)), layer_decay=0.5)
    scales = {name.removeprefix("model."): group["scale"] for name, group in found.items()}
    assert scales["head.classifier.weight"] == 1
    assert [scales[f"encoder.blocks.{layer}.mlp.fc1.weight"] for layer in range(3)] == [1 / 8, 1 / 4, 1 / 2]
    assert {scale for name, scale in scales.items() if name.startswith("embedding")} == {1 / 16}
    assert {scale for name, scale in scales.items() if name.startswith(("cls", "positions"))} == {1 / 16}
    assert {group["scale"] for group in groups(CLASSIFY(vit())).values()} == {1}
    masked = groups(MASK(vit(depth=3)), layer_decay=0.5)
    assert (masked["mask"]["scale"], masked["prediction.weight"]["scale"]) == (1 / 16, 1)


@pytest.mark.parametrize("kind", ["1d", "relative"])
def test_layer_decay_of_positions_at_the_layers(kind):
    """Each table with its layer; one for all with the first of them."""
    for at, scales in (("every", [1 / 8, 1 / 4, 1 / 2]), ("shared", [1 / 8])):
        found = groups(CLASSIFY(vit(depth=3, positions=kind, positions_at=at)), layer_decay=0.5)
        tables = [group["scale"] for name, group in found.items() if ".positions." in name]
        assert sorted(tables) == scales
        assert found["model.embedding.weight"]["scale"] == 1 / 16
        for layer, scale in enumerate(scales):
            assert found[f"model.encoder.positions.{layer}.table"]["scale"] == scale


def test_layer_decay_does_not_depend_on_what_is_frozen():
    objective, frozen = CLASSIFY(vit(depth=3)), CLASSIFY(vit(depth=3))
    select(frozen.model, "all", ["encoder.blocks.2"])
    found, others = (groups(each, layer_decay=0.5) for each in (objective, frozen))
    assert others and all(group["scale"] == found[name]["scale"] for name, group in others.items())


def test_layer_decay_of_a_resnet():
    found = groups(CLASSIFY(vitrail.create("R50x1", classes=5, image_size=32)), layer_decay=0.5)
    by_stage = [
        {group["scale"] for name, group in found.items() if f"stages.{stage}." in name} for stage in range(4)
    ]
    assert by_stage == [{1 / 16}, {1 / 8}, {1 / 4}, {1 / 2}]
    assert found["model.head.classifier.weight"]["scale"] == 1


def test_the_stem_of_a_hybrid_learns_no_faster_than_what_it_feeds():
    found = groups(OBJECTIVES["hybrid"](), layer_decay=0.5)
    stem = {group["scale"] for name, group in found.items() if name.startswith("model.stem.")}
    assert max(stem) <= found["model.embedding.weight"]["scale"] < 1


def test_decay_is_decoupled_and_scaled_by_the_rate():
    """With no gradient, AdamW leaves (1 - rate decay) of a kernel, and all of a bias."""
    model = vit()
    optimizer = TrainState(CLASSIFY(model), OptimizerSettings(weight_decay=0.3), CPU).optimizer
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(1.0)
            p.grad = torch.zeros_like(p)
    for group in optimizer.param_groups:
        group["lr"] = 0.1
    optimizer.step()
    torch.testing.assert_close(
        model.head.classifier.weight, torch.full_like(model.head.classifier.weight, 0.97)
    )
    assert (model.head.classifier.bias == 1).all()


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"optimizer": "adam"}, "optimizer 'adam' is not one of adamw, sgd"),
        ({"momentum": 1.0}, "momentum 1.0"),
        ({"beta2": -0.1}, "beta2 -0.1"),
        ({"weight_decay": -1.0}, "decay -1.0"),
        ({"layer_decay": 0.0}, "layer_decay 0.0"),
        ({"layer_decay": 1.1}, "layer_decay 1.1"),
        ({"tune": "body"}, "tune 'body' is not one of"),
    ],
)
def test_refused(fields, words):
    with pytest.raises(ConfigError, match=words):
        OptimizerSettings(**fields)
