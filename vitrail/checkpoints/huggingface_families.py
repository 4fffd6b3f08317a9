"""Families of transformers' Vision Transformers, one for each model_type: what one is, and what all have in common.

A family has the names of its tensors and the entries of its config.json. An entry is used (FIELDS and `used`),
harmless (HARMLESS and `harmless`: it changes nothing that is computed from an image, or the tensors show it too), or
refused by its name. `straighten` and `bend` handle the few tensors that are not one for one of ours.

    huggingface_plain.py    ViT and DeiT, and those that are trained with masks: BEiT, I-JEPA, MAE, MSN
    huggingface_dino.py     DINOv2, with registers or without, and DINOv3
    huggingface_towers.py   the vision towers of models with texts: CLIP, SigLIP
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from vitrail.checkpoints.mapping import Table
from vitrail.checkpoints.transforms import IMAGENET
from vitrail.models.vit import ViTConfig

Tensors = dict[str, Tensor]
Content = Mapping[str, Any]
CROPPED = {"resample": 3, "do_center_crop": True}
IMAGENET_LISTS = {"image_mean": list(IMAGENET["mean"]), "image_std": list(IMAGENET["std"])}
TOKEN: dict[str, Any] = {"pool": "token", "class_token": True, "positions": "1d"}
PATCHES: dict[str, Any] = {"class_token": False, "positions": "1d"}
EXACT_12, EXACT_6 = {"activation": "gelu", "norm_eps": 1e-12}, {"activation": "gelu", "norm_eps": 1e-6}


def entries(names: str) -> frozenset[str]:
    return frozenset(names.split())


@dataclass(frozen=True)
class Family:
    model_type: str
    backbone: str  # the class without a classifier
    classifier: str  # the class with one; empty: there is none
    prefix: str  # of all names but the classifier's, in files of models with a classifier
    table: Table
    always: Mapping[str, Any]  # fields of our config that all its models have
    defaults: Mapping[str, Any]  # activation and norm_eps, if config.json leaves them out
    pools: tuple[str, ...] = ("token",)  # ours that it has
    parts: tuple[str, ...] = ("qkv_bias=none",)  # what it has of later ViTs: see mapping.make_plain
    used: dict[str, str] = field(
        default_factory=dict
    )  # entries beside FIELDS: our field; empty: only checked
    harmless: frozenset[str] = frozenset()
    around: str = (
        ""  # model_type of the file of a model with a classifier, in which this is the vision_config
    )
    left_out: tuple[str, ...] = ()  # beginnings of names of tensors that play no part
    images: Mapping[str, Any] = field(default_factory=dict)  # of its image processor, beside those of ViT's
    read: Callable[[Content, Tensors, str], dict[str, Any]] = (
        lambda content, t, where: {}
    )  # more of our fields
    write: Callable[[ViTConfig], dict[str, Any]] = lambda c: {}  # more entries
    straighten: Callable[[Tensors], Tensors] = lambda t: t
    bend: Callable[[Tensors, ViTConfig], Tensors] = lambda t, c: t
    misfit: Callable[[ViTConfig], str] = lambda c: ""  # what it cannot express of a config whose parts it has


# Entries of config.json for all families: our field (empty: only checked), and our words for some of their values.
FIELDS: dict[str, str] = {
    "hidden_size": "width", "num_hidden_layers": "depth", "num_attention_heads": "heads",
    "intermediate_size": "mlp_dim", "hidden_act": "activation", "layer_norm_eps": "norm_eps",
    "patch_size": "patch_size", "num_channels": "channels",
}  # fmt: skip
DROPOUTS = {"hidden_dropout_prob": "dropout", "attention_probs_dropout_prob": "attention_dropout"}
ATTENTION_DROPOUT = {"attention_dropout": "attention_dropout"}
DROP_PATH = {"drop_path_rate": "drop_path"}
WORDS: dict[str, dict[str, str]] = {
    "hidden_act": {
        "gelu": "gelu", "gelu_python": "gelu",
        "gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh", "gelu_fast": "gelu_tanh",
        "quick_gelu": "quick_gelu", "silu": "silu", "swish": "silu",
    },
    "pooler_act": {"tanh": "tanh"},
}  # fmt: skip
# Entries that say what a file is, or concern training and generating text alone.
HARMLESS = entries(
    "architectures model_type dtype torch_dtype transformers_version image_size id2label label2id problem_type "
    "initializer_range initializer_factor num_labels _name_or_path _commit_hash _attn_implementation "
    "_attn_implementation_autoset return_dict output_hidden_states output_attentions torchscript use_bfloat16 "
    "tf_legacy_loss pruned_heads tie_word_embeddings chunk_size_feed_forward is_encoder_decoder is_decoder "
    "cross_attention_hidden_size add_cross_attention tie_encoder_decoder max_length min_length do_sample "
    "early_stopping num_beams num_beam_groups diversity_penalty temperature top_k top_p typical_p "
    "repetition_penalty length_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids "
    "num_return_sequences output_scores return_dict_in_generate forced_bos_token_id forced_eos_token_id "
    "remove_invalid_values exponential_decay_length_penalty suppress_tokens begin_suppress_tokens finetuning_task "
    "tokenizer_class prefix bos_token_id pad_token_id eos_token_id sep_token_id decoder_start_token_id "
    "task_specific_params license encoder_stride gradient_checkpointing out_features out_indices stage_names "
    "apply_layernorm reshape_hidden_states _out_features _out_indices"
)
LAYER, ATTENTION = "encoder.layer.{i}", "encoder.layer.{i}.attention.attention"
BLOCK = "encoder.blocks.{i}"
QKV = tuple(f"{ATTENTION}.{name}" for name in ("query", "key", "value"))
COMMON: Table = {
    "embedding": "embeddings.patch_embeddings.projection",
    "cls": "embeddings.cls_token",
    "positions.table": "embeddings.position_embeddings",
    f"{BLOCK}.attention.qkv": QKV,
    f"{BLOCK}.attention.out": f"{LAYER}.attention.output.dense",
    "encoder.norm": "layernorm",
    "head.pre_logits": "pooler.dense",
    "head.classifier": "classifier",
}
VIT: Table = {
    **COMMON,
    f"{BLOCK}.norm1": f"{LAYER}.layernorm_before",
    f"{BLOCK}.norm2": f"{LAYER}.layernorm_after",
    f"{BLOCK}.mlp.fc1": f"{LAYER}.intermediate.dense",
    f"{BLOCK}.mlp.fc2": f"{LAYER}.output.dense",
}
