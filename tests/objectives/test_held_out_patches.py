"""What is looked at while masked patches are learned: the loss, the best guess without looking, the picture."""

import math

import numpy as np
import pytest
import torch

import vitrail
from tests.randomise import randomise
from vitrail.data.sources import open_source
from vitrail.evaluators.score import Gallery
from vitrail.objectives.masked_patches import (
    GREY,
    MASKED,
    REPLACED,
    HeldOutPatches,
    MaskedPatches,
    Prior,
    as_bytes,
    bin_colours,
    cut_patches,
)

P, SIDE = 8, 16
N = (SIDE // P) ** 2


def held_out(target="mean", batch_size=8, **fields):
    model = vitrail.create("mu/8", classes=0, image_size=SIDE)
    objective = randomise(MaskedPatches(target, **fields).build(model)).eval()
    source = open_source("shapes?image_size=16&n=80", "validation")
    return HeldOutPatches(objective, source, batch_size)


def scores(made):
    return {result.name: result for result in made(made.objective.model)}


@pytest.mark.parametrize("target", ["mean", "grid", "pixels"])
def test_scores_and_a_picture(target):
    made = held_out(target)
    seen = scores(made)
    gallery = seen.pop("patches")
    assert set(seen) == set(made.names) == {"val_loss", "prior_loss"}
    assert isinstance(gallery, Gallery)
    assert all(row.shape == (8, SIDE, SIDE, 3) and row.dtype == np.uint8 for row in gallery.rows.values())
    assert seen["val_loss"].n == len(made.loader.stream.source) == 20
    assert seen["val_loss"].value > seen["prior_loss"].value > 0  # the weights are random
    again = scores(made)  # the masks stay the same
    for name in seen:
        assert again[name].value == pytest.approx(seen[name].value, rel=1e-5)


def test_every_example_counts_once_whatever_the_batch():
    """20 examples: in batches of 8 the last is padded, in one of 20 none is."""
    in_parts, at_once = scores(held_out(batch_size=8)), scores(held_out(batch_size=20))
    for name in ("val_loss", "prior_loss"):
        assert in_parts[name].value == pytest.approx(at_once[name].value, rel=1e-6)


def test_the_prior_of_colours_is_their_entropy():
    prior = Prior()
    prior.add(torch.tensor([[3, 3], [3, 500]]))
    prior.add(torch.tensor([[3, 3], [500, 500]]))
    share = torch.tensor([5 / 8, 3 / 8])
    assert prior.loss() == pytest.approx(-(share * share.log()).sum().item())
    certain = Prior()
    certain.add(torch.full((4, 2), 9))
    assert certain.loss() == 0


def test_no_constant_guess_is_better():
    """Of colours: of all distributions over two, that of the data has the least cross-entropy."""
    prior, truth = Prior(), torch.tensor([0] * 7 + [1] * 3)
    prior.add(truth)
    for p in np.linspace(0.01, 0.99, 99):
        assert prior.loss() <= -(0.7 * math.log(p) + 0.3 * math.log(1 - p)) + 1e-9


def test_the_prior_of_pixels_is_their_variance():
    rng = np.random.default_rng(0)
    truth = torch.from_numpy(rng.normal(2, 3, (6, 2, 5)))
    prior = Prior(pixels=5)
    prior.add(truth[:4])
    prior.add(truth[4:])
    assert prior.loss() == pytest.approx(truth.flatten(0, 1).var(dim=0, correction=0).mean().item())
    with_none = Prior(pixels=5)
    with_none.add(truth)
    with_none.add(truth[:0])  # a batch of broken examples
    assert with_none.loss() == pytest.approx(prior.loss())


def test_painted_colours_are_where_the_patches_were():
    made = held_out()
    x = torch.rand(1, 3, SIDE, SIDE)
    painted = made.painted(x, torch.tensor([[2]]), torch.tensor([[64 * 7 + 8 * 3]]))
    lower_left = (slice(None), slice(P, None), slice(None, P))
    colour = bin_colours(torch.tensor(64 * 7 + 8 * 3))
    assert torch.equal(painted[0][lower_left], colour[:, None, None].expand(3, P, P))
    expected = x[0].clone()
    expected[lower_left] = painted[0][lower_left]
    assert torch.equal(painted[0], expected)


@pytest.mark.parametrize("target", ["grid", "pixels"])
def test_painting_the_truth_gives_the_picture_back(target):
    made = held_out(target)
    x = torch.rand(2, 3, SIDE, SIDE)
    if target == "grid":  # cells of one colour, that of the middle of its bin
        cells = bin_colours(torch.randint(0, 512, (2, 8, 8))).permute(0, 3, 1, 2)
        x = cells.repeat_interleave(2, 2).repeat_interleave(2, 3)
    chosen = torch.tensor([[0, 3], [1, 2]])
    painted = made.painted(x, chosen, made.objective.truth(2 * x - 1, chosen))
    torch.testing.assert_close(painted, x, rtol=0, atol=1e-6)


def test_the_masked_row_is_what_the_model_sees():
    """Its patches have the embeddings that the encoder gets, but for masked ones, which are grey."""
    made = held_out(masked=0.5, replaced=0.5)
    batch = next(iter(made.loader.batches(device=torch.device("cpu"))))
    assert (batch["corruption"] == MASKED).any() and (batch["corruption"] == REPLACED).any()
    with torch.no_grad():
        pixels = made.gallery(batch).rows["input"]
    row = torch.from_numpy(pixels).permute(0, 3, 1, 2) / 255  # (n, 3, H, W)
    model = made.objective.model
    first = {name: t[: len(row)] for name, t in batch.items()}
    with torch.no_grad():
        seen, wanted = (
            model.patches(2 * row - 1),
            made.objective.corrupt(model.patches(first["image"]), first),
        )
    masked = first["corruption"] == MASKED  # (n, N)
    torch.testing.assert_close(seen[~masked], wanted[~masked], rtol=0, atol=1e-4)
    grey = as_bytes(torch.full((1, 1, 1, 1), GREY)).item()
    assert (cut_patches(torch.from_numpy(pixels).permute(0, 3, 1, 2).float(), P)[masked] == grey).all()


def test_bytes():
    x = torch.tensor([0.0, 0.5, 1.2]).view(1, 3, 1, 1)
    made = as_bytes(x)
    assert made.dtype == np.uint8 and made.tolist() == [[[[0, 128, 255]]]]
