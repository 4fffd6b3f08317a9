"""The page of a map: points on a canvas to pan, zoom and search, with a small picture of each image.

    Map ──► small pictures, joined in sheets of SHEET x SHEET ──► DIR/map.html

One file for a browser without a network: style, script and pictures are inside. Its content security policy allows
that script alone, by its digest, and fetches nothing. Names are strangers' text: they are data for the script, which
makes text of them, never HTML. page/ has its parts.
"""

from __future__ import annotations

import base64
import io
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from vitrail.curate.map_data import Map, colours
from vitrail.data.bounded_files import check_replaceable
from vitrail.data.readers.class_names import readable
from vitrail.errors import ConfigError, DataError
from vitrail.inference.images import decode_example
from vitrail.runtime.html_page import GENERATOR, script_data, text, write_html
from vitrail.runtime.log import visible
from vitrail.runtime.progress import progress

NAME = "map.html"
PAGE = Path(__file__).parent / "page"
SHEET = 16  # pictures along a side of a sheet
MAX_THUMBNAIL = 160  # pixels
MOST_THREADS = 16
QUALITY = 72  # of WebP
PLACES = 65_535  # along a side of the map


def check_map_folder(folder: Path) -> None:
    """Raise ConfigError unless the folder is new, empty or has a map of ours."""
    check_replaceable(folder / NAME, GENERATOR, "map")
    names = sorted(p.name for p in folder.iterdir() if not p.name.startswith(".")) if folder.is_dir() else []
    if names and NAME not in names:
        raise ConfigError(f"{folder} has {', '.join(names[:3])} and no {NAME}: choose a new folder")


def write_map(found: Map, folder: Path, *, title: str, about: str, thumbnails: int = 64) -> Path:
    """Write DIR/map.html; return its path. `thumbnails`: pixels of the longer side; 0: none."""
    if not 0 <= thumbnails <= MAX_THUMBNAIL:
        raise ConfigError(f"thumbnails have 0 to {MAX_THUMBNAIL} pixels, not {thumbnails}")
    write_html(
        folder / NAME, PAGE / "map.html", title=title, scripts=[PAGE / "map.js"], about=text(about),
        data=script_data(contents(found, thumbnails)),
    )  # fmt: skip
    return folder / NAME


def contents(found: Map, side: int) -> dict[str, object]:
    """Return what the script needs."""
    predicted = None if found.predicted is None else found.predicted.tolist()
    return {
        "xy": np.rint(found.xy * PLACES).astype(int).tolist(),  # (n, 2), up to PLACES
        "places": PLACES,
        "labels": found.labels.tolist(),
        "predicted": predicted,
        "keys": [visible(found.source.key(i)) for i in found.index.tolist()],
        "classes": [visible(readable(name)) for name in found.class_names],
        "colours": colours(len(found.class_names)),
        "side": side,
        "across": SHEET,
        "sheets": sheets(found, side) if side else [],
    }


def sheets(found: Map, side: int) -> list[str]:
    """Return small pictures, `side` x `side`, in sheets, row by row: data URIs. One that cannot be read is empty."""

    def small(index: int) -> np.ndarray:
        cell = np.zeros((side, side, 4), np.uint8)
        try:
            image = Image.fromarray(decode_example(found.source, index))
        except DataError:
            return cell
        by = side / max(image.size)
        size = max(1, round(image.width * by)), max(1, round(image.height * by))
        pixels = np.asarray(image.resize(size, Image.Resampling.BILINEAR, reducing_gap=2.0))  # (h, w, 3)
        top, left = (side - size[1]) // 2, (side - size[0]) // 2
        cell[top : top + size[1], left : left + size[0], :3] = pixels
        cell[top : top + size[1], left : left + size[0], 3] = 255
        return cell

    uris, each = [], SHEET * SHEET
    starts = range(0, len(found), each)
    with ThreadPoolExecutor(min(MOST_THREADS, torch.get_num_threads())) as pool:
        for start in progress(starts, len(starts), "small pictures"):
            cells = list(pool.map(small, found.index[start : start + each].tolist()))
            rows = -(-len(cells) // SHEET)
            cells += [np.zeros((side, side, 4), np.uint8)] * (rows * SHEET - len(cells))
            sheet = np.stack(cells).reshape(rows, SHEET, side, side, 4).swapaxes(1, 2)
            sheet = sheet.reshape(rows * side, SHEET * side, 4)  # pictures beside and below each other
            file = io.BytesIO()
            Image.fromarray(sheet).save(file, "WEBP", quality=QUALITY)
            uris.append("data:image/webp;base64," + base64.b64encode(file.getvalue()).decode())
    return uris
