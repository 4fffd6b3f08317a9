"""Images on the device give the batches that the Loader gives."""

import io

import numpy as np
import pytest
import torch
from PIL import Image

from vitrail.data.bad_files import BadFiles
from vitrail.data.loader import Loader, View
from vitrail.data.preprocess import parse
from vitrail.data.resident import ResidentLoader
from vitrail.data.settings import DataSettings
from vitrail.data.sources import Example
from vitrail.errors import ConfigError, DataError, ImageError

LINE = (
    "inception_crop(16, 12, area=(0.1, 1))|flip_lr|uint8|randaugment(2, 12, reach=0.1)|random_erasing(0.5, fill=grey)"
    "|uint8|to_range(-1, 1)"
)
MIXED = {"mixup": 0.4, "cutmix": 1.0}


class Drawings:
    """n drawings as PNG files, of sizes that differ where `ragged`; some broken, in the file or its reading."""

    name, class_names = "drawings", ["even", "odd"]

    def __init__(self, n=37, *, ragged=False, unreadable=(), undecodable=()):
        self.n, self.ragged, self.labels = n, ragged, np.arange(n) % 2
        self.unreadable, self.undecodable = frozenset(unreadable), frozenset(undecodable)

    def __len__(self):
        return self.n

    def key(self, index):
        return f"drawing-{index}"

    def read(self, index):
        if index in self.unreadable:
            raise ImageError(f"drawing-{index}: lost")
        size = (20 + index % 5, 24 - index % 3) if self.ragged else (20, 24)
        drawing = np.random.default_rng(index).integers(0, 256, (*size, 3), np.uint8)
        file = io.BytesIO()
        Image.fromarray(drawing).save(file, "png")
        data = b"not a drawing" if index in self.undecodable else file.getvalue()
        return Example(data, int(self.labels[index]), self.key(index))

    def fingerprint(self):
        return str(self.n)


def draw_mask(rng):
    return {"mask": rng.random(12) < 0.5}


def compare(source, views=LINE, steps=5, start=0, seed=0, rank=0, world=1, **settings):
    """Assert that the batches of both loaders agree, as far as the docstring of resident.py says."""
    views = parse(views) if isinstance(views, str) else views
    settings, where = DataSettings(**settings), {"seed": seed, "rank": rank, "world": world}
    one, other = (
        kind(source, views, settings, bad_files=BadFiles(len(source), 1.0), **where)
        for kind in (Loader, ResidentLoader)
    )
    for x, y in zip(one.batches(start, start + steps), other.batches(start, start + steps), strict=True):
        assert x.keys() == y.keys()
        for name in set(x) - {"image"}:
            assert torch.equal(x[name], y[name]), name
        good = x["weight"] > 0
        levels = (x["image"] - y["image"])[good].abs() * 127.5  # mixed images: fractions of a level
        assert levels.max() < 1.01
        assert (levels > 1e-3).float().mean() < 1e-3
    assert (
        one.bad_files.examples.keys() == other.bad_files.examples.keys()
        or steps * settings.batch_size < len(source)
    )


@pytest.mark.parametrize("mixing", [{}, {"mixup": 0.4}, MIXED])
@pytest.mark.parametrize("ragged", [False, True])
def test_the_batches_are_the_loaders(mixing, ragged):
    compare(Drawings(ragged=ragged), batch_size=8, seed=3, **mixing)


def test_from_any_step():
    compare(Drawings(), start=11, batch_size=8, **MIXED)


def test_with_workers_and_masks():
    views = {"image": View(parse(LINE), masks=draw_mask)}
    compare(Drawings(), views, steps=2, batch_size=8, num_workers=2, **MIXED)


@pytest.mark.parametrize("rank", [0, 1])
def test_each_process_has_its_part(rank):
    compare(Drawings(), batch_size=8, rank=rank, world=2, **MIXED)


def test_broken_images_have_no_weight_and_are_listed():
    source = Drawings(unreadable=[3], undecodable=[4, 20])
    compare(source, steps=2, batch_size=37, **MIXED)
    loader = ResidentLoader(source, parse(LINE), DataSettings(batch_size=37), bad_files=BadFiles(37, 0.1))
    batch = loader.batch(0)
    assert sorted(batch["index"][batch["weight"] == 0].tolist()) == [3, 4, 20]
    assert [bad.index for bad in loader.bad_files.examples.values()] == [3, 4, 20]
    with pytest.raises(DataError, match="3 of 37 examples are broken"):
        ResidentLoader(source, parse(LINE), DataSettings(batch_size=8)).batch(0)


def test_images_are_decoded_once():
    source = Drawings()
    reads = []
    source.read, read = lambda index: reads.append(index) or read(index), source.read
    loader = ResidentLoader(source, parse(LINE), DataSettings(batch_size=8))
    loader.batch(0), loader.batch(1)
    assert sorted(reads) == list(range(37))


def test_no_readable_image():
    loader = ResidentLoader(
        Drawings(2, unreadable=[0], undecodable=[1]),
        parse(LINE),
        DataSettings(batch_size=2),
        bad_files=BadFiles(2, 1.0),
    )
    with pytest.raises(DataError, match="no image can be read"):
        loader.batch(0)


@pytest.mark.parametrize(
    ("line", "op"),
    [
        ("inception_crop(16)|random_erasing|uint8|to_range(-1, 1)", "random_erasing"),
        ("inception_crop(16, method='pillow_bilinear')|uint8", "inception_crop"),
        ("inception_crop(16)|flip_lr|to_range(-1, 1)", "must end with uint8"),
    ],
)
def test_what_cannot_be_done_there_is_refused(line, op):
    with pytest.raises(ConfigError, match=op):
        ResidentLoader(Drawings(), parse(line), DataSettings(batch_size=8))


@pytest.mark.parametrize(
    "views",
    [
        {"image": View(parse(LINE), count=2)},
        {"image": View(parse(LINE)), "other": View(parse(LINE))},
        {"other": View(parse(LINE))},
    ],
)
def test_several_views_are_refused(views):
    with pytest.raises(ConfigError, match="resident"):
        ResidentLoader(Drawings(), views, DataSettings(batch_size=8))


def test_images_of_several_sizes_need_a_crop_first():
    line = "flip_lr|inception_crop(16)|uint8|to_range(-1, 1)"
    compare(Drawings(), line, batch_size=8)
    with pytest.raises(ConfigError, match="begin with inception_crop"):
        ResidentLoader(Drawings(ragged=True), parse(line), DataSettings(batch_size=8)).batch(0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.filterwarnings("ignore")  # of the compiler and its libraries
@pytest.mark.parametrize("compile", [False, True])
def test_on_a_gpu_they_are_those_on_the_cpu(compile):
    settings = DataSettings(batch_size=16, **MIXED)
    plain = "inception_crop(16, 12, area=(0.1, 1))|flip_lr|uint8|to_range(-1, 1)"
    for line, most in ((plain, 1.01), (LINE, 255)):  # RandAugment can make much of a level
        one = Loader(Drawings(), parse(line), settings, seed=1)
        other = ResidentLoader(Drawings(), parse(line), settings, seed=1, compile=compile)
        for x, y in zip(one.batches(0, 8), other.batches(0, 8, "cuda"), strict=True):
            levels = (x["image"] - y["image"].cpu()).abs() * 127.5
            assert levels.max() < most
            assert (levels > 1e-2).float().mean() < 2e-2
