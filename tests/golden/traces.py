"""Twenty steps of each kind of run, on one thread of the CPU: losses and a digest of the final weights.

Dropout is off, because torch draws it by other generators on other processors; everything else that is random
(order, crops, mixing, masks, fresh weights) is on.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

import vitrail
from tests.train.small import DATA, experiment
from vitrail.checkpoints.run.records import NUMERICS
from vitrail.train.run import run

STEPS = 20
FOLDER = Path(__file__).parent
PLAIN = {"dropout": 0.0, "drop_path": 0.0}
HELD = {"test": "none"}
LENGTH = {"steps": STEPS, "evaluate_every": STEPS, "lr": 0.005}


def trace(name: str, folder: Path) -> dict[str, Any]:
    """The key, the losses, the digest of the weights; `folder` is for the run."""
    with one_thread():
        where = TRACES[name](folder)
        rows = [json.loads(line) for line in (where / "metrics.jsonl").read_text().splitlines()]
        losses = [row["loss"] for row in rows if "loss" in row]
        assert len(losses) == STEPS
        return {"key": key(), "losses": losses, "weights": digest(vitrail.load(where / "model"))}


def pretraining(folder: Path) -> Path:
    return run(experiment(**PLAIN, **HELD, **LENGTH), folder / "run", device="cpu").folder


def masked_patches(folder: Path) -> Path:
    chosen = experiment(**PLAIN, **HELD, **LENGTH, objective="masked-patches")
    return run(chosen, folder / "run", device="cpu").folder


def fine_tuning(folder: Path) -> Path:
    torch.manual_seed(0)
    vitrail.save(vitrail.create("mu/8@16", classes=7), folder / "pretrained")
    tuned = vitrail.finetune(
        DATA, str(folder / "pretrained"), out=folder / "run", device="cpu", steps=STEPS, lr=0.03, image_size=24,
        **HELD,
    )  # fmt: skip
    return tuned.folder


TRACES = {"pretraining": pretraining, "masked_patches": masked_patches, "fine_tuning": fine_tuning}


def key() -> dict[str, Any]:
    """What bits depend on."""
    capability = torch.backends.cpu.get_cpu_capability()
    return {
        "numerics": NUMERICS,
        "torch": torch.__version__,
        "cpu": capability,
        "processor": processor(),
        "threads": torch.get_num_threads(),
    }


def processor() -> str:
    """Name the processor: libraries choose their arithmetic by its maker and family, not by its capability alone."""
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    except OSError:
        return platform.processor()
    entries = dict(line.partition(":")[::2] for line in lines)
    found = {name.strip(): value.strip() for name, value in entries.items()}
    return " ".join(found.get(name, "?") for name in ("vendor_id", "cpu family", "model"))


def digest(model: torch.nn.Module) -> str:
    made = hashlib.sha256()
    for name, w in sorted(model.state_dict().items()):
        made.update(f"{name} {tuple(w.shape)} {w.dtype}\n".encode())
        made.update(w.contiguous().numpy().tobytes())
    return made.hexdigest()


@contextmanager
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
