"""Other libraries doing the same work: timm and torchvision, where they are installed. Neither is a dependency.

Settings are the same for all: batch, precision, images on the device, AdamW with the same lr and weight decay (fused
on CUDA), clipping at norm 1. timm's models get the published tanh form of the GELU, as ours have it; torchvision's
keep the exact one. On CUDA they are measured as they are and by torch.compile.

Their loaders draw random crops and flips of the same areas and aspects, and return bytes, as ours do. They read the
encoded files through our source, so that any data set can be compared; decoding, augmentation, batches and processes
are theirs. They never reach the end of an epoch, where they would wait.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import io
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from vitrail.bench.rounds import Contestant, Step
from vitrail.bench.subject import Subject
from vitrail.data.sources import Source
from vitrail.models.names import TIMM_SIZES, Config
from vitrail.models.vit import VARIANTS, ViTConfig

PACKAGES = ("timm", "torchvision")
# Modes of torch.compile on CUDA that each is measured with; "" is without.
MODES = {"timm": ("", "default", "reduce-overhead", "max-autotune"), "torchvision": ("", "default")}
GRAPHS = ("reduce-overhead", "max-autotune")  # modes that use CUDA graphs
AREA, ASPECT = (0.05, 1.0), (3 / 4, 4 / 3)  # of random crops, as in our training line
BATCHES = 10_000  # of an epoch: more than are ever read
Missing = dict[str, str]  # a library, and why it does not take part
Build = Callable[[], nn.Module]


def training_contestants(
    subject: Subject, precision: str, *, lr: float, weight_decay: float, grad_clip: float
) -> tuple[list[Contestant], Missing]:
    """Return the usual training step with the models of other libraries."""

    def build(model: Build, mode: str) -> Step:
        module, call = compiled(model, mode, subject)
        module.train()
        fused = subject.device.type == "cuda"
        parameters = list(module.parameters())
        optimizer = torch.optim.AdamW(parameters, lr=lr, weight_decay=weight_decay, fused=fused)
        images, labels = subject.images(subject.batch_size), subject.labels()

        def step() -> None:
            if mode in GRAPHS:
                torch.compiler.cudagraph_mark_step_begin()
            with autocast(subject, precision):
                loss = F.cross_entropy(call(images), labels)
            loss.backward()
            nn.utils.clip_grad_norm_(parameters, grad_clip)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        return step

    return model_contestants(subject, build)


def inference_contestants(
    subject: Subject, batch_size: int, precision: str
) -> tuple[list[Contestant], Missing]:
    """Return the forward pass of the models of other libraries."""

    def build(model: Build, mode: str) -> Step:
        module, call = compiled(model, mode, subject)
        module.eval()
        images = subject.images(batch_size)

        def step() -> Tensor:
            if mode in GRAPHS:
                torch.compiler.cudagraph_mark_step_begin()
            with torch.inference_mode(), autocast(subject, precision):
                y: Tensor = call(images).float()  # (B, K)
            return y

        return step

    return model_contestants(subject, build)


def model_contestants(
    subject: Subject, build: Callable[[Build, str], Step]
) -> tuple[list[Contestant], Missing]:
    """Return a contestant for each library that has the model, and each way to compile it."""
    contestants, missing = [], {}
    for library, find in {"timm": find_timm, "torchvision": find_torchvision}.items():
        model = reason_without(library) or find(subject.config)
        if isinstance(model, str):
            missing[library] = model
            continue
        for mode in MODES[library] if subject.device.type == "cuda" else ("",):
            name = f"{library}, compiled ({mode})" if mode else library
            contestants.append(
                Contestant(name, lambda m=model, mode=mode: build(m, mode), graphs=mode in GRAPHS)  # type: ignore[misc]
            )
    return contestants, missing


def compiled(build: Build, mode: str, subject: Subject) -> tuple[nn.Module, Callable[[Tensor], Tensor]]:
    """Return a new model on the device, and what to call: the model, or torch.compile of it."""
    torch.manual_seed(subject.settings.seed)
    model = build().to(subject.device)
    return model, torch.compile(model, mode=mode) if mode else model


def autocast(subject: Subject, precision: str) -> torch.autocast:
    return torch.autocast(subject.device.type, torch.bfloat16, enabled=precision == "bf16")


def find_timm(config: Config) -> Build | str:
    """Return what builds timm's model of the same architecture, or why there is none."""
    timm = importlib.import_module("timm")
    if isinstance(config, ViTConfig) and is_plain(config):
        dims = (config.width, config.depth, config.mlp_dim, config.heads)
        words = [word for word, variant in TIMM_SIZES.items() if VARIANTS.get(variant) == dims]
        names = [f"vit_{word}_patch{config.patch_size}_{size}" for word in words for size in (224, 384)]
        for name in names:
            if timm.is_model(name):
                arguments = {
                    "img_size": config.image_size,
                    "num_classes": config.classes,
                    "act_layer": config.activation,  # gelu or gelu_tanh: the same words
                }
                return lambda: timm.create_model(name, pretrained=False, **arguments)
        if names:
            return f"has no {names[0]}"
    return "does not have this architecture under a name that is known here"


def find_torchvision(config: Config) -> Build | str:
    """Return what builds torchvision's model of the same architecture, or why there is none."""
    models = importlib.import_module("torchvision.models")
    if not isinstance(config, ViTConfig) or not is_plain(config):
        return "does not have this architecture"
    H, W = config.image_size
    if H != W:
        return f"takes square images only, not {H}x{W}"
    c = config
    return lambda: models.VisionTransformer(
        H, c.patch_size, c.depth, c.heads, c.width, c.mlp_dim, num_classes=c.classes
    )


def is_plain(config: ViTConfig) -> bool:
    """Return whether it is the paper's ViT, which all libraries have: class token, learned positions, no more."""
    plain = replace(
        config, channels=3, pool="token", class_token=True, pre_logits=0, positions="1d", positions_at="stem",
        block="standard", norm_at="encoder", dropout=0.0, attention_dropout=0.0, drop_path=0.0,
    )  # fmt: skip
    return type(config) is ViTConfig and config == plain


def loader_contestants(
    subject: Subject, source: Source, num_workers: int, ready: int
) -> tuple[list[Contestant], Missing]:
    """Return other loaders of the same files. torchvision's operations on tensors need its compiled part."""
    ways = {
        "torchvision, PIL": torchvision_on_pil,
        "torchvision, tensors": torchvision_on_tensors,
        "timm": timm_loader,
    }
    contestants, missing = [], {}
    for name, make in ways.items():
        if reason := reason_without(name.partition(",")[0]):
            missing[name] = reason
            continue

        def build(make: Callable[..., Iterator[Tensor]] = make) -> Step:
            torch.manual_seed(subject.settings.seed)
            batches = make(Files(source, BATCHES * subject.batch_size), subject, num_workers)
            return lambda: next(batches)

        contestants.append(Contestant(name, build, ready))
    return contestants, missing


class Files(Dataset[Any]):
    """The encoded files of a source, again and again, through `decode` and `transform`."""

    def __init__(
        self, source: Source, count: int, *, as_tensors: bool = False, transform: Any = None
    ) -> None:
        self.source, self.count, self.as_tensors, self.transform = source, count, as_tensors, transform

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Any, int]:
        example = self.source.read(index % len(self.source))
        image: Any = example.image
        if self.as_tensors:
            image = decode_tensor(image)
        elif isinstance(image, bytes):
            with Image.open(io.BytesIO(image)) as opened:
                image = opened.convert("RGB")
        else:
            image = Image.fromarray(image)
        return self.transform(image), example.label


def decode_tensor(image: Any) -> Tensor:
    from torchvision.io import ImageReadMode, decode_image

    if not isinstance(image, bytes):
        return torch.from_numpy(image).permute(2, 0, 1)  # (3, H, W)
    return decode_image(torch.frombuffer(bytearray(image), dtype=torch.uint8), ImageReadMode.RGB)


def torchvision_on_pil(files: Files, subject: Subject, num_workers: int) -> Iterator[Tensor]:
    from torchvision.transforms import v2

    crop = v2.RandomResizedCrop(subject.config.image_size, AREA, ASPECT)
    files.transform = v2.Compose([crop, v2.RandomHorizontalFlip(), v2.PILToTensor()])
    return torch_batches(files, subject, num_workers)


def torchvision_on_tensors(files: Files, subject: Subject, num_workers: int) -> Iterator[Tensor]:
    from torchvision.transforms import v2

    crop = v2.RandomResizedCrop(subject.config.image_size, AREA, ASPECT, antialias=True)
    files.as_tensors, files.transform = True, v2.Compose([crop, v2.RandomHorizontalFlip()])
    return torch_batches(files, subject, num_workers)


def torch_batches(files: Files, subject: Subject, num_workers: int) -> Iterator[Tensor]:
    pinned = subject.device.type == "cuda"
    loader = DataLoader(files, subject.batch_size, shuffle=True, num_workers=num_workers, pin_memory=pinned)
    return (images for images, _ in loader)


def timm_loader(files: Files, subject: Subject, num_workers: int) -> Iterator[Tensor]:
    data = importlib.import_module("timm.data")
    prefetching = data.create_loader(
        files,
        (3, *subject.config.image_size),
        subject.batch_size,
        is_training=True,
        use_prefetcher=True,
        device=subject.device,
        num_workers=num_workers,
        pin_memory=subject.device.type == "cuda",
        scale=AREA,
        ratio=ASPECT,
        hflip=0.5,
        color_jitter=None,
        interpolation="bilinear",
    )
    # What its prefetcher would copy to the device: bytes.
    return (torch.as_tensor(images) for images, _ in prefetching.loader)


def reason_without(library: str) -> str:
    """Import a library; return why that is not possible, or nothing."""
    try:
        import_torchvision()  # timm imports it too
        importlib.import_module(library)
    except ImportError as error:
        missing = (error.name or library).partition(".")[0]
        return "is not installed" if missing == library else f"needs {missing}, which is not installed"
    except Exception as error:  # whatever another library does when it is imported
        return f"cannot be imported: {str(error).strip().splitlines()[0][:120]}"
    return ""


def import_torchvision() -> ModuleType:
    """Import torchvision, also where its compiled part was built for another torch than the one here.

    Without that part it cannot register two operators of its own, which it needs when it is imported and which
    nothing here uses: declaring them is enough.
    """
    try:
        return importlib.import_module("torchvision")
    except RuntimeError:
        for name in ("nms", "qnms"):
            signature = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            torch.library.define(f"torchvision::{name}", signature)
        return importlib.import_module("torchvision")


def installed_versions() -> dict[str, str]:
    """Return the versions of the libraries that are installed."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions
