"""Tables 3 and 4 of the paper as they are printed, against the experiments that the recipes make."""

import pytest

from vitrail.objectives.classification import Classification
from vitrail.objectives.masked_patches import MaskedPatches
from vitrail.recipes.names import FINETUNING_RECIPES, RECIPES, find_finetuning_recipe, find_recipe
from vitrail.transfer.facts import Facts

# models, data, epochs, lr, schedule, weight decay, dropout
TABLE_3 = [
    ("ViT-B/{16,32}", "jft", "7", 8e-4, "linear", 0.1, 0.0),
    ("ViT-L/32", "jft", "7", 6e-4, "linear", 0.1, 0.0),
    ("ViT-L/16", "jft", "7/14", 4e-4, "linear", 0.1, 0.0),
    ("ViT-H/14", "jft", "14", 3e-4, "linear", 0.1, 0.0),
    ("R50x{1,2}", "jft", "7", 1e-3, "linear", 0.1, 0.0),
    ("R101x1", "jft", "7", 8e-4, "linear", 0.1, 0.0),
    ("R152x{1,2}", "jft", "7", 6e-4, "linear", 0.1, 0.0),
    ("R50+ViT-B/{16,32}", "jft", "7", 8e-4, "linear", 0.1, 0.0),
    ("R50+ViT-L/32", "jft", "7", 2e-4, "linear", 0.1, 0.0),
    ("R50+ViT-L/16", "jft", "7/14", 4e-4, "linear", 0.1, 0.0),
    ("ViT-B/{16,32}", "i21k", "90", 1e-3, "linear", 0.03, 0.1),
    ("ViT-L/{16,32}", "i21k", "30/90", 1e-3, "linear", 0.03, 0.1),
    ("ViT-B/{16,32}", "i1k", "300", 3e-3, "cosine", 0.3, 0.1),
    ("ViT-L/{16,32}", "i1k", "300", 3e-3, "cosine", 0.3, 0.1),
]
# data: steps, lrs
TABLE_4 = {
    "imagenet": (20_000, {0.003, 0.01, 0.03, 0.06}),
    "cifar100": (10_000, {0.001, 0.003, 0.01, 0.03}),
    "cifar10": (10_000, {0.001, 0.003, 0.01, 0.03}),
    "pets": (500, {0.001, 0.003, 0.01, 0.03}),
    "flowers": (500, {0.001, 0.003, 0.01, 0.03}),
    "vtab": (2_500, {0.01}),
}
DEV = {"imagenet": 0.01, "cifar100": 0.02, "cifar10": 0.02, "pets": 0.1, "flowers": 0.1}
# Table 6: recipe, exaFLOPs
EXAFLOPS = {
    "vit-b32-jft": 55, "vit-b16-jft": 224, "vit-l32-jft": 196, "vit-l16-jft": 783, "vit-l16-jft-14ep": 1567,
    "vit-h14-jft": 4262, "r50x1-jft": 50, "r50x2-jft": 199, "r101x1-jft": 96, "r152x1-jft": 141, "r152x2-jft": 563,
    "r50-b32-jft": 106, "r50-b16-jft": 274, "r50-l32-jft": 246, "r50-l16-jft": 859, "r50-l16-jft-14ep": 1668,
}  # fmt: skip


def each(models):
    """'ViT-B/{16,32}' -> ViT-B/16, ViT-B/32."""
    before, _, rest = models.partition("{")
    return [before + choice for choice in rest.rstrip("}").split(",")] if rest else [before]


def runs():
    for models, data, epochs, *row in TABLE_3:
        for model in each(models):
            for count in epochs.split("/"):
                yield model.replace("ViT-", ""), data, int(count), *row


@pytest.mark.parametrize("run", list(runs()), ids=lambda run: f"{run[0]}-{run[1]}-{run[2]}ep")
def test_table_3(run):
    model, data, epochs, lr, schedule, weight_decay, dropout = run
    (made,) = [
        e for name, r in RECIPES.items() if f"-{data}" in name and not name.startswith("augreg")
        if (e := r.make()).model.model == model and e.training.steps == f"{epochs}ep"
    ]  # fmt: skip
    o = made.optimizer
    assert (o.lr, o.schedule, o.weight_decay) == (lr, schedule, weight_decay)
    assert (made.model.dropout or 0.0) == dropout
    assert (o.optimizer, o.momentum, o.beta2) == ("adamw", 0.9, 0.999)
    assert (made.data.batch_size, o.warmup, o.end_lr) == (4096, 10_000, 1e-5)
    assert o.grad_clip == (1.0 if data == "i1k" else 0.0)
    assert made.model.image_size is None
    assert made.model.pre_logits == ("x" not in model)
    assert made.objective == Classification("sigmoid")
    assert made.model.head_bias == (-6.9 if data == "i1k" else -10.0)


def test_table_3_has_no_other_rows():
    names = [n for n in RECIPES if n.startswith(("vit-", "r"))]
    assert len(names) == len(list(runs())) == 26


@pytest.mark.parametrize(("name", "exaflops"), EXAFLOPS.items())
def test_exaflops_of_table_6(name, exaflops):
    within = 0.05 if "x" in name else 0.035
    assert find_recipe(name).estimate().exaflops == pytest.approx(exaflops, rel=within)


def test_the_published_examples_of_b16_take_7_epochs_of_jft():
    made = find_recipe("vit-b16-jft").estimate()
    assert made.exaflops == pytest.approx(223.5, rel=2e-3)
    assert made.steps == round(7 * 303e6 / 4096)


# Enough data for batches of 512 in every row.
FACTS = Facts(examples=1_281_167, classes=1000)


@pytest.mark.parametrize("name", TABLE_4)
def test_table_4(name):
    steps, lrs = TABLE_4[name]
    made = find_finetuning_recipe(name).make(FACTS)
    experiment, sweep, o = made.experiment, made.sweep, made.experiment.optimizer
    assert experiment.training.steps == steps
    assert sweep.sweep == (len(lrs) > 1)
    assert set(sweep.lrs if sweep.sweep else (o.lr,)) == lrs and o.lr in lrs
    if sweep.sweep:
        assert sweep.dev == DEV[name]
    assert experiment.data.batch_size == 512
    assert (o.optimizer, o.momentum, o.schedule, o.grad_clip, o.weight_decay) == ("sgd", 0.9, "cosine", 1, 0)
    assert o.ema == 0 and experiment.model.image_size == 384
    assert sweep.seeds == 1


@pytest.mark.parametrize(("name", "size"), [("imagenet-512", 512), ("imagenet-518", 518)])
def test_imagenet_of_table_2(name, size):
    made = find_finetuning_recipe(name).make(FACTS)
    experiment, o = made.experiment, made.experiment.optimizer
    assert (experiment.model.image_size, o.ema, experiment.training.steps) == (size, 0.9999, 20_000)
    assert not o.ema_ramp
    assert set(made.sweep.lrs) == {0.003, 0.01, 0.03, 0.06} and made.sweep.seeds == 3


def test_augregs_preset():
    made = find_finetuning_recipe("augreg").make(FACTS)
    experiment, o = made.experiment, made.experiment.optimizer
    assert (experiment.training.steps, experiment.data.batch_size, made.sweep.sweep) == (500, 512, False)
    assert (o.optimizer, o.lr, o.warmup, o.schedule, o.grad_clip) == ("sgd", 0.03, 100, "cosine", 1.0)


def test_results_of_table_5_and_6_are_in_the_claims():
    said = {"vit-h14-jft": "88.08", "vit-b16-i21k": "83.97", "vit-l32-i1k": "71.16", "r152x2-jft": "84.97"}
    for name, result in said.items():
        assert result in find_recipe(name).claim
    assert "88.55" in FINETUNING_RECIPES["imagenet-518"].claim


def test_masked_patches_of_appendix_b():
    made = find_recipe("masked-b16").make()
    o = made.optimizer
    assert made.objective == MaskedPatches(target="mean", corrupted=0.5, masked=0.8, replaced=0.1)
    assert (made.model.model, made.training.steps, made.data.batch_size) == ("B/16", 1_000_000, 4096)
    assert (o.optimizer, o.lr, o.warmup, o.schedule) == ("adamw", 2e-4, 10_000, "cosine")
    assert find_recipe("masked-b16").estimate().examples_seen / 303e6 == pytest.approx(14, abs=0.6)
