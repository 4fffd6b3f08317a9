"""Images of mixed aspect ratios per second: tokens packed one after the other, beside tokens padded and masked.

    python -m benchmarks.packed                                   B/16, bf16, on a GPU
    python -m benchmarks.packed --model mu/8 --batch-size 4       tries the script on a CPU, where both are padded

The long side of each image has 16 patches, the short side as many as its aspect ratio gives: 1:1, 4:3, 3:2, 16:9, 2:1
and 3:1, upright and across. The same batches go through the same model in both ways, in turn; the table has medians
of rounds. Where torch has no kernel for packed tokens, both are padded and the script says so.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

import vitrail
from vitrail.models import strips
from vitrail.models.vit import ViT
from vitrail.runtime.device import device_name, pick

RATIOS = (1.0, 4 / 3, 3 / 2, 16 / 9, 2.0, 3.0)
LONG = 16  # patches along the long side
WARM_UP = 3  # calls before measuring, of each


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="B/16")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--calls", type=int, default=10, help="in a round")
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    device = pick(options.device)
    torch.manual_seed(0)
    model = vitrail.create(options.model, classes=1000).to(device)
    assert isinstance(model, ViT)
    x, grids = draw_batch(options.batch_size, model.config.patch_size, device)
    share = float(grids.prod(dim=1).float().mean()) / LONG**2
    with torch.autocast(device.type, torch.bfloat16), torch.no_grad():
        packs = strips.is_packable(model, model.patches(x[:1]))
    print(
        f"{options.model}, {device_name(device)}, torch {torch.__version__}, bf16, batches of {len(x)}, medians of"
    )
    print(f"{options.rounds} rounds; {share:.0%} of the places of a padded batch are patches")
    if not packs:
        print("torch has no kernel for packed tokens here: both ways are padded")
    print("\n| | padded, images/s | packed, images/s | packed over padded |\n|---|---|---|---|")
    for task, run in (("inference", infer), ("training step", train)):
        padded, packed = measure(lambda run=run: run(model, x, grids), device, options.rounds, options.calls)
        rates = len(x) / padded, len(x) / packed
        print(f"| {task} | {rates[0]:,.0f} | {rates[1]:,.0f} | {rates[1] / rates[0]:.2f}x |", flush=True)


def draw_batch(n: int, P: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return strips (n, 3, P, LONG^2 P) and their grids (n, 2)."""
    shorts = torch.tensor([max(1, round(LONG / ratio)) for ratio in RATIOS])
    generator = torch.Generator().manual_seed(0)
    short = shorts[torch.randint(len(shorts), (n,), generator=generator)]  # (n)
    across = torch.randint(2, (n,), generator=generator).bool()  # (n)
    long = torch.full_like(short, LONG)
    grids = torch.stack([torch.where(across, short, long), torch.where(across, long, short)], dim=1)  # (n, 2)
    x = torch.randn(n, 3, P, LONG**2 * P, generator=generator)
    places = torch.arange(LONG**2).repeat_interleave(P) < grids.prod(dim=1)[:, None]  # (n, LONG^2 P)
    return (x * places[:, None, None]).to(device), grids.to(device)


def infer(model: ViT, x: Tensor, grids: Tensor) -> None:
    model.eval()
    with torch.no_grad(), torch.autocast(x.device.type, torch.bfloat16):
        model(x, grids)


def train(model: ViT, x: Tensor, grids: Tensor) -> None:
    model.train()
    model.zero_grad()
    with torch.autocast(x.device.type, torch.bfloat16):
        y = model(x, grids)
    y.float().logsumexp(dim=1).mean().backward()


def measure(call: Callable[[], None], device: torch.device, rounds: int, calls: int) -> tuple[float, float]:
    """Return the seconds of a call, padded and packed: medians of rounds in turn."""
    own, never = strips.is_packable, lambda vit, z: False
    seconds: dict[bool, list[float]] = {False: [], True: []}
    try:
        for round_ in range(rounds + 1):
            for packs, times in seconds.items():
                strips.is_packable = own if packs else never
                for _ in range(0 if round_ else WARM_UP):
                    call()
                synchronise(device)
                began = time.perf_counter()
                for _ in range(calls):
                    call()
                synchronise(device)
                if round_:  # the first warms up
                    times.append((time.perf_counter() - began) / calls)
    finally:
        strips.is_packable = own
    return statistics.median(seconds[False]), statistics.median(seconds[True])


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    main()
