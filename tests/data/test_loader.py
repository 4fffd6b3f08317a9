"""A batch is the same whoever makes it."""

import os
import signal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vitrail.data.bad_files import BadFiles
from vitrail.data.loader import Loader, Loading
from vitrail.data.masking import Masking
from vitrail.data.order import Order
from vitrail.data.preprocess import parse
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


def steps(loading, *, n=37, start=0, stop=6, world=1, pipeline=TRAIN, source=None, **more):
    """The global batches of some steps, put together from the parts of `world` processes."""
    parts = []
    for rank in range(world):
        one = Loading(**{**loading, "rank": rank, "world": world, **more})
        parts.append(list(Loader(source or Pictures(n), pipeline, one).batches(start, stop)))
    return [{k: torch.cat([part[k] for part in made]) for k in made[0]} for made in zip(*parts, strict=True)]


def assert_same(a, b):
    assert len(a) == len(b)
    for x, y in zip(a, b, strict=True):
        assert set(x) == set(y)
        for name in x:
            assert torch.equal(x[name], y[name]), name


FULL = {"batch": 8, "mixup": 0.4, "cutmix": 1.0, "masking": Masking(16)}


@settings(max_examples=25)
@given(
    n=st.integers(1, 40), world=st.sampled_from([1, 2, 4, 8]), start=st.integers(0, 5), seed=st.integers(0, 2**40),
    mixup=st.sampled_from([0.0, 0.3]), cutmix=st.sampled_from([0.0, 1.0]),
)  # fmt: skip
def test_any_number_of_processes_and_any_first_step_give_the_same_batches(
    n, world, start, seed, mixup, cutmix
):
    loading = {**FULL, "seed": seed, "mixup": mixup, "cutmix": cutmix}
    whole = steps(loading, n=n)
    assert_same(steps(loading, n=n, world=world, start=start), whole[start:])


@pytest.mark.filterwarnings("ignore:This DataLoader will create 4 worker processes")
@pytest.mark.parametrize("workers", [1, 4])
def test_any_number_of_workers_gives_the_same_batches(workers):
    shapes = open_source("shapes?n=60&image_size=24", "train")
    whole = steps(FULL, source=shapes)
    assert_same(steps(FULL, source=shapes, workers=workers), whole)
    assert_same(steps(FULL, source=shapes, workers=workers, start=3, world=2), whole[3:])


def test_one_step_directly():
    loader = Loader(Pictures(37), TRAIN, Loading(**FULL))
    assert_same([loader.batch(4)], list(loader.batches(4, 5)))


def test_another_seed_gives_other_batches_and_another_epoch_other_crops():
    a, b = steps(FULL, seed=1), steps(FULL, seed=2)
    assert not torch.equal(a[0]["index"], b[0]["index"])
    loader = Loader(Pictures(4), TRAIN, Loading(batch=4))
    first, second = loader.batch(0), loader.batch(1)
    of = [batch["image"][batch["index"] == 2] for batch in (first, second)]
    assert not torch.equal(*of)


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
        loading = Loading(batch=per_process * world, rank=rank, world=world)
        for batch in Loader(Pictures(n), PLAIN, loading, evaluation=True).batches():
            assert batch["image"].shape == (per_process, 3, 16, 16)
            real = batch["weight"] > 0
            assert torch.equal(real, batch["index"] >= 0)
            seen += batch["index"][real].tolist()
            labels |= dict(zip(batch["index"][real].tolist(), batch["label"][real].tolist(), strict=True))
    assert sorted(seen) == list(range(n))
    assert all(label == index % 2 for index, label in labels.items())


def test_what_evaluation_makes_is_what_the_pipeline_makes():
    source = Pictures(5)
    (batch,) = Loader(source, PLAIN, Loading(batch=5), evaluation=True).batches()
    for i in range(5):
        assert torch.equal(batch["image"][i], PLAIN(source.read(i).image))


def test_mixup_is_a_weighted_mean_with_the_one_before_in_the_global_batch():
    plain = Loader(Pictures(8), PLAIN, Loading(batch=8, seed=5)).batch(0)
    mixed = Loader(Pictures(8), PLAIN, Loading(batch=8, seed=5, mixup=0.5)).batch(0)
    share = mixed["share"][:, None, None, None]
    assert 0.5 <= mixed["share"][0] < 1
    expected = share * plain["image"] + (1 - share) * plain["image"].roll(1, 0)
    torch.testing.assert_close(mixed["image"], expected)
    assert torch.equal(mixed["label"], plain["label"])
    assert torch.equal(mixed["partner_label"], plain["label"].roll(1))


def test_cutmix_shows_the_partner_inside_a_box_of_its_share():
    plain = Loader(Pictures(8), PLAIN, Loading(batch=8, seed=5)).batch(0)
    mixed = Loader(Pictures(8), PLAIN, Loading(batch=8, seed=5, cutmix=1.0)).batch(0)
    own = (mixed["image"] == plain["image"]).all(dim=1)
    partner = (mixed["image"] == plain["image"].roll(1, 0)).all(dim=1)
    assert (own | partner).all()
    torch.testing.assert_close(own.float().mean(dim=(1, 2)), mixed["share"])


def test_a_broken_example_keeps_its_slot_with_weight_0(tmp_path):
    whole = Loader(Pictures(200), PLAIN, Loading(batch=50)).batch(1)
    broken = whole["index"][7].item()
    bad_files = BadFiles(200, path=tmp_path / "bad_files.jsonl")
    loader = Loader(Pictures(200, {broken}), PLAIN, Loading(batch=50), bad_files=bad_files)
    batch = loader.batch(1)
    assert torch.equal(batch["index"], whole["index"])
    assert batch["weight"].tolist() == [float(i != 7) for i in range(50)]
    others = batch["weight"] > 0
    assert torch.equal(batch["image"][others], whole["image"][others])
    assert batch["image"][7].unique().numel() == 1
    assert f"picture-{broken}: scribbled over" in (tmp_path / "bad_files.jsonl").read_text()


def test_a_broken_partner_is_not_mixed_in():
    whole = Loader(Pictures(200), PLAIN, Loading(batch=50, seed=1)).batch(0)
    broken = whole["index"][7].item()
    for mixing in ({"mixup": 0.5}, {"cutmix": 1.0}, {"mixup": 0.5, "cutmix": 1.0}):
        batch = Loader(Pictures(200, {broken}), PLAIN, Loading(batch=50, seed=1, **mixing)).batch(0)
        assert batch["share"][8] == 1
        assert torch.equal(batch["image"][8], whole["image"][8])
        assert batch["weight"][8] == 1 and batch["weight"][7] == 0


def test_too_many_broken_examples_stop_the_run_with_the_list():
    loader = Loader(Pictures(100, range(0, 100, 10)), PLAIN, Loading(batch=50))
    with pytest.raises(DataError, match=r"of 100 examples are broken, more than the 1.0% allowed.*scribbled"):
        list(loader.batches(0, 2))
    list(Loader(Pictures(100, range(0, 100, 10)), PLAIN, Loading(batch=50, max_bad=0.1)).batches(0, 4))


def test_what_is_not_allowed():
    with pytest.raises(ConfigError, match="cannot be shared by 3 processes"):
        Loading(batch=8, world=3)
    with pytest.raises(ConfigError, match="a batch needs one"):
        Loader(Pictures(3), parse("resize_small(16)|uint8|to_range(-1,1)"), Loading())
    with pytest.raises(ConfigError, match="evaluation takes nothing random"):
        Loader(Pictures(3), TRAIN, Loading(), evaluation=True)
    with pytest.raises(DataError, match="no examples"):
        Loader(Pictures(0), PLAIN, Loading())


def test_a_device_that_is_not_there_is_refused_in_words():
    loader = Loader(Pictures(8), PLAIN, Loading(batch=4))
    missing = "mps" if torch.cuda.is_available() else "cuda"
    for name in (missing, torch.device(missing, 0)):
        with pytest.raises(ConfigError, match=f"device {missing} was asked for, but torch finds none"):
            loader.batches(device=name)
    with pytest.raises(ConfigError, match="device 'tpu' is not one of auto, cpu"):
        loader.batches(device="tpu")
    assert next(loader.batches(device=torch.device("cpu")))["image"].device.type == "cpu"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_on_a_gpu_are_those_on_the_cpu(workers):
    loader = Loader(
        open_source("shapes?n=60&image_size=24", "train"), TRAIN, Loading(**FULL, workers=workers)
    )
    on_gpu = [{k: t.cpu() for k, t in batch.items()} for batch in loader.batches(2, 9, "cuda")]
    for gpu, cpu in zip(on_gpu, loader.batches(2, 9), strict=True):
        for name in cpu:
            torch.testing.assert_close(gpu[name], cpu[name], rtol=0, atol=1e-6)


class Deadly(Pictures):
    def read(self, index):
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_worker_that_is_killed_is_an_error_in_words():
    with pytest.raises(TrainingError, match=r"a loader process was killed.*--workers"):
        next(Loader(Deadly(4), PLAIN, Loading(batch=2, workers=1)).batches())
