"""Where the arithmetic runs."""

from __future__ import annotations

from typing import Literal

import torch

from vitrail.errors import ConfigError

Device = Literal["auto", "cpu", "cuda", "mps"]


def pick(device: Device = "auto") -> torch.device:
    """`auto`: the GPU where there is one. A device that was asked for and is not there is an error."""
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if device == "auto":
        return torch.device(next(name for name in ("cuda", "mps", "cpu") if there[name]))
    if device not in there:
        raise ConfigError(f"device {device!r} is not one of auto, {', '.join(there)}")
    if not there[device]:
        raise ConfigError(f"device {device} was asked for, but torch finds none on this machine")
    return torch.device(device)
