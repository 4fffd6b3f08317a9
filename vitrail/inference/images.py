"""Images as users name them -> files -> pixels.

    paths, folders, glob patterns ──► find_images ──► files
    any of these, bytes, PIL images, arrays ──► each_image ──► Pictures, a source that the loader can read

An image that cannot be read raises ImageError where it is read, with its name.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from vitrail.data.decode import decode, rgb_pixels
from vitrail.data.readers.file_names import (
    EXTENSIONS,
    UNREAD,
    entry_kind,
    file_extension,
    is_image_name,
    scan_folder,
    why_not,
)
from vitrail.data.sources import Example, Source, read_image_file
from vitrail.errors import ConfigError, DataError, ImageError
from vitrail.runtime.log import note

ImageLike = str | Path | bytes | Image.Image | np.ndarray
Images = ImageLike | Iterable[ImageLike] | Source
KINDS = "a path, encoded bytes, a PIL image, a uint8 array (H, W, 3)"


class Pictures:
    """A source of images that have no labels: each is read and decoded when its turn comes."""

    name, class_names = "images", [""]

    def __init__(self, images: Sequence[ImageLike]) -> None:
        self.images = images
        self.labels = np.zeros(len(images), np.int64)

    def __len__(self) -> int:
        return len(self.images)

    def key(self, index: int) -> str:
        image = self.images[index]
        return str(image) if isinstance(image, str | Path) else f"image {index + 1}"

    def read(self, index: int) -> Example:
        image = self.images[index]
        if isinstance(image, str | Path):
            return Example(read_image_file(str(image), str(image)), 0, str(image))
        return Example(image if isinstance(image, bytes) else pixels(image), 0, self.key(index))

    def fingerprint(self) -> str:
        raise DataError("a list of images has no fingerprint: only a data set has")


def pixels(image: ImageLike) -> np.ndarray:
    """Return an image as uint8 (H, W, 3) RGB."""
    if isinstance(image, str | Path):
        try:
            return decode(read_image_file(str(image), str(image)), name=str(image))
        except DataError as error:  # a file that cannot be read is one image that cannot be used
            raise ImageError(str(error)) from error
    if isinstance(image, bytes):
        return decode(image)
    if isinstance(image, Image.Image):
        return rgb_pixels(image)
    if not isinstance(image, np.ndarray):
        raise ConfigError(f"an image is one of {KINDS}, not of type {type(image).__name__}")
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
        raise ImageError(f"an image array must be uint8 (H, W, 3), not {image.dtype} {image.shape}")
    return image


def decode_example(source: Source, index: int) -> np.ndarray:
    """Return the pixels of one example, uint8 (H, W, 3)."""
    return decoded(source.read(index))


def decoded(example: Example) -> np.ndarray:
    """Return the pixels of an example that was read, uint8 (H, W, 3)."""
    return decode(example.image, name=example.key) if isinstance(example.image, bytes) else example.image


def each_image(images: ImageLike | Iterable[ImageLike]) -> Iterator[ImageLike]:
    """Yield one image after the other; folders and glob patterns give the files that they stand for."""
    if isinstance(images, str | Path):
        yield from find_images([str(images)])
    elif isinstance(images, bytes | Image.Image) or (isinstance(images, np.ndarray) and images.ndim != 4):
        yield images
    elif isinstance(images, Iterable):
        for image in images:
            yield from find_images([str(image)]) if isinstance(image, str | Path) else [image]
    else:
        raise ConfigError(f"images are {KINDS}, or several of them, not of type {type(images).__name__}")


def find_images(names: Sequence[str]) -> list[Path]:
    """Return the files that are named, the images in and below folders, and the matches of glob patterns; sorted.

    In a folder every file with the extension of an image is taken, broken links included: reading it reports what is
    wrong. Hidden files, other kinds of images and links to folders are skipped; a note counts the latter two.
    """
    files: list[Path] = []
    for name in names:
        path = Path(name)
        if re.match(r"https?:/", name):
            raise DataError(f"{name} is a web address: download it first, and pass the file")
        if path.is_dir():
            matches = _images_below(path)
        elif any(c in name for c in "*?[") and not path.exists():
            matches = sorted(Path(match) for match in glob.glob(name, recursive=True))  # noqa: PTH207 - absolute too
        else:
            matches = [path]
        if not matches:
            raise DataError(f"{name}: no images there (looked for {', '.join(sorted(EXTENSIONS))})")
        files += matches
    if not files:
        raise DataError("no images: name files, folders or glob patterns")
    return files


def _images_below(folder: Path) -> list[Path]:
    images: list[Path] = []
    skipped: dict[str, list[Path]] = {}  # reason: paths
    waiting = [folder]
    while waiting:
        place = waiting.pop()
        try:
            entries = list(scan_folder(place))
        except DataError:
            if place == folder:
                raise
            skipped.setdefault("a folder that cannot be listed", []).append(place)
            continue
        for entry in entries:
            path = Path(entry.path)
            if entry.is_dir(follow_symlinks=False):
                waiting.append(path)
            elif entry_kind(entry) == "folder":
                skipped.setdefault("a link to a folder, which is not followed", []).append(path)
            elif is_image_name(entry.name):
                images.append(path)
            elif file_extension(entry.name) in UNREAD:
                skipped.setdefault(why_not(entry.name), []).append(path)
    if skipped:
        reasons = [f"{len(paths):,} x {why}, first {min(paths)}" for why, paths in sorted(skipped.items())]
        note(f"{folder}: skipped {'; '.join(reasons)}")
    return sorted(images)
