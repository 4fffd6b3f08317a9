"""Predictor: batches, order, a bounded queue, deadlines, errors of single images, closing."""

import threading
import time

import numpy as np
import pytest
import torch

from tests.serve.asking import picture
from vitrail.data.preprocess import parse
from vitrail.errors import ImageError
from vitrail.serve.metrics import Metrics
from vitrail.serve.predictor import Closed, Late, Outputs, Overloaded, Predictor, batch_sizes


class Means:
    """A model whose features are the mean colour; it computes when it is allowed to."""

    pipeline = parse("resize(8)|uint8|to_range(0, 1)")
    threads = 1

    def __init__(self, batch_size=4, computes_apart=False):
        self.batch_size, self.computes_apart = batch_size, computes_apart
        self.allowed, self.batches, self.closed = threading.Event(), [], False
        self.allowed.set()

    def load(self, image, name):
        return self.pipeline.load(image, name=name)

    def __call__(self, x):
        self.allowed.wait()
        self.batches.append(len(x))
        y = self.pipeline.device(x).mean(dim=(2, 3)).numpy()
        if np.isnan(y).any() or len(x) == 13:
            raise RuntimeError("out of order")
        return Outputs(y, None)

    def close(self):
        self.closed = True


@pytest.fixture(params=[False, True], ids=["cpu", "gpu"])
def means(request):
    return Means(computes_apart=request.param)


def start(compute, **limits):
    return Predictor(compute, "means", Metrics(), **limits)


def names(n):
    return [f"image {i}" for i in range(n)]


def test_each_image_has_its_own_answer(means):
    predictor = start(means)
    images = [picture(i) for i in range(9)]
    answers = [f.result(60).features for f in predictor.submit(images, names(9), 60)]
    for image, answer in zip(images, answers, strict=True):
        alone = means.pipeline.load(image)[None]
        assert np.allclose(answer, means.pipeline.device(alone).mean(dim=(2, 3)).numpy()[0], atol=1e-6)
    predictor.close()
    assert means.closed and sum(means.batches) == 9


def test_what_waits_is_computed_together(means):
    predictor = start(means)
    means.allowed.clear()
    futures = predictor.submit([picture()] * 20, names(20), 60)
    while len(predictor.ready) < means.batch_size and not (not means.computes_apart and predictor.waiting):
        time.sleep(0.001)
    means.allowed.set()
    for future in futures:
        future.result(60)
    predictor.close()
    assert max(means.batches) == means.batch_size


def test_batches_of_a_cpu_have_few_sizes():
    """Kernels keep memory for each size that they have seen."""
    compute = Means(batch_size=12)
    predictor = start(compute)
    for n in (1, 3, 7, 11, 12, 15, 29):
        for future in predictor.submit([picture()] * n, names(n), 60):
            future.result(60)
    predictor.close()
    assert sum(compute.batches) == 78 and set(compute.batches) <= set(batch_sizes(12)) == {1, 2, 4, 8, 12}
    assert batch_sizes(1) == [1] and batch_sizes(16) == [1, 2, 4, 8, 16]


def test_an_unreadable_image_is_an_error_of_its_own(means):
    predictor = start(means)
    good, bad, other = predictor.submit([picture(), b"no image", picture(1)], ["a", "b.txt", "c"], 60)
    assert good.result(60).features.shape == other.result(60).features.shape == (3,)
    with pytest.raises(ImageError, match=r"b\.txt"):
        bad.result(60)
    predictor.close()


def test_too_many_are_refused_at_once_and_nothing_of_them_is_queued():
    compute = Means()
    predictor = start(compute, max_waiting=5)
    compute.allowed.clear()
    accepted = predictor.submit([picture()] * 4, names(4), 60)
    with pytest.raises(Overloaded) as refused:
        predictor.submit([picture()] * 6, names(6), 60)
    assert refused.value.retry_after >= 1
    compute.allowed.set()
    for future in accepted:
        future.result(60)
    predictor.submit([picture()] * 5, names(5), 60)[-1].result(60)
    predictor.close()
    assert sum(compute.batches) == 9


def test_an_image_that_waits_too_long_is_given_up():
    compute = Means(batch_size=1)
    predictor = start(compute)
    compute.allowed.clear()
    first = predictor.submit([picture()], ["a"], 60)[0]
    late = predictor.submit([picture()], ["b"], 0.05)[0]
    time.sleep(0.2)
    compute.allowed.set()
    assert first.result(60) is not None
    with pytest.raises(Late):
        late.result(60)
    predictor.close()


def test_a_failure_of_the_model_fails_its_batch_and_no_more():
    compute = Means(batch_size=13)
    predictor = start(compute)
    compute.allowed.clear()
    first = predictor.submit([picture()], ["a"], 60)[0]
    while len(predictor):
        time.sleep(0.001)
    futures = predictor.submit([picture()] * 13, names(13), 60)
    compute.allowed.set()
    assert first.result(60) is not None
    with pytest.raises(RuntimeError):
        futures[0].result(60)
    assert 'result="failed"} 13' in predictor.metrics.text()
    assert predictor.submit([picture()], ["b"], 60)[0].result(60) is not None
    predictor.close()


def test_closing_answers_what_was_accepted_and_refuses_more(means):
    predictor = start(means)
    means.allowed.clear()
    futures = predictor.submit([picture()] * 6, names(6), 60)
    closing = threading.Thread(target=predictor.close)
    closing.start()
    while not predictor.closing:
        time.sleep(0.001)
    with pytest.raises(Closed):
        predictor.submit([picture()], ["late"], 60)
    means.allowed.set()
    closing.join(60)
    assert all(future.done() for future in futures) and not closing.is_alive()
    assert torch.tensor(futures[0].result().features).isfinite().all()
