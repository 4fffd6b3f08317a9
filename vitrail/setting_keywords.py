"""The settings as typed keywords of vitrail.pretrain and vitrail.finetune, for editors and type checkers.

Written from the settings themselves by tests/guards/test_setting_keywords.py; do not edit it.
"""

from __future__ import annotations

from typing import Literal, TypedDict

from vitrail.models.choices import (
    Activation,
    BlockKind,
    MLPKind,
    Norm,
    Pool,
    Positions,
    PositionsAt,
    QKVBias,
    Rotary,
)
from vitrail.train.settings import Duration, Parallel


class ExperimentSettings(TypedDict, total=False):
    """Settings of an experiment."""

    image_size: int | Literal["any"] | None
    max_tokens: int
    patch_size: int | None
    width: int | None
    depth: int | None
    heads: int | None
    mlp_dim: int | None
    pool: Pool | None
    class_token: bool | None
    positions: Positions | None
    positions_at: PositionsAt | None
    block: BlockKind | None
    activation: Activation | None
    norm_eps: float | None
    dropout: float | None
    attention_dropout: float | None
    drop_path: float | None
    pre_logits: bool
    head_bias: float | None
    registers: int | None
    patch_stride: int | None
    pre_norm: bool | None
    norm: Norm | None
    layer_scale: float | None
    mlp: MLPKind | None
    mlp_norm: bool | None
    attention_norm: bool | None
    qk_norm: bool | None
    qkv_bias: QKVBias | None
    rotary: Rotary | None
    train: str
    val: str
    test: str
    calibrate: str
    preprocess: str
    augment: Literal["none", "light", "medium", "strong"] | None
    evaluate_preprocess: str
    batch_size: int
    mixup: float
    cutmix: float
    max_bad: float
    num_workers: int | None
    resident: bool
    fewshot: tuple[str, ...] | list[str]
    loss: Literal["softmax", "sigmoid"]
    label_smoothing: float
    balance: float
    target: Literal["mean", "grid", "pixels"]
    corrupted: float
    masked: float
    replaced: float
    optimizer: Literal["adamw", "sgd"]
    lr: float
    schedule: Literal["cosine", "linear", "constant", "milestones"]
    warmup: Duration
    end_lr: float
    milestones: tuple[Duration, ...] | list[Duration]
    momentum: float
    beta2: float
    weight_decay: float
    layer_decay: float
    grad_clip: float
    ema: float
    ema_ramp: bool
    tune: str
    freeze: tuple[str, ...] | list[str]
    steps: Duration
    grad_accum: int
    precision: Literal["auto", "float32", "bf16"]
    compile: Literal["auto", "on", "graphs", "off"]
    activation_checkpointing: bool
    parallel: Parallel
    replicas: int
    log_every: Duration
    evaluate_every: Duration
    save_every: Duration
    keep: int
    monitor: str
    patience: int
    on_nonfinite: Literal["stop", "skip"]
    max_skipped: int
    save_adapter: bool
    wanted_precision: float
    tensorboard: bool
    seed: int


class FinetuningSettings(ExperimentSettings, total=False):
    """Settings of an experiment and of a sweep."""

    sweep: bool
    lrs: tuple[float, ...] | list[float]
    dev: float
    seeds: int
    budget: str
