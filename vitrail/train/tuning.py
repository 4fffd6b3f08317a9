"""Which parameters a run trains, and what that leaves to compute.

    all       every parameter
    head      the head alone
    last:N    the last N layers, what reads them, and the head
    lora:R    adapters of rank R beside the dense layers (models/adapters.py), and the head

`freeze` keeps further parameters fixed, by the prefixes of their names. What an objective owns besides the model is
always trained.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple, cast

import torch
from torch import nn

from vitrail.errors import ConfigError
from vitrail.models.adapters import DOWN, UP, Adapted, adapt
from vitrail.models.cost import cost, layer_cost
from vitrail.models.names import Config, build
from vitrail.models.resnet import BiTConfig

Kind = Literal["all", "head", "last", "lora"]


class Tune(NamedTuple):
    """A value of the setting `tune`."""

    kind: Kind
    number: int = 0  # of last layers; rank of adapters


class TrainingCost(NamedTuple):
    """The needs of training, for an image."""

    trained: int  # parameters that learn
    fixed: int  # the others
    flops: int  # forward and backward
    activations: int  # values kept for the backward pass


def parse_tune(text: str) -> Tune:
    match = re.fullmatch(r"(all|head|last:|lora:)([1-9][0-9]{0,4})?", text)
    if match is None or match[1].endswith(":") == (match[2] is None):
        raise ConfigError(
            f"tune {text!r} is not one of all, head, last:N (the last N layers and the head), lora:R (adapters of "
            "rank R and the head)"
        )
    return Tune(cast(Kind, match[1].rstrip(":")), int(match[2] or 0))


def select(model: nn.Module, tune: str, freeze: Sequence[str] = ()) -> None:
    """Let the chosen parameters of a model require gradients, and no others; add adapters for them."""
    mark_trained(model, tune, freeze)
    classifier = dict(model.named_parameters()).get("head.classifier.weight")
    if classifier is not None and not classifier.requires_grad and not classifier.any():
        raise ConfigError(
            f"freeze {', '.join(freeze)}: the head is new and all zeros, so no gradient reaches the layers below; "
            "freeze other parts (tune head trains only the head)"
        )


def mark_trained(model: nn.Module, tune: str, freeze: Sequence[str]) -> None:
    kind, number = parse_tune(tune)
    layers = find_layers(name for name, _ in model.named_parameters())
    depth = max(layers.values())
    if kind == "last" and not any(name.startswith("encoder.blocks.") for name in layers):
        raise ConfigError(f"tune {tune}: this model has no Transformer layers; use all, head, or freeze")
    if kind == "last" and number > depth:
        raise ConfigError(f"tune {tune}: the model has {depth} layers")
    if kind == "lora":
        adapt(model, number)
    for name, p in model.named_parameters():
        in_last = kind == "last" and layers[name] >= depth - number
        adapter = kind == "lora" and name.endswith((DOWN, UP))
        p.requires_grad_(kind == "all" or name.startswith("head.") or in_last or adapter)
    fix(model, freeze)
    if not any(p.requires_grad for p in model.parameters()):
        but = f" with freeze {', '.join(freeze)}" if freeze else ""
        raise ConfigError(f"tune {tune}{but} leaves nothing to train")


def fix(model: nn.Module, prefixes: Sequence[str]) -> None:
    """Freeze the parameters whose names begin with a prefix of whole words."""
    for part in prefixes:
        fixed = [p for name, p in model.named_parameters() if f"{name}.".startswith(f"{part}.")]
        if not fixed:
            first = ", ".join(dict.fromkeys(name.split(".")[0] for name, _ in model.named_parameters()))
            raise ConfigError(f"freeze {part!r}: no parameter has this prefix; there are {first}")
        for p in fixed:
            p.requires_grad_(False)


def find_layers(names: Iterable[str]) -> dict[str, int]:
    """Return the layer 0 ... L - 1 of each parameter: -1 for what feeds them, L for what reads them. A table of
    positions at each layer goes with its layer, one that all layers share with the first."""
    layers: dict[str, int | None] = {}
    for name in names:
        # The stem of a hybrid is below all layers, as the embedding that reads it.
        below = re.search(r"(^|\.)(embedding|cls|positions|stem|root|mask)(\.|$)", name)
        match = re.search(r"(?:encoder\.(?:blocks|positions)|stages)\.(\d+)\.", name)
        in_layer = match is not None and ".stem." not in f".{name}"
        layers[name] = int(match[1]) if match is not None and in_layer else -1 if below else None
    depth = 1 + max((layer for layer in layers.values() if layer is not None), default=-1)
    return {name: depth if layer is None else layer for name, layer in layers.items()}


def training_cost(config: Config, tune: str, freeze: Sequence[str] = ()) -> TrainingCost:
    """Count what training needs for an image.

    The backward pass computes gradients of the weights that learn, and of the tokens down to the lowest of them; each
    costs as much as the forward pass. What `freeze` saves is counted in the parameters alone.
    """
    c, (kind, number) = cost(config), parse_tune(tune)
    with torch.device("meta"):
        model = build(config)
        mark_trained(model, tune, freeze)
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    fixed = sum(p.numel() for p in model.parameters()) - trained
    if kind == "all":
        return TrainingCost(trained, fixed, c.training_flops, c.activations)
    head = sum(p.numel() for name, p in model.named_parameters() if name.startswith("head."))
    if isinstance(config, BiTConfig) or kind == "head":
        return TrainingCost(trained, fixed, c.flops + 4 * head, config.width)
    layer, T, D, L = layer_cost(config), config.tokens, config.width, config.depth
    if kind == "last":
        macs, activations = number * layer.macs + head, number * layer.activations + T * D
        return TrainingCost(trained, fixed, c.flops + 4 * macs, activations)
    # In q k^T and A v both factors have gradients; in a dense layer with fixed weights only the tokens.
    adapted = [part for part in model.modules() if isinstance(part, Adapted)]
    dense = sum(part.base.weight.numel() for part in adapted)
    adapters = sum(part.down.weight.numel() + part.up.weight.numel() for part in adapted)
    flops = c.flops + 2 * T * dense + 4 * (L * layer.macs - T * dense) + 6 * T * adapters + 4 * head
    return TrainingCost(trained, fixed, flops, c.activations + T * number * len(adapted))
