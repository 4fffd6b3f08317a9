import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitrail.checkpoints.included import INCLUDED
from vitrail.errors import ConfigError
from vitrail.models.names import INCLUDED_NAMES, MODELS, make_config
from vitrail.models.resnet import BiTConfig
from vitrail.models.vit import VARIANTS

SAME = {
    "B/16": [
        "ViT-B/16", "vit-b/16", "vit_b_16", "ViT-B_16", "ViT-B-16", "vit_base_patch16_224", "b/16@224",
        "vit_base_patch16_224.augreg_in21k", "google/vit-base-patch16-224", "Google/vit-base-patch16-224",
        "google/vit-base-patch16-224-in21k", "timm/vit_base_patch16_224.orig_in21k",
    ],
    "L/16@512": ["l/16@512", "ViT-L/16@512x512", "vit_large_patch16_512"],
    "B/16@384": ["vit_base_patch16_384", "google/vit-base-patch16-384"],
    "R50+B/16": ["R50+ViT-B/16", "r50+vit-b_16", "vit_base_r50_s16_224"],
    "R+Ti/16": ["R+ViT-Ti/16", "vit_tiny_r_s16_p8_224"],
    "R152x2": ["BiT-R152x2", "bit-r152x2", "BiT-M-R152x2", "resnetv2_152x2_bit"],
    "H/14": ["vit_huge_patch14_224", "vit_h_14"],
    "g/14": ["vit_giant_patch14_224"],
    "G/14": ["vit_gigantic_patch14_224"],
    "So400m/14": ["so400m/14", "vit_so400m_patch14_224"],
    "B-half/32": ["b-half/32"],
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "other"), [(name, other) for name, others in SAME.items() for other in others]
)
def test_spellings_of_one_model(name, other):
    assert make_config(other) == make_config(name)


@pytest.mark.parametrize("name", MODELS)
def test_every_listed_name_is_a_model_in_any_case(name):
    config = make_config(name)
    if name not in ("g/14", "G/14"):
        assert make_config(name.lower()) == make_config(name.upper()) == config
    assert config.classes == 1000


def test_giant_and_gigantic_are_told_apart_by_case():
    assert make_config("g/14").width == 1408
    assert make_config("G/14").width == 1664


@given(st.sampled_from(sorted(VARIANTS)), st.integers(1, 32), st.integers(1, 8), st.integers(1, 8))
def test_any_variant_patch_and_size(variant, patch, rows, columns):
    config = make_config(f"{variant}/{patch}@{rows * patch}x{columns * patch}")
    assert (config.width, config.depth, config.mlp_dim, config.heads) == VARIANTS[variant]
    assert (config.patch_size, config.grid) == (patch, (rows, columns))


def test_overrides_replace_fields_and_what_follows_from_them():
    config = make_config("S/16", pool="mean", positions="relative", classes=7)
    assert (config.class_token, config.positions_at, config.classes) == (False, "every", 7)
    assert isinstance(make_config("R50x1", image_size=480), BiTConfig)


def test_smaller_resnets():
    config = make_config("R14x0.5@32")
    assert (config.units, config.width_factor, config.image_size) == ((1, 1, 1, 1), 0.5, (32, 32))
    assert config.width == 1024
    with pytest.raises(ConfigError, match="unknown model"):
        make_config("R14x0.7")


@pytest.mark.parametrize(("wrong", "near"), [("B/16x", "B/16"), ("ViT-Bee/16", "B/16"), ("vit_bse_patch16", "B/16"),
                                             ("R50+B/17", "R50+B/16"), ("BiT-R51x1", "R50x1")])  # fmt: skip
def test_an_unknown_name_suggests_the_nearest(wrong, near):
    with pytest.raises(ConfigError, match="unknown model") as caught:
        make_config(wrong)
    assert near in str(caught.value)


def test_an_included_model_is_no_architecture():
    assert tuple(INCLUDED) == INCLUDED_NAMES
    with pytest.raises(ConfigError, match=r"ti8-64.* vitrail\.load\('ti8-64'\)"):
        make_config("ti8-64")
    with pytest.raises(ConfigError, match="did you mean ti8-64"):
        make_config("ti8-46")


def test_an_unknown_field_lists_the_fields():
    with pytest.raises(ConfigError, match="no field num_classes; its fields are width"):
        make_config("B/16", num_classes=10)


@given(st.text(max_size=30))
def test_any_text_is_a_model_or_a_clear_error(text):
    try:
        make_config(text)
    except ConfigError as error:
        assert str(error)
