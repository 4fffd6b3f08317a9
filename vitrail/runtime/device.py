"""Where the arithmetic runs."""

from __future__ import annotations

from typing import Literal

import torch

from vitrail.errors import ConfigError

Device = Literal["auto", "cpu", "cuda", "mps"]

# part of a GPU's name: its dense bf16 multiply-adds as FLOPs a second, from the maker's data sheet
PEAK_FLOPS = {
    "B200": 2250e12,
    "H200": 989e12,
    "H100": 989e12,
    "A100": 312e12,
    "L40S": 362e12,
    "L40": 181e12,
    "L4": 121e12,
    "4090": 165e12,
    "3090": 71e12,
    "V100": 125e12,
    "T4": 65e12,
}


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


def device_name(device: torch.device) -> str:
    """As its maker calls it ("NVIDIA H200"); else cpu, mps."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def peak_flops(device: torch.device) -> float:
    """0 where it is not known."""
    return next((peak for part, peak in PEAK_FLOPS.items() if part in device_name(device)), 0.0)
