"""Which of timm's Vision Transformers are read and written: every name, one narrow layer of each, random weights.

    python -m benchmarks.family > docs/results/family.md       needs timm; about two minutes

For each function of timm's modules vision_transformer, deit, eva, beit and naflexvit: a model is made by timm and
saved by timm, read here, its outputs compared (1e-4), written, read by timm, compared again.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from pathlib import Path

import torch

from tests.parity.comparing import inputs
from tests.parity.test_timm_functions import made, timm
from vitrail.checkpoints.formats import load, save
from vitrail.errors import CheckpointError
from vitrail.runtime.progress import progress

MODULES = ("vision_transformer", "deit", "eva", "beit", "naflexvit")
TOLERANCE = 1e-4


def main() -> None:
    rows: list[tuple[str, str, str, str]] = []  # module, name, outcome, reason
    names = [(module, name) for module in MODULES for name in timm.list_models(module=module)]
    for module, name in progress(names, len(names), "models"):
        with tempfile.TemporaryDirectory() as folder:
            rows.append((module, name, *outcome(name, Path(folder))))
    print(f"# timm {timm.__version__}: which Vision Transformers are read and written\n")
    print(
        "`python -m benchmarks.family`: every name of five modules, one layer of 16 numbers for each head, random "
        f"weights; outputs within {TOLERANCE:g} (float32), read from timm's file and again by timm from ours.\n"
    )
    print("| module | names | read and written | refused | wrong |\n|---|---|---|---|---|")
    for module in (*MODULES, ""):
        of_module = Counter(kind for m, _, kind, _ in rows if module in ("", m))
        total = sum(of_module.values())
        share = f"{of_module['same']} ({of_module['same'] / total:.1%})"
        print(f"| {module or 'all'} | {total} | {share} | {of_module['refused']} | {of_module['wrong']} |")
    print("\n| refused or wrong | reason |\n|---|---|")
    for _, name, kind, reason in rows:
        if kind != "same":
            print(f"| `{name}` | {reason} |")
    sys.exit(any(kind == "wrong" for _, _, kind, _ in rows))


def outcome(name: str, folder: Path) -> tuple[str, str]:
    """Return `same`, `refused` or `wrong`, and the reason."""
    theirs, arguments = made(name)
    timm.models.save_for_hf(theirs, folder / "theirs", model_args=arguments, safe_serialization=True)
    try:
        ours = load(folder / "theirs")
    except CheckpointError as error:
        return "refused", str(error).rpartition(": ")[2]
    x = inputs(ours.config.image_size)
    with torch.no_grad():
        wanted = theirs(x)
        if (off := float((ours(x) - wanted).abs().max())) > TOLERANCE:
            return "wrong", f"read: {off:.1e} off"
        try:
            save(ours, folder / "back", to="timm")
        except CheckpointError as error:
            return "refused", f"not written: {error}"
        back = timm.create_model(f"local-dir:{folder / 'back'}", pretrained=True).eval()
        if (off := float((back(x) - wanted).abs().max())) > TOLERANCE:
            return "wrong", f"written: {off:.1e} off"
    return "same", ""


if __name__ == "__main__":
    main()
