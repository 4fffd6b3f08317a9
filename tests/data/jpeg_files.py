"""JPEG files by hand: damaged ones, and such as no encoder writes."""

from __future__ import annotations

import struct
from io import BytesIO

import numpy as np
from PIL import Image

END = b"\xff\xd9"


def picture(height: int = 160, width: int = 240, seed: int = 0) -> np.ndarray:
    """Something like a photograph: smooth, with edges and grain."""
    rng = np.random.default_rng(seed)
    small = Image.fromarray(rng.integers(0, 256, (height // 20 + 2, width // 20 + 2, 3), dtype=np.uint8))
    smooth = np.asarray(small.resize((width, height), Image.Resampling.BICUBIC), np.int16)
    return (smooth + rng.integers(-12, 13, smooth.shape)).clip(0, 255).astype(np.uint8)


def jpeg(pixels: np.ndarray | None = None, mode: str = "RGB", **options: object) -> bytes:
    file = BytesIO()
    Image.fromarray(picture() if pixels is None else pixels).convert(mode).save(file, "JPEG", **options)
    return file.getvalue()


def codes_at(data: bytes) -> int:
    """The place of the first code of the first scan."""
    at = 2
    while data[at + 1] != 0xDA:
        at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")


def segment(marker: int, body: bytes) -> bytes:
    return bytes([0xFF, marker]) + struct.pack(">H", len(body) + 2) + body


def many_scans(side: int, scans: list[tuple[int, int, int, int]]) -> bytes:
    """A grey progressive JPEG without detail: the DC, and scans of (first, last coefficient, bits before, after)."""
    blocks = (side // 8) ** 2
    head = segment(0xDB, b"\0" + b"\1" * 64) + segment(
        0xC2, struct.pack(">BHHB", 8, side, side, 1) + b"\1\x11\0"
    )
    # One code for a difference of 0, and one for the end of the next 16,384 blocks and more.
    tables = segment(0xC4, bytes([0x00, 1, *[0] * 15, 0x00])) + segment(
        0xC4, bytes([0x10, 1, *[0] * 15, 0xE0])
    )
    dc = segment(0xDA, b"\1\1\0\0\0\0") + bytes((blocks + 7) // 8)
    runs = [16384] * (blocks // 16384)
    assert sum(runs) == blocks, "a side of 1024, 2048, ..."
    bits = "".join("0" + format(run - 16384, "014b") for run in runs)
    bits += "1" * (-len(bits) % 8)
    codes = int(bits, 2).to_bytes(len(bits) // 8, "big")
    body = b"".join(
        segment(0xDA, bytes([1, 1, 0, a, b, high << 4 | low])) + codes for a, b, high, low in scans
    )
    return b"\xff\xd8" + head + tables + dc + body + END


def every_bit(times: int) -> list[tuple[int, int, int, int]]:
    """Legal scans: so many bits of each of the 63 coefficients, one by one."""
    return [
        (k, k, 0 if bit == times - 1 else bit + 1, bit)
        for bit in reversed(range(times))
        for k in range(1, 64)
    ]
