"""transformers' ViT folders <-> ours: config.json, preprocessor_config.json, model.safetensors.

Names as they stand on disk: `vit.encoder.layer.0.attention.attention.query`. Since version 5 the names in memory
are others (`vit.layers.0.attention.q_proj`); both are read, those on disk are written.

    ViTForImageClassification   names begin with `vit.`; a classifier on the class token
    ViTModel                    no prefix, no classifier; its pooler, a tanh layer on the class token, is our
                                pre_logits. With a classifier transformers ignores a pooler, and so do we.

What config.json does not say is as ViTConfig has it: exact GELU, layer_norm_eps 1e-12.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from vitrail.checkpoints import mapping, torch_files
from vitrail.checkpoints.checkpoint import Checkpoint, parameter_shapes
from vitrail.checkpoints.huggingface_images import images_card, read_images
from vitrail.checkpoints.json_kinds import checked
from vitrail.checkpoints.license import CARD, both_parts, license_in, model_card
from vitrail.checkpoints.mapping import Entry
from vitrail.checkpoints.plain import plain, refuse_unless_token, with_table
from vitrail.checkpoints.sizes import Size, count, grid_of, pair
from vitrail.checkpoints.torch_files import Found
from vitrail.checkpoints.torch_names import layer, renamed, with_zero_biases
from vitrail.checkpoints.unsaid import NOTHING, Asked, Choices
from vitrail.errors import CheckpointError
from vitrail.models.hybrid import HybridConfig
from vitrail.models.vit import ViTConfig
from vitrail.runtime.files import atomic_folder
from vitrail.runtime.log import note

WEIGHTS, CONFIG, IMAGES = "model.safetensors", "config.json", "preprocessor_config.json"
PATCHES = "embeddings.patch_embeddings.projection"
# Names in memory, since version 5 -> names on disk.
IN_MEMORY: dict[str, str] = {
    r"layers\.(\d+)\.attention\.q_proj\.": r"encoder.layer.\1.attention.attention.query.",
    r"layers\.(\d+)\.attention\.k_proj\.": r"encoder.layer.\1.attention.attention.key.",
    r"layers\.(\d+)\.attention\.v_proj\.": r"encoder.layer.\1.attention.attention.value.",
    r"layers\.(\d+)\.attention\.o_proj\.": r"encoder.layer.\1.attention.output.dense.",
    r"layers\.(\d+)\.mlp\.fc1\.": r"encoder.layer.\1.intermediate.dense.",
    r"layers\.(\d+)\.mlp\.fc2\.": r"encoder.layer.\1.output.dense.",
    r"layers\.(\d+)\.": r"encoder.layer.\1.",
}
ACTIVATIONS = {
    "gelu": "gelu", "gelu_python": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh", "gelu_fast": "gelu_tanh",
}  # fmt: skip
ACTIVATION_NAMES = {"gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh"}
NORM_EPS = 1e-12  # ViTConfig's default
KINDS: dict[str, tuple[str, ...]] = {
    "model_type": ("text",),
    "architectures": ("a list of texts",),
    "hidden_act": ("text",),
    "pooler_act": ("text",),
    "num_attention_heads": ("a whole number",),
    "image_size": ("one whole number or two",),
    "layer_norm_eps": ("a number",),
    "hidden_dropout_prob": ("a number",),
    "attention_probs_dropout_prob": ("a number",),
    "id2label": ("texts by number",),
}
QKV = ("query", "key", "value")


def recognises(tensors: Mapping[str, Tensor]) -> bool:
    return any(f"{prefix}{PATCHES}.weight" in tensors for prefix in ("", "vit."))


def read(found: Found, asked: Asked = NOTHING, *, image_size: Size | None = None) -> Checkpoint:
    """`image_size` is asked for only where neither config.json nor a square grid tells it."""
    where, card = found.where, checked(found.configs.get(CONFIG, {}), KINDS, found.where)
    if "architecture" in card:
        raise CheckpointError(
            f"{where}: the config.json beside it is of timm's {str(card['architecture'])[:60]!r}, and its names are "
            "transformers'"
        )
    t = renamed(found.tensors, on_disk, where)
    architecture = next(iter(card.get("architectures") or []), None)
    origin = {"format": "huggingface", **found.origin, "architecture": architecture}
    ignored = [key for key in t if key.startswith("pooler.")] if "classifier.weight" in t else []
    if ignored:
        note(f"{found.path.name}: {' and '.join(ignored)} are left out: with a classifier they are not used")
    t = {key: w for key, w in t.items() if key not in ignored}
    choices = Choices(asked, where)
    try:
        config = config_of(t, card, choices, image_size)
    except (KeyError, IndexError, ValueError) as error:
        raise CheckpointError(f"{where}: the architecture cannot be inferred ({error})") from error
    biases = [
        f"encoder.layer.{i}.attention.attention.{part}.bias" for i in range(config.depth) for part in QKV
    ]
    t = with_zero_biases(t, biases, config.width)
    weights = mapping.read(list(entries_of(config)), t, parameter_shapes(config), where)
    line = read_images(found.configs.get(IMAGES), config, where)
    if IMAGES not in found.configs and line:
        choices.assumed["preprocess"] = line
    origin |= {"heads": choices.who_said_heads, **choices.say("transformers", found.path.name)}
    names = class_names_of(card, config.classes, where)
    return Checkpoint(config, weights, line, names, origin, license=license_in(card))


def write(checkpoint: Checkpoint, path: Path) -> list[str]:
    """A folder for from_pretrained; returns what its reader must set by hand."""
    torch_files.check_own_folder(path, (WEIGHTS, CONFIG, IMAGES, CARD), "transformers")
    c = checkpoint.config
    if not isinstance(c, ViTConfig) or isinstance(c, HybridConfig):
        raise CheckpointError(
            "a transformers folder holds a plain ViT; hybrids and BiTs can be written for timm"
        )
    refuse_unless_token(c, "transformers")
    if c.pre_logits and c.classes:
        raise CheckpointError(
            "transformers has no tanh layer before a classifier: load the model with another number of classes "
            "(0: no classifier), which leaves its pre-training head out"
        )
    checkpoint = with_table(plain(checkpoint, "transformers"))
    c = checkpoint.config
    assert isinstance(c, ViTConfig)
    prefix = "vit." if c.classes else ""
    tensors = mapping.write(list(entries_of(c)), checkpoint.weights)
    tensors = {key if key.startswith("classifier.") else prefix + key: w for key, w in tensors.items()}
    images, notes = images_card(checkpoint.preprocess)
    if c.drop_path:
        notes.append(f"transformers' ViT has no stochastic depth: drop_path={c.drop_path} is not written")
    if not c.classes and not c.pre_logits:
        notes.append(
            "load it with ViTModel.from_pretrained(folder, add_pooling_layer=False): it has no pooler"
        )
    with atomic_folder(path) as temporary:
        torch_files.save_safetensors(tensors, temporary / WEIGHTS)
        card = card_of(c, checkpoint.class_names) | {"license": both_parts(checkpoint.license)}
        torch_files.save_json(card, temporary / CONFIG)
        (temporary / CARD).write_text(model_card(checkpoint.license), encoding="utf-8")
        if images is not None:
            torch_files.save_json(images, temporary / IMAGES)
    return notes


def reader_line(checkpoint: Checkpoint) -> str:
    """That of the image processor, by the preprocessor_config.json that is written; empty where none is."""
    card, _ = images_card(checkpoint.preprocess)
    assert isinstance(checkpoint.config, ViTConfig)
    return "" if card is None else read_images(card, checkpoint.config, "the written folder")


def on_disk(key: str) -> str:
    key = key.removeprefix("vit.")
    return next((re.sub(f"^{old}", new, key) for old, new in IN_MEMORY.items() if re.match(old, key)), key)


def entries_of(config: ViTConfig) -> Iterator[Entry]:
    yield from layer("embedding", PATCHES)
    yield Entry("cls", ("embeddings.cls_token",))
    yield Entry("positions.table", ("embeddings.position_embeddings",))
    for i in range(config.depth):
        ours, theirs = f"encoder.blocks.{i}", f"encoder.layer.{i}"
        yield from layer(f"{ours}.norm1", f"{theirs}.layernorm_before")
        yield from layer(f"{ours}.attention.qkv", *(f"{theirs}.attention.attention.{part}" for part in QKV))
        yield from layer(f"{ours}.attention.out", f"{theirs}.attention.output.dense")
        yield from layer(f"{ours}.norm2", f"{theirs}.layernorm_after")
        yield from layer(f"{ours}.mlp.fc1", f"{theirs}.intermediate.dense")
        yield from layer(f"{ours}.mlp.fc2", f"{theirs}.output.dense")
    yield from layer("encoder.norm", "layernorm")
    if config.pre_logits:
        yield from layer("head.pre_logits", "pooler.dense")
    if config.classes:
        yield from layer("head.classifier", "classifier")


def config_of(
    t: Mapping[str, Tensor], card: dict[str, Any], choices: Choices, image_size: Size | None
) -> ViTConfig:
    where, sure = choices.where, bool(card)  # what a config.json leaves out has a default of its own
    width, channels, patch_size, _ = t[f"{PATCHES}.weight"].shape
    sizes = {
        "hidden_size": width,
        "num_hidden_layers": count(t, r"encoder\.layer\.(\d+)\.", where),
        "intermediate_size": t["encoder.layer.0.intermediate.dense.weight"].shape[0],
        "num_channels": channels,
    }
    for name, size in sizes.items():
        if card.get(name, size) != size:
            raise CheckpointError(f"{where}: its config.json says {name} {card[name]}, its tensors {size}")
    depth, mlp_dim = sizes["num_hidden_layers"], sizes["intermediate_size"]
    heads = choices.heads(width, depth, mlp_dim, card.get("num_attention_heads"))
    stated = card.get("image_size")
    stated = pair(stated) if stated is not None else None
    rows = t["embeddings.position_embeddings"].shape[1]
    grid = grid_of((rows - 1,), patch_size, stated, image_size, where)
    for name, allowed in (("hidden_act", tuple(ACTIVATIONS)), ("pooler_act", ("tanh",))):
        if card.get(name, allowed[0]) not in allowed:
            raise CheckpointError(
                f"{where}: {name} {card[name]!r} has no counterpart here: {', '.join(allowed)}"
            )
    return ViTConfig(
        width,
        depth,
        mlp_dim,
        heads,
        patch_size,
        choices.square(grid, patch_size, stated or image_size),
        channels,
        classes=t["classifier.weight"].shape[0] if "classifier.weight" in t else 0,
        pre_logits=t["pooler.dense.weight"].shape[0] if "pooler.dense.weight" in t else 0,
        pool=choices.of("pool", "token", "token"),
        activation=choices.of("activation", ACTIVATIONS.get(card.get("hidden_act", "")), "gelu", sure=sure),
        norm_eps=float(choices.of("norm_eps", card.get("layer_norm_eps"), NORM_EPS, sure=sure)),
        dropout=float(card.get("hidden_dropout_prob", 0.0)),
        attention_dropout=float(card.get("attention_probs_dropout_prob", 0.0)),
    )


def class_names_of(card: dict[str, Any], classes: int, where: str) -> list[str] | None:
    """id2label, unless it is the LABEL_0, LABEL_1 that transformers fills in, or there is no classifier."""
    labels = card.get("id2label")
    if not classes or labels is None:
        return None
    if len(labels) != classes:
        raise CheckpointError(
            f"{where}: the id2label of its config.json has {len(labels)} names for {classes} classes"
        )
    names = [labels[str(i)] for i in range(classes)]
    return None if names == [f"LABEL_{i}" for i in range(classes)] else names


def card_of(c: ViTConfig, class_names: list[str] | None) -> dict[str, Any]:
    names = class_names or [f"LABEL_{i}" for i in range(c.classes)]
    height, width = c.image_size
    card: dict[str, Any] = {
        "architectures": ["ViTForImageClassification" if c.classes else "ViTModel"],
        "model_type": "vit",
        "hidden_size": c.width,
        "num_hidden_layers": c.depth,
        "num_attention_heads": c.heads,
        "intermediate_size": c.mlp_dim,
        "hidden_act": ACTIVATION_NAMES[c.activation],
        "layer_norm_eps": c.norm_eps,
        "hidden_dropout_prob": c.dropout,
        "attention_probs_dropout_prob": c.attention_dropout,
        "image_size": height if height == width else [height, width],
        "patch_size": c.patch_size,
        "num_channels": c.channels,
        "qkv_bias": True,
        "dtype": "float32",
    }
    if c.pre_logits:
        card |= {"pooler_output_size": c.pre_logits, "pooler_act": "tanh"}
    if c.classes:
        card["id2label"] = {str(i): name for i, name in enumerate(names)}
        card["label2id"] = {name: i for i, name in enumerate(names)}
    return card
