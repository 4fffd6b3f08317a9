"""A long list of names in two flat arrays.

A million Python strings held by a data set would be touched, hence copied, by every forked worker that reads
them (the reference count lives in the string): memory would grow with every batch. Bytes in one array do not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np


class Names:
    """Read-only list of byte strings: `names[i]`, `len(names)`."""

    def __init__(self, names: Sequence[bytes]) -> None:
        self.bytes = np.frombuffer(b"".join(names), dtype=np.uint8)  # (total,)
        self.ends = np.cumsum([0, *map(len, names)], dtype=np.int64)  # (n + 1,)

    @classmethod
    def from_arrays(cls, data: np.ndarray, ends: np.ndarray) -> Names:
        """Restore names from the arrays `bytes` and `ends` that were kept in a file."""
        kinds = data.dtype == np.uint8 and ends.dtype == np.int64 and data.ndim == ends.ndim == 1
        spans = kinds and len(ends) > 0 and ends[0] == 0 and ends[-1] == len(data)
        if not spans or (ends[1:] < ends[:-1]).any():
            raise ValueError("these are not the arrays of a list of names")
        names = cls([])
        names.bytes, names.ends = data, ends
        return names

    def __len__(self) -> int:
        return len(self.ends) - 1

    def __getitem__(self, index: int) -> bytes:
        if not 0 <= index < len(self):
            raise IndexError(f"{index} in a list of {len(self)} names")
        return self.bytes[self.ends[index] : self.ends[index + 1]].tobytes()

    def __iter__(self) -> Iterator[bytes]:
        data = self.bytes.tobytes()
        return (data[start:stop] for start, stop in pairwise(self.ends.tolist()))


def printable(name: bytes) -> str:
    """Return a file name as text that can always be printed and stored: bytes that are not UTF-8 become \\\\xNN."""
    return name.decode("utf-8", "backslashreplace")
