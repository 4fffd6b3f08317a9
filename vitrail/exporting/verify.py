"""An exported file beside the model that it was made from: before it gets its name, and always.

    compare(model, exported, ...)       both on the same images, one at a time and in batches, and at two sizes where
                                        the file takes many  -> Differences, or CheckFailed
    scores(model, exported, source)     both on a labelled split
    speed(model, exported)              latency and throughput of both on this machine, by turns

Numbers of the model are those of eager PyTorch in float32, on images prepared by its own line.
n images, K classes, D width.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vitrail.data.sources import Source
from vitrail.data.splits import Subset
from vitrail.errors import CheckFailed, DataError
from vitrail.evaluators.accuracy import evaluate
from vitrail.evaluators.other_pixels import drawn_pictures
from vitrail.inference.engine import transform
from vitrail.inference.exported import Exported
from vitrail.inference.images import decode_example
from vitrail.models.calibration import Calibration
from vitrail.models.names import Model

IMAGES = 64  # to compare on
BATCHES = (1, 3, 16)
ROUNDS, SECONDS = 5, 0.4  # of the clock; the latter for each measurement in a round
# precision: how far a logit may be from ours, as a share of the standard deviation of all logits (`largest`), and all
# of them on average (`mean`)
LARGEST = {"float32": 1e-4, "float16": 0.05, "bf16": 0.3, "int8_weights": 0.5, "int8": 2.0, "fp8": 2.0}
MEAN = {"float32": 2e-5, "float16": 0.005, "bf16": 0.04, "int8_weights": 0.05, "int8": 0.2, "fp8": 0.2}
PROBABILITY = 1e-3  # with input pixels, in float32: how far a probability may be
AGREEMENT = {"float32": 1.0, "float16": 0.98, "bf16": 0.95, "int8_weights": 0.95, "int8": 0.9, "fp8": 0.9}
FEW = 2  # images whose class may differ in any case, but in float32
LEAST = 1e-6  # a smaller spread of outputs would show nothing: the head is fresh


@dataclass(frozen=True)
class Differences:
    """Outputs of a file and of its model on the same images."""

    images: int
    batches: list[int]
    compared: str  # logits, or features where these do not differ between images
    spread: float  # standard deviation of the model's
    largest: float
    mean: float  # of the magnitudes
    probability: float  # the largest; 0 without classes
    agreement: float  # share of the images whose most probable class is the same; 1 without classes


@dataclass(frozen=True)
class Scores:
    """Top-1 accuracy of a file and of its model on a labelled split."""

    data: str
    n: int
    model: float
    file: float

    @property
    def drop(self) -> float:
        return self.model - self.file


@dataclass(frozen=True)
class Speed:
    """Milliseconds of a batch: eager PyTorch, and the file; medians of ROUNDS rounds, by turns."""

    batch: int
    threads: int
    model_ms: float
    file_ms: float

    @property
    def ratio(self) -> float:
        return self.model_ms / self.file_ms


def sample(source: Source | None) -> list[np.ndarray]:
    """Return up to IMAGES decoded images of a source, those in its first part that can be read; else drawn ones."""
    source = drawn_pictures() if source is None else source
    places = np.sort(np.random.default_rng(0).permutation(len(source))[:IMAGES])
    images = []
    for i in places:
        try:
            images.append(decode_example(source, int(i)))
        except DataError:
            continue
    if not images:
        raise DataError(f"{source.name}: none of {len(places)} images can be read")
    return images


def compare(model: Model, exported: Exported, images: Sequence[np.ndarray]) -> Differences:
    """Run both on images uint8 (H, W, 3); CheckFailed if they differ by more than the precision allows."""
    prepare = transform(model)
    batches = [exported.card["batch"]] if exported.card["batch"] else list(BATCHES)
    ours, theirs = [], []  # outputs by name, of batches
    for group in groups(images, batches, same_size=exported.takes_pixels):
        x = torch.stack([prepare(image) for image in group])  # (b, 3, H, W)
        ours.append(outputs(model, x))
        given = torch.from_numpy(np.stack(group)) if exported.takes_pixels else x
        theirs.append(exported.run(given))
    if stride := exported.card["stride"]:
        H, W = model.config.image_size
        for more in ((stride, 2 * stride), (-stride if 2 * stride < H else 3 * stride, 0)):
            x = torch.randn(2, 3, H + more[0], W + more[1], generator=torch.Generator().manual_seed(0))
            ours.append(outputs(model, x))
            theirs.append(exported.run(x))
    a, b = (
        {name: torch.cat([part[name] for part in parts]) for name in parts[0]} for parts in (ours, theirs)
    )
    d = differences(a, b, batches, model.calibration)
    check(d, exported.card["precision"], exported.takes_pixels)
    return d


def groups(images: Sequence[np.ndarray], batches: list[int], *, same_size: bool) -> list[list[np.ndarray]]:
    """Put images into batches, each size of `batches` at least once; those of one size, if they have to be, are
    shifted copies of one image where there are not enough."""
    result, place = [], 0
    sizes = list(batches)
    while place < len(images) or sizes:
        size = sizes.pop(0) if sizes else batches[-1] if not same_size else batches[0]
        group = [images[(place + i) % len(images)] for i in range(size)]
        if same_size and len({image.shape for image in group}) > 1:
            group = [np.roll(group[0], 7 * i, axis=1) for i in range(size)]
            size = 1
        place += size
        result.append(group)
    return result


def outputs(model: Model, x: Tensor) -> dict[str, Tensor]:
    """Return what a file gives, by eager PyTorch: logits (B, K), features (B, D)."""
    device = next(model.parameters()).device
    with torch.no_grad():
        y = model.head.representation(model.features(x.to(device)))  # (B, D)
        named = {"features": y.float().cpu()}
        if model.head.classifier is not None:
            named["logits"] = model.head.classifier(y).float().cpu()
    return named


def differences(
    ours: dict[str, Tensor], theirs: dict[str, Tensor], batches: list[int], calibration: Calibration
) -> Differences:
    name = "logits" if "logits" in ours and float(ours["logits"].std()) > LEAST else "features"
    d = (ours[name] - theirs[name]).abs()
    probability, agreement = 0.0, 1.0
    if name == "logits":
        p = calibration.probabilities(ours[name])  # (n, K)
        probability = float((p - theirs["probabilities"]).abs().max())
        agreement = float((ours[name].argmax(dim=1) == theirs[name].argmax(dim=1)).float().mean())
    spread, n = float(ours[name].std()), len(d)
    return Differences(n, batches, name, spread, float(d.max()), float(d.mean()), probability, agreement)


def check(d: Differences, precision: str, pixels: bool) -> None:
    """Raise CheckFailed where a file is too far from its model."""
    problems = []
    if not d.spread > LEAST:
        problems.append(f"the model's {d.compared} do not depend on the image: there is nothing to compare")
    # Rounding to bytes, in the file and in ours, falls to different sides for a few pixels.
    more = 100 if pixels and precision == "float32" else 1
    for what, value, most in (
        ("at most", d.largest, LARGEST[precision] * more),
        ("on average", d.mean, MEAN[precision] * more),
    ):
        if not value <= most * d.spread:
            problems.append(
                f"its {d.compared} differ by {value:.2g} {what}; allowed in {precision}: {most * d.spread:.2g}, "
                f"{most:g} of their standard deviation"
            )
    if pixels and precision == "float32" and not d.probability <= PROBABILITY:
        problems.append(f"a probability differs by {d.probability:.2g}; allowed: {PROBABILITY:g}")
    others = round(d.images * (1 - d.agreement))
    if others > (0 if precision == "float32" else max(FEW, d.images * (1 - AGREEMENT[precision]))):
        problems.append(f"it gives the same class for {d.agreement:.1%}; needed: {AGREEMENT[precision]:.0%}")
    if problems:
        raise CheckFailed(f"the exported file is not the model, and is not kept: {'; '.join(problems)}")


def scores(
    model: Model, exported: Exported, source: Source, max_drop: float, most: int | None = None
) -> Scores:
    """Evaluate both on a labelled split, or on `most` images of it; CheckFailed if the file loses too much top-1."""
    if most is not None and most < len(source):
        source = Subset(source, np.sort(np.random.default_rng(0).permutation(len(source))[:most]))
    ours, theirs = (evaluate(one, source) for one in (model, exported))
    result = Scores(source.name, ours.n, ours.top1, theirs.top1)
    if result.drop > max_drop:
        raise CheckFailed(
            f"the exported file loses {100 * result.drop:.2f} points of top-1 on {source.name} ({theirs.top1:.2%}, "
            f"the model {ours.top1:.2%}), and is not kept; allowed: {100 * max_drop:.2f} (--max-drop)"
        )
    return result


def speed(model: Model, exported: Exported, images: Sequence[np.ndarray]) -> list[Speed]:
    """Time a forward pass of both, on batches of the first image; with input pixels, the file also prepares them."""
    prepare, threads = transform(model), torch.get_num_threads()
    device = next(model.parameters()).device
    results = []
    for batch in [exported.card["batch"]] if exported.card["batch"] else [1, 16]:
        x = prepare(images[0])[None].repeat(batch, 1, 1, 1)  # (B, 3, H, W)
        given = torch.from_numpy(images[0][None]).repeat(batch, 1, 1, 1) if exported.takes_pixels else x
        x = x.to(device)

        def ours(x: Tensor = x) -> None:
            with torch.no_grad():
                model(x)[:1].cpu()

        def theirs(given: Tensor = given) -> None:
            exported.run(given)

        times: tuple[list[float], list[float]] = ([], [])
        for _ in range(ROUNDS):
            for call, own in zip((ours, theirs), times, strict=True):
                own.append(milliseconds(call))
        results.append(Speed(batch, threads, statistics.median(times[0]), statistics.median(times[1])))
    return results


def milliseconds(call: Callable[[], None]) -> float:
    """Return the median time of a call, over SECONDS, after one that warms up."""
    call()
    times: list[float] = []
    end = time.perf_counter() + SECONDS
    while not times or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return 1000 * statistics.median(times)
