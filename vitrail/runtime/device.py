"""Devices: which one to compute on, its name and its peak FLOPs."""

from __future__ import annotations

from typing import Literal

import torch

from vitrail.errors import ConfigError

Device = Literal["auto", "cpu", "cuda", "mps"]

# part of a GPU's name: its peak dense bf16 FLOPs per second, from the manufacturer's data sheet
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
USUAL_FLOPS = 100e12  # of a GPU that is not among these
UTILISATION = 0.3  # share of the peak that a model reaches without being compiled


def pick(device: Device = "auto") -> torch.device:
    """Return the named device, or with `auto` the GPU if there is one; raise ConfigError if it is not available."""
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if device == "auto":
        return torch.device(next(name for name in ("cuda", "mps", "cpu") if available[name]))
    if device not in available:
        raise ConfigError(f"device {device!r} is not one of auto, {', '.join(available)}")
    if not available[device]:
        raise ConfigError(
            f"device {device} is not available: torch finds none on this machine; use auto or cpu"
        )
    return torch.device(device)


def device_name(device: torch.device) -> str:
    """Return the product name of a GPU ("NVIDIA H200"), else "cpu" or "mps"."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def peak_flops(device: torch.device) -> float:
    """Return the peak FLOPs per second of a device; 0 if it is unknown."""
    return next((peak for part, peak in PEAK_FLOPS.items() if part in device_name(device)), 0.0)


def computing_seconds(flops: float, device: torch.device) -> float:
    """Estimate how long a GPU computes, in bf16 and without being compiled."""
    return flops / (UTILISATION * (peak_flops(device) or USUAL_FLOPS))
