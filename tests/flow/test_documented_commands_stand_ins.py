"""Small files under the names that README.md and docs/ use: checkpoints of few weights, data sets of few pictures."""

import json
from io import BytesIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

import vitrail
from tests.checkpoints import google_files
from tests.data.test_decisions import decisions_for
from tests.randomise import randomise
from tests.transfer.stand_in import write_all
from vitrail.data.sources import open_source

PHOTOS = ["bee", "cat", "frog"]  # classes of a folder of photographs


def write_stand_ins(folder):
    tiny = vitrail.load("ti8-64").class_names
    checkpoints(folder, tiny)
    for name in ("a.jpg", "b.jpg", "photo.jpg", "more/c.jpg"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(picture(len(name), "JPEG"))
    for name in ("photos", "pets", "flowers102"):
        photographs(folder / name, seed=len(name))
    labels = [f"{name}/{i}.jpg,{name}" for name in PHOTOS for i in range(10)]
    (folder / "labels.csv").write_text("\n".join(["file_name,label", *labels]))
    (folder / "flat").mkdir()
    for name in PHOTOS:
        for i in range(10):
            (folder / "flat" / f"{name}_{i}.jpg").write_bytes(picture((len(name), i, 7), "JPEG"))
    parquet(folder / "tiny-imagenet", tiny[:8], {"train": 120, "validation": 48})
    parquet(folder / "imagenet", [f"class {k}" for k in range(1000)], {"validation": 30})
    parquet(folder / "imagenet21k", [f"class {k}" for k in range(8)], {"train": 120})
    (folder / "real.json").write_text(json.dumps([[k] for k in range(30)]))
    (folder / "mapping.json").write_text(json.dumps({name: tiny[k : k + 2] for k, name in enumerate(PHOTOS)}))
    texts = {"embeddings": torch.eye(3, 32), "scale": torch.tensor([100.0])}
    save_file(texts, folder / "texts.safetensors", {"class_names": json.dumps(PHOTOS)})
    write_all(folder / "vtab", {"dtd"})
    decisions = decisions_for(folder / "photos", {0: ("relabel", "cat"), 1: ("drop", None)})
    (folder / "decisions.json").write_text(json.dumps(decisions))
    return folder


def checkpoints(folder, class_names):
    """In the formats that their names promise, of width 32 and few layers. A folder goes before the box."""
    boxed = randomise(vitrail.create("mu/8@64", classes=len(class_names), depth=4))
    boxed.class_names = class_names
    vitrail.save(boxed, folder / "ti8-64")
    vit = randomise(vitrail.create("mu/16", classes=1000))
    vitrail.save(vit, folder / "ViT-B_16.npz", to="npz")
    hybrid = google_files.stem_shapes() | google_files.vit_shapes(embedded=256, patch=1)
    np.savez(folder / "R50+ViT-B_16.npz", **google_files.filled(hybrid))


def picture(seed, form):
    """Bytes of an image: soft, so that each is another, and near-duplicates are none."""
    pixels = np.random.default_rng(seed).integers(0, 256, (6, 6, 3), np.uint8)
    stream = BytesIO()
    Image.fromarray(pixels).resize((72, 64), Image.Resampling.BICUBIC).save(stream, form)
    return stream.getvalue()


def photographs(folder, seed, each=14):
    for k, name in enumerate(PHOTOS):
        (folder / name).mkdir(parents=True)
        for i in range(each):
            (folder / name / f"{i}.jpg").write_bytes(picture((seed, k, i), "JPEG"))


def parquet(folder, class_names, splits):
    """As the Hugging Face hub has it; pictures repeat, labels go round."""
    few = [picture((1, i), "PNG") for i in range(40)]
    label = {"names": class_names, "_type": "ClassLabel"}
    described = {"info": {"features": {"image": {"_type": "Image"}, "label": label}}}
    folder.mkdir()
    for split, n in splits.items():
        images = [{"bytes": few[i % len(few)], "path": f"{split}_{i + 1:08}.png"} for i in range(n)]
        table = pa.table({"image": images, "label": [i % len(class_names) for i in range(n)]})
        table = table.replace_schema_metadata({"huggingface": json.dumps(described)})
        pq.write_table(table, folder / f"{split}-00000-of-00001.parquet")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_stand_ins(tmp_path_factory.mktemp("stand-ins"))


@pytest.mark.parametrize(
    ("name", "patch_size"), [("ViT-B_16.npz", 16), ("ti8-64", 8), ("R50+ViT-B_16.npz", 1)]
)
def test_checkpoints_are_what_their_names_say(folder, name, patch_size):
    config = vitrail.load(folder / name).config
    assert config.patch_size == patch_size
    assert hasattr(config, "stem") == name.startswith("R50")


@pytest.mark.parametrize("name", ["photos", "pets", "tiny-imagenet", "imagenet21k", "vtab/dtd"])
def test_data_can_be_opened(folder, name):
    source = open_source(folder / name, "train")
    assert len({source.read(i).label for i in range(30)}) > 1
