"""Damage as disks and transfers do it."""

from __future__ import annotations

import random


def damaged(content: bytes, rng: random.Random) -> bytes:
    """Other bytes: one bit changed, some bytes exchanged for noise or zeros, some lost, the end lost."""
    at, length = rng.randrange(len(content)), rng.choice([1, 4, 100])
    noise = rng.choice([bytes(length), rng.randbytes(length)])
    changed = rng.choice(
        [
            content[:at] + bytes([content[at] ^ (1 << rng.randrange(8))]) + content[at + 1 :],
            content[:at] + noise + content[at + length :],
            content[:at] + content[at + length :],
            content[:at],
        ]
    )
    return damaged(content, rng) if changed == content else changed
