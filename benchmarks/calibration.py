"""What the temperature does to loss and calibration error on test images: five data sets, three seeds.

    python -m benchmarks.calibration --data TRANSFER                     linear heads on the features of ti8-64
    python -m benchmarks.calibration --data TRANSFER --finetune 100      ti8-64 fine-tuned for 100 steps

A linear head is logistic regression on 90% of the training images, drawn by the seed, with the l2 that is best on
held-out training images. Its temperature is fitted in three ways, none of which needs a test image:

    validation     on the validation split, which no head has seen
    out-of-fold    on the training images: the logits of each are of a head that was fitted to four other fifths
    part           on a tenth of the training images, by a head that was fitted to the rest (as a sweep does)

Fine-tuning uses `vitrail finetune` as it is: it fits the temperature on the validation split at its end. The table
has loss and ECE on the test split without and with the temperature, mean over the seeds; `difference` is the mean of
the paired differences with its standard error. Predictions are compared too: none may change.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import vitrail
from vitrail.data.sources import open_source
from vitrail.data.splits import stratified
from vitrail.evaluators.accuracy import BINS, evaluate, expected_calibration_error
from vitrail.evaluators.linear import choose, fit
from vitrail.evaluators.temperature import fit_temperature
from vitrail.inference.features import Extraction, Features, cache_folder, extract_features
from vitrail.models.calibration import Calibration

SETS = ("cifar10", "cifar100", "dtd10", "flowers102", "pets")
WAYS = ("validation", "out-of-fold", "part")
SEEDS, FOLDS = 3, 5
L2 = (0.1, 0.01, 0.001, 1e-4)
ERRORS = 2.0  # standard errors by which the ECE may be worse
Scores = dict[str, float]


def scores(y: Tensor, labels: Tensor, temperature: float) -> Scores:
    c = Calibration(temperature)
    p = c.probabilities(y)
    confidence, predicted = p.max(dim=1)
    loss = float(torch.nn.functional.cross_entropy(c.scaled(y), labels))
    ece = expected_calibration_error(confidence.numpy(), (predicted == labels).numpy())
    return {"top1": float((predicted == labels).double().mean()), "loss": loss, "ece": ece}


def heads(data: Path, chosen: Sequence[str]) -> Iterator[tuple[str, float, Scores, Scores]]:
    """Yield (way, temperature, scores before, scores after) for each way and seed."""
    model, extraction = vitrail.load("ti8-64"), Extraction(cache=cache_folder())
    train, validation, test = (
        extract_features(model, open_source(data, split), extraction)
        for split in ("train", "validation", "test")
    )
    l2 = choose(*train.held_out(), L2, torch.device("cpu"))
    for seed in range(SEEDS):
        own = part(train, seed, 0.1)[0]
        head = fit(own, l2)
        y, labels = head.logits(test.x), torch.from_numpy(test.labels)
        rest, tenth = part(own, seed + 100, 0.1)
        ways: dict[str, Callable[[], tuple[Tensor, np.ndarray]]] = {
            "validation": lambda head=head: (head.logits(validation.x), validation.labels),
            "out-of-fold": lambda own=own, seed=seed: out_of_fold(own, l2, seed),
            "part": lambda rest=rest, tenth=tenth: (fit(rest, l2).logits(tenth.x), tenth.labels),
        }
        for way in chosen:
            logits, of = ways[way]()
            T = fit_temperature(logits, torch.from_numpy(of))
            yield way, T, scores(y, labels, 1.0), scores(y, labels, T)


def part(features: Features, seed: int, share: float) -> tuple[Features, Features]:
    """Return all but a share of each class, and the share."""
    keys = [str(i).encode() for i in range(len(features))]
    split = stratified(keys, features.labels, seed=seed, validation=share, test=0.0)
    return features.part(split["train"]), features.part(split["validation"])


def out_of_fold(features: Features, l2: float, seed: int) -> tuple[Tensor, np.ndarray]:
    fold = np.random.default_rng(seed).permutation(len(features)) % FOLDS  # (n,)
    y = torch.zeros(len(features), len(features.class_names), dtype=torch.float64)
    for f in range(FOLDS):
        y[fold == f] = fit(features.part(np.flatnonzero(fold != f)), l2).logits(features.x[fold == f])
    return y, features.labels


def finetuned(data: Path, steps: int) -> Iterator[tuple[str, float, Scores, Scores]]:
    for seed in range(SEEDS):
        with tempfile.TemporaryDirectory() as folder:
            run = vitrail.finetune(
                str(data),
                "ti8-64",
                steps=steps,
                batch_size=32,
                seed=seed,
                image_size=64,
                out=Path(folder) / "run",
            )
            model = run.model()
            T, after = model.calibration.temperature, run.results["test"]
            model.calibration = Calibration()
            before = evaluate(model, data, progress=False)
            yield "finetune", T, {name: getattr(before, name) for name in ("top1", "loss", "ece")}, after


def main(data: Path, steps: int = 0, sets: Sequence[str] = SETS, ways: Sequence[str] = WAYS) -> None:
    columns = (
        "data set",
        "temperature",
        "loss without",
        "with",
        "difference",
        "ECE without",
        "with",
        "difference",
    )
    rows: dict[str, list[str]] = {}
    lower: dict[str, int] = {}
    worse: dict[str, int] = {}
    for name in sets:
        results: dict[str, list[tuple[float, Scores, Scores]]] = {}
        for way, T, before, after in finetuned(data / name, steps) if steps else heads(data / name, ways):
            assert before["top1"] == after["top1"], "a prediction changed"
            results.setdefault(way, []).append((T, before, after))
        for way, runs in results.items():
            cells = [name, ", ".join(f"{T:.2f}" for T, _, _ in runs)]
            for score in ("loss", "ece"):
                changes = [after[score] - before[score] for _, before, after in runs]
                mean, error = statistics.mean(changes), statistics.stdev(changes) / len(changes) ** 0.5
                cells += [f"{statistics.mean(one[i][score] for one in runs):.4f}" for i in (1, 2)]
                cells.append(f"{mean:+.4f} ± {error:.4f}")
                if score == "loss":
                    lower[way] = lower.get(way, 0) + (mean < 0)
                else:
                    worse[way] = worse.get(way, 0) + (mean > ERRORS * error)
            rows.setdefault(way, []).append(f"| {' | '.join(cells)} |")
            print(way, rows[way][-1], flush=True)
    for way, lines in rows.items():
        print(
            f"\n{way}: loss lower on {lower[way]} of {len(sets)}, ECE ({BINS} bins) worse by more than {ERRORS:g} "
            f"standard errors on {worse[way]}\n"
        )
        print(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|", *lines, sep="\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--finetune", type=int, default=0, metavar="STEPS")
    parser.add_argument("--sets", nargs="+", default=SETS, choices=SETS)
    parser.add_argument("--ways", nargs="+", default=WAYS, choices=WAYS)
    arguments = parser.parse_args()
    main(arguments.data, arguments.finetune, arguments.sets, arguments.ways)
