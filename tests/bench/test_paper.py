"""Inference speed and the largest batch, as the paper's Figure 12 has them."""

from functools import partial

import pytest
import torch

from vitrail.bench import BenchSettings, paper
from vitrail.bench.paper import MODELS, SIZES, fitting_sizes, run_paper_bench

QUICK = BenchSettings(model="mu/16", rounds=1, round_seconds=0.001)


def full_from(batch_size, model, size, *rest):
    if size >= batch_size:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")
    return 100.0 * min(size, 4)


def test_the_largest_batch_is_the_last_before_the_memory_is_full(monkeypatch):
    monkeypatch.setattr(paper, "images_per_second", partial(full_from, 8))
    (cell,) = run_paper_bench(QUICK, (32,), "cpu").cells
    assert (cell.largest, cell.best) == (4, (4, 400.0))
    monkeypatch.setattr(paper, "images_per_second", partial(full_from, 1))
    (cell,) = run_paper_bench(QUICK, (32,), "cpu").cells
    assert (cell.largest, cell.best) == (0, (0, 0.0))  # not even one image


def test_other_errors_are_not_taken_for_a_full_memory(monkeypatch):
    monkeypatch.setattr(
        paper, "images_per_second", lambda *a: (_ for _ in ()).throw(RuntimeError("mat1 and mat2"))
    )
    with pytest.raises(RuntimeError, match="mat1"):
        run_paper_bench(QUICK, (32,), "cpu")


def test_every_model_has_every_size():
    sizes = {name: tuple(fitting_sizes(name, SIZES)) for name in MODELS}
    assert sizes["B/16"] == sizes["R50x1"] == SIZES
    assert sizes["H/14"] == (70, 126, 224, 378, 518)
