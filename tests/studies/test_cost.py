"""The cost of a study before it starts."""

import pytest
import torch

from tests.studies.quick import PATCHES
from vitrail.models.cost import cost
from vitrail.models.names import make_config
from vitrail.recipes.recipe import JFT
from vitrail.studies.cost import Costs, PieceCost, remaining_seconds
from vitrail.studies.names import STUDIES
from vitrail.studies.plan import Choices, make_plan

CPU = torch.device("cpu")


def test_flops_are_those_of_the_model_and_its_steps():
    plan = make_plan(PATCHES, Choices(override=("steps=7", "batch_size=8")))
    piece = next(piece for piece in plan.pieces if piece.name == "8-pixels/seed-1")
    one = Costs(PATCHES.scales["tiny"], CPU).estimate(piece)
    config = make_config("Ti/4@32", classes=8, width=16, heads=2, depth=1, mlp_dim=128, patch_size=8)
    assert one.flops == cost(config).training_flops * 8 * 7
    assert (one.examples, one.steps, one.parameters) == (216, 7, cost(config).parameters)


def test_table_6_is_found_again():
    """B/16 for 7 epochs of JFT: 224 exaFLOPs."""
    scale = STUDIES["scaling"].scales["paper"]
    plan = make_plan(STUDIES["scaling"], Choices(size="paper", seeds=1))
    costs = Costs(scale, CPU)
    flops = {piece.point: costs.estimate(piece).flops / 1e18 for piece in plan.pieces}
    assert flops["ViT, B/16, 7 epochs"] == pytest.approx(224, rel=0.01)
    assert flops["ResNet, R50x1, 7 epochs"] == pytest.approx(50, rel=0.06)


def test_a_part_of_the_authors_data():
    costs = Costs(STUDIES["data-size"].scales["paper"], CPU)
    assert costs.split("", "train[:10% per class, seed 1]") == (JFT.examples // 10, JFT.classes)


@pytest.mark.parametrize("name", STUDIES)
def test_models_of_one_cost(name):
    """The three families of data-size cost the same at every size, to a fifth; the shapes what their names say."""
    for size in ("tiny", "small"):
        scale = STUDIES[name].scales[size]
        plan = make_plan(
            STUDIES[name], Choices(size=size, data="shapes:colour?n=2000&image_size=32", seeds=1)
        )
        gflops = {p.point: cost(model(p)).flops for p in plan.pieces}
        assert scale.points
        if name == "data-size":
            families = [gflops[point.name] for point in scale.points]
            assert max(families) < 1.2 * min(families)
        if name == "shape":
            for times, word in ((2, "double"), (4, "four times"), (0.5, "half"), (0.25, "a quarter")):
                for point in gflops:
                    if point.endswith(f", {word}"):
                        assert 0.75 < gflops[point] / gflops["base"] / times < 1.25 or "patch" in point, point


def model(piece):
    settings = piece.experiment().model
    return make_config(settings.model, classes=8, **settings.fresh_overrides())


def test_runs_share_a_gpu_but_not_a_core():
    alone = PieceCost(1, 100, 1.0, 1, 1.0, startup=10.0, step=0.02, shared=True)
    assert alone.seconds(1) == 10 + 100 * 0.02
    assert alone.seconds(5) == 2 + 100 * 0.02  # the device is no faster
    quick = PieceCost(1, 100, 1.0, 1, 1.0, startup=0.0, step=0.001, shared=True)
    assert quick.seconds(1) == pytest.approx(1.0) and quick.seconds(5) == pytest.approx(
        0.2
    )  # the host is slower
    core = PieceCost(1, 100, 1.0, 1, 1.0, startup=10.0, step=0.02, shared=False)
    assert core.seconds(2) == 5 + 1


def test_finished_runs_correct_the_estimate():
    plan = make_plan(PATCHES, Choices())
    costs = {piece.name: PieceCost(1, 100, 1.0, 1, 1.0, 0.0, 0.1, shared=False) for piece in plan.pieces}
    n = len(plan.pieces)
    assert remaining_seconds(plan, costs, {}, 1)[0] == pytest.approx(10.0 * n)
    seconds, basis = remaining_seconds(plan, costs, {plan.pieces[0].name: 30.0}, 1)
    assert seconds == pytest.approx(30.0 * (n - 1)) and "1 finished" in basis
