import pytest

from vitrail.errors import ConfigError
from vitrail.transfer.paper_scores import PAPER, paper_model, paper_score


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("models/imagenet21k_ViT-B_16.npz", "B/16 i21k"),
        ("vit-l16-jft", "L/16 JFT 7ep"),
        ("vit-l16-jft-14ep", "L/16 JFT"),
        ("r152x2-jft", "R152x2 JFT 7ep"),
        ("r50-l16-jft", "R50+L/16 JFT 7ep"),
        ("vit-l32-jft", "L/32 JFT"),
        ("vit_b16_in21k_masked", None),
        ("vit_h14_in21k", "H/14 i21k"),
        ("r50-b16-jft", "R50+B/16 JFT"),
        ("R50+ViT-B_32-jft.npz", "R50+B/32 JFT"),
        ("vit-b32-i1k", "B/32 i1k"),
        ("imagenet21k+imagenet2012_ViT-B_16.npz", None),  # fine-tuned already
        ("ViT-B_16.npz", None),
        ("vit-ti16-i21k", None),
        ("R50+ViT-B_16-i21k.npz", None),  # a hybrid; the paper has none on ImageNet-21k
        ("R50_L_32-i21k-300ep-lr_0.001-aug_medium2-wd_0.1.npz", None),
        ("B_16-i21k-300ep-lr_0.001-aug_medium1-wd_0.1.npz", None),  # AugReg's
        ("vit-l16-i21k-30ep", None),
    ],
)
def test_what_a_name_says(name, row):
    assert paper_model(None, name) == row


def test_what_is_asked_for_comes_first():
    assert paper_model("L/32 JFT", "vit-b16-i21k") == "L/32 JFT"
    with pytest.raises(ConfigError, match="no 'B/8 JFT'; they have: B/16 i1k"):
        paper_model("B/8 JFT", "x")


def test_by_the_name_of_the_data():
    assert paper_score("B/16 i21k", "cifar100") == pytest.approx(0.9167)
    assert (
        paper_score("B/16 i21k", "oxford_iiit_pet")
        == paper_score("B/16 i21k", "pets")
        == pytest.approx(0.9443)
    )
    assert paper_score("B/16 i21k", "dtd10") is None
    assert paper_score(None, "pets") is None


def test_every_row_is_whole_and_real_labels_are_kinder():
    for row, scores in PAPER.items():
        imagenet, real, *others = scores
        assert len(others) == 4, row
        assert imagenet < real < min(others[0], 100), row
