"""The packed features against the plain text, and where they stand aside."""

import pytest
import torch

import vitrail
from tests.evaluators.split import Split, named, small_model
from tests.randomise import randomise
from vitrail.inference import packed
from vitrail.inference.engine import evaluation_loader, evaluation_pipeline, outputs
from vitrail.inference.packed import PackedFeatures, can_pack, operators_work, packed_features

pytestmark = pytest.mark.skipif(not operators_work(), reason="no oneDNN for x86")


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"pool": "mean"},
        {"pool": "mean", "class_token": True},
        {"pool": "attention"},
        {"activation": "gelu"},
        {"norm_at": "pooled"},
        {"positions": "sincos"},
        {"depth": 1},
    ],
    ids=str,
)
def test_they_are_those_of_the_plain_text(fields):
    model = randomise(vitrail.create("Ti/8", classes=5, image_size=32, **{"depth": 3, **fields})).eval()
    x = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(0)) * 2 - 1
    with torch.no_grad():
        plain, logits = model.features(x), model(x)
        with packed_features(model):
            assert isinstance(model.features, PackedFeatures)
            torch.testing.assert_close(model.features(x), plain, rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(model(x), logits, rtol=1e-5, atol=1e-5)
            larger = torch.rand(1, 3, 48, 40)
            packed_y = model.features(larger)
        torch.testing.assert_close(packed_y, model.features(larger), rtol=1e-5, atol=1e-5)
    assert "features" not in vars(model)


@pytest.mark.skipif(not operators_work(torch.bfloat16), reason="no bf16 products by oneDNN")
def test_in_bf16_they_are_no_further_from_float32_than_the_plain_text():
    model = randomise(vitrail.create("Ti/8", classes=5, image_size=32, depth=3)).eval()
    x = torch.rand(16, 3, 32, 32, generator=torch.Generator().manual_seed(0)) * 2 - 1
    with torch.no_grad():
        exact = model.features(x)
        model.bfloat16()
        plain = model.features(x.bfloat16()).float()
        with packed_features(model):
            assert isinstance(model.features, PackedFeatures)
            packed_y = model.features(x.bfloat16())
    assert packed_y.dtype == torch.bfloat16
    error, plain_error = (packed_y.float() - exact).square().mean(), (plain - exact).square().mean()
    assert 0 < error < 1.5 * plain_error


def test_other_models_are_left_alone():
    for name, fields in {
        "mu/8": {"positions": "relative"},
        "Ti/8": {"positions_at": "every"},
        "S/8": {"block": "axial", "pool": "mean"},
    }.items():
        assert not can_pack(vitrail.create(name, classes=2, image_size=16, **fields))
    assert not can_pack(small_model().to(torch.float64))
    watched, replaced = small_model(), small_model()
    watched.encoder.blocks[0].register_forward_hook(lambda *_: None)
    replaced.encoder.blocks[0].mlp.fc1 = torch.nn.Sequential(replaced.encoder.blocks[0].mlp.fc1)
    assert can_pack(small_model()) and not can_pack(watched) and not can_pack(replaced)
    with packed_features(vitrail.create("R50x1", classes=2, image_size=32)) as nothing:
        assert nothing is None


def test_the_engine_uses_them_and_gives_the_model_back(monkeypatch):
    model, source = small_model(), Split(30, named(7), broken=[3])
    before = torch.get_num_threads()
    results = {}
    for threads, works in ((1, False), (1, True), (4, True)):
        torch.set_num_threads(threads)
        monkeypatch.setattr(packed, "operators_work", lambda dtype, works=works: works)
        loader = evaluation_loader(source, evaluation_pipeline(model), 8, max_bad=0.1)
        pairs = list(outputs(model, loader))
        results[threads, works] = torch.cat([y for y, _ in pairs])
        index = torch.cat([batch["index"] for _, batch in pairs]).tolist()
        assert index == [i for i in range(30) if i != 3]
        assert list(loader.bad_files.examples) == ["picture-004"]
    torch.set_num_threads(before)
    assert "features" not in vars(model)
    for y in results.values():
        torch.testing.assert_close(y, results[1, False], rtol=1e-5, atol=1e-5)
