"""Every dialect of Google's files: read, understood, and written back bit by bit."""

import dataclasses
import logging

import numpy as np
import pytest
import torch

import vitrail
from tests.checkpoints import google_files as files
from tests.checkpoints.google_files import D, H, K, M, P, filled
from tests.randomise import randomise
from vitrail.checkpoints import google
from vitrail.checkpoints.checkpoint import from_model, to_model
from vitrail.checkpoints.npz import read_npz
from vitrail.errors import CheckpointError
from vitrail.models.hybrid import HybridConfig
from vitrail.models.resnet import BiTConfig

vit, linen = files.vit_shapes(), files.vit_shapes(names="linen")
big_vision = files.vit_shapes(names="linen", tokens=4, top=True)
siglip = files.vit_shapes(names="linen", tokens=4, cls=False, top=True, head=False) | files.map_head_shapes()
hybrid = files.stem_shapes() | files.vit_shapes(embedded=256, patch=1)
old_hybrid = files.stem_shapes(old_norms=True) | files.vit_shapes(embedded=256, patch=1)
DIALECTS = {
    "original": filled(vit),
    "original with pre_logits": filled(files.vit_shapes(pre_logits=True)),
    "linen": filled(linen),
    "linen, mean": filled(files.vit_shapes(names="linen", tokens=4, cls=False)),
    "old optimizer": filled(vit, prefix="opt/target/"),
    "big_vision": filled(big_vision, prefix="params/"),
    "big_vision, scan": filled(big_vision, prefix="params/", scan=True),
    "big_vision, scan, bfloat16": filled(big_vision, "bfloat16", prefix="params/", scan=True),
    "siglip tower": filled(siglip, prefix="params/img/"),
    "float16": filled(vit, np.float16),
    "float64": filled(vit, np.float64),
    "hybrid": filled(hybrid),
    "hybrid, old group norms": filled(old_hybrid),
    "BiT": filled(files.bit_shapes(), np.float16),
    "BiT, numbered": filled(files.bit_shapes(numbered=True)),
    "BiT, Fortran order": filled(files.bit_shapes(), fortran=True),
}


def write(path, arrays):
    np.savez(path, **arrays)
    return path


def assert_same_file(path, arrays):
    again = read_npz(path)
    assert set(again) == set(arrays)
    for key, a in arrays.items():
        assert again[key].dtype == a.dtype, key
        assert again[key].shape == a.shape, key
        assert again[key].tobytes() == a.tobytes(), key
        assert again[key].flags.f_contiguous == a.flags.f_contiguous, key


@pytest.mark.parametrize("name", DIALECTS)
def test_written_back_bit_by_bit_also_through_a_bundle(tmp_path, name):
    arrays = DIALECTS[name]
    model = vitrail.load(write(tmp_path / "a.npz", arrays))
    vitrail.save(model, tmp_path / "b.npz", to="npz")
    assert_same_file(tmp_path / "b.npz", arrays)
    vitrail.save(model, tmp_path / "bundle")
    vitrail.save(vitrail.load(tmp_path / "bundle"), tmp_path / "c.npz", to="npz")
    assert_same_file(tmp_path / "c.npz", arrays)


@pytest.mark.parametrize("name", DIALECTS)
def test_architecture_is_inferred_from_the_arrays(tmp_path, name):
    config = google.read(write(tmp_path / "a.npz", DIALECTS[name])).config
    if "BiT" in name:
        assert config == BiTConfig((1, 2), 0.5, 224, classes=K)
        return
    assert (config.width, config.depth, config.heads, config.mlp_dim) == (D, 2, H, M)
    assert config.pool == {"linen, mean": "mean", "siglip tower": "attention"}.get(name, "token")
    assert config.classes == (0 if name == "siglip tower" else K)
    assert config.pre_logits == (D if "pre_logits" in name else 0)
    assert config.grid == (2, 2)
    if "hybrid" in name:
        assert isinstance(config, HybridConfig)
        assert (config.stem.units, config.stem.width_factor, config.image_size) == ((1, 2), 0.5, (16, 16))
    else:
        assert config.image_size == (2 * P, 2 * P)
    assert (config.activation, config.norm_eps) == ("gelu_tanh", 1e-6)


def test_all_dialects_of_one_model_give_one_set_of_logits(tmp_path):
    """The same weights spelled as original, Linen, prefixed and scanned."""
    original = filled(vit)
    spelled = {"original": original, "old optimizer": {f"opt/target/{k}": a for k, a in original.items()}}
    renamed = {
        "HeadDotProductAttention_1": "HeadDotProductAttention_0",
        "Norm_2": "Norm_1",
        "Block_3": "Block_0",
    }
    spelled["linen"] = {}
    for key, a in original.items():
        for old, new in renamed.items():
            key = key.replace(old, new)
        spelled["linen"][key] = a
    scanned = dict(spelled["linen"])
    for key in [k for k in scanned if "encoderblock_0/" in k]:
        parts = [scanned.pop(key.replace("block_0", f"block_{i}")) for i in range(2)]
        scanned[f"params/{key.replace('encoderblock_0', 'encoderblock')}"] = np.stack(parts)
    scanned = {k if k.startswith("params/") else f"params/{k}": a for k, a in scanned.items()}
    position = scanned.pop("params/Transformer/posembed_input/pos_embedding")
    scanned["params/cls"] = scanned["params/cls"] + position[:, :1]  # as big_vision upgrades old files
    scanned["params/pos_embedding"] = position[:, 1:]
    spelled["scanned"] = scanned
    x = torch.randn(2, 3, 2 * P, 2 * P)
    logits = {name: vitrail.load(write(tmp_path / f"{name}.npz", a))(x) for name, a in spelled.items()}
    for name, got in logits.items():
        torch.testing.assert_close(got, logits["original"], rtol=1e-5, atol=1e-6, msg=name)


def test_swapping_two_tensors_of_one_shape_is_noticed(tmp_path):
    arrays = filled(vit)
    x = torch.randn(2, 3, 2 * P, 2 * P)
    right = vitrail.load(write(tmp_path / "a.npz", arrays))(x)
    block = "Transformer/encoderblock_0/"
    for a, b in [
        ("MultiHeadDotProductAttention_1/query/kernel", "MultiHeadDotProductAttention_1/value/kernel"),
        ("LayerNorm_0/scale", "LayerNorm_2/scale"),
        ("MlpBlock_3/Dense_1/bias", "MultiHeadDotProductAttention_1/out/bias"),
    ]:
        swapped = {**arrays, block + a: arrays[block + b], block + b: arrays[block + a]}
        wrong = vitrail.load(write(tmp_path / "b.npz", swapped))(x)
        assert (wrong - right).abs().max() > 1e-4


OURS = {
    "ViT": vitrail.create("B/16", width=D, depth=2, heads=H, mlp_dim=M, patch_size=P, image_size=16, classes=K),
    "mean": vitrail.create("B/16", width=D, depth=1, heads=H, mlp_dim=M, patch_size=P, image_size=16, pool="mean"),
    "BiT": vitrail.create("R50x1", units=(1, 1), width_factor=0.5, image_size=32, classes=K),
    "hybrid": vitrail.create("R50+B/16", width=D, depth=1, heads=H, mlp_dim=M, image_size=32,
                             stem={"units": (1, 1), "width_factor": 0.5}),
    "2-D positions": vitrail.create("mu/8", image_size=(16, 24), positions="2d", pool="mean"),
    "sin-cos positions": vitrail.create("mu/8", image_size=(16, 24), positions="sincos"),
    "no positions": vitrail.create("mu/8", image_size=(16, 24), positions="none"),
}  # fmt: skip


@pytest.mark.parametrize("name", OURS)
def test_a_model_of_our_own_is_written_in_the_original_naming(tmp_path, name):
    model = randomise(OURS[name]).eval()
    vitrail.save(model, tmp_path / "a.npz", to="npz")
    keys = set(read_npz(tmp_path / "a.npz"))
    if name == "ViT":
        assert keys == set(vit)
    size = model.config.image_size
    x = torch.randn(2, 3, *size)
    again = vitrail.load(tmp_path / "a.npz", image_size=size)
    torch.testing.assert_close(again(x), model(x), rtol=1e-5, atol=1e-5)


def test_weights_that_a_small_type_cannot_hold_any_more_are_written_as_float32(tmp_path, caplog):
    model = vitrail.load(write(tmp_path / "a.npz", DIALECTS["float16"]))
    with torch.no_grad():
        model.cls += 1e-4
    vitrail.save(model, tmp_path / "b.npz", to="npz")
    again = read_npz(tmp_path / "b.npz")
    assert again["cls"].dtype == np.float32
    assert torch.equal(torch.from_numpy(again["cls"]), model.cls.detach())
    assert again["head/bias"].dtype == np.float16
    assert "cls is written as float32" in caplog.text


def test_a_convolution_under_two_names(tmp_path):
    arrays = filled(files.bit_shapes())
    key = "resnet/root_block/standardized_conv2d/kernel"
    arrays[key.replace("2d/", "2d_7/")] = arrays[key]
    with pytest.raises(CheckpointError, match=r"two spellings of a name: .*standardized_conv2d_7/kernel"):
        vitrail.load(write(tmp_path / "a.npz", arrays))


def test_layers_are_joined_in_their_order(tmp_path):
    checkpoint = google.read(write(tmp_path / "a.npz", DIALECTS["big_vision, scan"]))
    backwards = dict(sorted(checkpoint.weights.items(), reverse=True))
    google.write(dataclasses.replace(checkpoint, weights=backwards), tmp_path / "b.npz")
    assert_same_file(tmp_path / "b.npz", DIALECTS["big_vision, scan"])


def test_a_trained_class_position_is_folded_where_the_dialect_has_none(tmp_path):
    model = vitrail.load(write(tmp_path / "a.npz", DIALECTS["big_vision"]))
    with torch.no_grad():
        model.positions.table[:, 0] = 0.5
    vitrail.save(model, tmp_path / "b.npz", to="npz")
    x = torch.randn(1, 3, 16, 16)
    torch.testing.assert_close(vitrail.load(tmp_path / "b.npz")(x), model(x), rtol=1e-5, atol=1e-6)


def test_other_towers_and_optimizer_state_are_left_out_and_said(tmp_path, caplog):
    arrays = DIALECTS["siglip tower"] | {
        "params/txt/Embed_0/embedding": np.zeros((3, 4)),
        "params/t": np.zeros(1),
    }
    vitrail.load(write(tmp_path / "a.npz", arrays))
    assert "2 arrays beside the model" in caplog.text


def test_a_zero_head_is_said(tmp_path, caplog):
    arrays = filled(vit)
    vitrail.load(write(tmp_path / "a.npz", arrays))
    assert "zero" not in caplog.text
    arrays |= {"head/kernel": np.zeros((D, K), np.float32), "head/bias": np.zeros(K, np.float32)}
    with caplog.at_level(logging.WARNING):
        vitrail.load(write(tmp_path / "b.npz", arrays))
    assert "the head is all zero" in caplog.text


def test_a_grid_that_is_not_square_needs_the_image_size(tmp_path):
    path = write(tmp_path / "a.npz", filled(files.vit_shapes(tokens=1 + 2 * 3)))
    with pytest.raises(CheckpointError, match=r"6 patches .* not a square: pass image_size"):
        vitrail.load(path)
    assert vitrail.load(path, image_size=(16, 24)).config.grid == (2, 3)


def test_no_positions_are_big_visions_fixed_ones(tmp_path):
    arrays = filled({k: s for k, s in linen.items() if "pos_embedding" not in k and k != "cls"})
    config = vitrail.load(write(tmp_path / "a.npz", arrays), image_size=32).config
    assert (config.positions, config.grid) == ("sincos", (4, 4))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: a.pop("cls"), "Transformer/posembed_input/pos_embedding|5 patches"),
        (lambda a: a.pop("head/bias"), "missing head/bias"),
        (lambda a: a.pop("Transformer/posembed_input/pos_embedding"), "missing Transformer/posembed"),
        (lambda a: a.pop("Transformer/encoderblock_1/LayerNorm_2/bias"), "missing Transformer/encoderblock_1"),
        (lambda a: a.update(surprise=np.zeros(3, np.float32)), "extra surprise"),
        (lambda a: a.update({"embedding/bias": np.zeros(7, np.float32)}), r"embedding/bias is \[7\]"),
        (lambda a: a.pop("embedding/kernel"), "neither embedding/kernel nor"),
        (lambda a: a.update({"embedding/bias": np.zeros(D, np.int32)}), "embedding/bias is int32; weights"),
        (lambda a: [a.pop(k) for k in list(a) if "encoderblock" in k], r"without Transformer/encoderblock_0/"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_listed(tmp_path, change, message):
    arrays = filled(vit)
    change(arrays)
    with pytest.raises(CheckpointError, match=message):
        vitrail.load(write(tmp_path / "a.npz", arrays))


@pytest.mark.parametrize(
    "fields",
    [{"pool": "mean", "block": "axial"}, {"positions": "relative"}, {"positions_at": "every"},
     {"pool": "mean", "norm_at": "pooled"}, {"pool": "mean", "class_token": True}],
    ids=str,
)  # fmt: skip
def test_what_has_no_counterpart_is_refused_and_nothing_written(tmp_path, fields):
    with pytest.raises(CheckpointError, match="npz has no counterpart for"):
        vitrail.save(vitrail.create("mu/8", image_size=16, **fields), tmp_path / "a.npz", to="npz")
    assert not list(tmp_path.iterdir())


def test_what_the_reader_must_set_is_said(tmp_path, caplog):
    vitrail.save(
        vitrail.create("mu/8", image_size=16, activation="gelu", norm_eps=1e-5), tmp_path / "a.npz", to="npz"
    )
    assert "must set activation='gelu'" in caplog.text
    assert "must set norm_eps=1e-05" in caplog.text


def test_preprocessing_and_class_names_are_said_where_the_file_would_be_read_otherwise(tmp_path, caplog):
    published = vitrail.load(write(tmp_path / "published.npz", filled(vit)))
    vitrail.save(published, tmp_path / "again.npz", to="npz")
    assert not caplog.text
    ours = vitrail.load("ti8-64")
    vitrail.save(ours, tmp_path / "ours.npz", to="npz")
    assert f"prepare images as '{ours.preprocess}'" in caplog.text
    assert f"class names are not written: {ours.class_names[0]}; " in caplog.text
    assert "and 192 more" in caplog.text


def test_preprocessing_of_each_code(tmp_path):
    assert (
        vitrail.load(write(tmp_path / "a.npz", DIALECTS["original"])).preprocess
        == "resize(16)|to_range(-1, 1)"
    )
    assert "resize_small(18" in vitrail.load(write(tmp_path / "b.npz", DIALECTS["big_vision"])).preprocess


def test_provenance_names_the_file_only(tmp_path):
    checkpoint = google.read(write(tmp_path / "a.npz", DIALECTS["original"]))
    assert checkpoint.provenance["file"] == "a.npz"
    assert str(tmp_path) not in str(dataclasses.asdict(from_model(to_model(checkpoint)))["provenance"])


def test_channels_are_inferred_too(tmp_path):
    fields = {"image_size": 32, "channels": 1, "classes": 2}
    made = [vitrail.create("mu/8", **fields), vitrail.create("R50x1", units=(1,), width_factor=0.5, **fields)]
    for i, model in enumerate(made):
        vitrail.save(randomise(model), tmp_path / f"{i}.npz", to="npz")
        assert vitrail.load(tmp_path / f"{i}.npz").config.channels == 1


def test_a_model_in_half_precision_is_written_in_single(tmp_path):
    model = randomise(vitrail.create("mu/8", image_size=16, classes=2))
    vitrail.save(model.bfloat16(), tmp_path / "a.npz", to="npz")
    assert torch.equal(vitrail.load(tmp_path / "a.npz").cls, model.cls.float())
    assert vitrail.features(model, np.zeros((20, 20, 3), np.uint8)).dtype == np.float32


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cls": np.zeros((1, 1, D), np.longdouble)}, "weights are float16, bfloat16, float32 or float64"),
        ({"Transformer/encoderblock/x": np.zeros((10**9, 0), np.float32)}, "1000000000 layers; at most 1000"),
        ({"Transformer/encoderblock/LayerNorm_0/bias": np.zeros((2, D), np.float32)}, "holds twice Transformer/enc"),
        ({"Transformer/encoderblock/x": np.zeros((0, 3), np.float32)}, "extra Transformer/encoderblock/x"),
        ({"Transformer/encoderblock/x": np.zeros((), np.float32)}, "extra Transformer/encoderblock/x"),
    ],
)  # fmt: skip
def test_arrays_that_no_model_has(tmp_path, changes, message):
    with pytest.raises(CheckpointError, match=message):
        vitrail.load(write(tmp_path / "a.npz", filled(vit) | changes))


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((0, 0, 3, D), "patches of 0 pixels"),
        ((1, 1, 3, 12288), "positions 'sincos' of width 12288 for images"),
    ],
)
def test_fixed_positions_for_arrays_that_no_model_has(tmp_path, shape, message):
    arrays = filled(siglip, prefix="params/")
    del arrays["params/pos_embedding"]
    arrays["params/embedding/kernel"] = np.zeros(shape, np.float32)
    with pytest.raises(CheckpointError, match=message):
        vitrail.load(write(tmp_path / "a.npz", arrays))


# --- dialects that came with someone's model decide nothing but what files can have ---


WRONG = [
    {"prefix": "../../.."},
    {"prefix": "/"},
    {"prefix": "params"},
    {"prefix": 5},
    {"names": "zz"},
    {"names": ["linen"]},
    {"scan": 2},
    {"top": "no"},
    {"odd": 5},
    {"odd": [["cls", ["<f4", "C", None]]]},
    {"odd": {"cls": ["<f4"]}},
    {"odd": {"cls": ["O", "C", None]}},
    {"odd": {"cls": ["zzz", "C", None]}},
    {"odd": {"cls": [["<f4"], "C", None]}},
    {"odd": {"cls": ["<f4", "Q", None]}},
    {"odd": {"cls": ["<f4", "C", 5]}},
    {"odd": {"cls": ["<f4", "C", [-1, 1, 1, -32]]}},
    {"odd": {"embedding/kernel": ["<U100000", "C", None]}},
    {"odd": {"x" * 1000: ["<f4", "C", None]}},
]


@pytest.mark.parametrize("dialect", [*WRONG, {"strange": 1}, [1], None], ids=lambda d: str(d)[:40])
def test_nothing_is_written_in_a_dialect_that_no_file_has(tmp_path, dialect):
    model = vitrail.create("mu/8", image_size=16, classes=3)
    model.provenance = {"format": "npz", "dialect": dialect}
    with pytest.raises(CheckpointError, match="dialect"):
        vitrail.save(model, tmp_path / "m.npz", to="npz")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "dialect",
    [
        {},
        {"prefix": "opt/target/", "names": "linen", "scan": True, "top": True},
        {
            "prefix": "params/img/",
            "odd": {"cls": ["|V2", "F", None], "norm/scale": ["<f2", "C", [1, 1, 1, 8]]},
        },
    ],
)
def test_dialects_that_files_have(dialect):
    checkpoint = from_model(vitrail.create("mu/8", image_size=16, classes=3))
    checkpoint.provenance = {"format": "npz", "dialect": dialect}
    assert google.read_dialect(checkpoint).prefix == dialect.get("prefix", "")


def test_a_prefix_of_plain_words_is_kept(tmp_path):
    vitrail.save(vitrail.create("mu/8", image_size=16, classes=3), tmp_path / "a.npz", to="npz")
    arrays = {f"my-run/ema/{key}": a for key, a in read_npz(tmp_path / "a.npz").items()}
    np.savez(tmp_path / "b.npz", **arrays)
    vitrail.save(vitrail.load(tmp_path / "b.npz"), tmp_path / "c.npz", to="npz")
    assert set(read_npz(tmp_path / "c.npz")) == set(arrays)
