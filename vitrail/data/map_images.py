"""Run a function over the images of a source, in threads.

    Source ──read, in this thread──► bytes or pixels ──function, in several threads──► results, in order

Reading stays in one thread, since sources share an open file; decoding releases the GIL, so that threads are enough.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np

from vitrail.data.bad_files import BadExample
from vitrail.data.sources import Source
from vitrail.errors import DataError

T = TypeVar("T")
Image = bytes | np.ndarray  # an encoded file, or uint8 (H, W, 3) RGB pixels


def map_images(
    source: Source,
    function: Callable[[Image, str], T],
    *,
    indices: range | None = None,
    threads: int | None = None,
    at_once: int = 64,
) -> Iterator[T | BadExample]:
    """Yield function(image, key) of each image in order; a BadExample where reading it, or the function, fails.

    `indices`: the examples to read (None: all). `threads`: None for one per core. `at_once`: images that are in
    memory together.
    """
    indices = range(len(source)) if indices is None else indices
    threads = threads or os.cpu_count() or 1

    def read(index: int) -> tuple[int, Image | BadExample]:
        try:
            return index, source.read(index).image
        except DataError as error:
            return index, BadExample(index, source.key(index), str(error))

    def apply(index: int, image: Image | BadExample) -> T | BadExample:
        try:
            return image if isinstance(image, BadExample) else function(image, source.key(index))
        except DataError as error:
            return BadExample(index, source.key(index), str(error))

    with ThreadPoolExecutor(threads) as pool:
        for start in range(0, len(indices), at_once):
            examples = [read(index) for index in indices[start : start + at_once]]
            # A share for each thread, not a task for each image: small images decode in less time than a task takes.
            size = -(-len(examples) // threads)
            shares = [examples[k : k + size] for k in range(0, len(examples), size)]
            for results in pool.map(lambda share: [apply(*example) for example in share], shares):
                yield from results
