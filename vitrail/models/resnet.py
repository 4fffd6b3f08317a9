"""BiT ResNets: the paper's baselines (pre-activation), and the stem of its hybrids (post-activation).

Both: bottleneck units, GroupNorm of 32 groups, and weight-standardised convolutions

    w^ = (w - mean(w)) / std(w)         over each output filter

The two published implementations differ in details, which are values here: BiT divides by sqrt(var + 1e-10),
pads by fixed amounts and with zeros before the max-pool; the hybrids' stem divides by std + 1e-5 and pads as
TensorFlow's SAME does (the odd pixel goes to the right and the bottom).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.errors import ConfigError
from vitrail.models import checking
from vitrail.models.choices import Standardisation
from vitrail.models.initialisation import initialise
from vitrail.models.vit import Described, Head

GROUPS = 32
MOST_STAGES, MOST_UNITS = 6, 1000  # units of all stages together

# units in each of the four stages
UNITS: dict[str, tuple[int, ...]] = {
    "R14": (1, 1, 1, 1),  # not in the paper, for small images
    "R26": (2, 2, 2, 2),
    "R50": (3, 4, 6, 3),
    "R101": (3, 4, 23, 3),
    "R152": (3, 8, 36, 3),
    "R200": (3, 24, 36, 3),
}


@dataclass(frozen=True)
class BiTConfig:
    """A BiT ResNet. The defaults are R50x1 at 224."""

    units: tuple[int, ...] = (3, 4, 6, 3)  # bottleneck units in each stage
    width_factor: float = 1  # every number of channels is multiplied by this
    image_size: tuple[int, int] = (224, 224)  # (H, W); an int means a square
    channels: int = 3
    classes: int = 1000  # 0: none, forward() gives the representation
    norm_eps: float = 1e-5
    standardisation: Standardisation = "sqrt_var"
    standardisation_eps: float = 1e-10
    head_bias: float = 0.0  # initial bias of the classifier

    def __post_init__(self) -> None:
        object.__setattr__(self, "image_size", checking.image_size(self.image_size))
        check_resnet(self, least_stages=1)
        if min(self.image_size) < 32:
            raise ConfigError(f"image_size {self.image_size} is too small for a ResNet: at least 32")

    @property
    def width(self) -> int:
        """D, the width of the features."""
        return stage_width(self.width_factor, len(self.units) - 1)

    @property
    def pooled_width(self) -> int:
        """Width of what the head reads."""
        return self.width


@dataclass(frozen=True)
class StemConfig:
    """The post-activation ResNet in front of a hybrid's encoder."""

    units: tuple[int, ...] = (3, 4, 9)  # bottleneck units in each stage; (): the root alone
    width_factor: float = 1
    norm_eps: float = 1e-6
    standardisation: Standardisation = "std"
    standardisation_eps: float = 1e-5

    def __post_init__(self) -> None:
        check_resnet(self, least_stages=0)

    @property
    def stride(self) -> int:
        """Pixels of the image from one output position to the next: the root's 4, doubled by each later stage."""
        return 4 * 2 ** max(0, len(self.units) - 1)

    @property
    def width(self) -> int:
        """Number of output channels."""
        if not self.units:
            return int(64 * self.width_factor)
        return stage_width(self.width_factor, len(self.units) - 1)


def stage_width(width_factor: float, stage: int) -> int:
    """Return the output channels of stage 0, 1, 2, 3: 256, 512, 1024, 2048 times the width factor."""
    return 4 * int(64 * width_factor) * 2**stage


def check_resnet(config: BiTConfig | StemConfig, least_stages: int) -> None:
    """Reject fields that neither kind of ResNet can have; make `units` a tuple."""
    checking.check_fields(vars(config))
    if 64 * config.width_factor % GROUPS:
        raise ConfigError(f"width_factor={config.width_factor}: 64 times it must be a multiple of {GROUPS}")
    value: Any = config.units
    units = tuple(value) if isinstance(value, tuple | list) else (0,)
    if len(units) < least_stages or not all(checking.is_whole(n) and n >= 1 for n in units):
        raise ConfigError(f"units={value!r} must be a whole number of at least 1 for each stage")
    if len(units) > MOST_STAGES or sum(units) > MOST_UNITS:
        raise ConfigError(
            f"units={units!r:.60} must have at most {MOST_STAGES} stages and {MOST_UNITS} units in all"
        )
    object.__setattr__(config, "units", units)


class BiT(Described):
    """images (B, C, H, W) -> logits (B, classes)."""

    def __init__(self, config: BiTConfig) -> None:
        super().__init__()
        self.config = config
        c = config
        conv = partial(StdConv, same=False, form=c.standardisation, eps=c.standardisation_eps)
        self.root = nn.ModuleDict({"conv": conv(c.channels, int(64 * c.width_factor), 7, 2)})
        self.pool = ZeroPaddedMaxPool()
        self.stages = stages(PreActUnit, c, conv)
        self.norm = nn.GroupNorm(GROUPS, c.width, eps=c.norm_eps)
        self.head = Head(c.width, pre_logits=0, classes=c.classes)
        initialise(self, head_bias=c.head_bias)

    def feature_map(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, D, H/32, W/32)."""
        x = self.root["conv"](x)  # (B, 64w, H/2, W/2)
        x = self.pool(x)  # (B, 64w, H/4, W/4)
        return F.relu(self.norm(self.stages(x)))  # (B, 2048w, H/32, W/32)

    def features(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, D)."""
        return self.feature_map(x).mean(dim=(2, 3))  # (B, D)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, classes)."""
        return self.head(self.features(x))


class ZeroPaddedMaxPool(nn.Module):
    """(B, C, h, w) -> (B, C, h/2, w/2): 3 x 3, with zeros at the border, not -inf."""

    def forward(self, x: Tensor) -> Tensor:
        return F.max_pool2d(F.pad(x, (1, 1, 1, 1)), 3, 2)


class Stem(nn.Module):
    """images (B, C, H, W) -> (B, width, H/stride, W/stride): the hybrids' ResNet, without a head."""

    def __init__(self, config: StemConfig, channels: int) -> None:
        super().__init__()
        c, width = config, int(64 * config.width_factor)
        conv = partial(StdConv, same=True, form=c.standardisation, eps=c.standardisation_eps)
        norm = nn.GroupNorm(GROUPS, width, eps=c.norm_eps)
        self.root = nn.ModuleDict({"conv": conv(channels, width, 7, 2), "norm": norm})
        self.stages = stages(PostActUnit, c, conv)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.root["norm"](self.root["conv"](x)))  # (B, 64w, H/2, W/2)
        x = F.max_pool2d(pad_same(x, 3, 2, value=float("-inf")), 3, 2)  # (B, 64w, H/4, W/4)
        return self.stages(x)


Convolution = Callable[..., "StdConv"]


def stages(unit: type[nn.Module], c: BiTConfig | StemConfig, conv: Convolution) -> nn.Sequential:
    """Return stages of units[s] bottlenecks; the first doubles the width and, from stage 1 on, halves the grid."""
    all_stages, inputs = [], int(64 * c.width_factor)
    for s, count in enumerate(c.units):
        outputs = stage_width(c.width_factor, s)
        stage: list[nn.Module] = []
        for u in range(count):
            stride = 2 if s > 0 and u == 0 else 1
            stage.append(unit(inputs, outputs, stride, u == 0, conv, c.norm_eps))
            inputs = outputs
        all_stages.append(nn.Sequential(*stage))
    return nn.Sequential(*all_stages)


class PreActUnit(nn.Module):
    """Normalise, rectify, convolve, three times; the projection sees the first rectified input."""

    def __init__(
        self, inputs: int, outputs: int, stride: int, project: bool, conv: Convolution, norm_eps: float
    ) -> None:
        super().__init__()
        middle = outputs // 4
        self.norm1 = nn.GroupNorm(GROUPS, inputs, eps=norm_eps)
        self.conv1 = conv(inputs, middle, 1)
        self.norm2 = nn.GroupNorm(GROUPS, middle, eps=norm_eps)
        self.conv2 = conv(middle, middle, 3, stride)
        self.norm3 = nn.GroupNorm(GROUPS, middle, eps=norm_eps)
        self.conv3 = conv(middle, outputs, 1)
        self.projection = conv(inputs, outputs, 1, stride) if project else None

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(x))
        shortcut = x if self.projection is None else self.projection(y)
        y = self.conv1(y)
        y = self.conv2(F.relu(self.norm2(y)))
        y = self.conv3(F.relu(self.norm3(y)))
        return y + shortcut


class PostActUnit(nn.Module):
    """Convolve, normalise, rectify; the last norm starts at zero, so that the unit starts as the identity."""

    def __init__(
        self, inputs: int, outputs: int, stride: int, project: bool, conv: Convolution, norm_eps: float
    ) -> None:
        super().__init__()
        middle = outputs // 4
        self.conv1 = conv(inputs, middle, 1)
        self.norm1 = nn.GroupNorm(GROUPS, middle, eps=norm_eps)
        self.conv2 = conv(middle, middle, 3, stride)
        self.norm2 = nn.GroupNorm(GROUPS, middle, eps=norm_eps)
        self.conv3 = conv(middle, outputs, 1)
        self.norm3 = nn.GroupNorm(GROUPS, outputs, eps=norm_eps)
        self.projection = conv(inputs, outputs, 1, stride) if project else None
        self.projection_norm = nn.GroupNorm(GROUPS, outputs, eps=norm_eps) if project else None

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        y = F.relu(self.norm2(self.conv2(y)))
        y = self.norm3(self.conv3(y))
        if self.projection is not None and self.projection_norm is not None:
            x = self.projection_norm(self.projection(x))
        return F.relu(x + y)


class StdConv(nn.Conv2d):
    """A convolution without bias whose filters are standardised before use."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int,
        stride: int = 1,
        *,
        same: bool,
        form: Standardisation,
        eps: float,
    ) -> None:
        super().__init__(inputs, outputs, kernel, stride, 0 if same else kernel // 2, bias=False)
        self.same = same  # pad as TensorFlow's SAME does
        self.form, self.eps = form, eps

    def forward(self, x: Tensor) -> Tensor:
        if self.same:
            x = pad_same(x, self.kernel_size[0], self.stride[0])
        return F.conv2d(x, standardise(self.weight, self.form, self.eps), None, self.stride, self.padding)


def standardise(w: Tensor, form: Standardisation, eps: float) -> Tensor:
    """Return w^ = (w - mean) / sqrt(var + eps), or / (std + eps), over each output filter; w (out, in, k, k)."""
    w = w - w.mean(dim=(1, 2, 3), keepdim=True)
    variance = w.square().mean(dim=(1, 2, 3), keepdim=True)
    return w / ((variance + eps).sqrt() if form == "sqrt_var" else variance.sqrt() + eps)


def pad_same(x: Tensor, kernel: int, stride: int, value: float = 0.0) -> Tensor:
    """Pad as TensorFlow's SAME: an output of ceil(n / stride), the odd pixel at the right and bottom."""
    vertical, horizontal = (
        max((-(-n // stride) - 1) * stride + kernel - n, 0) for n in (x.shape[-2], x.shape[-1])
    )
    if not vertical and not horizontal:
        return x
    left, top = horizontal // 2, vertical // 2
    return F.pad(x, (left, horizontal - left, top, vertical - top), value=value)
