"""How fine-tuning is done, where nothing else is said: four protocols.

    paper     appendix B.1.1 and the published code: SGD, batch 512, 384 px, Table 4's steps and rates by data size
    augreg    the published code's preset for AugReg's checkpoints: the paper's, but 500 steps at rate 0.03, whatever
              the size of the data
    bit       BiT-HyperRule: SGD, batch 512, the rate falling in stairs, image size by the size of the images
    default   for a person with a folder of photographs: a small batch, steps by data size, no higher resolution
              than the pictures and the machine call for

A protocol is a function of `Facts` and returns the fields of `Finetuning` that the person left open.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vitrail.train.sources import MEDIUM, SMALL, held_part


@dataclass(frozen=True)
class Facts:
    """What a protocol looks at."""

    examples: int  # to train on
    short_side: int  # of a typical image, in pixels
    area: int  # likewise
    image_size: int  # that the checkpoint was made for
    stride: int  # pixels from one patch to the next; 1 for ResNets
    value_op: str  # the end of the model's preprocessing line, as to_range(-1, 1)
    gpu: bool
    has_dropout: bool = True  # a ResNet has none


def paper(facts: Facts, image_size: int | None) -> dict[str, Any]:
    size = image_size or multiple(384, facts.stride)
    small, medium = facts.examples < SMALL, facts.examples < MEDIUM
    return {
        "image_size": size,
        "batch": 512,
        **length(facts),
        "decay": "cosine",
        "optimizer": "sgd",
        "rate": 0.01 if small else 0.03,
        "rates": (0.001, 0.003, 0.01, 0.03) if medium else (0.003, 0.01, 0.03, 0.06),
        "dev": held_part(facts.examples),
        "weight_decay": 0.0,
        "clip": 1.0,
        "mixup": 0.0,
        **no_dropout(facts),
        "preprocess": f"inception_crop({size})|flip_lr|{facts.value_op}",
        "evaluate_preprocess": f"resize({size})|{facts.value_op}",
    }


def augreg(facts: Facts, image_size: int | None) -> dict[str, Any]:
    return paper(facts, image_size) | {"steps": 500, "warmup": "20%", "rate": 0.03}


def bit(facts: Facts, image_size: int | None) -> dict[str, Any]:
    resize, crop = (160, 128) if facts.area < 96 * 96 else (512, 480)
    size = image_size or multiple(crop, facts.stride)
    small = facts.examples < SMALL
    return {
        "image_size": size,
        "batch": 512,
        **length(facts),
        "decay": "stairs",
        "stairs": ("40%", "60%", "80%") if small else ("30%", "60%", "90%"),  # of 500; of 10,000 or 20,000
        "optimizer": "sgd",
        "rate": 0.003,
        "rates": (0.001, 0.003, 0.01, 0.03),
        "dev": held_part(facts.examples),
        "weight_decay": 0.0,
        "clip": 0.0,
        "mixup": 0.0 if small else 0.1,
        **no_dropout(facts),
        "preprocess": f"resize({round(size * resize / crop)})|random_crop({size})|flip_lr|{facts.value_op}",
        "evaluate_preprocess": f"resize({size})|{facts.value_op}",
    }


def default(facts: Facts, image_size: int | None) -> dict[str, Any]:
    size = image_size or photo_size(facts)
    n = facts.examples
    batch = min(64, max(4, 2 ** ((n // 8).bit_length() - 1)))  # at least 8 steps in a pass
    epochs = 20 if n < 5_000 else 10 if n < 50_000 else 5
    return {
        "image_size": size,
        "batch": batch,
        "steps": max(200, epochs * n // batch),
        "warmup": "10%",
        "decay": "cosine",
        "optimizer": "sgd",
        "rate": 0.01,
        "rates": (0.001, 0.003, 0.01, 0.03),
        "dev": held_part(n),
        "weight_decay": 0.0,
        "clip": 1.0,
        "mixup": 0.0,
        "preprocess": f"inception_crop({size}, area=(0.25, 1))|flip_lr|uint8|{facts.value_op}",
        "evaluate_preprocess": "",
    }


def length(facts: Facts) -> dict[str, Any]:
    """By the size of the data, in the paper as in BiT-HyperRule: warm-ups of 100, 500 and 500 steps."""
    if facts.examples < SMALL:
        return {"steps": 500, "warmup": "20%"}
    return (
        {"steps": 10_000, "warmup": "5%"} if facts.examples < MEDIUM else {"steps": 20_000, "warmup": "2.5%"}
    )


def no_dropout(facts: Facts) -> dict[str, Any]:
    """Whatever the checkpoint was trained with."""
    return {"dropout": 0.0, "drop_path": 0.0} if facts.has_dropout else {}


def photo_size(facts: Facts) -> int:
    """On a GPU up to 12/7 of the checkpoint's size (224 -> 384), no larger than the pictures; else its own."""
    if not facts.gpu:
        return facts.image_size
    wanted = min(facts.image_size * 12 // 7, max(facts.image_size, facts.short_side))
    return multiple(wanted, facts.stride)


def multiple(size: int, stride: int) -> int:
    """The nearest size that the patches divide."""
    return max(1, round(size / stride)) * stride


PROTOCOLS = {"default": default, "paper": paper, "augreg": augreg, "bit": bit}
