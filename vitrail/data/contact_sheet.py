"""Images of a data set on one page, for checking by eye: a few of each class, or pairs side by side.

    Source ──► class_sheet ──► PNG      what the classes look like (audit.py)
    pairs  ──► pair_sheet  ──► PNG      copies (dedup.py)

Drawn with Pillow, in matplotlib's font, which has more letters than Pillow's. Every cell has a caption above its
images; an image that cannot be read is a grey square.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont, ImageOps
from PIL.PngImagePlugin import PngInfo

from vitrail.data.bounded_files import check_replaceable
from vitrail.data.decode import decode
from vitrail.data.sources import Source
from vitrail.errors import DataError
from vitrail.runtime.files import atomic_file

TILE = 96  # pixels, the side of an image
GAP = 4
CAPTION = 20  # pixels, the height of a line of text
MARGIN = 12
MARK = b"tEXtSoftware\0vitrail"  # in the PNG, before its pixels
INK, PAPER, MISSING = (20, 20, 20), (255, 255, 255), (200, 200, 200)


def class_sheet(source: Source, path: str | Path, *, classes: int = 30, per_class: int = 4) -> Path:
    """Draw `per_class` images of each class, evenly spaced; at most `classes` classes, evenly spaced."""
    present = np.unique(source.labels)
    chosen = present[_evenly(len(present), classes)]
    cells = []
    for label in chosen:
        members = np.flatnonzero(source.labels == label)
        images = [_read(source, int(index)) for index in members[_evenly(len(members), per_class)]]
        cells.append((f"{source.class_names[label]} ({len(members):,})", images))
    left_out = f", {len(chosen)} of them shown" if len(chosen) < len(present) else ""
    title = f"{source.name}: {len(source):,} images, {len(present):,} classes{left_out}"
    return draw_sheet(title, cells, per_class, Path(path))


def pair_sheet(title: str, pairs: Sequence[tuple[str, Source, int, Source, int]], path: str | Path) -> Path:
    """Draw pairs of images beside each other. A pair is (caption, source, index, source, index)."""
    cells = [(caption, [_read(a, i), _read(b, j)]) for caption, a, i, b, j in pairs]
    return draw_sheet(title, cells, 2, Path(path))


def check_sheet(path: str | Path) -> None:
    """Raise ConfigError if another kind of file is there; call it before the work whose result is drawn."""
    check_replaceable(Path(path), MARK, "contact sheet")


def draw_sheet(
    title: str,
    cells: Sequence[tuple[str, list[Image.Image | None]]],
    per_cell: int,
    path: Path,
    columns: int | None = None,
) -> Path:
    """Draw cells of `per_cell` images, left to right and down, in so many columns, else on a page of about 4:3."""
    width, height = per_cell * (TILE + GAP) + MARGIN, TILE + CAPTION + MARGIN
    columns = columns or max(1, round(math.sqrt(len(cells) * height / width * 4 / 3)))
    rows = math.ceil(len(cells) / columns)
    page = Image.new("RGB", (columns * width + MARGIN, rows * height + CAPTION + 2 * MARGIN), PAPER)
    pen, font = ImageDraw.Draw(page), _font(14)
    pen.text((MARGIN, MARGIN), _fit(title, page.width - 2 * MARGIN, font), fill=INK, font=font)
    for number, (caption, images) in enumerate(cells):
        left = MARGIN + number % columns * width
        top = CAPTION + 2 * MARGIN + number // columns * height
        pen.text((left, top), _fit(caption, width - MARGIN, font), fill=INK, font=font)
        for place, image in enumerate(images):
            corner = (left + place * (TILE + GAP), top + CAPTION)
            if image is None:
                pen.rectangle((*corner, corner[0] + TILE - 1, corner[1] + TILE - 1), fill=MISSING)
                pen.text((corner[0] + 8, corner[1] + 38), "unreadable", fill=INK, font=font)
            else:
                page.paste(ImageOps.pad(image, (TILE, TILE), color=PAPER), corner)
    metadata = PngInfo()
    metadata.add_text("Software", "vitrail")
    check_sheet(path)
    with atomic_file(path) as temporary:
        page.save(temporary, format="PNG", pnginfo=metadata)
    return path


def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """Load matplotlib's font without importing matplotlib; Pillow's own if it is not installed."""
    package = importlib.util.find_spec("matplotlib")
    for place in (package.submodule_search_locations or ()) if package else ():
        file = Path(place, "mpl-data/fonts/ttf/DejaVuSans.ttf")
        if file.is_file():
            return ImageFont.truetype(str(file), size)
    return ImageFont.load_default(size=size)


def _read(source: Source, index: int) -> Image.Image | None:
    """Return the image, or None when it cannot be read."""
    try:
        return Image.fromarray(decode(source.read(index).image, name=source.key(index)))
    except DataError:
        return None


def _fit(text: str, width: int, font: ImageFont.FreeTypeFont | ImageFont.ImageFont) -> str:
    """Put the text on one line, cut to `width` pixels."""
    text = " ".join(text.split())
    if font.getlength(text) <= width:
        return text
    while text and font.getlength(text + "…") > width:
        text = text[:-1]
    return text + "…"


def _evenly(n: int, most: int) -> np.ndarray:
    """Choose at most `most` of n places, evenly spaced."""
    return np.arange(n) if n <= most else np.linspace(0, n - 1, most).round().astype(np.int64)
