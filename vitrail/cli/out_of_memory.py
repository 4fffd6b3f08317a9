"""What to do where memory has run out: the flags of each verb that need less of it."""

from __future__ import annotations

from vitrail.runtime.memory import MEMORY, SHARED

LESS = {
    "--batch": "a smaller --batch",
    "--batch-size": "a smaller --batch-size",
    "--accumulate": "--accumulate 2 (the same batch in two parts)",
    "--recompute": "--recompute",
    "--image-size": "a smaller --image-size",
    "--workers": "fewer --workers",
    "--num-workers": "fewer --num-workers",
}
_TRAINING = ("--batch", "--accumulate", "--recompute", "--image-size", "--workers")
FLAGS: dict[str, tuple[str, ...]] = {
    "pretrain": _TRAINING,
    "finetune": _TRAINING,
    "transfer": ("--batch", "--image-size", "--workers"),
    "vtab": ("--batch", "--image-size", "--workers"),
    "evaluate": ("--batch-size", "--image-size", "--num-workers"),
    "fewshot": ("--batch", "--workers"),
    "linear": ("--batch", "--workers"),
    "knn": ("--batch", "--workers"),
    "demo": ("--batch",),
    "predict": ("--image-size",),
    "inspect": ("--image-size",),
}


def out_of_memory(verb: str, kind: str, amount: str) -> str:
    """One line: which memory, how much more was asked for, and what needs less."""
    flags = [flag for flag in FLAGS.get(verb, ()) if not flag.endswith("workers") or kind == MEMORY]
    *most, last = [LESS[flag] for flag in flags] or ["a machine with more of it"]
    less = f"{', '.join(most)} or {last}" if most else last
    if kind == SHARED:
        less = "--workers 0, which needs none, or more of it (in Docker, --shm-size=8g)"
    return f"out of {kind}{f' ({amount} more asked for)' if amount else ''}: try {less}"
