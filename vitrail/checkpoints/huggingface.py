"""transformers' folders of Vision Transformers <-> ours: config.json, preprocessor_config.json, model.safetensors.

Each model_type is a Family (huggingface_families.py), with its names of tensors and its entries of config.json.

    XForImageClassification   names begin with X's own word; a classifier beside it
    XModel                    no prefix, no classifier; a pooler, a tanh layer on the class token, is our pre_logits.
                              With a classifier transformers ignores a pooler, and so do we.

Names as they stand on disk: `vit.encoder.layer.0.attention.attention.query`. Since version 5 the names in memory
are others (`vit.layers.0.attention.q_proj`); both are read, those on disk are written. Of models with a text tower
the vision tower is read.

Settings missing in config.json are those of the model's class. Settings missing in preprocessor_config.json are those
of its image processor.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from vitrail.checkpoints import torch_files
from vitrail.checkpoints.architecture import NO_HINTS, Hints, Inference, Size, read_fields, write_fields
from vitrail.checkpoints.checkpoint import Checkpoint
from vitrail.checkpoints.huggingface_dino import DINO
from vitrail.checkpoints.huggingface_families import FIELDS, HARMLESS, VIT, WORDS, Family
from vitrail.checkpoints.huggingface_plain import MASKED, PLAIN
from vitrail.checkpoints.huggingface_towers import TEXT, TOWERS, WITH_TEXTS
from vitrail.checkpoints.json_files import Number, check_entries, list_class_names
from vitrail.checkpoints.license import complete_license, find_license
from vitrail.checkpoints.mapping import find_parts, make_plain, read_weights, respell, write_weights
from vitrail.checkpoints.torch_files import WeightFiles
from vitrail.checkpoints.transforms import HALF, Transform, cut_rest, line_to_transform, triple
from vitrail.data import preprocess as pp
from vitrail.errors import CheckpointError, ConfigError
from vitrail.models.vit import ViTConfig
from vitrail.runtime.log import note

# In this order: a model that was read from elsewhere is written as the first that can express it.
FAMILIES = {family.model_type: family for family in (*PLAIN, *DINO, *WITH_TEXTS, *MASKED)}
CONFIG, IMAGES = "config.json", "preprocessor_config.json"
# Tensors by which a file is recognised, after the prefix of its model.
FIRSTS = re.compile(r"(.*\.)?embeddings\.(patch_embeddings(\.projection)?|patch_embedding)\.weight")
# Names in memory, since version 5 -> names on disk; with a classifier all others begin with a word of the model's.
SPELLINGS: dict[str, str] = {
    r"^(vit|deit|dinov2|dinov2_with_registers|dinov3_vit|beit|ijepa|vision_model|vit_msn|model)\.": "",
    r"^layers\.(\d+)\.attention\.q_proj\.": r"encoder.layer.\1.attention.attention.query.",
    r"^layers\.(\d+)\.attention\.k_proj\.": r"encoder.layer.\1.attention.attention.key.",
    r"^layers\.(\d+)\.attention\.v_proj\.": r"encoder.layer.\1.attention.attention.value.",
    r"^layers\.(\d+)\.attention\.o_proj\.": r"encoder.layer.\1.attention.output.dense.",
    r"^layers\.(\d+)\.mlp\.fc1\.": r"encoder.layer.\1.intermediate.dense.",
    r"^layers\.(\d+)\.mlp\.fc2\.": r"encoder.layer.\1.output.dense.",
    r"^layers\.(\d+)\.": r"encoder.layer.\1.",
}
UNROUNDED = "DINOv3ViTImageProcessor"  # does not round to bytes after resizing; also with Fast at its end
RESAMPLE = {1: "lanczos", 2: "bilinear", 3: "bicubic"}  # Pillow's numbers
IMAGE_DEFAULTS: dict[str, Any] = {  # of ViTImageProcessor
    "do_resize": True, "resample": 2, "do_center_crop": False, "do_rescale": True, "rescale_factor": 1 / 255,
    "do_normalize": True, "image_mean": HALF, "image_std": HALF,
}  # fmt: skip

_GATED = "RMSNorm and gated MLPs in a layout of its own (timm's aimv2 are read)"
_CONVOLUTIONS = "convolutions instead of a Vision Transformer's layers"
_WINDOWS = "attention in windows and stages of several resolutions"
# model_type: what it has that has no counterpart here
OTHER_MODELS: dict[str, str] = {
    "data2vec-vision": "relative positions of each layer and of all (BEiT's, of either kind, are read)",
    "dinov3_convnext": _CONVOLUTIONS,
    "vit_hybrid": "a ResNet stem in transformers' form (timm's hybrids are read)",
    "pixio": "several class tokens", "aimv2": _GATED, "aimv2_vision_model": _GATED,
    "yolos": "detection tokens", "vitdet": "attention in windows and relative positions",
    "videomae": "patches of videos", "vivit": "patches of videos", "vjepa2": "patches of videos and rotary positions",
    "swin": _WINDOWS, "swinv2": _WINDOWS, "hiera": _WINDOWS, "pvt": _WINDOWS, "pvt_v2": _WINDOWS,
    "segformer": _WINDOWS,
    "bit": "a BiT in transformers' form (its .npz, and timm's, are read)",
    "convnext": _CONVOLUTIONS, "convnextv2": _CONVOLUTIONS, "resnet": _CONVOLUTIONS, "efficientnet": _CONVOLUTIONS,
    "timm_wrapper": "timm's model inside a wrapper (timm's own files are read)",
}  # fmt: skip
READ_TYPES = ", ".join((*FAMILIES, *TOWERS))

# Entries of config.json.
MODEL_SCHEMA: dict[str, Any] = {
    "model_type": str, "architectures": list[str], "hidden_act": str, "pooler_act": str, "num_attention_heads": int,
    "hidden_size": int, "num_hidden_layers": int, "intermediate_size": int, "num_channels": int,
    "patch_size": int | tuple[int, int], "image_size": int | tuple[int, int], "layer_norm_eps": Number,
    "hidden_dropout_prob": Number, "attention_probs_dropout_prob": Number, "id2label": dict[str, str],
    "vision_config": dict[str, Any], "attention_dropout": Number, "drop_path_rate": Number,
    "layerscale_value": Number, "layer_scale_init_value": Number, "rope_theta": Number, "pos_embed_shift": Number,
    "pos_embed_jitter": Number, "pos_embed_rescale": Number,
    **dict.fromkeys((
        "query_bias", "key_bias", "value_bias", "proj_bias", "mlp_bias", "use_mean_pooling",
        "use_absolute_position_embeddings", "use_relative_position_bias", "use_shared_relative_position_bias",
    ), bool),
}  # fmt: skip
# Entries of preprocessor_config.json. Sizes are {"height", "width"}: squash, or {"shortest_edge"}: the short side.
IMAGE_SCHEMA: dict[str, Any] = {
    "do_resize": bool, "do_center_crop": bool, "do_rescale": bool, "do_normalize": bool, "do_pad": bool,
    "size": int | dict[str, int | None], "crop_size": int | dict[str, int | None], "resample": int,
    "rescale_factor": Number, "image_mean": list[Number] | Number, "image_std": list[Number] | Number,
}  # fmt: skip


# --- reading ---


def recognises(tensors: Mapping[str, Tensor]) -> bool:
    return any(FIRSTS.fullmatch(name) for name in tensors)


def refuse_other_models(files: WeightFiles) -> None:
    """Raise an error that names the kind of model if it is one of transformers' that is not read here.

    It is known by the model_type of config.json; without such a file, by the prefix of all names of tensors.
    """
    content = files.configs.get(CONFIG, {})
    kind = content.get("model_type")
    if not content:
        prefixes = {name.split(".")[0] for name in files.tensors} - {"classifier", "head", "pooler"}
        prefixes = {prefix.replace("data2vec_vision", "data2vec-vision") for prefix in prefixes}
        kind = next((kind for kind in (*OTHER_MODELS, *FAMILIES) if prefixes == {kind}), None)
        if kind in FAMILIES and kind != "vit":
            raise CheckpointError(
                f"{files.where} is a {kind!r} of transformers, whose settings tensors do not show: put its "
                "config.json beside it"
            )
    if isinstance(kind, str) and kind not in FAMILIES and kind not in TOWERS:
        known = f"which has {OTHER_MODELS[kind]}" if kind in OTHER_MODELS else "which is not known here"
        raise CheckpointError(
            f"{files.where} is a {kind[:60]!r} of transformers (model_type), {known}; these are read: {READ_TYPES}"
        )


def read(files: WeightFiles, hints: Hints = NO_HINTS, *, image_size: Size | None = None) -> Checkpoint:
    """Read a checkpoint. `image_size` is needed only if neither config.json nor a square grid gives it."""
    where, whole = files.where, check_entries(files.configs.get(CONFIG, {}), MODEL_SCHEMA, files.where)
    if "architecture" in whole:
        raise CheckpointError(
            f"{where}: the config.json beside it is of timm's {str(whole['architecture'])[:60]!r}, but its tensors "
            "have transformers' names"
        )
    kind = whole.get("model_type", "vit")
    content = whole
    if kind in TOWERS and "vision_config" in whole:
        content = check_entries(whole["vision_config"], MODEL_SCHEMA, where)
    family = FAMILIES[TOWERS.get(kind, kind)]
    ignored = check_known(content, family, hints.ignore_fields, where)
    content = {name: value for name, value in content.items() if name not in ignored}
    if isinstance(patch := content.get("patch_size"), list) and len(set(patch)) == 1:
        content["patch_size"] = patch[0]
    t = respell(files.tensors, SPELLINGS if family.table is VIT or kind == "deit" else PREFIXES, where)
    t = family.straighten(drop_unused(t, family, kind in TOWERS, files.path.name))
    stated = read_fields(content, FIELDS | family.used, WORDS, where) | family.read(content, t, where)
    stated = {**family.always, **{name: value for name, value in stated.items() if value is not None}}
    size = None if family.model_type.startswith("siglip2") else content.get("image_size")
    inference = Inference(where, hints, image_size, stated, size, family.defaults, sure=bool(content))
    config = inference.infer(family.table, t)
    assert isinstance(config, ViTConfig)
    weights = read_weights(family.table, t, config, where)
    line = preprocessing(
        files.configs.get(IMAGES, {}), config, where, family, inference.undivided_size(config)
    )
    if IMAGES not in files.configs and line:
        inference.assumed["preprocess"] = line
    architecture = next(iter(whole.get("architectures") or []), None)
    provenance = inference.provenance("huggingface", files, architecture)
    provenance |= {"model_type": family.model_type} if family.model_type != "vit" else {}
    provenance |= {"ignored_fields": ignored} if ignored else {}
    class_names = None
    if config.classes and "id2label" in whole and family.classifier.endswith("Classification"):
        class_names = list_class_names(whole["id2label"], "id2label", config.classes, where)
        class_names = None if class_names == default_names(config.classes) else class_names
    return Checkpoint(config, weights, line, class_names, provenance, license=find_license(whole, files.card))


# The first of SPELLINGS alone, for models whose names in memory are those on disk.
PREFIXES = dict(list(SPELLINGS.items())[:1])


def check_known(content: Mapping[str, Any], family: Family, ignore: tuple[str, ...], where: str) -> list[str]:
    """Refuse entries that are not known to be used or harmless; return those that are ignored on request."""
    known = {*FIELDS, *family.used, *HARMLESS, *family.harmless}
    unknown = sorted(set(content) - known)
    ignored = [name for name in unknown if name in ignore]
    if left := [name for name in unknown if name not in ignore]:
        names = ", ".join(name[:40] for name in left[:5])
        raise CheckpointError(
            f"{where}: its config.json has {names}, which {family.model_type} has not here (--ignore-field NAME "
            "reads it as if it were not there; its numbers may differ)"
        )
    return ignored


def drop_unused(t: dict[str, Tensor], family: Family, tower: bool, name: str) -> dict[str, Tensor]:
    """Leave out tensors that play no part: of pre-training, of a text tower, a pooler beside a classifier."""
    beginnings = (*family.left_out, *(TEXT if tower else ()))
    pooler = ("pooler.dense.",) if any(key.endswith("classifier.weight") for key in t) else ()
    ignored = [key for key in t if pooler and key.startswith(pooler)]
    if ignored:
        note(f"{name}: {' and '.join(ignored)} are left out: with a classifier they are not used")
    if any(key.startswith("text_model.") for key in t):
        note(f"{name}: the text tower is left out")
    return {key: w for key, w in t.items() if not key.startswith((*beginnings, *pooler))}


def default_names(classes: int) -> list[str]:
    """Return the names that transformers fills in."""
    return [f"LABEL_{i}" for i in range(classes)]


def preprocessing(
    content: dict[str, Any],
    config: ViTConfig,
    where: str,
    family: Family = FAMILIES["vit"],
    undivided: tuple[int, int] | None = None,
) -> str:
    """Return the line of a preprocessor_config.json; empty, with a note, if there is none.

    `undivided`: the size of images, if patches do not divide it.
    """
    if config.channels != 3:
        return ""
    size = undivided or config.image_size
    sides = named_sides(size)
    settings = {"size": sides, **IMAGE_DEFAULTS, **family.images}
    if family.images.get("do_center_crop"):
        settings |= {"size": {"shortest_edge": min(size)}, "crop_size": sides}
    if family.model_type == "dinov3_vit":
        settings["image_processor_type"] = UNROUNDED
    settings |= check_entries(content, IMAGE_SCHEMA, where)
    if isinstance(settings["size"], int) and family.images.get("do_center_crop"):
        settings["size"] = {"shortest_edge": settings["size"]}  # one number in old files
    try:
        pipeline = pp.parse(read_transform(settings).line())
        if pipeline.image_size not in (None, size):
            note(f"{where}: preprocessor_config.json is for {pipeline.image_size}; scaled to {size}")
            pipeline = pipeline.at(size)
        return cut_rest(str(pipeline), config.image_size)
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
    fractions = str(settings.get("image_processor_type", "")).startswith(UNROUNDED)
    return Transform(resize, crop, RESAMPLE[resample], *scaled, crop_rounding="down", fractions=fractions)


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
    family, checkpoint, c = choose_family(checkpoint)
    prefix = family.prefix if c.classes else ""
    tensors = family.bend(write_weights(family.table, checkpoint.weights), c)
    own = ("classifier.", "cls_classifier.", "distillation_classifier.", "visual_projection.")
    tensors = {key if key.startswith(own) else prefix + key: w for key, w in tensors.items()}
    images, notes = image_settings(checkpoint.preprocess)
    used = FIELDS | {name: ours for name, ours in family.used.items() if ours}
    for name in ("drop_path", "dropout", "attention_dropout"):
        if getattr(c, name) and name not in used.values():
            words = "stochastic depth" if name == "drop_path" else name
            notes.append(
                f"transformers' {family.model_type} has no {words}: {name}={getattr(c, name)} is not written"
            )
    if not c.classes and not c.pre_logits and "pooler_act" in family.used:
        notes.append(
            f"load it with {family.backbone}.from_pretrained(folder, add_pooling_layer=False): it has no pooler"
        )
    height, width = c.image_size
    model: dict[str, Any] = {
        "model_type": family.model_type,
        **write_fields(c, used, WORDS),
        "image_size": height if height == width else [height, width],
        **family.write(c),
    }
    if c.classes and family.around:
        model = {"model_type": family.around, "vision_config": model, "text_config": {}}
    settings: dict[str, Any] = {
        "architectures": [family.classifier if c.classes else family.backbone],
        **model,
        "dtype": "float32",
        "license": complete_license(checkpoint.license),
    }
    if c.pool == "token_and_distillation":
        settings["architectures"] = [f"{family.classifier}WithTeacher"]
    if c.pre_logits:
        settings |= {"pooler_output_size": c.pre_logits, "pooler_act": "tanh"}
    if c.classes and family.classifier.endswith("Classification"):
        names = checkpoint.class_names or default_names(c.classes)
        settings["id2label"] = {str(i): name for i, name in enumerate(names)}
        settings["label2id"] = {name: i for i, name in enumerate(names)}
    files = {CONFIG: settings} if images is None else {CONFIG: settings, IMAGES: images}
    torch_files.save_folder(path, tensors, files, checkpoint.license)
    return notes


def choose_family(checkpoint: Checkpoint) -> tuple[Family, Checkpoint, ViTConfig]:
    """Return the family that has a model's parts, and the model in its form: the one it was read from, if it can be.

    If there is none, the error is that of the plainest, or names the parts.
    """
    origin = checkpoint.provenance.get("model_type")
    kinds = sorted(FAMILIES, key=lambda kind: kind != origin)
    problems: dict[str, CheckpointError] = {}
    for kind in kinds:
        family = FAMILIES[kind]
        try:
            return family, *in_form_of(family, checkpoint)
        except CheckpointError as error:
            problems[kind] = error
    parts = find_parts(checkpoint.config) if isinstance(checkpoint.config, ViTConfig) else []
    if not parts or str(origin) in problems:
        raise problems[str(origin) if str(origin) in problems else "vit"]
    raise CheckpointError(
        f"none of transformers' models that are written here has {', '.join(parts)} together"
    )


def in_form_of(family: Family, checkpoint: Checkpoint) -> tuple[Checkpoint, ViTConfig]:
    """Return the model in a family's form, or raise the reason why there is none."""
    tanh = not checkpoint.config.classes and "pooler_act" in family.used
    needs_table = family.always.get("positions") == "1d"
    checkpoint, c = make_plain(
        checkpoint, "transformers", with_positions=needs_table, only_token=family.pools, tanh=tanh,
        parts=(*family.parts, "activation"),
    )  # fmt: skip
    problem = family.misfit(c)
    for name in ("class_token", "positions"):
        if not problem and (value := family.always.get(name)) is not None and getattr(c, name) != value:
            problem = f"{name}={getattr(c, name)}"
    if not problem and c.classes and not family.classifier:
        problem = "a classifier"
    if problem:
        raise CheckpointError(f"transformers' {family.model_type} has no counterpart for {problem}")
    return checkpoint, c


def reader_line(checkpoint: Checkpoint) -> str:
    """Return the line of the image processor for the preprocessor_config.json that is written, if any."""
    settings, _ = image_settings(checkpoint.preprocess)
    assert isinstance(checkpoint.config, ViTConfig)
    return "" if settings is None else preprocessing(settings, checkpoint.config, "the written folder")


def image_settings(line: str) -> tuple[dict[str, Any] | None, list[str]]:
    """Return the preprocessor_config.json, None if there is none for this line; and what it cannot express."""
    t, notes = line_to_transform(line, "down", fractions=True)
    if t is None:
        return None, notes
    resize = {"shortest_edge": t.resize} if isinstance(t.resize, int) else named_sides(t.resize)
    settings: dict[str, Any] = {
        "image_processor_type": UNROUNDED if t.fractions else "ViTImageProcessor",
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
