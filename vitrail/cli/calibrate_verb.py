"""vitrail calibrate: how sure a model may be; and the scales of --precision fp8."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, arg

from vitrail.cli.verb import COMMON, READING, Common, ModelPath, Output, Reading
from vitrail.errors import ConfigError

if TYPE_CHECKING:
    from vitrail.data.sources import Source
    from vitrail.models.names import Model


def calibrate(
    model: ModelPath,
    out: Annotated[Positional[str], arg(metavar="OUT")],
    *,
    data: str,
    split: str | None = None,
    what: Literal["temperature", "fp8"] = "temperature",
    wanted_precision: float = 0.0,
    mapping: str | None = None,
    verify: str | None = None,
    verify_split: str | None = None,
    images: int = 1024,
    max_drop: float = 0.5,
    reading: Reading = READING,
    common: Common = COMMON,
) -> Output:
    """Make the probabilities of a model mean what they say, on held-out images; or prepare it for --precision fp8.

    A temperature changes how sure the model is, and no prediction. With --wanted-precision each class also gets a
    threshold, below which the model is unsure. Both are stored in a new bundle.

    Args:
        model: an included model (ti8-64), a bundle, a run, or any supported checkpoint
        out: folder of the new bundle; with fp8 nothing is written if the comparison fails (exit code 1)
        data: labelled images to fit on, on which the model was not trained; for fp8 images of the training set,
            whose labels are not used
        split: which part of them; if unset, validation, and for fp8 train
        what: temperature, with thresholds if a precision is wanted; or fp8, the scales for --precision fp8
        wanted_precision: share of the answers of each class that are to be right, such as 0.95; 0: no thresholds
        mapping: a JSON file {data class: [model class], ...} where names differ; or `order`: class k is class k
        verify: labelled images to compare before and after on, such as the test set; needed for fp8
        verify_split: which part of them; if unset, the test split or else validation
        images: how many images to measure the scales of fp8 on
        max_drop: points of top-1 accuracy that fp8 may lose
    """
    from vitrail.checkpoints.formats import load, save
    from vitrail.data.sources import open_source
    from vitrail.evaluators.accuracy import open_split
    from vitrail.runtime.device import pick

    if Path(out).exists():
        raise ConfigError(f"{out} exists; nothing is overwritten")
    if what == "fp8" and (wanted_precision or mapping is not None):
        raise ConfigError("--wanted-precision and --mapping are for --what temperature, not for fp8")
    if what == "fp8" and verify is None:
        raise ConfigError("--what fp8 needs --verify DATA: labelled images to compare fp8 with float32 on")
    loaded = load(model, **reading.arguments()).to(pick(common.device))
    source = open_source(data, split or {"temperature": "validation", "fp8": "train"}[what])
    test = None if verify is None else open_split(verify, verify_split)
    if what == "fp8":
        assert test is not None
        rows, result = calibrate_fp8(loaded, source, test, images, max_drop)
        after = [f"Next: vitrail predict {out} IMAGE --precision fp8"]
    else:
        rows, result = calibrate_temperature(loaded, source, test, wanted_precision, mapping)
        after = [f"Next: vitrail predict {out} IMAGE"]
    save(loaded, out)
    rows.append(["written", out])
    return Output(common, ["", ""], rows, {"model": model, "out": out, **result}, after=after)


def calibrate_temperature(
    model: Model, source: Source, test: Source | None, wanted_precision: float, mapping: str | None
) -> tuple[list[list[str]], dict[str, Any]]:
    """Fit temperature and thresholds; return rows and the result."""
    from vitrail.data.splits import check_apart
    from vitrail.evaluators.accuracy import evaluate
    from vitrail.evaluators.score import format_accuracy
    from vitrail.evaluators.temperature import calibrate_model

    if test is not None:
        check_apart(source, test)
    before = None if test is None else evaluate(model, test, mapping=mapping)
    c = calibrate_model(model, source, wanted_precision=wanted_precision, mapping=mapping, task="calibrate")
    rows = [["temperature", f"{c.temperature:.4g}"]]
    rows.append(["fitted on", f"{c.fitted['n']:,} images ({source.name})"])
    for name, score in (("loss", "loss"), ("ECE", "ece")):
        rows.append([f"{name} there", f"{c.fitted['before'][score]:.4f} -> {c.fitted['after'][score]:.4f}"])
    if c.thresholds:
        n = round(c.fitted["answered"] * c.fitted["n"])
        rows.append(["sure there", format_accuracy(c.fitted["answered"], c.fitted["n"])])
        rows.append(["right where sure", format_accuracy(c.fitted["precision"], n)])
    result = {"calibration": c.as_json()}
    if test is not None and before is not None:
        now = evaluate(model, test, mapping=mapping)
        assert now.top1 == before.top1
        rows += [
            ["compared on", f"{now.n:,} images ({test.name})"],
            ["loss", f"{before.loss:.4f} -> {now.loss:.4f}"],
            ["ECE", f"{before.ece:.4f} -> {now.ece:.4f}"],
            ["top-1", format_accuracy(now.top1, now.n)],
        ]
        scores = {
            name: {s.name: s.value for s in one.scores()}
            for name, one in (("before", before), ("after", now))
        }
        result["verified"] = {"data": test.name, "n": now.n, **scores}
        if now.answered is not None:
            rows.append(["sure", format_accuracy(now.answered, now.n)])
            rows.append(["top-1 where sure", format_accuracy(now.answered_top1, round(now.answered * now.n))])
    return rows, result


def calibrate_fp8(
    model: Model, source: Source, test: Source, images: int, max_drop: float
) -> tuple[list[list[str]], dict[str, Any]]:
    """Measure scales and compare; return rows and the result."""
    from vitrail.evaluators.fp8_check import calibrate_and_check

    compared = calibrate_and_check(model, source, test, count=images, max_drop=max_drop / 100)
    rows = [
        ["top-1 in float32", f"{compared.top1_float32:.2%}"],
        ["top-1 in fp8", f"{compared.top1_fp8:.2%}"],
        ["same class", f"{compared.agreement:.2%}"],
        ["compared on", f"{compared.n:,} images ({compared.data})"],
        ["scales from", f"{model.fp8['calibrated']['n']:,} images ({source.name})"],
    ]
    return rows, {k: model.fp8[k] for k in ("calibrated", "checked")}
