"""The line and the pipeline: the grammar, the published pipelines, and the same bits for every user of a line."""

from __future__ import annotations

import importlib
import pickle
from io import BytesIO
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch.testing import assert_close

from tests.peers import torchvision_or_skip
from vitrail.data.augment import inception_box
from vitrail.data.decode import decode
from vitrail.data.preprocess import AUGMENTS, PRESETS, Pipeline, augmented_line, default_line, parse
from vitrail.errors import ConfigError, ImageError, VitrailError

EVAL = "resize_small(256)|central_crop(224)|uint8|to_range(-1, 1)"


def noise(height: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.fixture(scope="module")
def transforms() -> ModuleType:
    torchvision_or_skip()
    return importlib.import_module("torchvision.transforms")


# ---- the text ----


@pytest.mark.parametrize("line", [*PRESETS.values(), EVAL])
def test_a_line_comes_back_from_its_pipeline(line: str) -> None:
    pipeline = parse(line)
    assert str(pipeline) == line
    assert parse(str(pipeline)) == pipeline
    assert pickle.loads(pickle.dumps(pipeline)) == pipeline


@pytest.mark.parametrize(
    ("line", "canonical"),
    [
        (
            "resize_small(256)|central_crop(224)|to_range(-1,1)",
            "resize_small(256)|central_crop(224)|to_range(-1, 1)",
        ),
        (" resize( 224 , area ) | uint8() ", "resize(224, area)|uint8"),
        ("resize(224, 224, 'area')|to_range(0.0, 1.)", "resize(224, area)|to_range(0, 1)"),
        ("resize(area, 224, 320)", "resize(224, 320, area)"),
        ("resize(width=320, height=224)", "resize(224, 320)"),
        ("resize_small(256, rounding=down, method=area)", "resize_small(256, rounding=down)"),
        ("central_crop(8, nearest)", "central_crop(8, nearest)"),
        ("inception_crop(224, area=[0.05, 1])|flip_lr(0.5)", "inception_crop(224)|flip_lr"),
        ("inception_crop(8, aspect=(1, 2))", "inception_crop(8, aspect=(1, 2))"),
        ("uint8|normalize((0.5, 0.4, 0.3), 1)", "uint8|normalize((0.5, 0.4, 0.3), 1)"),
    ],
)
def test_ways_to_write_a_line(line: str, canonical: str) -> None:
    assert str(parse(line)) == canonical
    assert parse(canonical) == parse(line)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("resise(224)", "'resise'; the ops are resize, resize_small"),
        ("resize(224", "'resize(224' is not an op"),
        ("", "'' is not an op"),
        ("resize(224)||uint8", "'' is not an op"),
        ("resize(f(1))", "is not an op"),
        ("resize(__import__('os').getcwd())", "is not an op"),
        ("resize(**{'height': 2})", "is not an op"),
        ("a.b(1)", "is not an op"),
        ("resize", "height; resize takes (height, width=None, method=bilinear)"),
        ("resize(1, 2, 3)", "3 is one argument too many; resize takes (height, width=None, method=bilinear)"),
        ("resize(1, area, area)", "too many"),
        ("resize(1, height=2)", "too many"),
        ("resize(1, depth=2)", "depth"),
        ("resize(0)", "height is 0; allowed: a whole number from 1 to 16384"),
        ("resize(1.5)", "height is 1.5"),
        ("resize(True)", "height is True"),
        ("resize(99999999)", "height is 99999999"),
        ("resize(1, -1)", "width is -1"),
        ("resize(8, lanczos)", "method is 'lanczos'; allowed: bilinear, area, antialiased"),
        ("central_crop(8, up)", "rounding is 'up'; allowed: nearest, down"),
        ("to_range(0, 1e999)", "high is inf"),
        ("to_range(0, one)", "too many"),
        ("normalize((1, 2), 1)", "mean is (1, 2); allowed: one number, or three"),
        ("normalize(0, 0)", "std is 0"),
        ("inception_crop(8, area=(0, 1))", "area is (0, 1); allowed: (low, high) with 0 < low <= high <= 1"),
        ("inception_crop(8, area=(0.5, 2))", "area is (0.5, 2); allowed: (low, high)"),
        ("inception_crop(8, aspect=2)", "aspect is 2; allowed: (low, high)"),
        ("flip_lr(2)", "p is 2; allowed: a number from 0 to 1"),
        ("randaugment(0, 10)", "layers is 0"),
        ("randaugment(2, 99)", "magnitude is 99"),
        ("to_range(-1, 1)|uint8", "to_range sets the range of values"),
        ("resize(8)|resize(8, pillow_bilinear)", "resize(8, pillow_bilinear) takes bytes"),
        (
            "resize(8)|randaugment(2, 10)",
            "randaugment(2, 10) takes bytes",
        ),
        ("resize(100)|central_crop(128)", "central_crop(128) is larger than the output of resize(100)"),
        (
            "resize_small(100)|random_crop(128)",
            "random_crop(128) is larger than the output of resize_small(100)",
        ),
        ("(" * 900 + ")" * 900, "is not an op"),
        ("-" * 1900 + "1", "is not an op"),
        ("resize(" + "9" * 3000 + ")", "a preprocessing line of 3,008 characters"),
    ],
)
def test_a_wrong_line_says_what_is_wrong(line: str, says: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse(line)
    assert says in str(raised.value)
    assert len(line) > 2_000 or f"in the preprocessing line '{line}'" in str(raised.value)


@settings(max_examples=200)
@given(st.text(alphabet="resiz_malcop|(),=.-0123456789 '\"[]{}:*é\0\n", max_size=60))
def test_no_text_does_worse_than_a_config_error(line: str) -> None:
    try:
        pipeline = parse(line)
    except ConfigError:
        return
    assert parse(str(pipeline)) == pipeline


whole = st.integers(1, 500)
methods = st.sampled_from(["bilinear", "area"])
ops = st.one_of(
    st.builds("resize({}, {}, {})".format, whole, whole, methods),
    st.builds(
        "resize_small({}, {}, rounding={})".format, whole, methods, st.sampled_from(["nearest", "down"])
    ),
    st.builds("inception_crop({}, area=({}, 1))".format, whole, st.floats(1e-3, 1)),
    st.builds("flip_lr({})".format, st.floats(0, 1)),
    st.builds("crop({}, {}, {}, {})".format, whole, whole, whole, whole),
    st.builds("random_erasing({}, aspect=({}, 4))".format, st.floats(0, 1), st.floats(0.1, 4)),
    st.just("uint8"),
)
value_ops = st.one_of(
    st.builds("to_range({}, {})".format, st.floats(-1e3, 1e3), st.floats(-1e3, 1e3)),
    st.builds("normalize(({}, 0.1, 2), {})".format, st.floats(-1e3, 1e3), st.floats(1e-3, 1e3)),
)


@settings(max_examples=100)
@given(st.lists(ops, min_size=1, max_size=5), value_ops)
def test_text_and_pipeline_are_one_to_one(pixel_ops: list[str], value_op: str) -> None:
    pipeline = parse("|".join([*pixel_ops, value_op]))
    assert parse(str(pipeline)) == pipeline
    assert str(parse(str(pipeline))) == str(pipeline)


# ---- the published pipelines ----


def test_the_float_path_agrees_with_tensorflow(fixtures: Path) -> None:
    reference = np.load(fixtures / "preprocess.npz")
    top, left, height, width = reference["crop_box_top_left_height_width"]
    for line, name in [
        ("resize(32)|to_range(-1, 1)", "squash_32"),
        ("resize(96)|to_range(-1, 1)", "squash_96"),
        (f"crop({top}, {left}, {height}, {width})|resize(32)|to_range(-1, 1)", "crop_resize_32"),
        ("resize_small(40)|central_crop(32)|to_range(-1, 1)", "resize_small_area_40_centre_32"),
    ]:
        ours = parse(line)(reference["image"]).permute(1, 2, 0)
        np.testing.assert_allclose(ours, reference[name], atol=1e-5, rtol=0)


@settings(max_examples=40)
@given(
    st.integers(1, 90),
    st.integers(1, 90),
    st.integers(20, 40),
    st.sampled_from(["bilinear", "bicubic", "lanczos"]),
)
def test_torchvision_on_pil_images_bit_for_bit(
    transforms: ModuleType, height: int, width: int, short: int, method: str
) -> None:
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    theirs = transforms.Compose(
        [
            transforms.Resize(short, interpolation=transforms.InterpolationMode(method)),
            transforms.CenterCrop((20, 17)),
            transforms.ToTensor(),
            transforms.Normalize(mean, std),
        ]
    )
    crop = "central_crop(20, 17, nearest)"
    ours = parse(f"resize_small({short}, pillow_{method}, down)|{crop}|uint8|normalize({mean}, {std})")
    image = noise(height, width)
    assert_close(ours(image), theirs(Image.fromarray(image)), rtol=0, atol=1e-6)


@pytest.mark.parametrize("size", [(300, 401), (257, 256), (100, 700)])
def test_timm_presets(transforms: ModuleType, size: tuple[int, int]) -> None:
    data = importlib.import_module("timm.data")
    image = noise(*size)
    half = (0.5, 0.5, 0.5)
    for preset, options in [
        ("timm_eval", {"crop_pct": 0.875}),
        ("timm_vit_eval", {"crop_pct": 0.9, "mean": half, "std": half}),
    ]:
        theirs = data.create_transform(input_size=(3, 224, 224), interpolation="bicubic", **options)
        assert_close(parse(PRESETS[preset])(image), theirs(Image.fromarray(image)), rtol=0, atol=1e-6)


def test_transformers_preset(transforms: ModuleType) -> None:
    transformers = importlib.import_module("transformers")
    image = noise(300, 401)
    for processor, line, levels in [
        (transformers.ViTImageProcessorPil(), PRESETS["transformers_eval"], 0),
        (transformers.ViTImageProcessor(), "resize(224, torch_bilinear)|uint8|normalize(0.5, 0.5)", 0),
        (transformers.ViTImageProcessor(), PRESETS["transformers_eval"], 2),  # torch's resize, not Pillow's
    ]:
        theirs = processor(Image.fromarray(image), return_tensors="np")["pixel_values"][0]
        np.testing.assert_allclose(parse(line)(image), theirs, atol=levels * 2 / 255 + 1e-6)


@settings(max_examples=100)
@given(st.integers(1, 3000), st.integers(1, 3000), st.integers(1, 600))
def test_resize_small_keeps_the_short_side(height: int, width: int, short: int) -> None:
    for rounding in ("nearest", "down"):
        (op,) = parse(f"resize_small({short}, rounding={rounding})").pixel_ops
        size = op.size((height, width))
        assert size is not None
        assert min(size) == short
        assert abs(max(size) - short * max(height, width) / min(height, width)) <= (
            0.51 if rounding == "nearest" else 1
        )


def test_the_two_roundings_differ_where_published_code_does() -> None:
    image = noise(100, 167)  # 50 x 83.5: big_vision 84 (half to even), torchvision 83
    assert parse("resize_small(50)")(image).shape == (3, 50, 84)
    assert parse("resize_small(50, rounding=down)")(image).shape == (3, 50, 83)
    image = noise(13, 13)  # offsets of 1.5
    np.testing.assert_array_equal(
        parse("central_crop(10)|uint8").host(image).permute(1, 2, 0), image[1:11, 1:11]
    )
    np.testing.assert_array_equal(
        parse("central_crop(10, nearest)|uint8").host(image).permute(1, 2, 0), image[2:12, 2:12]
    )


def test_uint8_rounds_half_to_even_and_clips() -> None:
    (op,) = parse("uint8").pixel_ops
    values = np.array([[[-1.0, 0.5, 1.5], [2.5, 254.5, 255.5], [300.0, 3.49, 3.51]]], np.float32)
    assert op(values, None).tolist() == [[[0, 0, 2], [2, 254, 255], [255, 3, 4]]]
    (down,) = parse("uint8(down)").pixel_ops
    assert down(values, None).tolist() == [[[0, 0, 1], [2, 254, 255], [255, 3, 3]]]


def test_values() -> None:
    image = np.array([[[0, 51, 255]]], np.uint8)
    assert parse("to_range(-1, 1)")(image).flatten().tolist() == pytest.approx([-1, -0.6, 1])
    assert parse("uint8|to_range(0, 10)")(image).flatten().tolist() == pytest.approx([0, 2, 10])
    assert parse("normalize((0, 0.1, 0.5), (1, 2, 0.5))")(image).flatten().tolist() == pytest.approx(
        [0, 0.05, 1]
    )
    assert parse("uint8")(image).flatten().tolist() == [0, 51, 255]


# ---- the same pixels for everyone ----


@pytest.mark.parametrize("line", [*PRESETS.values(), EVAL, "resize(20, 30, torch_bicubic)|uint8"])
def test_alone_in_a_batch_and_from_the_file(line: str) -> None:
    pipeline = parse(line).at((32, 32))
    images = [noise(60 + 7 * i, 90 - 5 * i, seed=i) for i in range(5)]
    alone = [pipeline(image, rng(i)) for i, image in enumerate(images)]
    host = [pipeline.host(image, rng(i)) for i, image in enumerate(images)]
    assert {x.dtype for x in host} == {torch.uint8 if pipeline.crosses_as_bytes else torch.float32}
    together = pipeline.device(torch.stack(host))
    assert together.dtype == torch.float32
    assert together.shape == (5, 3, 32, 32)
    for i, image in enumerate(images):
        assert_close(together[i], alone[i], rtol=0, atol=1e-6)
        assert_close(pipeline.device(host[i][None])[0], alone[i], rtol=0, atol=1e-6)
        file = BytesIO()
        Image.fromarray(image).save(file, "PNG")
        assert_close(pipeline.load(file.getvalue(), rng(i)), host[i], rtol=0, atol=1e-6)


@pytest.mark.parametrize("line", [PRESETS["official_train"], PRESETS["big_vision_pretrain_medium"]])
def test_a_crop_of_a_jpeg_is_that_of_its_decoded_pixels(line: str) -> None:
    pipeline = parse(line).at((32, 32))
    for i in range(20):
        file = BytesIO()
        Image.fromarray(noise(120, 90, seed=i)).save(file, "JPEG", progressive=i % 4 == 0)
        expected = pipeline.host(decode(file.getvalue()), rng(i))
        assert_close(pipeline.load(file.getvalue(), rng(i)), expected, rtol=0, atol=1e-6)
        with pytest.raises(ImageError, match=r"^cut\.jpg: "):
            pipeline.load(file.getvalue()[:-500], rng(i), name="cut.jpg")


@pytest.mark.parametrize("size", [b"\0\0\0\x5a", b"\0\x78\0\0", b"\xff\xff\xff\xff"])
def test_a_jpeg_of_no_size_or_too_much_is_an_image_error(size: bytes) -> None:
    file = BytesIO()
    Image.fromarray(noise(120, 90)).save(file, "JPEG")
    data = file.getvalue()
    assert data.count(b"\0\x78\0\x5a") == 1
    with pytest.raises(ImageError, match=r"^bad\.jpg: "):
        parse("inception_crop(32)|uint8").load(data.replace(b"\0\x78\0\x5a", size), rng(), name="bad.jpg")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_device_makes_the_values_of_the_host() -> None:
    batch = torch.from_numpy(rng().integers(0, 256, (8, 3, 33, 35), dtype=np.uint8))
    for line in (
        EVAL,
        PRESETS["torchvision_eval"],
        "uint8|normalize((0.481, 0.457, 0.408), (0.268, 0.261, 0.275))",
    ):
        pipeline = parse(line)
        assert_close(pipeline.device(batch.cuda()).cpu(), pipeline.device(batch), rtol=0, atol=1e-6)


def test_the_fast_antialiased_crop_is_the_plain_one_to_a_level() -> None:
    file = BytesIO()
    y, x = np.mgrid[0:300, 0:400]
    waves = np.stack([np.sin(x / 9), np.sin(y / 7), np.sin((x + 2 * y) / 5)], axis=2)
    Image.fromarray((waves * 127 + 128).astype(np.uint8)).save(file, "JPEG")
    whole = Image.open(BytesIO(file.getvalue())).convert("RGB")
    for seed in range(10):
        ours = parse("inception_crop(96, torch_bilinear)|uint8").load(file.getvalue(), rng(seed))
        top, left, h, w = inception_box(300, 400, rng(seed))
        cut = whole.crop((left, top, left + w, top + h))
        plain = np.asarray(cut.resize((96, 96), Image.Resampling.BILINEAR)).transpose(2, 0, 1)
        assert np.abs(ours.numpy().astype(int) - plain).mean() < 0.5


@settings(max_examples=60)
@given(
    st.integers(1, 120),
    st.integers(1, 120),
    st.sampled_from(["resize(40, 50, {})", "resize_small(40, {})", "resize_small(40, {}, down)"]),
    st.sampled_from(["bilinear", "area", "pillow_bicubic", "torch_bilinear"]),
    st.sampled_from(["central_crop(33)", "central_crop(40, 21, nearest)", "central_crop(1)"]),
)
def test_a_resize_that_is_then_cropped(height: int, width: int, resize: str, method: str, crop: str) -> None:
    line = f"{resize.format(method)}|{crop}"
    image = noise(height, width)
    expected = image
    for op in parse(line).pixel_ops:
        expected = op(expected, None)
    np.testing.assert_array_equal(parse(line)(image).permute(1, 2, 0), expected)


def test_the_input_is_left_alone() -> None:
    for line in ("uint8", "crop(0, 0, 4, 4)|uint8", "flip_lr(1)|uint8", "random_erasing(1)|uint8"):
        image = noise(8, 8)
        before = image.copy()
        parse(line).host(image, rng()).zero_()
        np.testing.assert_array_equal(image, before)
    image.flags.writeable = False
    assert parse("uint8")(image).shape == (3, 8, 8)


def test_a_random_line_needs_a_generator() -> None:
    pipeline = parse("random_crop(4)|uint8")
    with pytest.raises(ConfigError, match="needs a numpy Generator"):
        pipeline(noise(8, 8))
    assert parse(EVAL).random is False


def test_an_image_that_does_not_fit_is_named() -> None:
    file = BytesIO()
    Image.fromarray(noise(8, 8)).save(file, "PNG")
    with pytest.raises(ImageError, match=r"x\.png: an image of 8 x 8 has no rectangle of 9 x 9"):
        parse("central_crop(9)").load(file.getvalue(), name="x.png")
    with pytest.raises(VitrailError, match="no rectangle"):
        parse("random_crop(9)")(noise(8, 8), rng())


# ---- sizes ----


@pytest.mark.parametrize(
    ("line", "size"),
    [
        (EVAL, (224, 224)),
        ("resize(32, 48)|flip_lr", (32, 48)),
        ("resize_small(32)", None),
        ("resize(64, 32)|resize_small(16)", (32, 16)),
        ("uint8", None),
        ("crop(1, 2, 3, 4)", (3, 4)),
    ],
)
def test_image_size(line: str, size: tuple[int, int] | None) -> None:
    assert parse(line).image_size == size


@pytest.mark.parametrize(
    ("line", "size", "expected"),
    [
        (EVAL, (384, 384), "resize_small(439)|central_crop(384)|uint8|to_range(-1, 1)"),
        (EVAL, (384, 192), "resize_small(439)|central_crop(384, 192)|uint8|to_range(-1, 1)"),
        ("resize(384)|to_range(-1, 1)", (224, 448), "resize(224, 448)|to_range(-1, 1)"),
        ("resize(160)|random_crop(128)|flip_lr", (96, 96), "resize(120)|random_crop(96)|flip_lr"),
        ("inception_crop(224)|uint8", (96, 96), "inception_crop(96)|uint8"),
        ("crop(0, 0, 50, 50)|resize(224)", (96, 96), "crop(0, 0, 50, 50)|resize(96)"),
        ("resize(40)|crop(0, 0, 35, 35)", (70, 70), "resize(80)|crop(0, 0, 70, 70)"),
    ],
)
def test_at_another_size(line: str, size: tuple[int, int], expected: str) -> None:
    there = parse(line).at(size)
    assert str(there) == expected
    assert there.image_size == size


@pytest.mark.parametrize("line", ["resize_small(256)", "central_crop(224)", "resize(9)|crop(1, 0, 8, 8)"])
def test_a_line_without_a_size_has_no_other(line: str) -> None:
    with pytest.raises(ConfigError):
        parse(line).at((96, 96))


@settings(max_examples=60)
@given(st.integers(1, 1000), st.integers(1, 1000))
def test_default_line_makes_its_size(height: int, width: int) -> None:
    for size in ((height, width), (height, height)):
        line = default_line(size)
        assert parse(line).image_size == size
        assert str(parse(line)) == line
    assert default_line((224, 224)) == EVAL
    assert default_line((96, 128)) == "resize(96, 128, area)|uint8|to_range(-1, 1)"


def test_presets_are_pipelines() -> None:
    for line in PRESETS.values():
        pipeline = parse(line)
        assert isinstance(pipeline, Pipeline)
        assert pipeline.image_size is not None


# ---- strengths of augmentation ----


@pytest.mark.parametrize("size", [(32, 32), (32, 48)])
def test_lines_by_strength_make_the_size_and_keep_the_range(size: tuple[int, int]) -> None:
    own = f"resize({size[0]}, {size[1]})|normalize(0.5, 0.5)"
    lines = {name: parse(augmented_line(name, own, size)) for name in ("none", *AUGMENTS)}
    assert str(lines["none"]) == str(parse(own))
    for name, line in lines.items():
        assert (line.image_size, line.value_op, line.random) == (size, parse(own).value_op, name != "none")
        assert line(noise(40, 60), rng() if line.random else None).shape == (3, *size)


def test_stronger_augmentation_changes_more_of_an_image() -> None:
    """Standard deviation of a pixel of one image over draws."""
    image, own = (
        np.tile(np.linspace(0, 255, 64, dtype=np.uint8)[:, None, None], (1, 64, 3)),
        default_line((32, 32)),
    )
    spread = []
    for name in ("none", *AUGMENTS):
        line = parse(augmented_line(name, own, (32, 32)))
        draws = [line(image, rng(seed) if line.random else None) for seed in range(60)]
        spread.append(float(torch.stack(draws).std(dim=0).mean()))
    assert spread == sorted(spread) and spread[0] == 0


def test_images_of_any_shape_are_not_cropped() -> None:
    own = "fit_patches(16, 8)|uint8|to_range(-1, 1)"
    assert augmented_line("light", own, (32, 32)) == f"flip_lr|{own}"
    assert augmented_line("medium", own, (32, 32)) == f"flip_lr|randaugment(2, 10)|{own}"
