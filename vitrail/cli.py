"""The command line: one function for each verb, thin over what Python users call.

A verb imports what it needs when it is used, so that `vitrail --help` answers at once. It returns a `Shown`: a
table for people, an object for `--json`. Errors of the user (VitrailError) become one line and exit code 2.
Only `main` prints results, and only `main` exits.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import tyro
from tyro.conf import Positional, arg

from vitrail.errors import ConfigError, VitrailError

Device = Literal["auto", "cpu", "cuda", "mps"]
Format = Literal["bundle", "npz", "timm", "huggingface", "torchvision"]
ModelPath = Annotated[Positional[str], arg(metavar="MODEL")]


@dataclass(frozen=True)
class Common:
    """Flags of every verb."""

    json: bool = False  # print one JSON object instead of a table
    device: Device = "auto"  # where to run, for verbs that compute; auto: the GPU where there is one


COMMON = Common()


@dataclass
class Shown:
    """What a verb has to say."""

    common: Common
    columns: list[str]  # headings of the table; a heading that begins with '>' is right-aligned
    rows: list[list[str]]
    result: dict[str, Any]  # what --json prints
    body: Any = None  # what rich can print, instead of the table
    after: list[str] = field(default_factory=list)  # lines below the table
    problems: list[str] = field(default_factory=list)  # what went wrong with a part: exit code 2 at the end


def models(*, image_size: int | None = None, classes: int = 1000, common: Common = COMMON) -> Shown:
    """The models of the paper and what they cost.

    Args:
        image_size: pixels of a side; each model's own default (224) where nothing is said
        classes: outputs of the classifier
    """
    from vitrail.models.cost import cost
    from vitrail.models.names import MODELS, config_of

    rows, result = [], []
    for name in MODELS:
        size = {} if image_size is None else {"image_size": nearest_size(name, image_size)}
        config = config_of(name, classes=classes, **size)
        c = cost(config)
        result.append({"name": name, "image_size": config.image_size[0], "parameters": c.parameters})
        result[-1] |= {"flops": c.flops, "macs": c.macs, "tokens": c.tokens}
        rows.append(
            [
                name,
                str(config.image_size[0]),
                f"{c.parameters:,}",
                f"{c.flops / 1e9:.1f}",
                f"{c.macs / 1e9:.2f}",
                str(c.tokens or "-"),
            ]
        )
    columns = ["name", ">image_size", ">parameters", ">GFLOPs", ">GMACs", ">tokens"]
    after = ["Any variant at any patch size: Ti/8@64, B/16@384x512. 1 multiply-add = 1 MAC = 2 FLOPs."]
    return Shown(common, columns, rows, {"models": result}, after=after)


def nearest_size(name: str, image_size: int) -> int:
    """A size that the model's patches divide, so that one table can hold /14 and /16."""
    from vitrail.models.names import config_of
    from vitrail.models.vit import ViTConfig

    config = config_of(name)
    stride = config.stride if isinstance(config, ViTConfig) else 1
    return max(1, round(image_size / stride)) * stride


def cost(
    model: ModelPath,
    *,
    image_size: tuple[int, ...] = (),
    batch: int = 1,
    examples: int = 303_000_000,
    epochs: float = 7.0,
    peak_tflops: float = 61.5,
    utilisation: float = 0.4,
    common: Common = COMMON,
) -> Shown:
    """What a model costs: parameters, FLOPs, memory, and the bill of pre-training it.

    Args:
        model: a name such as B/16 or L/16@512
        image_size: pixels of a side; one number, or height and width
        batch: images in a training step, for the memory
        examples: images in the pre-training set (JFT: 303 million)
        epochs: passes over them
        peak_tflops: of one accelerator (a TPUv3 core: 61.5)
        utilisation: part of the peak that training reaches
    """
    from vitrail.models import cost as costs
    from vitrail.models.names import config_of

    size = size_of(image_size)
    config = config_of(model, **({} if size is None else {"image_size": size}))
    if batch < 1:
        raise ConfigError(f"batch must be at least 1, not {batch}")
    c = costs.cost(config)
    flops = c.pretraining_flops(examples, epochs)
    days = costs.accelerator_days(flops, peak_tflops * 1e12, utilisation)
    H, W = config.image_size
    rows = [
        ["image_size", f"{H}x{W}"],
        ["parameters", f"{c.parameters:,}"],
        ["tokens", str(c.tokens or "-")],
        ["forward GMACs", f"{c.macs / 1e9:.2f}"],
        ["forward GFLOPs", f"{c.flops / 1e9:.1f}"],
        ["training GFLOPs an image", f"{c.training_flops / 1e9:.1f}"],
        [f"activations in bf16, batch {batch:,}", f"{batch * c.activation_bytes() / 2**30:.2f} GiB"],
        ["weights, gradients, Adam in float32", f"{16 * c.parameters / 2**30:.2f} GiB"],
        [f"pre-training exaFLOPs ({examples:,} x {epochs:g})", f"{flops / 1e18:,.1f}"],
        [f"accelerator-days ({peak_tflops:g} TFLOP/s at {utilisation:.0%})", f"{days:,.1f}"],
    ]
    result = {
        "model": model,
        "image_size": [H, W],
        "parameters": c.parameters,
        "tokens": c.tokens,
        "macs": c.macs,
        "flops": c.flops,
        "training_flops": c.training_flops,
        "activation_bytes": batch * c.activation_bytes(),
        "pretraining_exaflops": flops / 1e18,
        "accelerator_days": days,
    }
    return Shown(common, ["", f">{model}"], rows, result)


def convert(
    source: Annotated[Positional[str], arg(metavar="SRC")],
    destination: Annotated[Positional[str], arg(metavar="DST")],
    *,
    to: Format = "bundle",
    classes: int | None = None,
    image_size: tuple[int, ...] = (),
    heads: int | None = None,
    resample: str = "official",
    common: Common = COMMON,
) -> Shown:
    """Read anyone's checkpoint, write it in another format.

    Args:
        source: an .npz, .safetensors or torch file, or a folder of timm, transformers or ours
        destination: a file or folder that is not there yet
        to: the format to write
        classes: another number of outputs: a new head of zeros, or with 0 none
        image_size: resample the position embeddings for this size; one number, or height and width
        heads: attention heads, for files that do not tell
        resample: official, bilinear, bicubic, bicubic_antialias or bicubic_corners
    """
    from vitrail.checkpoints.formats import convert as run
    from vitrail.models.cost import cost

    size = size_of(image_size)
    made = run(source, destination, to=to, classes=classes, image_size=size, heads=heads, resample=resample)
    config, parameters = made.config, cost(made.config).parameters
    H, W = config.image_size
    rows = [
        ["read", f"{source} ({made.provenance.get('format', 'bundle')})"],
        ["architecture", describe(config)],
        ["image_size", f"{H}x{W}"],
        ["classes", f"{config.classes:,}"],
        ["parameters", f"{parameters:,}"],
        ["preprocess", made.preprocess],
        ["written", f"{destination} ({to})"],
    ]
    result = {"source": source, "destination": destination, "to": to, "parameters": parameters}
    result |= {"classes": config.classes, "image_size": [H, W], "preprocess": made.preprocess}
    return Shown(common, ["", ""], rows, result)


def size_of(words: tuple[int, ...]) -> int | tuple[int, int] | None:
    """--image-size 384, --image-size 224 448, or nothing."""
    if len(words) > 2:
        raise ConfigError(f"--image-size takes one number, or height and width, not {words}")
    return None if not words else words[0] if len(words) == 1 else (words[0], words[1])


def describe(config: Any) -> str:
    """ViT of width 768, depth 12, ..."""
    from vitrail.models.hybrid import HybridConfig
    from vitrail.models.resnet import BiTConfig

    if isinstance(config, BiTConfig):
        return f"BiT ResNet, units {config.units}, width factor {config.width_factor:g}"
    stem = f"ResNet {config.stem.units} + " if isinstance(config, HybridConfig) else ""
    return (
        f"{stem}ViT, width {config.width}, depth {config.depth}, mlp_dim {config.mlp_dim}, "
        f"heads {config.heads}, patch_size {config.patch_size}, pool {config.pool}"
    )


def predict(
    model: ModelPath,
    images: Annotated[Positional[tuple[str, ...]], arg(metavar="IMAGE...")],
    *,
    top: int = 5,
    class_names: str | None = None,
    image_size: tuple[int, ...] = (),
    heads: int | None = None,
    common: Common = COMMON,
) -> Shown:
    """The most probable classes of images.

    Args:
        model: a bundle, or anyone's checkpoint
        images: files, folders or glob patterns
        top: classes to show for each image
        class_names: a file with one class name on each line (or a JSON list, if it ends in .json)
        image_size: resample the position embeddings for this size; one number, or height and width
        heads: attention heads, for files that do not tell
    """
    from vitrail.checkpoints.formats import load
    from vitrail.errors import ImageError
    from vitrail.evaluators import predict as predicting
    from vitrail.runtime.device import pick
    from vitrail.runtime.progress import progress

    paths = predicting.find_images(images)
    loaded = load(model, image_size=size_of(image_size), heads=heads)
    if class_names is not None:
        loaded.class_names = predicting.read_class_names(class_names, loaded.config.classes)
    shown = Shown(common, ["image", "class", ">probability"], [], {"model": model, "images": []})
    for path, made in progress(
        predicting.predict_each(loaded.to(pick(common.device)), paths, top), len(paths), "predict"
    ):
        if isinstance(made, ImageError):
            shown.problems.append(str(made))
            continue
        shown.rows += [[str(path) if not k else "", name, f"{p:.2%}"] for k, (name, p) in enumerate(made)]
        top_classes = [{"name": name, "probability": p} for name, p in made]
        shown.result["images"].append({"path": str(path), "top": top_classes})
    if loaded.class_names is None and loaded.config.classes != 1000:
        shown.after.append(
            f"The model does not name its {loaded.config.classes:,} classes: these are indices "
            "(--class-names FILE gives names)."
        )
    if not shown.result["images"]:
        raise ImageError(shown.problems[0])
    shown.result |= {"errors": shown.problems, "notes": shown.after}
    return shown


def demo(*, common: Common = COMMON) -> Shown:
    """The model table, and a forward pass on a picture drawn here."""
    import time

    import torch

    from vitrail.checkpoints.formats import create
    from vitrail.data.sources import open_source
    from vitrail.evaluators.features import features
    from vitrail.runtime.device import pick

    shown = models(common=common)
    torch.manual_seed(0)
    model = create("Ti/16", classes=5).to(pick(common.device))
    picture = open_source("shapes?image_size=224", "test").read(0)
    start = time.perf_counter()
    y = features(model, picture.image)
    seconds = time.perf_counter() - start
    shown.after += [
        f"A picture drawn here, through a fresh Ti/16: features {y.shape} of norm "
        f"{float((y**2).sum() ** 0.5):.2f} in {seconds:.2f} s.",
        "Next: vitrail predict MODEL IMAGE...    vitrail convert SRC DST    vitrail cost B/16",
    ]
    shown.result |= {"feature_norm": float((y**2).sum() ** 0.5), "seconds": seconds}
    return shown


def data_inspect(
    path: Annotated[Positional[str], arg(metavar="PATH")],
    *,
    splits: tuple[str, ...] = (),
    sheet: str | None = None,
    common: Common = COMMON,
) -> Shown:
    """What is in a data set and what is wrong with it: broken files, duplicates, leaks between splits.

    Args:
        path: a folder, Parquet or tar shards, an .npz, or a name of the catalog
        splits: which splits; all of them where nothing is said
        sheet: a PNG file for a contact sheet, a few pictures of each class
    """
    from vitrail.data.audit import inspect_path, report_tables
    from vitrail.runtime.progress import bars

    with bars() as progress:
        report = inspect_path(path, splits=list(splits) or None, sheet=sheet, progress=progress)
    return Shown(common, [], [], report.as_json(), body=report_tables(report))


def data_dedup(
    train: Annotated[Positional[str], arg(metavar="TRAIN")],
    tests: Annotated[Positional[tuple[str, ...]], arg(metavar="TEST...")],
    *,
    out: str = "exclude.jsonl",
    train_split: str = "train",
    test_split: str | None = None,
    sheet: str | None = None,
    common: Common = COMMON,
) -> Shown:
    """The images of a training set that are near-duplicates of test images.

    Args:
        train: the training set
        tests: the test sets
        out: where the list to exclude is written (JSON lines)
        train_split: of the training set
        test_split: of the test sets; their test or validation split where nothing is said
        sheet: a PNG file for the pairs, side by side
    """
    from vitrail.data.leaks import dedup_paths, leak_table
    from vitrail.runtime.progress import bars

    splits = {"train_split": train_split, "test_split": test_split}
    with bars() as progress:
        leaks = dedup_paths(train, tests, **splits, out=out, sheet=sheet, progress=progress)  # type: ignore[arg-type]
    after = [f"{len(leaks.excluded):,} images of {train} to exclude, listed in {out}"]
    return Shown(common, [], [], leaks.as_json(), body=leak_table(leaks), after=after)


def data_shard(
    source: Annotated[Positional[str], arg(metavar="SRC")],
    folder: Annotated[Positional[str], arg(metavar="DST")],
    *,
    splits: tuple[str, ...] = (),
    shard_mb: int = 256,
    check: bool = True,
    common: Common = COMMON,
) -> Shown:
    """Any data set to Parquet shards; a run that was interrupted goes on where it stopped.

    Args:
        source: what to read
        folder: where the shards go
        splits: which splits; all of them where nothing is said
        shard_mb: size of a shard
        check: decode every image, and leave out those that are broken
    """
    from dataclasses import asdict

    from vitrail.data.shard import shard
    from vitrail.data.sources import splits_of

    names = splits or tuple(splits_of(source))
    reports = [
        shard(source, folder, split=name, shard_mb=shard_mb, check=check, progress=True) for name in names
    ]
    rows = [[r.split, str(r.shards), f"{r.examples:,}", f"{r.broken:,}", str(r.kept)] for r in reports]
    columns = ["split", ">shards", ">examples", ">broken, left out", ">shards kept from before"]
    result = {"folder": folder, "splits": [{**asdict(r), "folder": str(r.folder)} for r in reports]}
    return Shown(common, columns, rows, result)


def data() -> Shown:
    """Data sets: inspect, dedup, shard (each with its own --help)."""
    raise AssertionError("main takes the words after `data` apart")


Verb = Callable[..., Shown]
DATA_VERBS: dict[str, Verb] = {"inspect": data_inspect, "dedup": data_dedup, "shard": data_shard}
VERBS: dict[str, Verb] = {
    "data": data,
    "models": models,
    "cost": cost,
    "convert": convert,
    "predict": predict,
    "demo": demo,
}


def main(arguments: list[str] | None = None) -> None:
    """Parse, run, print; the only place that exits."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    group = given[:1] == ["data"]
    try:
        shown = tyro.extras.subcommand_cli_from_dict(
            DATA_VERBS if group else VERBS,
            prog="vitrail data" if group else "vitrail",
            description=data.__doc__ if group else "The Vision Transformer paper as working software.",
            args=given[1:] if group else given,
            config=(tyro.conf.FlagCreatePairsOff, tyro.conf.OmitArgPrefixes),
        )
    except (VitrailError, OSError) as error:  # OSError: a place that cannot be written or read
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    show(shown)
    for problem in shown.problems:
        print(f"error: {problem}", file=sys.stderr)
    if shown.problems:
        sys.exit(2)


def show(shown: Shown) -> None:
    if shown.common.json:
        import json

        print(json.dumps(shown.result, allow_nan=False))
        return
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, show_header=any(shown.columns))
    for column in shown.columns:
        table.add_column(
            Text(column.removeprefix(">")), justify="right" if column.startswith(">") else "left"
        )
    for row in shown.rows:
        table.add_row(*map(Text, row))  # not str: in a file name rich would see its own marks
    console = Console()
    if shown.body is not None or shown.rows:
        console.print(table if shown.body is None else shown.body)
    for line in shown.after:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
