import json

import pytest
import torch

import vitrail
from tests.randomise import randomise
from vitrail.errors import CheckpointError

FIELDS = {"width": 24, "depth": 1, "mlp_dim": 40, "heads": 3}
MODELS = {
    "ViT": ("B/8", {**FIELDS, "image_size": (16, 24), "classes": 3}),
    "relative": ("B/8", {**FIELDS, "image_size": 16, "positions": "relative"}),
    "2d, every layer": ("B/8", {**FIELDS, "image_size": 16, "positions": "2d", "positions_at": "every"}),
    "sincos, attention": ("B/8", {**FIELDS, "image_size": 16, "positions": "sincos", "pool": "attention"}),
    "axial": ("B/8", {**FIELDS, "image_size": 16, "pool": "mean", "block": "axial", "norm_at": "pooled"}),
    "hybrid": ("R50+B/16", {**FIELDS, "image_size": 32, "stem": {"units": [1, 1], "width_factor": 0.5}}),
    "BiT": ("R50x1", {"units": (1, 1), "width_factor": 0.5, "image_size": 32, "classes": 3}),
}


@pytest.fixture(params=MODELS)
def model(request):
    name, fields = MODELS[request.param]
    return randomise(vitrail.create(name, **fields)).eval()


def test_comes_back_as_it_was(tmp_path, model):
    model.class_names = [f"class {i}" for i in range(model.config.classes)]
    model.metrics = {"top-1": 0.5}
    vitrail.save(model, tmp_path / "m")
    again = vitrail.load(tmp_path / "m")
    assert again.config == model.config
    assert (again.preprocess, again.class_names) == (model.preprocess, model.class_names)
    assert (again.metrics, again.provenance) == (model.metrics, model.provenance)
    for (name, a), (other, b) in zip(model.state_dict().items(), again.state_dict().items(), strict=True):
        assert name == other
        assert torch.equal(a, b)
    x = torch.randn(2, 3, *model.config.image_size)
    assert torch.equal(model(x), again(x))
    assert all(p.requires_grad for p in again.parameters())
    assert not again.training


def small(tmp_path):
    model = vitrail.create("mu/8", image_size=16, classes=3)
    vitrail.save(model, tmp_path / "m")
    return model, tmp_path / "m"


def test_the_card_can_be_read_by_a_person(tmp_path):
    _, folder = small(tmp_path)
    assert sorted(p.name for p in folder.iterdir()) == ["model.json", "model.safetensors"]
    card = json.loads((folder / "model.json").read_text())
    assert card["architecture"]["family"] == "vit"
    assert card["architecture"]["width"] == 32
    assert card["preprocess"].endswith("to_range(-1, 1)")


def test_written_again_over_itself(tmp_path):
    model, folder = small(tmp_path)
    with torch.no_grad():
        model.cls += 1
    vitrail.save(model, folder)
    assert torch.equal(vitrail.load(folder).cls, model.cls)
    assert [p.name for p in tmp_path.iterdir()] == ["m"]


def test_a_folder_with_anything_else_is_not_overwritten(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(CheckpointError, match=r"also holds notes\.txt"):
        vitrail.save(vitrail.create("mu/8", image_size=16), tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda card: card.pop("architecture"), "lacks architecture"),
        (lambda card: card.update(version=99), "is version 99; this vitrail reads up to 1"),
        (lambda card: card.update(class_names=["one"]), "1 class names for 3 classes"),
        (lambda card: card.update(preprocess="blur(3)"), "blur"),
        (lambda card: card["architecture"].update(family="swin"), "'swin' is not one of vit, hybrid, bit"),
        (lambda card: card["architecture"].update(layers=3), "unknown fields layers"),
        (lambda card: card["architecture"].update(heads=5), "not divisible into 5 heads"),
        (lambda card: card["architecture"].update(depth=2), "missing encoder.blocks.1"),
        (lambda card: card["architecture"].update(classes=4), r"head.classifier.weight is \[3, 32\], not \[4, 32\]"),
    ],
)  # fmt: skip
def test_a_card_that_is_wrong(tmp_path, change, message):
    _, folder = small(tmp_path)
    card = json.loads((folder / "model.json").read_text())
    change(card)
    (folder / "model.json").write_text(json.dumps(card))
    with pytest.raises(CheckpointError, match=message):
        vitrail.load(folder)


def test_damaged_files(tmp_path):
    _, folder = small(tmp_path)
    (folder / "model.json").write_text("{")
    with pytest.raises(CheckpointError, match="cannot be read"):
        vitrail.load(folder)
    _, folder = small(tmp_path)
    weights = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(weights[:-10])
    with pytest.raises(CheckpointError, match=r"not a whole \.safetensors file"):
        vitrail.load(folder)


def test_half_precision_on_disk_is_single_in_use(tmp_path):
    from safetensors.torch import load_file, save_file

    _, folder = small(tmp_path)
    path = folder / "model.safetensors"
    save_file({name: w.half() for name, w in load_file(path).items()}, path)
    assert all(p.dtype == torch.float32 for p in vitrail.load(folder).parameters())
