"""Data sets by name: a table of what each contains, where it is stored, and how torchvision reads it.

    name ──► torchvision's layout under root, else root/name in any layout that sources.py reads ──► Source

`root` is the argument, else $VITRAIL_DATA, else ~/.cache/vitrail/data. Nothing is fetched unless `download`
is set. torchvision, an extra of the package, is imported when a set in its layout is opened. It returns paths
instead of pixels (its loader is `str`), so that files keep their bytes. It unpickles the CIFAR archives after it
has compared their checksums; vitrail itself never unpickles. Sets without official splits are split like a folder
(folder.py): by a seed, class by class.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.data.readers.arrays import ArraySource
from vitrail.data.readers.file_names import Names
from vitrail.data.readers.folder import FolderSource, cut_in_three, read_split_options
from vitrail.data.sources import Reader, Source, find_reader, take_options
from vitrail.data.splits import find_split, in_order
from vitrail.errors import DataError


@dataclass(frozen=True)
class Entry:
    """One data set of the catalog."""

    classes: int
    image_size: int | None  # None: photographs of many sizes
    reference: str
    torchvision: str = ""  # its class in torchvision.datasets; empty: not read through torchvision
    found_by: str = ""  # what exists under root where torchvision keeps it; {split} is the name of the split
    splits: dict[str, dict[str, Any]] = field(default_factory=dict)  # our split -> torchvision's arguments
    holds: str = "files"  # how to get at the examples of torchvision's data set: see _make_source
    get: str = "in Python, vitrail.data.sources.open_source({name!r}, download=True) fetches it"


_TRAIN: dict[str, dict[str, Any]] = {"train": {"train": True}, "test": {"train": False}}
_TWO: dict[str, dict[str, Any]] = {"train": {"split": "train"}, "test": {"split": "test"}}
_THREE: dict[str, dict[str, Any]] = {**_TWO, "validation": {"split": "val"}}
_ONE: dict[str, dict[str, Any]] = {"all": {}}  # comes in one piece
_PETS: dict[str, dict[str, Any]] = {"train": {"split": "trainval"}, "test": {"split": "test"}}
_FOLDER = "put it there as {name}/train/CLASS/*.jpg and {name}/val/CLASS/*.jpg, or as Parquet or tar shards"

CATALOG: dict[str, Entry] = {
    "cifar10": Entry(10, 32, "Krizhevsky 2009", "CIFAR10", "cifar-10-batches-py", _TRAIN, "pixels"),
    "cifar100": Entry(100, 32, "Krizhevsky 2009", "CIFAR100", "cifar-100-python", _TRAIN, "pixels"),
    "pets": Entry(37, None, "Parkhi et al. 2012", "OxfordIIITPet", "oxford-iiit-pet/images", _PETS, "pets"),
    "flowers102": Entry(102, None, "Nilsback and Zisserman 2008", "Flowers102", "flowers-102/jpg", _THREE),
    "dtd": Entry(47, None, "Cimpoi et al. 2014", "DTD", "dtd/dtd", _THREE),
    "svhn": Entry(10, 32, "Netzer et al. 2011", "SVHN", "{split}_32x32.mat", _TWO, "digits"),
    "eurosat": Entry(10, 64, "Helber et al. 2019", "EuroSAT", "eurosat/2750", _ONE),
    "food101": Entry(101, None, "Bossard et al. 2014", "Food101", "food-101/images", _TWO),
    "stl10": Entry(10, 96, "Coates et al. 2011", "STL10", "stl10_binary", _TWO, "planes"),
    "caltech101": Entry(101, None, "Fei-Fei et al. 2004", "Caltech101", "caltech101/101_ObjectCategories", _ONE,
                        "caltech"),
    "aircraft": Entry(100, None, "Maji et al. 2013", "FGVCAircraft", "fgvc-aircraft-2013b", _THREE),
    "cars": Entry(196, None, "Krause et al. 2013", "StanfordCars", "stanford_cars/devkit", _TWO,
                  get="its home page no longer exists, so it has to be put there by hand"),
    "sun397": Entry(397, None, "Xiao et al. 2010", "SUN397", "SUN397/ClassName.txt", _ONE),
    "mnist": Entry(10, 28, "LeCun et al. 1998", "MNIST", "MNIST/raw", _TRAIN, "tensor"),
    "fashion-mnist": Entry(10, 28, "Xiao et al. 2017", "FashionMNIST", "FashionMNIST/raw", _TRAIN, "tensor"),
    "tiny-imagenet": Entry(200, 64, "Le and Yang 2015", get=_FOLDER),
    "imagenet": Entry(1000, None, "Russakovsky et al. 2015", get=f"image-net.org has it; {_FOLDER}"),
}  # fmt: skip


def data_root(root: str | Path | None = None) -> Path:
    """Return the folder in which data sets are looked up by name."""
    return Path(root or os.environ.get("VITRAIL_DATA") or Path.home() / ".cache/vitrail/data").expanduser()


def find_in_catalog(
    name: str, options: dict[str, str], *, root: str | Path | None = None, download: bool = False
) -> Reader:
    """Return the reader of a data set of the catalog: torchvision, or that of root/name; DataError: in neither."""
    entry, folder = CATALOG[name], data_root(root).absolute()
    own = (folder / name).is_dir()
    theirs = any((folder / entry.found_by.format(split=split)).exists() for split in entry.splits)
    # torchvision keeps some sets in a folder that has their very name: it is fetched into that too.
    if download and entry.torchvision and (not own or entry.found_by.split("/")[0] == name):
        theirs = True
    if theirs:
        if entry.splits == _ONE:

            def open_whole() -> FolderSource:
                source = _open_torchvision(name, name, {}, folder, download=download)
                assert isinstance(source, FolderSource)  # what comes in one piece comes as files
                return source

            return cut_in_three(name, open_whole, read_split_options(name, options))
        take_options(name, options, ())
        splits = in_order(list(entry.splits))

        def open_split(split: str) -> Source:
            split = find_split(split, splits, f"data set {name!r}")
            return _open_torchvision(name, f"{name}:{split}", entry.splits[split], folder, download=download)

        return Reader(splits, open_split)
    if own:
        return find_reader(str(folder / name), options)
    places = [f"{folder / name} (a folder of images, Parquet or tar shards)"]
    if entry.torchvision:
        places.insert(0, f"{folder / entry.found_by.format(split='train')} (as torchvision keeps it)")
    raise DataError(
        f"data set {name!r} not found; looked for {' and '.join(places)}. Set VITRAIL_DATA to the folder of data "
        f"sets; {entry.get.format(name=name)}"
    )


def _open_torchvision(
    name: str, title: str, arguments: dict[str, Any], folder: Path, *, download: bool
) -> FolderSource | ArraySource:
    """Open one of torchvision's data sets, given the arguments that choose the split."""
    entry = CATALOG[name]
    try:
        import torchvision.datasets
    except ModuleNotFoundError as error:
        raise DataError(
            f"data set {name!r} is read through torchvision, which is not installed ({error}): "
            "pip install 'vitrail[torchvision]'"
        ) from error
    except Exception as error:  # a compiled part that does not fit its torch fails in many ways
        why = next(iter(str(error).splitlines()), type(error).__name__)
        raise DataError(
            f"data set {name!r} is read through torchvision, which cannot be imported ({why}): it has to "
            f"be built for torch {metadata.version('torch')}; pip install --force-reinstall 'vitrail[torchvision]', "
            "from the index that torch came from"
        ) from error

    if entry.holds == "files":
        arguments = {**arguments, "loader": str}  # paths in place of images
    try:
        dataset = vars(torchvision.datasets)[entry.torchvision](str(folder), download=download, **arguments)
    except ImportError as error:
        raise DataError(f"data set {name!r}: torchvision needs a package to read it: {error}") from error
    except (RuntimeError, OSError, ValueError) as error:
        raise DataError(f"data set {name!r} under {folder}: torchvision failed: {error}") from error

    return _make_source(dataset, entry.holds, title, folder)


def _make_source(dataset: Any, holds: str, title: str, folder: Path) -> FolderSource | ArraySource:
    """Make a source of one of torchvision's data sets."""
    pairs: Iterable[tuple[str | Path, int]]  # path and label
    match holds:
        case "pixels":
            return ArraySource(title, dataset.data, np.array(dataset.targets), list(dataset.classes))
        case "tensor":
            return ArraySource(title, dataset.data.numpy(), dataset.targets.numpy(), list(dataset.classes))
        case "planes" | "digits":
            pixels = dataset.data.transpose(0, 2, 3, 1)  # (n, H, W, 3)
            names = list(dataset.classes) if holds == "planes" else [str(digit) for digit in range(10)]
            return ArraySource(title, pixels, dataset.labels, names)
        case "files":
            pairs, names = (dataset[i] for i in range(len(dataset))), dataset.classes
        case "pets":  # takes no loader: its lists are used instead
            pairs, names = zip(dataset._images, dataset._labels, strict=True), dataset.classes
        case "caltech":  # takes no loader either
            images, names = Path(dataset.root, "101_ObjectCategories"), dataset.categories
            numbered = zip(dataset.index, dataset.y, strict=True)
            pairs = ((images / names[label] / f"image_{number:04d}.jpg", label) for number, label in numbered)
        case _:
            raise AssertionError(holds)
    # Sorted by path: some of torchvision's lists follow the file system.
    files = sorted((os.fsencode(os.path.relpath(path, folder)), int(label)) for path, label in pairs)
    labels = np.array([label for _, label in files], dtype=np.int64)
    return FolderSource(title, folder, Names([name for name, _ in files]), labels, list(names))
