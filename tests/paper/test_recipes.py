"""Tables 3 and 4 of the paper as they are printed, against the experiments that the recipes make."""

import pytest

from vitrail.recipes.names import FINETUNING_RECIPES, RECIPES, finetuning_recipe, recipe

# models, data, epochs, rate, decay, weight decay, dropout
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
# data: steps, rates
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
    model, data, epochs, rate, decay, weight_decay, dropout = run
    (made,) = [
        e for name, r in RECIPES.items() if f"-{data}" in name and not name.startswith("augreg")
        if (e := r.make()).model.model == model and e.training.steps == f"{epochs}ep"
    ]  # fmt: skip
    t = made.training
    assert (t.rate, t.decay, t.optimization.weight_decay) == (rate, decay, weight_decay)
    assert (made.model.dropout or 0.0) == dropout
    assert (t.optimization.optimizer, t.optimization.momentum, t.optimization.beta2) == ("adamw", 0.9, 0.999)
    assert (made.data.batch, t.warmup, t.end_rate) == (4096, 10_000, 1e-5)
    assert t.clip == (1.0 if data == "i1k" else 0.0)
    assert made.model.image_size is None
    assert made.model.pre_logits == ("x" not in model)
    assert made.objective.objective == "sigmoid"
    assert made.model.head_bias == (-6.9 if data == "i1k" else -10.0)


def test_table_3_has_no_other_rows():
    names = [n for n in RECIPES if n.startswith(("vit-", "r"))]
    assert len(names) == len(list(runs())) == 26


@pytest.mark.parametrize(("name", "exaflops"), EXAFLOPS.items())
def test_exaflops_of_table_6(name, exaflops):
    within = 0.05 if "x" in name else 0.035
    assert recipe(name).estimate().exaflops == pytest.approx(exaflops, rel=within)


def test_the_published_examples_of_b16_take_7_epochs_of_jft():
    made = recipe("vit-b16-jft").estimate()
    assert made.exaflops == pytest.approx(223.5, rel=2e-3)
    assert made.steps == round(7 * 303e6 / 4096)


@pytest.mark.parametrize("name", TABLE_4)
def test_table_4(name):
    steps, rates = TABLE_4[name]
    made = finetuning_recipe(name).make()
    assert (made.steps, set(made.rates)) == (steps, rates)
    assert (made.batch, made.optimizer, made.decay, made.clip, made.weight_decay) == (
        512,
        "sgd",
        "cosine",
        1,
        0,
    )
    assert made.rate in made.rates
    assert made.sweep == (len(rates) > 1)
    assert made.dev == DEV.get(name)
    assert made.protocol == "paper"
    assert made.average == 0 and made.image_size is None


@pytest.mark.parametrize(("name", "size"), [("imagenet-512", 512), ("imagenet-518", 518)])
def test_imagenet_of_table_2(name, size):
    made = finetuning_recipe(name).make()
    assert (made.image_size, made.average, made.steps) == (size, 0.9999, 20_000)
    assert not made.average_ramp
    assert set(made.rates) == {0.003, 0.01, 0.03, 0.06}


def test_augregs_preset():
    made = finetuning_recipe("augreg").make()
    assert (made.steps, made.warmup, made.rate, made.batch, made.sweep) == (500, 100, 0.03, 512, False)
    assert (made.protocol, made.optimizer, made.decay, made.clip) == ("augreg", "sgd", "cosine", 1.0)


def test_results_of_table_5_and_6_are_in_the_claims():
    said = {"vit-h14-jft": "88.08", "vit-b16-i21k": "83.97", "vit-l32-i1k": "71.16", "r152x2-jft": "84.97"}
    for name, result in said.items():
        assert result in recipe(name).claim
    assert "88.55" in FINETUNING_RECIPES["imagenet-518"].claim


def test_masked_patches_of_appendix_b():
    made = recipe("masked-b16").make()
    o, t = made.objective, made.training
    assert (o.objective, o.target, o.corrupted, o.masked, o.replaced) == ("masked", "mean", 0.5, 0.8, 0.1)
    assert (made.model.model, t.steps, t.rate, t.warmup, t.decay) == (
        "B/16",
        1_000_000,
        2e-4,
        10_000,
        "cosine",
    )
    assert (made.data.batch, t.optimization.optimizer) == (4096, "adamw")
    assert recipe("masked-b16").estimate().examples_seen / 303e6 == pytest.approx(14, abs=0.6)
