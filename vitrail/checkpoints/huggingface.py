"""transformers' ViT folders <-> ours: config.json, preprocessor_config.json, model.safetensors.

Names as they stand on disk: `vit.encoder.layer.0.attention.attention.query`. Since version 5 the names in memory
are others (`vit.layers.0.attention.q_proj`); both are read, those on disk are written.

    ViTForImageClassification   names begin with `vit.`; a classifier on the class token
    ViTModel                    no prefix, no classifier; its pooler, a tanh layer on the class token, is our
                                pre_logits. With a classifier transformers ignores a pooler, and so do we.

Settings missing in config.json are those of ViTConfig: exact GELU, layer_norm_eps 1e-12. Settings missing in
preprocessor_config.json are those of ViTImageProcessor.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from vitrail.checkpoints import torch_files
from vitrail.checkpoints.architecture import NO_HINTS, Hints, Inference, Size, read_fields, write_fields
from vitrail.checkpoints.checkpoint import Checkpoint
from vitrail.checkpoints.json_files import Number, check_entries, list_class_names
from vitrail.checkpoints.license import complete_license, find_license
from vitrail.checkpoints.mapping import Table, make_plain, read_weights, respell, write_weights
from vitrail.checkpoints.torch_files import WeightFiles
from vitrail.checkpoints.transforms import HALF, Transform, line_to_transform, triple
from vitrail.data import preprocess as pp
from vitrail.errors import CheckpointError, ConfigError
from vitrail.models.vit import ViTConfig
from vitrail.runtime.log import note

CONFIG, IMAGES = "config.json", "preprocessor_config.json"
PATCHES = "embeddings.patch_embeddings.projection"
LAYER, ATTENTION = "encoder.layer.{i}", "encoder.layer.{i}.attention.attention"
TABLE: Table = {
    "embedding": PATCHES,
    "cls": "embeddings.cls_token",
    "positions.table": "embeddings.position_embeddings",
    "encoder.blocks.{i}.norm1": f"{LAYER}.layernorm_before",
    "encoder.blocks.{i}.attention.qkv": (f"{ATTENTION}.query", f"{ATTENTION}.key", f"{ATTENTION}.value"),
    "encoder.blocks.{i}.attention.out": f"{LAYER}.attention.output.dense",
    "encoder.blocks.{i}.norm2": f"{LAYER}.layernorm_after",
    "encoder.blocks.{i}.mlp.fc1": f"{LAYER}.intermediate.dense",
    "encoder.blocks.{i}.mlp.fc2": f"{LAYER}.output.dense",
    "encoder.norm": "layernorm",
    "head.pre_logits": "pooler.dense",
    "head.classifier": "classifier",
}
# Names in memory, since version 5 -> names on disk; with a classifier all others begin with vit.
SPELLINGS: dict[str, str] = {
    r"^vit\.": "",
    r"^layers\.(\d+)\.attention\.q_proj\.": r"encoder.layer.\1.attention.attention.query.",
    r"^layers\.(\d+)\.attention\.k_proj\.": r"encoder.layer.\1.attention.attention.key.",
    r"^layers\.(\d+)\.attention\.v_proj\.": r"encoder.layer.\1.attention.attention.value.",
    r"^layers\.(\d+)\.attention\.o_proj\.": r"encoder.layer.\1.attention.output.dense.",
    r"^layers\.(\d+)\.mlp\.fc1\.": r"encoder.layer.\1.intermediate.dense.",
    r"^layers\.(\d+)\.mlp\.fc2\.": r"encoder.layer.\1.output.dense.",
    r"^layers\.(\d+)\.": r"encoder.layer.\1.",
}
# Entries of config.json, our field (empty: only checked), and our words for some of their values.
FIELDS: dict[str, str] = {
    "hidden_size": "width", "num_hidden_layers": "depth", "num_attention_heads": "heads",
    "intermediate_size": "mlp_dim", "hidden_act": "activation", "layer_norm_eps": "norm_eps",
    "hidden_dropout_prob": "dropout", "attention_probs_dropout_prob": "attention_dropout",
    "patch_size": "patch_size", "num_channels": "channels", "pooler_act": "",
}  # fmt: skip
WORDS: dict[str, dict[str, str]] = {
    "hidden_act": {
        "gelu": "gelu", "gelu_python": "gelu",
        "gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh", "gelu_fast": "gelu_tanh",
    },
    "pooler_act": {"tanh": "tanh"},
}  # fmt: skip
DEFAULTS: dict[str, Any] = {"activation": "gelu", "norm_eps": 1e-12}  # of ViTConfig
ALWAYS: dict[str, Any] = {"pool": "token", "class_token": True, "positions": "1d"}
RESAMPLE = {1: "lanczos", 2: "bilinear", 3: "bicubic"}  # Pillow's numbers
IMAGE_DEFAULTS: dict[str, Any] = {  # of ViTImageProcessor
    "do_resize": True, "resample": 2, "do_center_crop": False, "do_rescale": True, "rescale_factor": 1 / 255,
    "do_normalize": True, "image_mean": HALF, "image_std": HALF,
}  # fmt: skip

_SIGLIP = (
    "attention pooling, no class token and names of its own (its .npz, and timm's files of it, are read)"
)
_CLIP = "a LayerNorm before the encoder, a GELU of another kind and a projection for texts"
_RELATIVE = "relative positions in every layer, LayerScale and keys without biases"
_GATED = "RMSNorm and gated MLPs"
_CONVOLUTIONS = "convolutions instead of a Vision Transformer's layers"
_WINDOWS = "attention in windows and stages of several resolutions"
# model_type: what it has that has no counterpart here
OTHER_MODELS: dict[str, str] = {
    "deit": "a distillation token",
    "beit": _RELATIVE, "data2vec-vision": _RELATIVE,
    "dinov2": "LayerScale and a mask token",
    "dinov2_with_registers": "register tokens, LayerScale and a mask token",
    "dinov3_vit": "rotary positions, register tokens and LayerScale",
    "dinov3_convnext": _CONVOLUTIONS,
    "siglip": _SIGLIP, "siglip_vision_model": _SIGLIP, "siglip2": _SIGLIP, "siglip2_vision_model": _SIGLIP,
    "clip": _CLIP, "clip_vision_model": _CLIP, "metaclip_2": _CLIP, "metaclip_2_vision_model": _CLIP,
    "vit_mae": "random masking of patches, and a decoder",
    "vit_msn": "a ViT's layers under other names in part, which no test here compares",
    "vit_hybrid": "a ResNet stem in transformers' form (timm's hybrids are read)",
    "ijepa": "no class token: its classifier sees the mean of the patches",
    "pixio": "several class tokens", "aimv2": _GATED, "aimv2_vision_model": _GATED,
    "yolos": "detection tokens", "vitdet": "attention in windows and relative positions",
    "videomae": "patches of videos", "vivit": "patches of videos", "vjepa2": "patches of videos and rotary positions",
    "swin": _WINDOWS, "swinv2": _WINDOWS, "hiera": _WINDOWS, "pvt": _WINDOWS, "pvt_v2": _WINDOWS,
    "segformer": _WINDOWS,
    "bit": "a BiT in transformers' form (its .npz, and timm's, are read)",
    "convnext": _CONVOLUTIONS, "convnextv2": _CONVOLUTIONS, "resnet": _CONVOLUTIONS, "efficientnet": _CONVOLUTIONS,
    "timm_wrapper": "timm's model inside a wrapper (timm's own files are read)",
}  # fmt: skip


# Entries of config.json.
MODEL_SCHEMA: dict[str, Any] = {
    "model_type": str, "architectures": list[str], "hidden_act": str, "pooler_act": str, "num_attention_heads": int,
    "hidden_size": int, "num_hidden_layers": int, "intermediate_size": int, "num_channels": int,
    "patch_size": int | tuple[int, int], "image_size": int | tuple[int, int], "layer_norm_eps": Number,
    "hidden_dropout_prob": Number, "attention_probs_dropout_prob": Number, "id2label": dict[str, str],
}  # fmt: skip
# Entries of preprocessor_config.json. Sizes are {"height", "width"}: squash, or {"shortest_edge"}: the short side.
IMAGE_SCHEMA: dict[str, Any] = {
    "do_resize": bool, "do_center_crop": bool, "do_rescale": bool, "do_normalize": bool, "do_pad": bool,
    "size": int | dict[str, int | None], "crop_size": int | dict[str, int | None], "resample": int,
    "rescale_factor": Number, "image_mean": list[Number] | Number, "image_std": list[Number] | Number,
}  # fmt: skip


# --- reading ---


def recognises(tensors: Mapping[str, Tensor]) -> bool:
    return any(f"{prefix}{PATCHES}.weight" in tensors for prefix in ("", "vit."))


def refuse_other_models(files: WeightFiles) -> None:
    """Raise an error that names the kind of model if it is one of transformers' that is not read here.

    It is known by the model_type of config.json; without such a file, by the prefix of all names of tensors.
    """
    content = files.configs.get(CONFIG, {})
    kind = content.get("model_type")
    if not content:
        prefixes = {name.split(".")[0] for name in files.tensors} - {"classifier", "head", "pooler"}
        prefixes = {prefix.replace("data2vec_vision", "data2vec-vision") for prefix in prefixes}
        kind = next((kind for kind in OTHER_MODELS if prefixes == {kind}), None)
    if isinstance(kind, str) and kind != "vit":
        known = f"which has {OTHER_MODELS[kind]}" if kind in OTHER_MODELS else "which is not known here"
        raise CheckpointError(
            f"{files.where} is a {kind[:60]!r} of transformers (model_type), {known}; only its 'vit' models are read"
        )


def read(files: WeightFiles, hints: Hints = NO_HINTS, *, image_size: Size | None = None) -> Checkpoint:
    """Read a checkpoint. `image_size` is needed only if neither config.json nor a square grid gives it."""
    where, content = files.where, check_entries(files.configs.get(CONFIG, {}), MODEL_SCHEMA, files.where)
    if "architecture" in content:
        raise CheckpointError(
            f"{where}: the config.json beside it is of timm's {str(content['architecture'])[:60]!r}, but its tensors "
            "have transformers' names"
        )
    if isinstance(patch := content.get("patch_size"), list) and len(set(patch)) == 1:
        content["patch_size"] = patch[0]
    t = respell(files.tensors, SPELLINGS, where)
    ignored = [key for key in t if key.startswith("pooler.")] if "classifier.weight" in t else []
    if ignored:
        note(f"{files.path.name}: {' and '.join(ignored)} are left out: with a classifier they are not used")
    t = {key: w for key, w in t.items() if key not in ignored}
    stated = ALWAYS | read_fields(content, FIELDS, WORDS, where)
    size = content.get("image_size")
    inference = Inference(where, hints, image_size, stated, size, DEFAULTS, sure=bool(content))
    config = inference.infer(TABLE, t)
    assert isinstance(config, ViTConfig)
    weights = read_weights(TABLE, t, config, where, zeros="attention.qkv.bias")
    line = preprocessing(files.configs.get(IMAGES, {}), config, where)
    if IMAGES not in files.configs and line:
        inference.assumed["preprocess"] = line
    architecture = next(iter(content.get("architectures") or []), None)
    provenance = inference.provenance("huggingface", files, architecture)
    class_names = None
    if config.classes and "id2label" in content:
        class_names = list_class_names(content["id2label"], "id2label", config.classes, where)
        class_names = None if class_names == default_names(config.classes) else class_names
    return Checkpoint(config, weights, line, class_names, provenance, license=find_license(content))


def default_names(classes: int) -> list[str]:
    """Return the names that transformers fills in."""
    return [f"LABEL_{i}" for i in range(classes)]


def preprocessing(content: dict[str, Any], config: ViTConfig, where: str) -> str:
    """Return the line of a preprocessor_config.json; empty, with a note, if there is none."""
    if config.channels != 3:
        return ""
    settings = {"size": {"height": config.image_size[0], "width": config.image_size[1]}, **IMAGE_DEFAULTS}
    settings |= check_entries(content, IMAGE_SCHEMA, where)
    try:
        pipeline = pp.parse(read_transform(settings).line())
        if pipeline.image_size in (None, config.image_size):
            return str(pipeline)
        note(f"{where}: preprocessor_config.json is for {pipeline.image_size}; scaled to {config.image_size}")
        return str(pipeline.at(config.image_size))
    except ConfigError as error:
        note(f"{where}: its preprocessor_config.json has no counterpart here ({error})")
        return ""


def read_transform(settings: dict[str, Any]) -> Transform:
    if not settings["do_resize"] or settings.get("do_pad"):
        raise ConfigError("images are resized here, and not padded")
    size, resample = settings["size"], settings["resample"]
    if resample not in RESAMPLE:
        raise ConfigError(f"resample {resample!r} is none of Pillow's {RESAMPLE}")
    stated = {k: v for k, v in size.items() if v is not None} if isinstance(size, dict) else {}
    resize = stated["shortest_edge"] if stated.keys() == {"shortest_edge"} else sides(size, "size")
    crop = sides(settings.get("crop_size"), "crop_size") if settings["do_center_crop"] else None
    # mean and std of values in [0, 1]: (k x - mean) / std = (x - mean / k) / (std / k), x bytes over 255.
    k = settings["rescale_factor"] * 255 if settings["do_rescale"] else 255.0
    k = 1.0 if abs(k - 1) < 1e-6 else k
    if k <= 0:
        raise ConfigError(f"rescale_factor {settings['rescale_factor']} is not above 0")
    mean, std = settings["image_mean"], settings["image_std"]
    if not settings["do_normalize"]:
        mean, std = 0.0, 1.0
    (m0, m1, m2), (s0, s1, s2) = (triple(tuple(v) if isinstance(v, list) else v) for v in (mean, std))
    scaled = (m0 / k, m1 / k, m2 / k), (s0 / k, s1 / k, s2 / k)
    return Transform(resize, crop, RESAMPLE[resample], *scaled, crop_rounding="down")


def sides(size: Any, name: str) -> tuple[int, int]:
    """Return height and width. One number, in old files, is a square."""
    if isinstance(size, int):
        return size, size
    height, width = ((size or {}).get(side) for side in ("height", "width"))
    if height is None or width is None:
        raise ConfigError(f"{name} {str(size)[:60]} does not give height and width")
    return height, width


# --- writing ---


def write(checkpoint: Checkpoint, path: Path) -> list[str]:
    """Write a folder for from_pretrained; return what its reader must set by hand."""
    tanh = not checkpoint.config.classes
    checkpoint, c = make_plain(checkpoint, "transformers", with_positions=True, only_token=True, tanh=tanh)
    prefix = "vit." if c.classes else ""
    tensors = write_weights(TABLE, checkpoint.weights)
    tensors = {key if key.startswith("classifier.") else prefix + key: w for key, w in tensors.items()}
    images, notes = image_settings(checkpoint.preprocess)
    if c.drop_path:
        notes.append(f"transformers' ViT has no stochastic depth: drop_path={c.drop_path} is not written")
    if not c.classes and not c.pre_logits:
        notes.append(
            "load it with ViTModel.from_pretrained(folder, add_pooling_layer=False): it has no pooler"
        )
    height, width = c.image_size
    settings: dict[str, Any] = {
        "architectures": ["ViTForImageClassification" if c.classes else "ViTModel"],
        "model_type": "vit",
        **write_fields(c, FIELDS, WORDS),
        "image_size": height if height == width else [height, width],
        "qkv_bias": True,
        "dtype": "float32",
        "license": complete_license(checkpoint.license),
    }
    if c.pre_logits:
        settings |= {"pooler_output_size": c.pre_logits, "pooler_act": "tanh"}
    if c.classes:
        names = checkpoint.class_names or default_names(c.classes)
        settings["id2label"] = {str(i): name for i, name in enumerate(names)}
        settings["label2id"] = {name: i for i, name in enumerate(names)}
    files = {CONFIG: settings} if images is None else {CONFIG: settings, IMAGES: images}
    torch_files.save_folder(path, tensors, files, checkpoint.license)
    return notes


def reader_line(checkpoint: Checkpoint) -> str:
    """Return the line of the image processor for the preprocessor_config.json that is written, if any."""
    settings, _ = image_settings(checkpoint.preprocess)
    assert isinstance(checkpoint.config, ViTConfig)
    return "" if settings is None else preprocessing(settings, checkpoint.config, "the written folder")


def image_settings(line: str) -> tuple[dict[str, Any] | None, list[str]]:
    """Return the preprocessor_config.json, None if there is none for this line; and what it cannot express."""
    t, notes = line_to_transform(line, "down")
    if t is None:
        return None, notes
    resize = {"shortest_edge": t.resize} if isinstance(t.resize, int) else named_sides(t.resize)
    settings: dict[str, Any] = {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": True,
        "size": resize,
        "resample": next(number for number, name in RESAMPLE.items() if name == t.method),
        "do_center_crop": t.crop is not None,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(t.mean),
        "image_std": list(t.std),
    }
    if t.crop is not None:
        settings["crop_size"] = named_sides(t.crop)
    return settings, notes


def named_sides(size: tuple[int, int]) -> dict[str, int]:
    return {"height": size[0], "width": size[1]}
