"""Weights under our names -> the config of their model, from the shapes and from stated settings.

    config file beside the weights, or argument of vitrail.load  >  default of the library

Argument and file must not contradict each other. A note says what was assumed, and the provenance keeps it. Heads
split the width without changing any shape: without a hint their number is that of the known variant with this
width, depth and MLP. The grid follows from the number of positions if that is a square.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from torch import Tensor

from vitrail.checkpoints.mapping import Table, by_our_names, find_entry
from vitrail.checkpoints.torch_files import WeightFiles
from vitrail.errors import CheckpointError, ConfigError
from vitrail.models import checking
from vitrail.models.hybrid import HybridConfig
from vitrail.models.names import Config
from vitrail.models.resnet import BiTConfig, StemConfig
from vitrail.models.vit import VARIANTS, ViTConfig
from vitrail.runtime.log import note

Size = int | tuple[int, int]
Words = Mapping[str, Mapping[str, str]]  # entry of a config file: their word: ours
B16 = ViTConfig()


@dataclass(frozen=True)
class Hints:
    """Settings that the caller states; None for those left to the file."""

    heads: int | None = None
    activation: str | None = None
    norm_eps: float | None = None
    pool: str | None = None
    ignore_fields: tuple[str, ...] = ()  # entries of the config file that are read as if they were not there

    def __post_init__(self) -> None:
        checking.check_fields({name: value for name, value in asdict(self).items() if value is not None})

    def check(self, config: Config, where: str) -> None:
        """Raise an error if a hint contradicts what was read."""
        for name, value in asdict(self).items():
            if name == "ignore_fields":
                continue
            if value is not None and getattr(config, name, None) != value:
                has = (
                    f"{name}={getattr(config, name)}" if hasattr(config, name) else f"no {name}, as a ResNet"
                )
                raise CheckpointError(f"{where} has {has}, but {name}={value} was passed")


NO_HINTS = Hints()


@dataclass
class Inference:
    """Inference of the config of one file; it keeps which of its fields were assumed."""

    where: str
    hints: Hints = NO_HINTS
    image_size: Size | None = None  # that the caller asks for
    stated: Mapping[str, Any] = field(default_factory=dict)  # by the file, or by its kind of file
    stated_size: Size | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)  # activation and norm_eps if unstated
    sure: bool = False  # the defaults are known to be right
    resnet: Mapping[str, Any] = field(default_factory=dict)  # fields of a stem or a BiT that no shape shows
    prefix_rows_optional: bool = False  # positions may lack rows for the tokens before the patches
    assumed: dict[str, Any] = field(default_factory=dict)
    heads_source: str = ""

    def infer(self, table: Table, tensors: Mapping[str, Tensor]) -> Config:
        """Return the config of the model with these tensors."""
        try:
            return self.infer_config(by_our_names(table, tensors))
        except KeyError as error:  # of our name for it
            missing = find_entry(table, error.args[0]).theirs[0]
            raise CheckpointError(
                f"{self.where}: the architecture cannot be inferred without {missing}"
            ) from error
        except ConfigError as error:
            raise CheckpointError(
                f"{self.where} has settings that have no counterpart here: {error}"
            ) from error
        except (IndexError, ValueError, TypeError) as error:  # unexpected names and shapes
            raise CheckpointError(f"{self.where}: the architecture cannot be inferred ({error})") from error

    def infer_config(self, t: Mapping[str, Tensor]) -> Config:
        classes = len(t["head.classifier.weight"]) if "head.classifier.weight" in t else 0
        if "embedding.weight" not in t:  # a BiT, which takes any image size
            conv, size = t["root.conv.weight"], self.choose_image_size(None, 1)
            units = count_units(t, "stages", self.where)
            return BiTConfig(units, len(conv) / 64, size, conv.shape[1], classes, **self.resnet)
        width, channels, patch_size, _ = t["embedding.weight"].shape
        depth = count_numbered(t, r"encoder\.blocks\.(\d+)\.", f"{self.where}: its layers")
        stem, root = None, t.get("stem.root.conv.weight")
        if root is not None:
            units, channels = count_units(t, r"stem\.stages", self.where), root.shape[1]
            stem = StemConfig(units, len(root) / 64, **self.resnet)
        class_token = self.stated.get("class_token", "cls" in t)
        parts = find_parts(t)
        prefix = bool(class_token) + parts["registers"] + parts["distillation_token"]
        rows, patches = t.get("positions.table"), None
        if rows is not None:
            n = rows.shape[1]
            patches = tuple(
                dict.fromkeys((n - prefix, n, n - 1) if self.prefix_rows_optional else (n - prefix,))
            )
        elif (biases := t.get("encoder.positions.0.table")) is not None:
            patches = (((math.isqrt(len(biases) - 3) + 1) // 2) ** 2,)  # of a square grid
        norm_at = (
            "pooled" if "pooled_norm.weight" in t else "encoder" if "encoder.norm.weight" in t else "none"
        )
        pool = "token" if class_token and norm_at != "pooled" else "mean"
        pool = "attention" if "attention_pool.probe" in t else pool
        sizes = {"width": width, "depth": depth, "patch_size": patch_size, "channels": channels}
        sizes["mlp_dim"] = t[f"{FIRST_LAYER[parts['block'] == 'twin']}.mlp.fc2.weight"].shape[1]
        for name, actual in sizes.items():
            if (stated := self.stated.get(name, actual)) != actual:
                raise CheckpointError(
                    f"{self.where}: its config file says {name} {stated}, its tensors {actual}"
                )
        fields: dict[str, Any] = {
            **sizes,
            "image_size": self.choose_image_size(patches, patch_size * (stem.stride if stem else 1)),
            "classes": classes,
            "pre_logits": len(t["head.pre_logits.weight"]) if "head.pre_logits.weight" in t else 0,
            "class_token": class_token,
            "positions": "1d" if rows is not None else "none",
            "norm_at": norm_at,
            **parts,
            **{name: value for name, value in self.stated.items() if value is not None},
        }
        if parts["layer_scale"]:  # what the file states is the initial value
            fields["layer_scale"] = fields["layer_scale"] or parts["layer_scale"]
        elif fields["layer_scale"]:
            fields["layer_scale"] = 0.0
        fields["heads"] = self.choose_heads(width, depth, sizes["mlp_dim"])
        if class_token or "pool" in self.stated:
            pool = self.choose("pool", pool, sure=self.sure)
        fields["pool"] = pool  # without a class token, shapes show it
        fields |= {name: self.choose(name, value, sure=self.sure) for name, value in self.defaults.items()}
        if fields["positions"] == "relative_bias":
            fields["positions_at"] = "every" if depth == 1 or "encoder.positions.1.table" in t else "shared"
        return HybridConfig(**fields, stem=stem) if stem else ViTConfig(**fields)

    def choose(self, name: str, default: Any, *, sure: bool = False) -> Any:
        """Return the value of a field. `sure`: the default is known to be right, not assumed."""
        for value in (self.stated.get(name), getattr(self.hints, name)):
            if value is not None:
                return value
        if not sure:
            self.assumed[name] = default
        return default

    def choose_heads(self, width: int, depth: int, mlp_dim: int) -> int:
        variants = [name for name, sizes in VARIANTS.items() if sizes[:3] == (width, depth, mlp_dim)]
        if self.hints.heads is not None:
            self.heads_source = "argument"
        elif self.stated.get("heads") is not None:
            self.heads_source = "config file"
        elif variants:
            others = [f"; {name} has {VARIANTS[name][3]}: heads={VARIANTS[name][3]}" for name in variants[1:]]
            self.heads_source = f"the known variant {variants[0]}{''.join(others)}"
        else:
            raise CheckpointError(
                f"{self.where} does not say how many heads its layers have, and no known variant has width {width}, "
                f"depth {depth} and mlp_dim {mlp_dim}: pass heads= (vitrail convert --heads writes a bundle with it)"
            )
        heads: int = self.choose("heads", VARIANTS[variants[0]][3] if variants else None)
        return heads

    def choose_image_size(self, patches: tuple[int, ...] | None, stride: int) -> tuple[int, int]:
        """Return the pixels of images with one of these numbers of `patches`, the likeliest first; None: any."""
        known = self.stated_size or self.image_size
        if patches is None:
            rows, columns = grid_at(known or 224, stride)
        else:
            rows, columns = find_grid(patches, stride, self.stated_size, self.image_size, self.where)
        size = rows * stride, columns * stride
        if known is None or grid_at(known, stride) != (rows, columns):
            self.assumed["image_size"] = f"{size[0]}x{size[1]}"
        return size

    def undivided_size(self, config: Config) -> tuple[int, int] | None:
        """Return the size of images that the file states, if patches do not divide it and leave out a rest."""
        stated = None if self.stated_size is None else checking.image_size(self.stated_size)
        if stated in (None, config.image_size) or not isinstance(config, ViTConfig):
            return None
        assert stated is not None
        return stated if grid_at(stated, config.patch_size) == config.grid else None

    def provenance(self, format: str, files: WeightFiles, architecture: str | None) -> dict[str, Any]:
        """Return where a model came from; note what was assumed about it."""
        origin = {"format": format, **files.origin, "architecture": architecture}
        if self.heads_source:
            origin["heads"] = self.heads_source
        if self.assumed:
            library = "transformers" if format == "huggingface" else format
            values = ", ".join(f"{name}={value}" for name, value in self.assumed.items())
            note(
                f"{files.path.name} does not say, so it is read like {library}'s own models: {values}. To change "
                "one: vitrail.load(..., activation=...) in Python, --activation on the command line; preprocess with "
                "vitrail convert"
            )
            origin["assumed"] = self.assumed
        return origin


# The names of the first layer's parameters begin with this; of twins, second.
FIRST_LAYER = ("encoder.blocks.0", "encoder.blocks.0.left")


def find_parts(t: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the fields of a config that the names of a model's parameters show, by what is there and what is not."""
    twin = f"{FIRST_LAYER[1]}.norm1.weight" in t
    layer = FIRST_LAYER[twin]
    norms = f"{layer}.norm1"
    fields: dict[str, Any] = {
        "registers": t["registers"].shape[1] if "registers" in t else 0,
        "distillation_token": "distillation" in t,
        "embedding_bias": "embedding.bias" in t,
        "embedding_norm": "embedding_norm.weight" in t,
        "pre_norm": "pre_norm.weight" in t,
        "norm": "rms" if f"{norms}.weight" in t and f"{norms}.bias" not in t else "layer",
        "layer_scale": 1e-5 if f"{layer}.scale1.gamma" in t else 0.0,
        "mlp": "gated" if f"{layer}.mlp.gated.weight" in t else "dense",
        "mlp_norm": f"{layer}.mlp.norm.weight" in t,
        "attention_norm": f"{layer}.attention.norm.weight" in t,
        "qk_norm": f"{layer}.attention.q_norm.weight" in t,
        "dense_bias": f"{layer}.mlp.fc2.bias" in t,
        "block": "standard",
    }
    biases = f"{layer}.attention.qkv"
    fields["qkv_bias"] = "qv" if f"{biases}.qv_bias" in t else "all" if f"{biases}.bias" in t else "none"
    if twin:
        fields["block"] = "twin"
    elif f"{layer}.norm2.weight" not in t:
        fields["block"] = "parallel"
    if "encoder.positions.0.table" in t:
        fields["positions"] = "relative_bias"
    if "attention_pool.mlp.fc1.weight" in t:
        fields["pool_mlp_dim"] = len(t["attention_pool.mlp.fc1.weight"])
        if fields["pool_mlp_dim"] == t[f"{layer}.mlp.fc2.weight"].shape[1]:
            fields["pool_mlp_dim"] = 0
    return fields


def read_fields(
    entries: Mapping[str, Any], fields: Mapping[str, str], words: Words, where: str
) -> dict[str, Any]:
    """Return our fields of another library's config file. `fields`: their entry: our field, empty if only checked."""
    ours: dict[str, Any] = {}
    for name, field_name in fields.items():
        if name not in entries:
            continue
        value = entries[name]
        if value not in words.get(name, [value]):
            allowed = ", ".join(words[name])
            raise CheckpointError(f"{where}: {name} {value!r} has no counterpart here; these have: {allowed}")
        value = words[name][value] if name in words else value
        ours[field_name] = float(value) if isinstance(getattr(B16, field_name, None), float) else value
    return {name: value for name, value in ours.items() if name}


def write_fields(config: ViTConfig, fields: Mapping[str, str], words: Words) -> dict[str, Any]:
    """Return the entries of another library's config file for a config: the inverse."""
    entries = {name: getattr(config, ours) for name, ours in fields.items() if ours}
    for name in entries.keys() & words.keys():
        entries[name] = next(theirs for theirs, ours in words[name].items() if ours == entries[name])
    return entries


def find_grid(
    patches: tuple[int, ...], stride: int, stated: Size | None, asked: Size | None, where: str
) -> tuple[int, int]:
    """Return rows and columns. `patches`: how many there may be, the likeliest first."""
    if stated is not None and math.prod(grid_at(stated, stride)) in patches:
        return grid_at(stated, stride)
    for n in patches:
        if stated is None and math.isqrt(n) ** 2 == n:
            return math.isqrt(n), math.isqrt(n)
        if asked is not None and math.prod(grid_at(asked, stride)) == n:
            return grid_at(asked, stride)
    problem = "which are not a square"
    if stated is not None:
        size, n = checking.image_size(stated), math.prod(grid_at(stated, stride))
        problem = f"but its config file says images of {size}, which have {n}"
    raise CheckpointError(
        f"{where} has positions for {patches[0]} patches of {stride} pixels, {problem}: pass "
        "image_size=(height, width)"
    )


def grid_at(size: Size, stride: int) -> tuple[int, int]:
    """Return rows and columns of patches in an image."""
    if stride < 1:
        raise ConfigError(f"patches of {stride} pixels")
    height, width = checking.image_size(size)
    return height // stride, width // stride


def find_variant(c: ViTConfig) -> str:
    """Return the name of the known variant with these sizes; empty if there is none."""
    sizes = (c.width, c.depth, c.mlp_dim, c.heads)
    return next((name for name, known in VARIANTS.items() if known == sizes), "")


def count_units(names: Iterable[str], stages: str, where: str) -> tuple[int, ...]:
    """Return the bottleneck units in each stage of a ResNet."""
    count = count_numbered(names, rf"{stages}\.(\d+)\.", f"{where}: its stages")
    units = (rf"{stages}\.{stage}\.(\d+)\." for stage in range(count))
    return tuple(count_numbered(names, unit, f"{where}: the units of a stage") for unit in units)


def count_numbered(names: Iterable[str], pattern: str, what: str) -> int:
    """Return how many parts the pattern numbers; raise an error unless they run without gaps."""
    matches = (re.match(pattern, name) for name in names)
    numbers = sorted({int(match[1]) for match in matches if match})
    if numbers != list(range(len(numbers))):
        raise CheckpointError(f"{what} have gaps: counted from 0, there are {str(numbers)[:60]}")
    return len(numbers)
