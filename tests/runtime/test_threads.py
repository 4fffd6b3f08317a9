import threading
import time

import pytest
import torch

from vitrail.runtime.threads import AHEAD, in_order


@pytest.fixture
def four_cores():
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_results_keep_their_order(four_cores, threads):
    def slow(i):
        time.sleep(0.02 if i % 3 == 0 else 0)
        return i * i

    assert list(in_order(slow, range(20), threads)) == [i * i for i in range(20)]


def test_the_threads_share_those_of_torch_and_leave_its_number_alone(four_cores):
    seen = set(in_order(lambda _: (threading.get_ident(), torch.get_num_threads()), range(20), 2))
    assert {number for _, number in seen} == {2} and threading.get_ident() not in dict(seen)
    assert torch.get_num_threads() == 4
    other = list(in_order(lambda _: torch.get_num_threads(), range(2), 4))
    assert other == [1, 1] and torch.get_num_threads() == 4


def test_items_are_drawn_a_little_ahead():
    drawn = []
    results = in_order(lambda i: i, (drawn.append(i) or i for i in range(100)), 2)
    next(results)
    assert len(drawn) == 2 * AHEAD
    results.close()


def test_an_exception_ends_it_and_nothing_more_is_computed():
    before, done = torch.get_num_threads(), []

    def fails(i):
        if i == 3:
            raise ValueError("three")
        done.append(i)

    with pytest.raises(ValueError, match="three"):
        list(in_order(fails, range(1000), 2))
    assert len(done) <= 3 + 2 * AHEAD and torch.get_num_threads() == before
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("vitrail")]
