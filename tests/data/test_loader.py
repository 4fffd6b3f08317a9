"""A batch is the same whoever makes it."""

import os
import signal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vitrail.data.bad_files import BadFiles
from vitrail.data.loader import EXAMPLE, Loader, Order, View, generator
from vitrail.data.preprocess import parse
from vitrail.data.settings import DataSettings
from vitrail.data.sources import Example, open_source
from vitrail.errors import ConfigError, DataError, ImageError, TrainingError

TRAIN = parse("inception_crop(16)|flip_lr|uint8|randaugment(1, 10)|uint8|to_range(-1,1)")
PLAIN = parse("resize(16)|uint8|to_range(-1,1)")


class Pictures:
    """n small pictures in memory, some of them broken."""

    name, class_names = "pictures", ["even", "odd"]

    def __init__(self, n, broken=()):
        self.n, self.broken, self.labels = n, frozenset(broken), np.arange(n) % 2

    def __len__(self):
        return self.n

    def key(self, index):
        return f"picture-{index}"

    def read(self, index):
        if index in self.broken:
            raise ImageError(f"picture-{index}: scribbled over")
        pixels = np.random.default_rng(index).integers(0, 256, (20, 24, 3), np.uint8)
        return Example(pixels, int(self.labels[index]), self.key(index))

    def fingerprint(self):
        return str(self.n)


def draw_mask(rng):
    """A mask of 16 patches, and an order of them."""
    return {"mask": rng.random(16) < 0.5, "order": rng.permutation(16)}


MASKED = {"image": View(TRAIN, masks=draw_mask)}
MIXED = {"batch_size": 8, "mixup": 0.4, "cutmix": 1.0}


def load(source, views, *, seed=0, rank=0, world=1, evaluation=False, bad_files=None, **settings):
    where = {"seed": seed, "rank": rank, "world": world}
    return Loader(
        source, views, DataSettings(**settings), evaluation=evaluation, bad_files=bad_files, **where
    )


def steps(source, views=MASKED, *, start=0, stop=6, world=1, **settings):
    """The global batches of some steps, put together from the parts of `world` processes."""
    parts = [
        list(load(source, views, rank=rank, world=world, **settings).batches(start, stop))
        for rank in range(world)
    ]
    return [{k: torch.cat([part[k] for part in made]) for k in made[0]} for made in zip(*parts, strict=True)]


def assert_same(a, b):
    assert len(a) == len(b)
    for x, y in zip(a, b, strict=True):
        assert set(x) == set(y)
        for name in x:
            assert torch.equal(x[name], y[name]), name


@settings(max_examples=25)
@given(
    n=st.integers(1, 40), world=st.sampled_from([1, 2, 4, 8]), start=st.integers(0, 5), seed=st.integers(0, 2**40),
    mixup=st.sampled_from([0.0, 0.3]), cutmix=st.sampled_from([0.0, 1.0]),
)  # fmt: skip
def test_any_number_of_processes_and_any_first_step_give_the_same_batches(
    n, world, start, seed, mixup, cutmix
):
    mixing = {"batch_size": 8, "seed": seed, "mixup": mixup, "cutmix": cutmix}
    whole = steps(Pictures(n), **mixing)
    assert_same(steps(Pictures(n), world=world, start=start, **mixing), whole[start:])


@pytest.mark.filterwarnings("ignore:This DataLoader will create 4 worker processes")
@pytest.mark.parametrize("num_workers", [1, 4])
def test_any_number_of_workers_gives_the_same_batches(num_workers):
    shapes = open_source("shapes?n=60&image_size=24", "train")
    whole = steps(shapes, **MIXED)
    assert_same(steps(shapes, num_workers=num_workers, **MIXED), whole)
    assert_same(steps(shapes, num_workers=num_workers, start=3, world=2, **MIXED), whole[3:])


def test_one_step_directly():
    loader = load(Pictures(37), MASKED, **MIXED)
    assert_same([loader.batch(4)], list(loader.batches(4, 5)))


def test_another_seed_gives_other_batches_and_another_epoch_other_crops():
    a, b = steps(Pictures(37), seed=1, **MIXED), steps(Pictures(37), seed=2, **MIXED)
    assert not torch.equal(a[0]["index"], b[0]["index"])
    loader = load(Pictures(4), TRAIN, batch_size=4)
    first, second = loader.batch(0), loader.batch(1)
    crops = [batch["image"][batch["index"] == 2] for batch in (first, second)]
    assert not torch.equal(*crops)


LOCAL = parse("inception_crop(8, area=(0.05, 0.3))|flip_lr|uint8|to_range(-1,1)")
SEVERAL = {
    "image": View(TRAIN, count=2, masks=draw_mask),
    "local": View(LOCAL, count=3),
    "plain": View(PLAIN),
}


def test_two_views_of_an_example():
    source, views = Pictures(37), {"image": View(TRAIN), "other": View(TRAIN)}
    one, two = (load(source, v, batch_size=8, seed=3).batch(5) for v in (TRAIN, views))
    assert two["other"].shape == two["image"].shape == (8, 3, 16, 16)
    assert set(two) == {*one, "other"}
    for name in one:
        assert torch.equal(one[name], two[name]), name
    assert not (two["other"] == two["image"]).flatten(1).all(dim=1).any()


def test_several_draws_of_a_view():
    source = Pictures(37)
    one, several = (load(source, v, batch_size=8, seed=3).batch(5) for v in (MASKED, SEVERAL))
    assert several["image"].shape == (8, 2, 3, 16, 16)
    assert several["local"].shape == (8, 3, 3, 8, 8)
    assert several["plain"].shape == (8, 3, 16, 16)
    assert several["mask"].shape == several["order"].shape == (8, 2, 16)
    for name in ("image", "mask", "order"):
        assert torch.equal(several[name][:, 0], one[name]), name
        assert not torch.equal(several[name][:, 1], one[name]), name
    for a, b in ((0, 1), (0, 2), (1, 2)):
        assert not (several["local"][:, a] == several["local"][:, b]).flatten(1).all(dim=1).any()


def test_each_draw_has_a_key_of_its_own():
    """The number of a draw, counted over all views, extends the key of the example."""
    source = Pictures(37)
    batch = load(source, SEVERAL, batch_size=8, seed=3).batch(2)
    for slot, index in enumerate(batch["index"].tolist()):
        pixels = source.read(index).image
        keys = [generator(3, 0, index, EXAMPLE, number) for number in range(5)]
        drawn = [TRAIN(pixels, rng) for rng in keys[:2]] + [LOCAL(pixels, rng) for rng in keys[2:]]
        got = [*batch["image"][slot], *batch["local"][slot]]
        assert all(torch.equal(a, b) for a, b in zip(got, drawn, strict=True))
        assert torch.equal(batch["plain"][slot], PLAIN(pixels))


@pytest.mark.parametrize("world", [2, 8])
def test_several_views_are_the_same_on_any_number_of_processes(world):
    whole = steps(Pictures(37), SEVERAL, batch_size=8, seed=3)
    assert_same(steps(Pictures(37), SEVERAL, batch_size=8, seed=3, world=world, start=2), whole[2:])


def test_several_views_are_the_same_with_workers():
    shapes = open_source("shapes?n=60&image_size=24", "train")
    whole = steps(shapes, SEVERAL, batch_size=8)
    assert_same(steps(shapes, SEVERAL, batch_size=8, num_workers=2, start=3), whole[3:])


def test_a_broken_example_is_blank_in_all_its_views():
    broken = load(Pictures(37), SEVERAL, batch_size=8).batch(0)["index"][5].item()
    batch = load(Pictures(37, {broken}), SEVERAL, batch_size=8, max_bad=1.0).batch(0)
    assert batch["weight"].tolist() == [float(slot != 5) for slot in range(8)]
    for name in SEVERAL:
        assert batch[name][5].unique().numel() == 1


@pytest.mark.parametrize("views", [SEVERAL, {"image": View(TRAIN, count=2)}, {"other": View(TRAIN)}])
@pytest.mark.parametrize("mixing", [{"mixup": 0.2}, {"cutmix": 1.0}])
def test_only_one_image_of_an_example_is_mixed(views, mixing):
    with pytest.raises(ConfigError, match="mixup"):
        load(Pictures(37), views, batch_size=8, **mixing)


@given(st.integers(1, 50), st.integers(0, 2**32))
def test_every_epoch_is_a_permutation(n, seed):
    order = Order(n, seed)
    for epoch in range(3):
        places = [order.at(epoch * n + i) for i in range(n)]
        assert {e for e, _ in places} == {epoch}
        assert sorted(index for _, index in places) == list(range(n))


@given(st.integers(1, 40), st.integers(1, 5), st.sampled_from([1, 2, 3]))
def test_evaluation_counts_each_example_once_on_any_number_of_processes(n, per_process, world):
    seen, labels = [], {}
    for rank in range(world):
        loader = load(
            Pictures(n), PLAIN, batch_size=per_process * world, rank=rank, world=world, evaluation=True
        )
        for batch in loader.batches():
            assert batch["image"].shape == (per_process, 3, 16, 16)
            real = batch["weight"] > 0
            assert torch.equal(real, batch["index"] >= 0)
            seen += batch["index"][real].tolist()
            labels |= dict(zip(batch["index"][real].tolist(), batch["label"][real].tolist(), strict=True))
    assert sorted(seen) == list(range(n))
    assert all(label == index % 2 for index, label in labels.items())


def test_what_evaluation_makes_is_what_the_pipeline_makes():
    source = Pictures(5)
    (batch,) = load(source, PLAIN, batch_size=5, evaluation=True).batches()
    for i in range(5):
        assert torch.equal(batch["image"][i], PLAIN(source.read(i).image))


def test_mixup_is_a_weighted_mean_with_the_one_before_in_the_global_batch():
    plain = load(Pictures(8), PLAIN, batch_size=8, seed=5).batch(0)
    mixed = load(Pictures(8), PLAIN, batch_size=8, seed=5, mixup=0.5).batch(0)
    share = mixed["share"][:, None, None, None]
    assert 0.5 <= mixed["share"][0] < 1
    expected = share * plain["image"] + (1 - share) * plain["image"].roll(1, 0)
    torch.testing.assert_close(mixed["image"], expected)
    assert torch.equal(mixed["label"], plain["label"])
    assert torch.equal(mixed["partner_label"], plain["label"].roll(1))


def test_cutmix_shows_the_partner_inside_a_box_of_its_share():
    plain = load(Pictures(8), PLAIN, batch_size=8, seed=5).batch(0)
    mixed = load(Pictures(8), PLAIN, batch_size=8, seed=5, cutmix=1.0).batch(0)
    own = (mixed["image"] == plain["image"]).all(dim=1)
    partner = (mixed["image"] == plain["image"].roll(1, 0)).all(dim=1)
    assert (own | partner).all()
    torch.testing.assert_close(own.float().mean(dim=(1, 2)), mixed["share"])


def test_a_broken_example_keeps_its_slot_with_weight_0(tmp_path):
    whole = load(Pictures(200), PLAIN, batch_size=50).batch(1)
    broken = whole["index"][7].item()
    bad_files = BadFiles(200, path=tmp_path / "bad_files.jsonl")
    loader = load(Pictures(200, {broken}), PLAIN, batch_size=50, bad_files=bad_files)
    batch = loader.batch(1)
    assert torch.equal(batch["index"], whole["index"])
    assert batch["weight"].tolist() == [float(i != 7) for i in range(50)]
    others = batch["weight"] > 0
    assert torch.equal(batch["image"][others], whole["image"][others])
    assert batch["image"][7].unique().numel() == 1
    assert f"picture-{broken}: scribbled over" in (tmp_path / "bad_files.jsonl").read_text()


def test_a_broken_partner_is_not_mixed_in():
    whole = load(Pictures(200), PLAIN, batch_size=50, seed=1).batch(0)
    broken = whole["index"][7].item()
    for mixing in ({"mixup": 0.5}, {"cutmix": 1.0}, {"mixup": 0.5, "cutmix": 1.0}):
        batch = load(Pictures(200, {broken}), PLAIN, batch_size=50, seed=1, **mixing).batch(0)
        assert batch["share"][8] == 1
        assert torch.equal(batch["image"][8], whole["image"][8])
        assert batch["weight"][8] == 1 and batch["weight"][7] == 0


def test_too_many_broken_examples_stop_the_run_with_the_list():
    loader = load(Pictures(100, range(0, 100, 10)), PLAIN, batch_size=50)
    with pytest.raises(DataError, match=r"of 100 examples are broken, more than the 1.0% allowed.*scribbled"):
        list(loader.batches(0, 2))
    list(load(Pictures(100, range(0, 100, 10)), PLAIN, batch_size=50, max_bad=0.1).batches(0, 4))


def test_what_is_not_allowed():
    with pytest.raises(ConfigError, match=r"batch_size 8 .* 3 processes"):
        load(Pictures(3), PLAIN, batch_size=8, world=3)
    for where in ({"rank": 2, "world": 2}, {"rank": -1}, {"seed": -1}):
        with pytest.raises(ConfigError, match=r"-1|rank 2 of 2"):
            load(Pictures(3), PLAIN, **where)
    with pytest.raises(ConfigError, match=r"resize_small\(16\)"):
        load(Pictures(3), parse("resize_small(16)|uint8|to_range(-1,1)"))
    with pytest.raises(ConfigError, match="no randomness"):
        load(Pictures(3), TRAIN, evaluation=True)
    with pytest.raises(ConfigError, match="no randomness"):
        load(Pictures(3), {"image": View(PLAIN), "local": View(LOCAL)}, evaluation=True)
    with pytest.raises(DataError, match="pictures"):
        load(Pictures(0), PLAIN)


def test_a_device_that_is_not_there_is_refused_in_words():
    loader = load(Pictures(8), PLAIN, batch_size=4)
    missing = "mps" if torch.cuda.is_available() else "cuda"
    for name in (missing, torch.device(missing, 0)):
        with pytest.raises(ConfigError, match=f"device {missing}"):
            loader.batches(device=name)
    with pytest.raises(ConfigError, match="'tpu'"):
        loader.batches(device="tpu")
    assert next(loader.batches(device=torch.device("cpu")))["image"].device.type == "cpu"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_on_a_gpu_are_those_on_the_cpu(num_workers):
    source = open_source("shapes?n=60&image_size=24", "train")
    loader = load(source, MASKED, num_workers=num_workers, **MIXED)
    on_gpu = [{k: t.cpu() for k, t in batch.items()} for batch in loader.batches(2, 9, "cuda")]
    for gpu, cpu in zip(on_gpu, loader.batches(2, 9), strict=True):
        for name in cpu:
            torch.testing.assert_close(gpu[name], cpu[name], rtol=0, atol=1e-6)


class Deadly(Pictures):
    def read(self, index):
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_worker_that_is_killed_is_an_error_in_words():
    with pytest.raises(TrainingError, match="--num-workers"):
        next(load(Deadly(4), PLAIN, batch_size=2, num_workers=1).batches())
