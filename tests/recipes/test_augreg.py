import pytest

from vitrail.data.preprocess import parse
from vitrail.recipes.augreg import LEVELS
from vitrail.recipes.names import find_recipe

# level: p of mixup, RandAugment's (layers, magnitude)
PUBLISHED = {
    "none": (0.0, None), "light1": (0.0, (2, 0)), "light2": (0.2, (2, 10)), "medium1": (0.2, (2, 15)),
    "medium2": (0.5, (2, 15)), "strong1": (0.5, (2, 20)), "strong2": (0.8, (2, 20)),
}  # fmt: skip
# what the recommended files are called: B_16-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.0-sd_0.0.npz
FILES = [
    "Ti_16-i21k-300ep-lr_0.001-aug_none-wd_0.03-do_0.0-sd_0.0",
    "S_32-i21k-300ep-lr_0.001-aug_none-wd_0.1-do_0.0-sd_0.0",
    "S_16-i21k-300ep-lr_0.001-aug_light1-wd_0.03-do_0.0-sd_0.0",
    "B_32-i21k-300ep-lr_0.001-aug_light1-wd_0.1-do_0.0-sd_0.0",
    "B_16-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.0-sd_0.0",
    "B_8-i21k-300ep-lr_0.001-aug_medium2-wd_0.1-do_0.0-sd_0.0",
    "L_16-i21k-300ep-lr_0.001-aug_strong1-wd_0.1-do_0.0-sd_0.0",
    "R_Ti_16-i21k-300ep-lr_0.001-aug_none-wd_0.03-do_0.0-sd_0.0",
    "R26_S_32-i21k-300ep-lr_0.001-aug_light1-wd_0.1-do_0.0-sd_0.0",
    "R50_L_32-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.1-sd_0.1",
]


@pytest.mark.parametrize("level", PUBLISHED)
def test_levels(level):
    mixup, randaugment = PUBLISHED[level]
    line, p = LEVELS[level]
    assert p == mixup
    assert ("randaugment" in line) == (randaugment is not None)
    if randaugment is not None:
        assert "randaugment({}, {})".format(*randaugment) in line
    assert parse(line).image_size == (224, 224)


def test_there_are_no_other_levels():
    assert set(LEVELS) == set(PUBLISHED)


@pytest.mark.parametrize("file", FILES)
def test_the_recommended_settings_are_those_of_the_files(file):
    model, _, _, rate, level, decay, dropout, depth = file.split("-")
    *stem, variant, patch = model.split("_")
    name = "-".join([*stem, f"{variant}{patch}"]).lower()
    made = find_recipe(f"augreg-{name}-i21k").make()
    assert made.model.model == "+".join([*stem, f"{variant}/{patch}"])
    value = {word.partition("_")[0]: float(word.partition("_")[2]) for word in (rate, decay, dropout, depth)}
    assert made.optimizer.lr == value["lr"]
    assert made.optimizer.weight_decay == value["wd"]
    assert (made.model.dropout, made.model.drop_path) == (value["do"], value["sd"])
    line, mixup = LEVELS[level.removeprefix("aug_")]
    assert (made.data.preprocess, made.data.mixup) == (line, mixup)
    assert (made.training.steps, made.model.head_bias, made.model.pre_logits) == ("300ep", -10.0, False)


@pytest.mark.parametrize(
    ("model", "level", "regularised"),
    [("ti16", "light1", 0), ("s32", "medium1", 0), ("s16", "medium2", 0), ("b32", "medium2", 0.1),
     ("b16", "medium2", 0.1), ("l16", "medium2", 0.1)],
)  # fmt: skip
def test_imagenet(model, level, regularised):
    made = find_recipe(f"augreg-{model}-i1k").make()
    assert (made.data.preprocess, made.data.mixup) == LEVELS[level]
    assert made.model.dropout == made.model.drop_path == regularised
    assert (made.model.head_bias, made.optimizer.weight_decay) == (-6.9, 0.1)
    assert (made.optimizer.grad_clip, made.optimizer.schedule, made.optimizer.warmup) == (
        1.0,
        "cosine",
        10_000,
    )
    assert (made.data.batch_size, made.objective.loss, made.model.pre_logits) == (4096, "sigmoid", True)
