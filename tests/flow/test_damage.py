"""Random damage to every kind of file that is read: refused in words, or read as it was written.

Where a format carries a checksum (bundles, torch files, .npz, runs) nothing else may come out of it. Where it carries
none (safetensors of others, tar, Parquet) other values may, but no traceback, no hang and no crash.
"""

from __future__ import annotations

import io
import random
import shutil
import signal
import tarfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import vitrail
from tests.checkpoints.google_files import filled, vit_shapes
from tests.randomise import randomise
from tests.train.small import experiment
from vitrail.checkpoints.formats import read
from vitrail.checkpoints.run import Run
from vitrail.checkpoints.run.summary import find_runs, summarize
from vitrail.data.decode import decode
from vitrail.data.shard import shard
from vitrail.data.sources import list_splits, open_source
from vitrail.errors import VitrailError
from vitrail.train.run import run

SECONDS = 20  # for one damaged file; a hang takes longer


def a_model() -> Any:
    model = randomise(vitrail.create("mu/8@16", classes=3))
    model.class_names = ["cat", "dog", "été"]
    return model


def a_bundle(folder: Path) -> Path:
    vitrail.save(a_model(), folder / "bundle")
    return folder / "bundle"


def a_torch_file(folder: Path) -> Path:
    vitrail.save(a_model(), folder / "timm", to="timm")
    torch.save(load_file(folder / "timm" / "model.safetensors"), folder / "vit.pth")
    return folder / "vit.pth"


def a_safetensors_file(folder: Path) -> Path:
    vitrail.save(a_model(), folder / "timm", to="timm")
    return folder / "timm"


def an_npz(folder: Path) -> Path:
    np.savez(folder / "vit.npz", **filled(vit_shapes()))
    return folder / "vit.npz"


def some_images(folder: Path) -> Path:
    rng = np.random.default_rng(0)
    for i in range(12):
        path = folder / "images" / ("train", "test")[i % 3 == 2] / ("cat", "dog")[i % 2] / f"{i}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (24, 32, 3), np.uint8)).save(path)
    return folder / "images"


def a_tar(folder: Path) -> Path:
    images = some_images(folder)
    (folder / "tar").mkdir()
    for split in ("train", "test"):
        with tarfile.open(folder / "tar" / f"{split}-000000.tar", "w") as archive:
            for i, path in enumerate(sorted((images / split).rglob("*.jpg"))):
                for extension, data in (("jpg", path.read_bytes()), ("cls", path.parent.name.encode())):
                    member = tarfile.TarInfo(f"{i:06d}.{extension}")
                    member.size = len(data)
                    archive.addfile(member, io.BytesIO(data))
    return folder / "tar"


def a_parquet(folder: Path) -> Path:
    images = some_images(folder)
    for split in ("train", "test"):
        shard(images, folder / "parquet", split=split)
    return folder / "parquet"


def small_run(folder: Path) -> None:
    run(experiment(steps=6, save_every=2, evaluate_every=6, keep=2), folder, device="cpu")


def a_run(folder: Path) -> Path:
    small_run(folder / "run")
    return folder / "run"


def a_stopped_run(folder: Path) -> Path:
    """A run as a kill leaves it: after its checkpoints at steps 2 and 4 of 6."""
    whole = folder / "stopped"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "finish", killed)
        with pytest.raises(KeyboardInterrupt):
            small_run(whole)
    shutil.rmtree(whole / "checkpoints" / "step-00000006")
    shutil.rmtree(whole / "model")
    return whole


def killed(*_: object) -> None:
    raise KeyboardInterrupt


def read_model(path: Path) -> Any:
    checkpoint = read(path)
    weights = {name: w.numpy().tobytes() for name, w in checkpoint.weights.items()}
    return weights, checkpoint.config, checkpoint.class_names, checkpoint.preprocess


def read_images(path: Path) -> None:
    for split in list_splits(path):
        source = open_source(path, split)
        for i in range(len(source)):
            with suppress(VitrailError):
                decode(source.read(i).image)


def read_run(path: Path) -> Any:
    """List it, go on with it, and use its model."""
    for folder, _ in find_runs(path):
        with suppress(VitrailError):
            summarize(folder, folder.name)
    small_run(path)
    return read_model(path / "model")


# kind: how one is made, how it is read, whether damage is always found
KINDS: dict[str, tuple[Callable[[Path], Path], Callable[[Path], Any], bool]] = {
    "bundle": (a_bundle, read_model, True),
    "pth": (a_torch_file, read_model, True),
    "npz": (an_npz, read_model, True),
    "safetensors": (a_safetensors_file, read_model, False),
    "tar": (a_tar, read_images, False),
    "parquet": (a_parquet, read_images, False),
    "run": (a_run, read_run, True),
    "stopped run": (a_stopped_run, read_run, True),
}


def damage(data: bytes, rng: random.Random) -> bytes:
    """Another content: a bit or a byte changed, a part cut off, taken out, blanked, repeated, moved; bytes added."""
    at = rng.randrange(len(data)) if data else 0
    length = min(rng.choice((1, 4, 16, 64, 512, 4096)), max(len(data) - at, 1))
    part, before, after = data[at : at + length], data[:at], data[at + length :]
    return rng.choice(
        [
            lambda: before + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :] if data else b"\0",
            lambda: before + rng.randbytes(length) + after,
            lambda: before,
            lambda: before + after,
            lambda: before + bytes(length) + after,
            lambda: before + part + part + after,
            lambda: before + after[:length] + part + after[length:],
            lambda: data + rng.randbytes(length),
            lambda: b"",
        ]
    )()


def renew(copy: Path, whole: Path) -> None:
    shutil.rmtree(copy.parent, ignore_errors=True)
    copy.parent.mkdir()
    shutil.copy(whole, copy) if whole.is_file() else shutil.copytree(whole, copy)


def on_alarm(*_: object) -> None:
    raise AssertionError(f"not read within {SECONDS} s")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [5, pytest.param(500, marks=pytest.mark.long)])
def test_damage_is_found(kind: str, count: int, tmp_path: Path) -> None:
    make, use, checksummed = KINDS[kind]
    whole = make(tmp_path)
    files = sorted(p for p in ([whole] if whole.is_file() else whole.rglob("*")) if p.is_file())
    files = [p for p in files if p.suffix != ".png"]
    copy, wrong = tmp_path / "copy" / whole.name, list[str]()
    renew(copy, whole)
    written = use(copy)
    signal.signal(signal.SIGALRM, on_alarm)
    for seed in range(count):
        rng = random.Random(f"{kind} {seed}")
        file = rng.choice(files)
        renew(copy, whole)
        target = copy / file.relative_to(whole) if whole.is_dir() else copy
        target.write_bytes(damage(file.read_bytes(), rng))
        signal.alarm(SECONDS)
        try:
            if use(copy) != written and checksummed:
                wrong.append(f"{seed} {file.name}: other content was accepted")
        except VitrailError:
            pass
        except Exception as error:
            wrong.append(f"{seed} {file.name}: {type(error).__name__}: {error}")
        finally:
            signal.alarm(0)
    assert not wrong, f"{len(wrong)} of {count}:\n" + "\n".join(wrong[:20])
