"""Learning from a browser: collections of photographs, and the classifiers that are made from them.

    photos.py      the photographs, on disk
    few.py         a classifier in about a second: served as NAME-fewshot
    finetuning.py  a run in the background: served as NAME-finetuned when it is finished
    onnx_file.py   either, as an ONNX file

Everything is kept in one folder. All methods may block: the application calls them in threads.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from vitrail.checkpoints.formats import load, save
from vitrail.errors import ConfigError, ImageError, VitrailError
from vitrail.inference.exported import Exported
from vitrail.runtime.files import check_writable
from vitrail.runtime.log import note
from vitrail.serve.few import Few, solve_few, with_head
from vitrail.serve.finetuning import (
    Process,
    check_startable,
    data_of,
    describe_run,
    last_run,
    next_run,
)
from vitrail.serve.photos import Collection, Photo
from vitrail.serve.predictor import Overloaded, Predictor
from vitrail.serve.served import NAME, Served, ServedModels

MOST_COLLECTIONS = 20
TOGETHER = 16  # photographs whose features are computed together
PATIENCE = 0.2  # seconds before the next try where the queue of a model is full
SECONDS = 60.0  # in which the features of a photograph are computed
POLL = 0.5
FEWSHOT, FINETUNED = "{}-fewshot", "{}-finetuned"


class Missing(VitrailError):  # noqa: N818
    """No collection, photograph or run of this name."""


class Conflict(VitrailError):  # noqa: N818
    """It exists already, or is in a state that does not allow this."""


@dataclass
class Learned:
    """A collection, and what was made from it since the server started."""

    collection: Collection
    predictor: Predictor | None = None  # that computed the features
    features: dict[str, np.ndarray] = field(default_factory=dict)  # photograph: (D,)
    few: Few | None = None
    few_seconds: float = 0.0
    few_photos: frozenset[str] = frozenset()
    process: Process | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)


class Learning:
    """All collections in a folder."""

    def __init__(self, folder: Path, models: ServedModels) -> None:
        check_writable(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.models = folder, models
        self.lock = threading.Lock()
        self.all: dict[str, Learned] = {}
        for place in sorted(folder.iterdir()):
            if NAME.fullmatch(place.name) and (place / "collection.json").is_file():
                self.all[place.name] = Learned(Collection(place))
                self.serve_finetuned(self.all[place.name])
        self.exporting = False  # one at a time (onnx_file.py)
        self.closing = threading.Event()
        self.watcher = threading.Thread(target=self.watch, name="vitrail learning", daemon=True)
        self.watcher.start()

    def get(self, name: str) -> Learned:
        if name not in self.all:
            raise Missing(f"no collection is called {name!r}")
        return self.all[name]

    def photo(self, learned: Learned, name: str) -> Photo:
        if name not in learned.collection.photos:
            raise Missing(f"{learned.collection.name} has no photograph {name[:40]!r}")
        return learned.collection.photos[name]

    def create(self, name: str, model: str) -> Learned:
        if not NAME.fullmatch(name):
            raise ConfigError("a collection has a name of 1 to 64 of A-Za-z0-9._-, a letter or digit first")
        served = self.models.get(model)
        if served.kind != "model":
            raise ConfigError(f"{model} was learned here: choose a model that the server was started with")
        if isinstance(served.model, Exported):
            raise ConfigError(f"{model} is an exported file, which cannot be trained: choose a model")
        with self.lock:
            taken = {FEWSHOT.format(name), FINETUNED.format(name)} & self.models.models.keys()
            if name in self.all or taken or (self.folder / name).exists():
                raise Conflict(f"{name} exists already")
            if len(self.all) >= MOST_COLLECTIONS:
                raise Conflict(
                    f"there are {MOST_COLLECTIONS} collections, the most that there may be: delete one"
                )
            self.all[name] = Learned(Collection.create(self.folder / name, model))
            return self.all[name]

    def delete(self, name: str) -> None:
        with self.lock:
            learned = self.get(name)
            del self.all[name]
        with learned.lock:
            if learned.process is not None:
                learned.process.stop()
            for kind in (FEWSHOT, FINETUNED):
                self.models.remove(kind.format(name))
            shutil.rmtree(learned.collection.folder)

    def describe(self, learned: Learned) -> dict[str, Any]:
        """Return COLLECTION of docs/serving.md."""
        collection = learned.collection
        photos = list(collection.photos.values())
        classes = [
            {"name": name, "photos": [self.entry(learned, one) for one in photos if one.class_name == name]}
            for name in collection.class_names
        ]
        return {
            "name": collection.name,
            "model": collection.model,
            "photos": len(photos),
            "classes": classes,
            "fewshot": self.describe_few(learned),
            "finetune": self.describe_finetuning(learned),
        }

    def entry(self, learned: Learned, photo: Photo) -> dict[str, str]:
        return {"id": photo.id, "url": f"/v1/learn/{learned.collection.name}/photos/{photo.id}"}

    def describe_few(self, learned: Learned) -> dict[str, Any] | None:
        name, few = FEWSHOT.format(learned.collection.name), learned.few
        if few is None or name not in self.models.models:
            return None
        return {
            "model": name,
            "classes": few.class_names,
            "photos": few.photos,
            "accuracy": few.accuracy,
            "folds": few.folds,
            "seconds": round(learned.few_seconds, 3),
            "stale": learned.few_photos != photos_of(learned),
        }

    def describe_finetuning(self, learned: Learned) -> dict[str, Any] | None:
        run = last_run(learned.collection)
        if run is None:
            return None
        name = FINETUNED.format(learned.collection.name)
        result = describe_run(learned.collection, run, learned.process)
        served = result["state"] == "finished" and name in self.models.models
        return result | {"model": name if served else None}

    def add(
        self, learned: Learned, images: Sequence[bytes], names: Sequence[str], title: str
    ) -> dict[str, Any]:
        """Add photographs to a class; one that cannot be read is left out."""
        added, present, errors = [], [], []
        features = self.compute_features(learned, images, names)
        with learned.lock:
            for data, name, y in zip(images, names, features, strict=True):
                if isinstance(y, ImageError):
                    errors.append({"name": name, "error": str(y)})
                    continue
                photo, new = learned.collection.add(data, title)
                learned.features[photo.id] = y
                entry = self.entry(learned, photo)
                if new:
                    added.append(entry)
                else:
                    present.append({**entry, "class": photo.class_name})
        return {"added": added, "present": present, "errors": errors, "collection": self.describe(learned)}

    def remove(self, learned: Learned, photos: Sequence[Photo]) -> None:
        with learned.lock:
            for photo in photos:
                if photo.id in learned.collection.photos:
                    learned.collection.remove(photo)

    def compute_features(
        self, learned: Learned, images: Sequence[bytes], names: Sequence[str]
    ) -> list[np.ndarray | ImageError]:
        """Return the features (D,) of each image by the base model, or what is wrong with it."""
        results: list[np.ndarray | ImageError] = []
        base = self.models.get(learned.collection.model).predictor
        if learned.predictor is not base:  # swapped: its features mean something else
            learned.predictor, learned.features = base, {}
        for start in range(0, len(images), TOGETHER):
            part = slice(start, start + TOGETHER)
            for future in self.submit(learned.collection.model, images[part], names[part]):
                try:
                    y = future.result().features
                except ImageError as error:
                    results.append(error)
                    continue
                results.append(y)
        return results

    def submit(self, model: str, images: Sequence[bytes], names: Sequence[str]) -> Any:
        """Queue images; wait where the queue is full."""
        while True:
            try:
                return self.models.submit(model, images, names, SECONDS)[1]
            except Overloaded:
                if self.closing.wait(PATIENCE):
                    raise

    def fewshot(self, learned: Learned) -> dict[str, Any] | None:
        """Make a classifier of the photographs that there are, and serve it."""
        start, collection = time.perf_counter(), learned.collection
        with learned.lock:
            photos = list(collection.photos.values())
            missing = [one for one in photos if one.id not in learned.features]
            base = self.models.get(collection.model)
            if learned.predictor is not base.predictor:
                missing = photos
            data = [one.path.read_bytes() for one in missing]
            computed = self.compute_features(learned, data, [one.id for one in missing])
            for one, y in zip(missing, computed, strict=True):
                if isinstance(y, ImageError):
                    raise y
                learned.features[one.id] = y
            x = (
                np.stack([learned.features[one.id] for one in photos])
                if photos
                else np.zeros((0, 1), np.float32)
            )
            assert not isinstance(base.model, Exported)
            few = solve_few(x, collection.labels(), collection.class_names)
            name = FEWSHOT.format(collection.name)
            self.models.put(
                Served(
                    name, with_head(base.model, few, base.name), base.predictor, few.class_names, base=base.name,
                    head=few.head, kind="fewshot", index=base.index,
                )
            )  # fmt: skip
            learned.few, learned.few_photos = few, photos_of(learned)
            learned.few_seconds = time.perf_counter() - start
        return self.describe_few(learned)

    def finetune(self, learned: Learned, steps: int | None) -> dict[str, Any] | None:
        """Start a fine-tuning, or resume one that was interrupted."""
        collection = learned.collection
        with learned.lock:
            check_startable(collection)
            run = last_run(collection)
            state = None if run is None else describe_run(collection, run, learned.process)["state"]
            if state == "running":
                raise Conflict(f"{collection.name} is being fine-tuned: stop that first")
            if run is None or state != "interrupted":
                run = next_run(collection)
            source = self.models.get(collection.model).source
            learned.process = Process(data_of(run), source, run, self.models.device.type, steps)
        return self.describe_finetuning(learned)

    def stop(self, learned: Learned) -> dict[str, Any] | None:
        with learned.lock:
            if learned.process is None or not learned.process.runs:
                raise Conflict(f"{learned.collection.name} is not being fine-tuned")
            learned.process.stop()
        return self.describe_finetuning(learned)

    def serve_finetuned(self, learned: Learned) -> None:
        """Serve the last run, if it is finished."""
        run = last_run(learned.collection)
        if run is None or describe_run(learned.collection, run, None)["state"] != "finished":
            return
        try:
            self.models.open(FINETUNED.format(learned.collection.name), str(run / "model"), "finetuned")
        except VitrailError as error:
            note(f"the fine-tuned model of {learned.collection.name} is not served: {error}")

    def watch(self) -> None:
        """Serve the model of each run that ends."""
        while not self.closing.wait(POLL):
            for learned in list(self.all.values()):
                process = learned.process
                if process is not None and not process.runs and not process.seen:
                    process.seen = True
                    self.serve_finetuned(learned)

    def download(self, learned: Learned, what: str) -> BinaryIO:
        """Return a zip file of a bundle, open and unlinked."""
        with tempfile.TemporaryDirectory() as folder:
            return zip_folder(self.bundle(learned, what, Path(folder)), f"{learned.collection.name}-{what}")

    def bundle(self, learned: Learned, what: str, folder: Path) -> Path:
        """Return where the bundle of a classifier is; a few-shot one is written into `folder`."""
        name = learned.collection.name
        if what == "finetuned":
            run = last_run(learned.collection)
            if run is None or not (run / "model").is_dir():
                raise Missing(f"{name} has no finished fine-tuning")
            return run / "model"
        if learned.few is None:
            raise Missing(f"{name} has no few-shot classifier: make one first")
        base = self.models.get(learned.collection.model)
        place = folder / f"{name}-{what}"
        # Read again: on a GPU the weights in use are rounded.
        save(with_head(load(base.source), learned.few, base.name), place)
        return place

    def close(self) -> None:
        """Stop all runs; they save."""
        self.closing.set()
        self.watcher.join()
        for learned in self.all.values():
            if learned.process is not None:
                learned.process.stop()


def zip_folder(folder: Path, name: str) -> BinaryIO:
    """Return a zip file of a folder's files under a name, open and unlinked: who sends it closes it."""
    file = tempfile.TemporaryFile()  # noqa: SIM115
    with zipfile.ZipFile(file, "w") as archive:
        for part in sorted(folder.iterdir()):
            archive.write(part, f"{name}/{part.name}")
    file.seek(0)
    return file


def photos_of(learned: Learned) -> frozenset[str]:
    return frozenset(f"{one.class_name}/{one.id}" for one in list(learned.collection.photos.values()))
