"""The training step, side by side with timm's: `python -m benchmarks.train_step` on a GPU.

ViT-B/16 at 224, batch 256, bf16, AdamW, both compiled, images already on the device. Ours is the loop's own step:
tanh GELU, weighted loss, clipping at norm 1, the norm and loss read one step late. timm's is the usual one: autocast,
cross-entropy, fused AdamW; without clipping, which its recipe leaves out. Rounds alternate; the medians are compared.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import statistics
import time
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F

import vitrail
from benchmarks.peers import import_torchvision
from vitrail.models.cost import cost
from vitrail.runtime.device import peak_flops
from vitrail.runtime.training_display import TrainingDisplay, Work
from vitrail.train.fit import Loop
from vitrail.train.keywords import override
from vitrail.train.optim import TrainState
from vitrail.train.settings import Experiment

DEVICE = torch.device("cuda")
Step = Callable[[], None]


def batch_of(size: int, image_size: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator(DEVICE).manual_seed(0)
    return {
        "image": torch.rand(size, 3, image_size, image_size, device=DEVICE, generator=generator) * 2 - 1,
        "label": torch.randint(0, 1000, (size,), device=DEVICE, generator=generator),
        "weight": torch.ones(size, device=DEVICE),
        "index": torch.arange(size, device=DEVICE),
    }


class Repeated:
    """The same batch at every step."""

    def __init__(self, batch: dict[str, torch.Tensor]) -> None:
        self.batch = batch

    def batches(self, start: int, stop: int, device: torch.device) -> Iterator[dict[str, torch.Tensor]]:
        return itertools.repeat(self.batch, stop - start)


def ours(batch: dict[str, torch.Tensor], name: str, image_size: int) -> Step:
    model = vitrail.create(name, classes=1000, image_size=image_size).to(DEVICE)
    settings = {"lr": 1e-3, "warmup": 100, "weight_decay": 0.1, "steps": 10_000, "log_every": 100}
    experiment = override(Experiment(), settings).resolve(10_000, cuda=True)
    objective = experiment.objective.build(model)
    objective.compile()
    state = TrainState(objective, experiment.optimizer, DEVICE)
    display = TrainingDisplay(Work(10_000, len(batch["index"])), shown=False)
    loop = Loop(state, objective, Repeated(batch), experiment, DEVICE, display)
    waiting, count = [], iter(range(10**9))

    def step() -> None:
        waiting.append(loop.update(next(count), dict(batch), ""))
        if len(waiting) > 1:
            loop.settle(waiting.pop(0))

    return step


def timm_step(batch: dict[str, torch.Tensor], name: str) -> Step:
    import_torchvision()
    import timm

    model = timm.create_model(name, num_classes=1000).to(DEVICE).train()
    compiled = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1, fused=True)

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            loss = F.cross_entropy(compiled(batch["image"]), batch["label"])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def seconds(step: Step, steps: int) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(steps):
        step()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / steps


def memory(make: Callable[[], Step]) -> tuple[Step, float]:
    """The warm step, and the most memory that it needed, in GiB."""
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    step = make()
    for _ in range(5):
        step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    return step, (torch.cuda.max_memory_allocated() - before) / 2**30


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20)
    arguments = parser.parse_args()
    batch = batch_of(arguments.batch_size, 224)
    contestants, most = {}, {}
    for name, make in {
        "vitrail": lambda: ours(batch, "B/16", 224),
        "timm": lambda: timm_step(batch, "vit_base_patch16_224"),
    }.items():
        contestants[name], most[name] = memory(make)
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(arguments.rounds):
        for name, step in contestants.items():
            times[name].append(seconds(step, arguments.steps))
    flops = cost(vitrail.create("B/16").config).training_flops * arguments.batch_size
    rounds = f"{arguments.rounds} rounds of {arguments.steps} steps"
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {rounds}")
    for name, each in times.items():
        t = statistics.median(each)
        low, high = arguments.batch_size / max(each), arguments.batch_size / min(each)
        print(
            f"{name:8} {arguments.batch_size / t:7,.0f} images/s ({low:,.0f} to {high:,.0f})  {1000 * t:6.1f} ms  "
            f"{most[name]:5.1f} GiB  MFU {flops / t / peak_flops(DEVICE):.1%}"
        )
    ratio = statistics.median(t / v for v, t in zip(times["vitrail"], times["timm"], strict=True))
    print(f"vitrail / timm: {ratio:.3f}x")


if __name__ == "__main__":
    main()
