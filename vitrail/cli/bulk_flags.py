"""The flags of `vitrail predict` that write files of predictions, and what is shown of them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from vitrail.cli.verb import Common, Output, Precision
from vitrail.errors import ConfigError

if TYPE_CHECKING:
    from vitrail.inference.exported import Runnable

SHOWN = 20  # classes


@dataclass(frozen=True)
class Writing:
    """Settings for writing predictions to files; all but `out` need --out."""

    # a file that ends in .parquet, .csv or .jsonl, with a row for each image; the same command again resumes
    out: str | None = None
    split: str | None = None  # which part of a data set; files and folders of images have none
    probabilities: bool = False  # a column with the probabilities of all classes
    features: bool = False  # a column with the input of the classifier
    min_confidence: float = 0.0  # below this probability the class is "unsure"
    sort_into: str | None = None  # a new folder, with a folder for each class and the images in it
    sort_by: Literal["link", "copy"] = "link"  # symbolic links to the images, or copies of them
    rows_per_file: int = 1_000_000  # more rows than this make several files
    batch_size: int = 32  # images at a time
    num_workers: int | None = None  # processes that decode images; if unset, chosen automatically
    on: Literal["here", "ray"] = (
        "here"  # ray: on the workers of a Ray cluster, or on those that Ray starts here
    )


WRITING = Writing()


def check_writing(writing: Writing) -> None:
    """Raise ConfigError for flags, and for several processes, that mean nothing without --out."""
    if writing.out is not None:
        return
    names = [name for name, value in vars(writing).items() if value != getattr(WRITING, name)]
    what = ", ".join(f"--{name.replace('_', '-')}" for name in names)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        what = "predict on several processes"
    if what:
        raise ConfigError(f"{what} needs --out FILE, a file that ends in .parquet, .csv or .jsonl")


def write_predictions(
    name: str,
    model: Runnable,
    images: tuple[str, ...],
    top: int,
    precision: Precision,
    writing: Writing,
    common: Common,
) -> Output:
    """Run predict_to; return how many images each class has."""
    from vitrail.data.readers.class_names import readable
    from vitrail.inference.bulk import predict_to
    from vitrail.runtime.device import pick
    from vitrail.runtime.distributed import group

    settings = vars(writing) | {"top": top, "precision": precision}
    with group(pick(common.device)) as device:
        written = predict_to(model.to(device), images, **settings)
    files, n = [str(file) for file in written.files], written.rows
    result: dict[str, Any] = {"model": name, "files": files, "rows": n, "unreadable": written.unreadable}
    result |= {"done_before": written.done_before, "classes": written.classes}
    counts = list(written.classes.items())
    rows = [[readable(one), f"{count:,}"] for one, count in counts[:SHOWN]]
    if len(counts) > SHOWN:
        rows.append([f"{len(counts) - SHOWN:,} more", f"{sum(count for _, count in counts[SHOWN:]):,}"])
    output = Output(common, ["class", ">images"], rows, result)
    output.after.append(
        f"{n:,} rows in {files[0] if len(files) == 1 else f'{len(files)} files'}" if files else ""
    )
    if written.unreadable:
        unread = f"{written.unreadable:,} of {n:,} images cannot be read; the column `error` says why"
        (output.problems if written.unreadable == n else output.after).append(unread)
    if writing.sort_into is not None:
        output.after.append(f"Sorted into {writing.sort_into}")
    return output
