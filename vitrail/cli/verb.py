"""Flags that several verbs share, and the output that every verb returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, arg

from vitrail.errors import ConfigError
from vitrail.models.choices import Activation, Pool
from vitrail.runtime.log import visible

if TYPE_CHECKING:
    from rich.table import Table

    from vitrail.inference.exported import Runnable
    from vitrail.inference.features import Extraction

Device = Literal["auto", "cpu", "cuda", "mps"]
Precision = Literal["auto", "float32", "bf16", "fp8"]
Format = Literal["bundle", "npz", "timm", "huggingface", "torchvision"]
ModelPath = Annotated[Positional[str], arg(metavar="MODEL")]


@dataclass(frozen=True)
class Common:
    """Options of every command."""

    json: bool = False  # print one JSON object instead of a table
    device: Device = "auto"  # device to compute on; auto: a GPU if there is one


@dataclass(frozen=True)
class Reading:
    """Settings for reading the checkpoint."""

    # resample the position embeddings for this size; one number, or height and width; any: images keep their aspect
    image_size: tuple[int | Literal["any"], ...] = ()
    max_tokens: int = 256  # with --image-size any: patches of an image, at most
    heads: int | None = None  # attention heads, where the file does not record them
    activation: Activation | None = None  # exact or tanh GELU, where the file does not record it
    norm_eps: float | None = None  # epsilon of LayerNorm, where the file does not record it
    pool: Pool | None = None  # input of the classifier, where the file does not record it
    patch_size: int | None = None  # resample the patch embedding for patches of this size, as FlexiViT's
    ignore_field: tuple[str, ...] = ()  # entries of the config file to read as if they were not there

    def arguments(self) -> dict[str, Any]:
        """Return the keywords of vitrail.load."""
        words = {name: value for name, value in vars(self).items() if name != "ignore_field"}
        size = "any" if self.image_size == ("any",) else parse_image_size(self.image_size)
        return words | {"image_size": size, "ignore_fields": self.ignore_field}

    def open(self, model: str, device: Device) -> Runnable:
        """Open a checkpoint or an exported file, on a device."""
        from vitrail.inference.exported import open_model
        from vitrail.runtime.device import pick

        return open_model(model, **self.arguments()).to(pick(device))


@dataclass(frozen=True)
class Extracting:
    """Settings for extracting features."""

    # features: pre_logits (the input of the classifier), token, mean, layer3 (any layer), layer3.token, layer3.mean
    which: str = "pre_logits"
    batch_size: int = 64  # images in a forward pass
    num_workers: int = 0  # processes that decode
    max_bad: float = 0.01  # share of the images that may be broken

    def extraction(self) -> Extraction:
        from vitrail.inference.features import Extraction

        return Extraction(**vars(self))


COMMON, READING, EXTRACTING = Common(), Reading(), Extracting()


@dataclass
class Output:
    """Result of a verb: a table for people, an object for --json."""

    common: Common
    columns: list[str]  # headings of the table; a heading that begins with '>' is right-aligned
    rows: list[list[str]]
    result: dict[str, Any]  # what --json prints
    body: Any = None  # something else that rich prints, in place of the table
    after: list[str] = field(default_factory=list)  # lines below the table
    problems: list[str] = field(default_factory=list)  # errors in a part of the work: exit code 2 at the end


def parse_image_size(words: tuple[int | Literal["any"], ...]) -> int | tuple[int, int] | None:
    """Read --image-size 384, --image-size 224 448, or nothing."""
    if len(words) > 2 or "any" in words:
        raise ConfigError(f"--image-size takes one number, or height and width, not {words}")
    numbers = [int(word) for word in words]
    return None if not numbers else numbers[0] if len(numbers) == 1 else (numbers[0], numbers[1])


def show(output: Output) -> None:
    """Print the JSON, or the table and the lines below it with control characters made visible."""
    if output.common.json:
        import json

        print(json.dumps(output.result, allow_nan=False))
        return
    from rich.console import Console
    from rich.segment import Segments

    console = Console()
    if output.body is not None or output.rows:
        body = table(output.columns, output.rows) if output.body is None else output.body
        segments = [
            segment._replace(text="\n".join(map(visible, segment.text.split("\n"))))
            for segment in console.render(body)
        ]
        console.print(Segments(segments))
    for line in output.after:
        console.print(visible(line), markup=False, highlight=False, soft_wrap=True)


def table(columns: list[str], rows: list[list[str]]) -> Table:
    """Build a table; no line of headings where all of them are empty."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    built = Table(box=SIMPLE_HEAD, show_header=any(columns))
    for column in columns:
        justify: Literal["left", "right"] = "right" if column.startswith(">") else "left"
        built.add_column(Text(visible(column.removeprefix(">"))), justify=justify, overflow="fold")
    for row in rows:
        # Text, not str: in a file name rich would see its own marks.
        built.add_row(*(Text(visible(cell)) for cell in row))
    return built
