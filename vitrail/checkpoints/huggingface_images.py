"""transformers' preprocessor_config.json <-> our preprocessing line.

    do_resize, size, resample    {"height", "width"}: squash; {"shortest_edge"}: the short side; Pillow's numbers
    do_center_crop, crop_size
    do_rescale, rescale_factor   bytes to [0, 1], usually by 1/255
    do_normalize, image_mean, image_std

What the file does not say is as ViTImageProcessor has it.
"""

from __future__ import annotations

from typing import Any

from vitrail.checkpoints.json_kinds import checked
from vitrail.checkpoints.transforms import HALF, Transform, Triple, line_of, transform_of, triple
from vitrail.data import preprocess as pp
from vitrail.errors import ConfigError
from vitrail.models.vit import ViTConfig
from vitrail.runtime.log import note

RESAMPLE = {1: "lanczos", 2: "bilinear", 3: "bicubic"}  # Pillow's numbers
DEFAULTS: dict[str, Any] = {
    "do_resize": True, "resample": 2, "do_center_crop": False, "do_rescale": True, "rescale_factor": 1 / 255,
    "do_normalize": True, "image_mean": HALF, "image_std": HALF,
}  # fmt: skip

KINDS: dict[str, tuple[str, ...]] = {
    **{name: ("true or false",) for name in DEFAULTS if name.startswith("do_")},
    "do_pad": ("true or false",),
    "size": ("a whole number or an object of them",),
    "crop_size": ("a whole number or an object of them",),
    "resample": ("a whole number",),
    "rescale_factor": ("a number",),
    "image_mean": ("a list of numbers", "a number"),
    "image_std": ("a list of numbers", "a number"),
}


def read_images(card: dict[str, Any] | None, config: ViTConfig, where: str) -> str:
    """The line of the file, or of ViTImageProcessor without one; empty where there is none, which is noted."""
    if config.channels != 3:
        return ""
    settings = {"size": {"height": config.image_size[0], "width": config.image_size[1]}, **DEFAULTS}
    settings |= checked(card or {}, KINDS, where)
    try:
        pipeline = pp.parse(line_of(transform(settings)))
        if pipeline.image_size in (None, config.image_size):
            return str(pipeline)
        note(f"{where}: preprocessor_config.json is for {pipeline.image_size}; scaled to {config.image_size}")
        return str(pipeline.at(config.image_size))
    except ConfigError as error:
        note(f"{where}: what its preprocessor_config.json says has no counterpart here ({error})")
        return ""


def images_card(line: str) -> tuple[dict[str, Any] | None, list[str]]:
    """A preprocessor_config.json, None where there is none for this line; and what it cannot say."""
    t, notes = transform_of(line, "down")
    if t is None:
        return None, notes
    card: dict[str, Any] = {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": True,
        "size": {"shortest_edge": t.resize} if isinstance(t.resize, int) else named(t.resize),
        "resample": next(number for number, name in RESAMPLE.items() if name == t.method),
        "do_center_crop": t.crop is not None,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(t.mean),
        "image_std": list(t.std),
    }
    if t.crop is not None:
        card["crop_size"] = named(t.crop)
    return card, notes


def transform(settings: dict[str, Any]) -> Transform:
    if not settings["do_resize"] or settings.get("do_pad"):
        raise ConfigError("images are resized here, and not padded")
    size, resample = settings["size"], settings["resample"]
    if resample not in RESAMPLE:
        raise ConfigError(f"resample {resample!r} is none of Pillow's {RESAMPLE}")
    short = said(size).get("shortest_edge") if said(size).keys() == {"shortest_edge"} else None
    crop = sides(settings.get("crop_size"), "crop_size") if settings["do_center_crop"] else None
    resize = sides(size, "size") if short is None else short
    return Transform(resize, crop, RESAMPLE[resample], *values(settings), crop_rounding="down")


def values(settings: dict[str, Any]) -> tuple[Triple, Triple]:
    """mean and std of values in [0, 1]: (k x - mean) / std = (x - mean / k) / (std / k), x bytes over 255."""
    k = settings["rescale_factor"] * 255 if settings["do_rescale"] else 255.0
    k = 1.0 if abs(k - 1) < 1e-6 else k
    if k <= 0:
        raise ConfigError(f"rescale_factor {settings['rescale_factor']} is not above 0")
    if not settings["do_normalize"]:
        return triple(0.0), triple(1 / k)
    mean, std = (triple(numbers(settings[key])) for key in ("image_mean", "image_std"))
    return (mean[0] / k, mean[1] / k, mean[2] / k), (std[0] / k, std[1] / k, std[2] / k)


def numbers(value: Any) -> tuple[float, ...]:
    return (float(value),) if isinstance(value, int | float) else tuple(value)


def sides(size: Any, name: str) -> tuple[int, int]:
    """Height and width. One number, as old files have it, is a square."""
    if isinstance(size, int):
        return size, size
    if not {"height", "width"} <= said(size).keys():
        raise ConfigError(f"{name} {str(size)[:60]} does not say height and width")
    return size["height"], size["width"]


def said(size: Any) -> dict[str, int]:
    """The entries that are not null."""
    return {key: value for key, value in size.items() if value is not None} if isinstance(size, dict) else {}


def named(size: tuple[int, int]) -> dict[str, int]:
    return {"height": size[0], "width": size[1]}
