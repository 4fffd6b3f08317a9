"""Advice when memory has run out: the flags of each verb that reduce it."""

from __future__ import annotations

from vitrail.runtime.memory import MEMORY, SHARED

LESS = {
    "--batch-size": "a smaller --batch-size",
    "--grad-accum": "--grad-accum 2 (the same batch in two parts)",
    "--activation-checkpointing": "--activation-checkpointing",
    "--image-size": "a smaller --image-size",
    "--num-workers": "fewer --num-workers",
}
FLAGS: dict[str, tuple[str, ...]] = {
    "pretrain": tuple(LESS),
    "finetune": tuple(LESS),
    "transfer": ("--batch-size", "--image-size", "--num-workers"),
    "vtab": ("--batch-size", "--image-size", "--num-workers"),
    "evaluate": ("--batch-size", "--image-size", "--num-workers"),
    "fewshot": ("--batch-size", "--num-workers"),
    "linear": ("--batch-size", "--num-workers"),
    "knn": ("--batch-size", "--num-workers"),
    "demo": ("--batch-size",),
    "bench": ("--batch-size", "--image-size", "--num-workers"),
    "predict": ("--image-size",),
    "inspect": ("--image-size",),
}


def out_of_memory(verb: str, kind: str, amount: str) -> str:
    """Return one line: which memory, how much more was requested, and what to try."""
    flags = [flag for flag in FLAGS.get(verb, ()) if not flag.endswith("workers") or kind == MEMORY]
    *most, last = [LESS[flag] for flag in flags] or ["a machine with more of it"]
    less = f"{', '.join(most)} or {last}" if most else last
    if kind == SHARED:
        less = "--num-workers 0, which needs none, or more of it (in Docker, --shm-size=8g)"
    return f"out of {kind}{f' ({amount} more requested)' if amount else ''}: try {less}"
