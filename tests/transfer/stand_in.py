"""Stand-ins for the data sets of VTAB: a few dozen small pictures each, annotated as TFDS annotates them."""

import json
from io import BytesIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from vitrail.transfer.vtab_tasks import TASKS

N = 40  # rows of every split: 90% leaves 4 for val
SIZES = {"train_examples": 16, "val_examples": 4}


def png(rng, *, binary=False):
    pixels = rng.integers(0, 2 if binary else 256, (8, 8) if binary else (8, 8, 3), np.uint8)
    stream = BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()


def clevr_objects(rng):
    n = int(rng.integers(3, 11))
    depth = rng.uniform(7, 14, n)
    return {"size": [0] * n, "pixel_coords": [[1.0, 2.0, float(z)] for z in depth]}


def kitti_objects(rng):
    """As a list of records, the other way that Parquet writers store TFDS's sequences."""
    n = int(rng.integers(0, 4))
    return [
        {"type": int(rng.integers(0, 8)), "location": [0.0, 0.0, float(rng.uniform(2, 60))]} for _ in range(n)
    ]


ANNOTATIONS = {
    "clevr": {"objects": lambda rng, i: clevr_objects(rng)},
    "kitti": {"objects": lambda rng, i: kitti_objects(rng)},
    "dsprites": {
        "label_x_position": lambda rng, i: int(rng.integers(32)),
        "label_orientation": lambda rng, i: int(rng.integers(40)),
    },
    "smallnorb": {"label_azimuth": lambda rng, i: i % 18, "label_elevation": lambda rng, i: i % 9},
}


def write_data_set(root, folder, classes):
    """train, validation and test, one file each."""
    columns = ANNOTATIONS.get(folder, {"label": lambda rng, i: i * 7 % classes})
    for seed, split in enumerate(("train", "validation", "test")):
        rng = np.random.default_rng((len(folder), seed))
        rows = [
            {"image": {"bytes": png(rng, binary=folder == "dsprites"), "path": f"{i}.png"}} for i in range(N)
        ]
        for name, value in columns.items():
            for i, row in enumerate(rows):
                row[name] = value(rng, i)
        table = pa.Table.from_pylist(rows)
        if "label" in columns:
            names = [f"class {k}" for k in range(classes)]
            features = {"image": {"_type": "Image"}, "label": {"names": names, "_type": "ClassLabel"}}
            table = table.replace_schema_metadata(
                {"huggingface": json.dumps({"info": {"features": features}})}
            )
        (root / folder).mkdir(parents=True, exist_ok=True)
        pq.write_table(table, root / folder / f"{split}-00000-of-00001.parquet", row_group_size=16)


def write_all(root, folders=()):
    """Every data set, or those that are named."""
    for task in {task.folder: task for task in TASKS.values()}.values():
        if not folders or task.folder in folders:
            write_data_set(root, task.folder, task.classes)
    return root
