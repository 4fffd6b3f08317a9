"""Data sets of the Hugging Face hub by name, through the `datasets` package where it is installed.

    hf:owner/name   hf:owner/name:configuration   hf:owner/name?image=img&label=fine_label

`datasets` keeps downloads in its own cache. Without `download` only that cache is used, not the network. Code of a
data set is never run (current releases of the package cannot run it). Images are returned as the stored bytes;
classes come from the ClassLabel feature of the label column.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from vitrail.data.readers.class_names import check_labels
from vitrail.data.readers.fingerprint import digest
from vitrail.data.readers.parquet import find_column
from vitrail.data.sources import Example, Reader, Source, read_image_file, take_options
from vitrail.data.splits import canonical, find_split, in_order
from vitrail.errors import ConfigError, DataError


class HubSource(Source):
    """One split of a data set that the `datasets` package opened."""

    def __init__(self, name: str, rows: Any, image: str, labels: np.ndarray, class_names: list[str]) -> None:
        self.name, self.labels, self.class_names = name, labels, class_names
        self._rows, self._image = rows, image

    def read(self, index: int) -> Example:
        key = self.key(index)
        stored = self._rows[index][self._image]
        if stored is None or not (stored["bytes"] or stored["path"]):
            raise DataError(f"{key}: the row has no image")
        image = stored["bytes"] or read_image_file(stored["path"], key)
        return Example(image, int(self.labels[index]), key)

    def fingerprint(self) -> str:
        return digest(self._rows._fingerprint, self.labels, *self.class_names)


def find_on_hub(where: str, options: dict[str, str], *, download: bool = False) -> Reader:
    """Return the reader of `hf:owner/name`."""
    take_options(where, options, ("image", "label"))
    datasets, splits = _load(where, download=download)
    named = {canonical(name): rows for name, rows in splits.items()}

    def open_split(split: str) -> HubSource:
        split = find_split(split, in_order(list(named)), where)
        rows, columns = named[split], {}
        for role, kind in (("image", datasets.Image), ("label", datasets.ClassLabel)):
            matching = [name for name, feature in rows.features.items() if isinstance(feature, kind)]
            columns[role] = find_column(role, options.get(role), matching, matching, repr(where))
        image, label = columns["image"], columns["label"]
        class_names = list(rows.features[label].names)
        labels = np.asarray(rows.with_format("numpy")[label], dtype=np.int64)
        check_labels(labels, class_names, f"{where}, split {split!r}")
        rows = rows.select_columns([image]).cast_column(image, datasets.Image(decode=False))
        return HubSource(f"{where.removeprefix('hf:')}:{split}", rows, image, labels, class_names)

    return Reader(in_order(list(named)), open_split)


def _load(where: str, *, download: bool) -> tuple[Any, Any]:
    """Return the package, and the splits of the data set by their names there."""
    try:
        import datasets
    except ImportError as error:
        raise DataError(
            f"{where!r} needs the package datasets, which is not installed: pip install 'vitrail[hub]'"
        ) from error
    name, _, configuration = where.removeprefix("hf:").partition(":")
    if not name:
        raise ConfigError(
            f"{where!r}: a name is expected, as in hf:owner/name or hf:owner/name:configuration"
        )
    # `datasets` has no argument that keeps it off the network, only this setting.
    before = datasets.config.HF_HUB_OFFLINE
    datasets.config.HF_HUB_OFFLINE = before or not download
    try:
        return datasets, datasets.load_dataset(name, configuration or None)
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        hint = "" if download else "; it was looked for in the local cache only, download=True fetches it"
        raise DataError(f"{where!r} cannot be opened: {error}{hint}") from error
    finally:
        datasets.config.HF_HUB_OFFLINE = before
