"""Work in several threads on the CPU, each with its own part of torch's threads.

On a CPU, n threads that each take a batch of their own are faster than n threads that share every product of one
batch: nothing waits for the slowest part of each operation, and what a thread computes stays in its core's cache.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch

T = TypeVar("T")
R = TypeVar("R")
AHEAD = 2  # items of each thread that are under way or done before the caller asks for them


def in_order(function: Callable[[T], R], items: Iterable[T], threads: int) -> Iterator[R]:
    """Yield function(item) of each item in order, computed in `threads` threads; 1: in this one.

    Together they use as many of torch's threads as this one does. The items are drawn in this thread.
    """
    if threads <= 1:
        yield from map(function, items)
        return
    cores = torch.get_num_threads()
    pool = ThreadPoolExecutor(threads, "vitrail", torch.set_num_threads, (max(1, cores // threads),))
    waiting: deque[Future[R]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) >= AHEAD * threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(
            cores
        )  # a thread sets its own number, but also that of MKL and of later threads
