"""The verbs on models and their files: models, cost, convert, predict."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, arg

from vitrail.cli.bulk_flags import WRITING, Writing, check_writing, write_predictions
from vitrail.cli.verb import (
    COMMON,
    READING,
    Common,
    Format,
    ModelPath,
    Output,
    Precision,
    Reading,
    parse_image_size,
)
from vitrail.errors import ConfigError, ImageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from vitrail.inference.exported import Runnable
    from vitrail.inference.predict import Prediction
    from vitrail.models.names import Config, Model


def models(*, image_size: int | None = None, classes: int = 1000, common: Common = COMMON) -> Output:
    """List the models of the paper with their cost, and the included models, which have weights.

    Args:
        image_size: pixels of a side; if unset, 224
        classes: outputs of the classifier
    """
    from vitrail.checkpoints.included import list_included
    from vitrail.checkpoints.license import describe_license
    from vitrail.evaluators.score import format_accuracy
    from vitrail.models.cost import cost
    from vitrail.models.names import MODELS, make_config
    from vitrail.models.vit import ViTConfig

    rows, result = [], []
    for name in MODELS:
        config = make_config(name, classes=classes)
        if image_size is not None:
            # The nearest size that the patches divide, so that one table can hold /14 and /16.
            stride = config.stride if isinstance(config, ViTConfig) else 1
            config = make_config(
                name, classes=classes, image_size=max(1, round(image_size / stride)) * stride
            )
        c = cost(config)
        result.append({"name": name, "image_size": config.image_size[0], "parameters": c.parameters})
        result[-1] |= {"flops": c.flops, "macs": c.macs, "tokens": c.tokens}
        amounts = [f"{c.parameters:,}", f"{c.flops / 1e9:.1f}", f"{c.macs / 1e9:.2f}", str(c.tokens or "-")]
        rows.append([name, str(config.image_size[0]), *amounts])
    columns = ["name", ">image_size", ">parameters", ">GFLOPs", ">GMACs", ">tokens"]
    after = ["Any patch and image size works: Ti/8@64, B/16@384x512. 1 multiply-add = 1 MAC = 2 FLOPs."]
    included = list_included()
    for one in included:
        # Tiny-ImageNet has labels for its validation images only: these were the run's test split.
        top1 = format_accuracy(one["metrics"]["test"]["top1"], 10_000)
        size = f"{one['bytes'] / 1e6:.1f} MB"
        after += [
            f"Included with its weights: {one['name']}, {one['about']}; {size}, "
            f"top-1 {top1} on the validation images.",
            f"License of {one['name']}, and of models trained from it: {describe_license(one['license'])}.",
        ]
    return Output(common, columns, rows, {"models": result, "included": included}, after=after)


def cost(
    model: ModelPath,
    *,
    image_size: tuple[int, ...] = (),
    batch_size: int = 1,
    examples: int = 303_000_000,
    epochs: float = 7.0,
    peak_tflops: float = 61.5,
    utilisation: float = 0.4,
    common: Common = COMMON,
) -> Output:
    """Show the cost of a model: parameters, FLOPs, memory, and the compute of pre-training it.

    Args:
        model: an architecture such as B/16 or L/16@512; or an included model, a bundle, a run, any checkpoint
        image_size: pixels of a side; one number, or height and width
        batch_size: images in a training step, for the memory
        examples: images in the pre-training set (JFT: 303 million)
        epochs: passes over them
        peak_tflops: peak of one accelerator (a TPUv3 core: 61.5)
        utilisation: share of the peak that training reaches
    """
    from vitrail.models import cost as costs

    config, name = config_and_name(model, image_size)
    if batch_size < 1:
        raise ConfigError(f"batch_size must be at least 1, not {batch_size}")
    c = costs.cost(config)
    flops = c.pretraining_flops(examples, epochs)
    days = costs.accelerator_days(flops, peak_tflops * 1e12, utilisation)
    H, W = config.image_size
    activations = batch_size * c.activation_bytes()
    rows = [
        ["image_size", f"{H}x{W}"],
        ["parameters", f"{c.parameters:,}"],
        ["tokens", str(c.tokens or "-")],
        ["forward GMACs", f"{c.macs / 1e9:.2f}"],
        ["forward GFLOPs", f"{c.flops / 1e9:.1f}"],
        ["training GFLOPs per image", f"{c.training_flops / 1e9:.1f}"],
        [f"activations in bf16, batch size {batch_size:,}", format_bytes(activations)],
        ["weights, gradients, Adam in float32", format_bytes(16 * c.parameters)],
        [f"pre-training exaFLOPs ({examples:,} images x {epochs:g} epochs)", f"{flops / 1e18:,.1f}"],
        [f"accelerator-days ({peak_tflops:g} TFLOP/s at {utilisation:.0%})", f"{days:,.1f}"],
    ]
    result = {
        "model": name,
        "image_size": [H, W],
        "parameters": c.parameters,
        "tokens": c.tokens,
        "macs": c.macs,
        "flops": c.flops,
        "training_flops": c.training_flops,
        "activation_bytes": activations,
        "pretraining_exaflops": flops / 1e18,
        "accelerator_days": days,
    }
    return Output(common, ["", f">{name}"], rows, result)


def format_bytes(n: float) -> str:
    return f"{n / 2**30:,.2f} GiB" if n >= 2**30 / 10 else f"{n / 2**20:,.1f} MiB"


def config_and_name(model: str, image_size: tuple[int, ...]) -> tuple[Config, str]:
    """Return the config of an architecture or of weights, and its name at the image size of the flag.

    A bundle's card has the config; other files have to be read.
    """
    from dataclasses import replace

    from vitrail.checkpoints import bundle
    from vitrail.checkpoints.checkpoint import config_from_json
    from vitrail.checkpoints.formats import has_weights, read
    from vitrail.checkpoints.included import locate_weights
    from vitrail.models import checking
    from vitrail.models.names import make_config, split_size

    stored, path = has_weights(model), locate_weights(model)
    if not stored:
        config = make_config(model)
    elif path is not None and bundle.recognises(path):
        card = path / bundle.CARD
        config = config_from_json(bundle.read_card(card)["architecture"], str(card))
    else:
        config = read(model, image_size=parse_image_size(image_size)).config
    if not image_size:
        return config, model
    H, W = checking.image_size(parse_image_size(image_size))
    name = model if stored else split_size(model)[0]
    return replace(config, image_size=(H, W)), f"{name}@{H}" if H == W else f"{name}@{H}x{W}"


def convert(
    source: Annotated[Positional[str], arg(metavar="SRC")],
    destination: Annotated[Positional[str], arg(metavar="DST")],
    *,
    to: Format = "bundle",
    precision: Literal["float32", "float16"] = "float32",
    classes: int | None = None,
    resample: str = "official",
    preprocess: str = "",
    license: str = "",
    adapter: str = "",
    sample: tuple[str, ...] = (),
    reading: Reading = READING,
    common: Common = COMMON,
) -> Output:
    """Convert a checkpoint from any supported format to another.

    If readers of the new format prepare images differently, the change of the probabilities is measured.

    Args:
        source: an .npz, .safetensors or torch file, a folder of timm or transformers, a bundle, or an included model
        destination: a new file or folder
        to: the format to write
        precision: precision of the weights in a bundle; float16 halves the size and rounds the weights
        classes: another number of outputs: a new head of zeros; 0: no head
        resample: method for positions: official, bilinear, bicubic, bicubic_antialias or bicubic_corners
        preprocess: preprocessing line instead of the model's own, or the name of a preset, such as
            big_vision_fewshot
        license: license of the weights, if the source states none: an SPDX identifier such as MIT, or a sentence
        adapter: folder of adapters, which --save-adapter wrote for the weights of SRC, to merge into them
        sample: images to measure the change on: files, folders or patterns; if unset, 16 drawn pictures
    """
    from vitrail.checkpoints.formats import convert as run
    from vitrail.checkpoints.license import complete_license, describe_license
    from vitrail.inference.images import find_images
    from vitrail.models.cost import cost

    paths = find_images(sample) if sample else []
    model = run(
        source, destination, to=to, precision=precision, classes=classes, resample=resample, preprocess=preprocess,
        license=license, adapter=adapter, **reading.arguments(),
    )  # fmt: skip
    config, parameters = model.config, cost(model.config).parameters
    H, W = config.image_size
    rows = [
        ["read", f"{source} ({model.provenance.get('format', 'bundle')})"],
        ["architecture", describe_architecture(config)],
        ["image_size", f"{H}x{W}"],
        ["classes", f"{config.classes:,}"],
        ["parameters", f"{parameters:,}"],
        ["preprocess", model.preprocess],
        ["license", describe_license(model.license)],
        ["written", f"{destination} ({to}{', float16' if precision == 'float16' else ''})"],
    ]
    result = {"source": source, "destination": destination, "to": to, "parameters": parameters}
    result |= {"classes": config.classes, "image_size": [H, W], "preprocess": model.preprocess}
    result["license"] = complete_license(model.license)
    output = Output(common, ["", ""], rows, result)
    measure(output, model, to, paths)
    return output


def measure(output: Output, model: Model, to: str, paths: list[Path]) -> None:
    """Add how far predictions change if readers of the format prepare images by their own code."""
    from vitrail.checkpoints.checkpoint import from_model
    from vitrail.checkpoints.formats import reader_line
    from vitrail.data.preprocess import parse
    from vitrail.evaluators.other_pixels import drawn_pictures, measure_change
    from vitrail.inference.images import Pictures
    from vitrail.runtime.device import pick

    line = reader_line(from_model(model), to)
    if not line or not model.config.classes or parse(line) == parse(model.preprocess):
        return
    images = Pictures(paths) if paths else drawn_pictures()
    change = measure_change(model.to(pick(output.common.device)), line, images)
    output.problems += change.errors
    if not change.images:
        return
    n, largest, labels = change.images, change.largest, change.labels
    output.result["change"] = {"images": n, "largest": largest, "labels": labels, "line": line}
    which = "images" if paths else "drawn pictures (--sample IMAGES measures it on yours)"
    output.after.append(
        f"With images prepared as readers of {to} do, '{line}', a probability changes by up to {largest:.3f} "
        f"and the predicted class for {labels} of {n} {which}."
    )


def describe_architecture(config: Any) -> str:
    """Return an architecture in words: ViT, width 768, depth 12, ..."""
    from vitrail.checkpoints.mapping import find_parts
    from vitrail.models.hybrid import HybridConfig
    from vitrail.models.resnet import BiTConfig

    if isinstance(config, BiTConfig):
        return f"BiT ResNet, units {config.units}, width factor {config.width_factor:g}"
    stem = f"ResNet {config.stem.units} + " if isinstance(config, HybridConfig) else ""
    return (
        f"{stem}ViT, width {config.width}, depth {config.depth}, mlp_dim {config.mlp_dim}, "
        f"heads {config.heads}, patch_size {config.patch_size}, pool {config.pool}"
        + "".join(f", {part.replace('=', ' ', 1)}" for part in find_parts(config) if "pool=" not in part)
    )


def predict(
    model: ModelPath,
    images: Annotated[Positional[tuple[str, ...]], arg(metavar="IMAGE...")],
    *,
    top: int = 5,
    class_names: str | None = None,
    text_embeddings: str | None = None,
    precision: Precision = "auto",
    writing: Writing = WRITING,
    server: str | None = None,
    key_file: str | None = None,
    reading: Reading = READING,
    common: Common = COMMON,
) -> Output:
    """Show the most probable classes of images, or write them to a file: --out predictions.parquet.

    Args:
        model: an included model (ti8-64), a bundle, a run, any supported checkpoint, or an exported file
        images: files, folders or glob patterns; images that cannot be read are named at the end (exit code 2).
            With --out also a data set, such as a folder of Parquet shards
        top: classes to show for each image
        class_names: a file with one class name on each line (or a JSON list, if it ends in .json)
        text_embeddings: a file of embedded texts (.safetensors, .npz), the classes instead of the model's own
        precision: of the computation; auto: bf16 on a GPU, else float32; fp8 needs `vitrail calibrate` first
        server: address of a `vitrail serve`, such as http://127.0.0.1:8000, that computes; MODEL is a name there
        key_file: file with the key of that server
    """
    from vitrail.inference.images import find_images
    from vitrail.inference.predict import predict_each

    check_writing(writing)
    own = [class_names, text_embeddings] != [None, None] or writing != WRITING or reading != READING
    if server is not None and (own or precision != "auto" or common.device != "auto"):
        raise ConfigError("with --server, the server has the model and computes: its settings are set there")
    output = Output(common, ["image", "class", ">probability"], [], {"model": model, "images": []})
    if writing.out is not None:
        loaded = load_named(model, class_names, text_embeddings, reading, output)
        return write_predictions(model, loaded, images, top, precision, writing, common)
    paths = find_images(images)
    if server is not None:
        predictions = predict_there(server, key_file, model, paths, top)
    else:
        loaded = load_named(model, class_names, text_embeddings, reading, output)
        predictions = predict_each(loaded, paths, top, num_workers=None, precision=precision, task="predict")
    add_predictions(output, paths, predictions)
    output.result |= {"errors": output.problems, "notes": output.after}
    return output


def add_predictions(
    output: Output, paths: list[Path], predictions: Iterable[Prediction | ImageError]
) -> None:
    """Add rows and results; ImageError if none of the images can be read."""
    from vitrail.data.readers.class_names import readable
    from vitrail.evaluators.score import format_accuracy
    from vitrail.models.calibration import UNSURE

    names = {path: path.name for path in paths}
    names = names if len({*names.values()}) == len(paths) else {path: str(path) for path in paths}
    for path, prediction in zip(paths, predictions, strict=True):
        if isinstance(prediction, ImageError):
            output.problems.append(str(prediction))
            continue
        rows = [["", readable(name), format_accuracy(p)] for name, p in prediction]
        rows = rows if prediction.answer else [["", UNSURE, ""], *rows]
        output.rows += [[names[path], *rows[0][1:]], *rows[1:]]
        top_classes = [{"name": name, "probability": p} for name, p in prediction]
        answer = list(prediction.answer)
        output.result["images"].append({"path": str(path), "top": top_classes, "answer": answer})
    if not output.result["images"]:
        raise ImageError(output.problems[0])


def load_named(
    model: str, class_names: str | None, text_embeddings: str | None, reading: Reading, output: Output
) -> Runnable:
    """Load a model with the names of its classes; add a line to the output if it has none."""
    from vitrail.inference.exported import open_model
    from vitrail.inference.predict import read_class_names
    from vitrail.inference.zero_shot import with_texts
    from vitrail.runtime.device import pick

    loaded = open_model(model, **reading.arguments())
    if text_embeddings is not None:
        loaded = with_texts(loaded, text_embeddings)
    if class_names is not None:
        loaded.class_names = read_class_names(class_names, loaded.config.classes)
    if loaded.class_names is None and loaded.config.classes != 1000:
        output.after.append(
            f"The model has no names for its {loaded.config.classes:,} classes: these are indices "
            "(pass names with --class-names FILE)."
        )
    return loaded.to(pick(output.common.device))


def predict_there(
    server: str, key_file: str | None, model: str, paths: list[Path], top: int
) -> Iterator[Prediction | ImageError]:
    """Let a server predict."""
    from vitrail.runtime.progress import progress
    from vitrail.serve.client import Client
    from vitrail.serve.guard import read_key

    client = Client(server, None if key_file is None else read_key(key_file))
    return progress(client.predict_each(model, paths, top), len(paths), "predict")
