"""Masked patch prediction: colours on cases computed by hand, and that corrupted patches alone are judged."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import vitrail
from tests.randomise import randomise
from vitrail.errors import ConfigError
from vitrail.models.positions import take
from vitrail.objectives.masked_patches import (
    INTACT,
    KEPT,
    MASKED,
    REPLACED,
    Corruption,
    MaskedPatches,
    bin_colours,
    colour_classes,
    corrupted_patches,
)

P, SIDE = 8, 24
N = (SIDE // P) ** 2


def objective(target="mean", **fields):
    torch.manual_seed(0)
    made = MaskedPatches(target, **fields).build(vitrail.create("mu/8", classes=0, image_size=SIDE))
    return randomise(made).eval()


def image(rng, B=2):
    return torch.from_numpy(rng.uniform(-1, 1, (B, 3, SIDE, SIDE)).astype(np.float32))


def batch_of(seed=0, B=2, **fields):
    rng = np.random.default_rng(seed)
    draw = Corruption(N, MaskedPatches(**fields))
    codes, others = zip(*((d["corruption"], d["other"]) for d in (draw(rng) for _ in range(B))), strict=True)
    return {
        "image": image(rng, B),
        "corruption": torch.from_numpy(np.stack(codes)),
        "other": torch.from_numpy(np.stack(others)),
        "weight": torch.ones(B),
    }


@pytest.mark.parametrize(
    ("colour", "bins"),
    [
        ((0.0, 0.0, 0.0), (0, 0, 0)),
        ((1.0, 1.0, 1.0), (7, 7, 7)),
        ((1 / 8, 0.0, 0.0), (1, 0, 0)),  # a lower edge belongs to its bin
        ((0.124, 0.126, 0.999), (0, 1, 7)),
        ((0.5, 7 / 8, 0.25), (4, 7, 2)),
        ((1.0, 0.0, 0.6), (7, 0, 4)),
        ((-0.01, 1.01, 0.374), (0, 7, 2)),  # resampling may overshoot
    ],
)
def test_bins_by_hand(colour, bins):
    classes = colour_classes(torch.tensor(colour)[None, :, None, None])
    assert classes.tolist() == [[[64 * bins[0] + 8 * bins[1] + bins[2]]]]


@given(st.floats(0, 1, width=32), st.floats(0, 1, width=32), st.floats(0, 1, width=32))
def test_the_middle_of_a_bin_is_at_most_a_sixteenth_away(r, g, b):
    colour = torch.tensor([r, g, b])
    classes = colour_classes(colour[None, :, None, None])
    assert ((bin_colours(classes)[0, 0, 0] - colour).abs() <= 1 / 16 + 1e-6).all()


def test_classes_are_colours_and_back():
    classes = torch.arange(512)
    back = colour_classes(bin_colours(classes).T[None, :, None])  # (1, 3, 1, 512)
    assert torch.equal(back[0, 0], classes)


def test_the_mean_colour_of_a_patch():
    """Half black, half white in red: 0.5; all of green at 1/8; blue full. In [-1, 1]: 0, -0.75, 1."""
    x = torch.full((1, 3, SIDE, SIDE), -1.0)
    x[:, 0, :P, 4:P], x[:, 1, :P, :P], x[:, 2, :P, :P] = 1.0, -0.75, 1.0
    chosen = torch.tensor([[0, 1, 8]])
    assert objective().truth(x, chosen).tolist() == [[64 * 4 + 8 * 1 + 7, 0, 0]]


def test_the_grid_of_a_patch_is_read_row_by_row():
    """Cells of 2 x 2 pixels; the second patch of the second row, its cell (row 1, column 2) white."""
    x = torch.full((1, 3, SIDE, SIDE), -1.0)
    x[:, :, P + 2 : P + 4, P + 4 : P + 6] = 1.0
    truth = objective("grid").truth(x, torch.tensor([[0, 4]]))
    assert truth.shape == (1, 2, 16)
    assert truth[0, 0].tolist() == [0] * 16
    assert truth[0, 1].tolist() == [511 if cell == 1 * 4 + 2 else 0 for cell in range(16)]


def test_the_pixels_of_a_patch():
    rng = np.random.default_rng(0)
    x = image(rng)
    truth = objective("pixels").truth(x, torch.tensor([[5], [0]]))
    assert torch.equal(truth[0, 0].view(3, P, P), x[0, :, P : 2 * P, 2 * P : 3 * P])
    assert torch.equal(truth[1, 0].view(3, P, P), x[1, :, :P, :P])


@pytest.mark.parametrize("target", ["mean", "grid", "pixels"])
def test_the_loss_is_its_definition(target):
    made, batch = objective(target), batch_of(B=3)
    batch["weight"] = torch.tensor([1.0, 0.0, 1.0])
    chosen = corrupted_patches(batch["corruption"], made.count)
    y, truth = made.predict(batch, chosen).double(), made.truth(batch["image"], chosen)
    each = []
    for b in range(3):
        losses = []
        for i in range(made.count):
            if target == "pixels":
                losses += [(y[b, i, k] - truth[b, i, k]).item() ** 2 for k in range(3 * P * P)]
                continue
            for cell in range(16 if target == "grid" else 1):
                logits = y[b, i, cell] if target == "grid" else y[b, i]
                right = truth[b, i, cell] if target == "grid" else truth[b, i]
                losses.append((torch.logsumexp(logits, 0) - logits[right]).item())
        each.append(sum(losses) / len(losses))
    loss, metrics = made(batch)
    assert loss.item() == pytest.approx((each[0] + each[2]) / 2, rel=1e-5)
    assert set(metrics) == (set() if target == "pixels" else {"patch_top1"})


def test_a_fresh_objective_guesses_all_colours_alike():
    made = MaskedPatches().build(vitrail.create("mu/8", classes=0, image_size=SIDE))
    assert made(batch_of())[0].item() == pytest.approx(math.log(512))


def apart(made):
    """Without attention and MLP a patch's output depends on its own embedding alone."""
    with torch.no_grad():
        for block in made.model.encoder.blocks:
            for layer in (block.attention.out, block.mlp.fc2):
                layer.weight.zero_()
                layer.bias.zero_()
    return made


@pytest.mark.parametrize("target", ["mean", "grid", "pixels"])
@pytest.mark.parametrize(("code", "counts"), [(INTACT, False), (MASKED, True), (KEPT, True)])
def test_corrupted_patches_alone_are_judged(target, code, counts):
    made, batch = apart(objective(target, corrupted=2 / N)), batch_of()
    batch["corruption"] = torch.tensor([[MASKED, KEPT] + [INTACT] * (N - 2)] * 2)
    batch["other"] = torch.arange(N).expand(2, N)
    before = made(batch)[0].item()
    column = {MASKED: 0, KEPT: 1, INTACT: 2}[code]
    batch["image"][0, :, :P, column * P : (column + 1) * P] = 1.0
    assert (made(batch)[0].item() != before) == counts


def test_what_becomes_of_each_patch():
    made = objective()
    z = torch.randn(1, N, 32)
    codes = torch.tensor([[INTACT, MASKED, REPLACED, KEPT] + [INTACT] * (N - 4)])
    other = torch.arange(N)[None].clone()
    other[0, 2] = 7
    got = made.corrupt(z, {"corruption": codes, "other": other})
    assert torch.equal(got[0, 1], made.mask[0, 0])
    assert torch.equal(got[0, 2], z[0, 7])
    unchanged = [0, *range(3, N)]
    assert torch.equal(got[0, unchanged], z[0, unchanged])


@pytest.mark.parametrize("corrupted", [0.05, 0.5, 1.0])
def test_the_corrupted_ones_in_order(corrupted):
    batch = batch_of(corrupted=corrupted, B=4)
    made = objective(corrupted=corrupted)
    for chosen, codes in zip(
        corrupted_patches(batch["corruption"], made.count), batch["corruption"], strict=True
    ):
        assert chosen.tolist() == (codes != INTACT).nonzero().flatten().tolist()


def test_take():
    z = torch.arange(12.0).view(1, 4, 3)
    assert take(z, torch.tensor([[2, 0]])).tolist() == [[[6, 7, 8], [0, 1, 2]]]


def test_models_without_a_class_token_learn():
    for model in (
        vitrail.create("mu/8", classes=0, image_size=SIDE, pool="mean"),
        vitrail.create("mu/8", classes=0, image_size=SIDE, pool="attention"),
    ):
        made = MaskedPatches().build(model)
        torch.nn.init.normal_(made.prediction.weight)
        made(batch_of())[0].backward()
        assert made.mask.grad.abs().sum() > 0 and model.embedding.weight.grad.abs().sum() > 0
        assert all(p.grad is not None for p in made.parameters() if p.requires_grad)


def test_refused():
    with pytest.raises(ConfigError, match="'median'"):
        objective("median")
    with pytest.raises(ConfigError, match="divide into 4x4, not of 6 pixels"):
        MaskedPatches("grid").build(vitrail.create("mu/6@24", classes=0))
    with pytest.raises(ConfigError, match="a ViT or a hybrid"):
        MaskedPatches().build(vitrail.create("R50x1", classes=0, image_size=32))
    for fields in (
        {"corrupted": 0.0},
        {"corrupted": 1.1},
        {"masked": 0.7, "replaced": 0.4},
        {"masked": -0.1},
    ):
        with pytest.raises(ConfigError, match=next(iter(fields))):
            MaskedPatches(**fields)
