"""Cross-entropies against sums over classes in float64, written out from the definition."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from vitrail.errors import ConfigError
from vitrail.objectives.classification import Classification
from vitrail.objectives.objective import mean


class Logits(nn.Module):
    """A model whose images are its outputs."""

    def forward(self, x):
        return x


def batch_of(B, K, seed, *, mixed):
    rng = torch.Generator().manual_seed(seed)
    batch = {
        "image": torch.randn(B, K, generator=rng) * 3,
        "label": torch.randint(0, K, (B,), generator=rng),
        "weight": (torch.rand(B, generator=rng) < 0.7).float(),
    }
    if mixed:
        batch["partner_label"] = torch.randint(0, K, (B,), generator=rng)
        batch["share"] = torch.rand(B, generator=rng)
    return batch


def by_definition(batch, kind, smoothing):
    logits = batch["image"].double().tolist()
    B, K = len(logits), len(logits[0])
    sums, weights = 0.0, 0.0
    for b in range(B):
        y = [0.0] * K
        share = float(batch["share"][b]) if "share" in batch else 1.0
        y[int(batch["label"][b])] += share
        if "share" in batch:
            y[int(batch["partner_label"][b])] += 1 - share
        y = [(1 - smoothing) * v + smoothing / K for v in y]
        if kind == "softmax":
            normaliser = math.log(sum(math.exp(v) for v in logits[b]))
            loss = -sum(y[k] * (logits[b][k] - normaliser) for k in range(K))
        else:
            sigma = [1 / (1 + math.exp(-v)) for v in logits[b]]
            loss = -sum(y[k] * math.log(sigma[k]) + (1 - y[k]) * math.log(1 - sigma[k]) for k in range(K))
        sums += float(batch["weight"][b]) * loss
        weights += float(batch["weight"][b])
    return sums / max(weights, 1)


@given(
    B=st.integers(1, 6),
    K=st.integers(2, 7),
    seed=st.integers(0, 10**6),
    kind=st.sampled_from(["softmax", "sigmoid"]),
    smoothing=st.sampled_from([0.0, 0.1, 0.5]),
    mixed=st.booleans(),
)
def test_the_loss_is_its_definition(B, K, seed, kind, smoothing, mixed):
    batch = batch_of(B, K, seed, mixed=mixed)
    loss, metrics = Classification(kind, smoothing).build(Logits())(batch)
    assert loss.item() == pytest.approx(by_definition(batch, kind, smoothing), rel=1e-5, abs=1e-6)
    right = (batch["image"].argmax(1) == batch["label"]).double() * batch["weight"]
    assert metrics["top1"].item() == pytest.approx((right.sum() / batch["weight"].sum().clamp(min=1)).item())


def test_by_hand():
    """Two classes, logits 0 and log 3: softmax gives 1/4 and 3/4."""
    batch = {
        "image": torch.tensor([[0.0, math.log(3)]]),
        "label": torch.tensor([0]),
        "weight": torch.ones(1),
    }
    assert Classification().build(Logits())(batch)[0].item() == pytest.approx(math.log(4))
    assert Classification("sigmoid").build(Logits())(batch)[0].item() == pytest.approx(
        math.log(2) + math.log(4)
    )


@pytest.mark.parametrize("kind", ["softmax", "sigmoid"])
def test_what_a_broken_example_holds_does_not_matter(kind):
    batch = batch_of(4, 3, 0, mixed=True)
    batch["weight"] = torch.tensor([1.0, 0.0, 1.0, 0.0])
    objective = Classification(kind, 0.1).build(Logits())
    before = objective(batch)[0]
    batch["image"][1], batch["label"][3] = 100.0, 2 - batch["label"][3]
    assert torch.equal(objective(batch)[0], before)
    only = {name: t[::2] for name, t in batch.items()}
    torch.testing.assert_close(objective(only)[0], before)


def test_where_all_are_broken_the_loss_is_zero():
    batch = batch_of(3, 4, 0, mixed=False) | {"weight": torch.zeros(3)}
    assert Classification().build(Logits())(batch)[0].item() == 0


def test_the_mean_is_by_weight():
    assert mean(torch.tensor([1.0, 2.0, 30.0]), torch.tensor([1.0, 1.0, 0.0])).item() == 1.5


def test_low_precision_outputs_are_summed_in_float32():
    batch = batch_of(2, 3, 0, mixed=False)
    batch["image"] = batch["image"].bfloat16()
    assert Classification().build(Logits())(batch)[0].dtype == torch.float32


@pytest.mark.parametrize(("kind", "smoothing"), [("hinge", 0.0), ("softmax", 1.0), ("sigmoid", -0.1)])
def test_refused(kind, smoothing):
    with pytest.raises(ConfigError, match=f"{kind}|{smoothing}"):
        Classification(kind, smoothing).build(Logits())


@pytest.mark.parametrize("balance", [0.0, 0.5, 1.0])
def test_a_balanced_loss_is_that_of_logits_with_the_shares_of_the_classes(balance):
    module = Classification(balance=balance).build(Logits())
    module.count_classes(torch.tensor([60, 30, 9, 1]))
    batch = batch_of(16, 4, seed=3, mixed=False) | {"weight": torch.ones(16)}
    adjusted = batch["image"] + balance * torch.tensor([0.6, 0.3, 0.09, 0.01]).log()
    torch.testing.assert_close(module(batch)[0], nn.functional.cross_entropy(adjusted, batch["label"]))
    assert "prior" not in module.state_dict()  # it follows from the settings and the data


def test_a_balanced_loss_finds_more_of_a_rare_class():
    """Two overlapping clouds, 200 points and 10."""
    rng = torch.Generator().manual_seed(0)
    label = torch.tensor([0] * 200 + [1] * 10)
    x = torch.randn(210, 2, generator=rng) + 1.5 * label[:, None]
    batch = {"image": x, "label": label, "weight": torch.ones(210)}
    found = []
    for balance in (0.0, 1.0):
        torch.manual_seed(0)
        module = Classification(balance=balance).build(nn.Linear(2, 2))
        module.count_classes(torch.tensor([200, 10]))
        optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
        for _ in range(200):
            optimizer.zero_grad()
            module(batch)[0].backward()
            optimizer.step()
        found.append(float((module.model(x[200:]).argmax(dim=1) == 1).float().mean()))
    assert found[1] >= found[0] + 0.2


def test_what_balance_is_not_for():
    with pytest.raises(ConfigError, match="for loss softmax"):
        Classification(loss="sigmoid", balance=1.0)
    with pytest.raises(ConfigError, match=r"must be in \[0, 1\]"):
        Classification(balance=1.5)
