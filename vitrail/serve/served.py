"""The models that are served, by name: opened, watched for changes on disk, swapped, and removed.

When the files of a model change, the new ones are loaded and tried beside the old model. If that works, a new
predictor takes the place of the old one, which answers what it has accepted; otherwise the old model stays, and the
list of models says why.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from vitrail.checkpoints.included import locate_weights
from vitrail.curate.index import Index, fingerprint
from vitrail.errors import ConfigError, VitrailError
from vitrail.inference.exported import Runnable, open_model
from vitrail.inference.precision import Precision
from vitrail.inference.predict import class_names
from vitrail.runtime.device import Device, pick
from vitrail.runtime.log import note
from vitrail.serve.computation import computation_of
from vitrail.serve.metrics import Metrics
from vitrail.serve.predictor import Answer, Closed, Predictor

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
POLL = 1.0  # seconds between two looks at the files
FilesState = tuple[tuple[str, int, int, int], ...]  # name, bytes, time, number of each file


class UnknownModel(VitrailError):  # noqa: N818
    """A name that no model has."""


@dataclass(frozen=True)
class LinearHead:
    """A classifier on the features of another model: logits = y weight + bias."""

    weight: np.ndarray  # float32 (D, K)
    bias: np.ndarray  # float32 (K,)


@dataclass(frozen=True, eq=False)
class Served:
    """One state of a model: what answers, and what is known about it."""

    name: str
    model: Runnable
    predictor: Predictor
    class_names: list[str]  # none without a classifier
    source: str = ""  # path that is watched; empty: none
    base: str = ""  # the served model whose features `head` takes
    head: LinearHead | None = None
    kind: str = "model"  # model, fewshot, finetuned
    index: Index | None = None  # of its training images, by its features
    opened: float = field(default_factory=time.time)

    def logits(self, answer: Answer) -> np.ndarray | None:
        """Return (K,), by the own head if there is one."""
        if self.head is None:
            return answer.logits
        return answer.features @ self.head.weight + self.head.bias


@dataclass(frozen=True)
class Limits:
    """How many images may wait for a model, and for how long a batch waits to fill up on a GPU."""

    max_waiting: int = 256
    max_wait: float = 0.002


class ServedModels:
    """Models by name. Threads may use it at once; `close` ends the watch and all predictors."""

    def __init__(
        self,
        metrics: Metrics,
        *,
        device: Device = "auto",
        precision: Precision = "auto",
        limits: Limits | None = None,
        indexes: Sequence[Index] = (),
    ) -> None:
        """`indexes`: each belongs to the model that it was made with."""
        self.metrics, self.limits, self.indexes = metrics, limits or Limits(), indexes
        self.device, self.precision = pick(device), precision
        self.models: dict[str, Served] = {}
        self.states: dict[str, FilesState] = {}  # of the files that were read last
        self.refused: dict[str, str] = {}  # name: why the present files are not served
        self.lock = threading.Lock()
        self.closing = threading.Event()
        self.watcher = threading.Thread(target=self.watch, name="vitrail watch", daemon=True)

    def open(self, name: str, source: str, kind: str = "model") -> Served:
        """Read a model and serve it under a name, in place of one that has it."""
        state = files_state(source)
        served = self.read(name, source, kind)
        self.states[name] = state
        self.put(served)
        return served

    def read(self, name: str, source: str, kind: str) -> Served:
        model = open_model(source)
        names = class_names(model) if model.config.classes else []
        index = self.index_of(model)
        model = model.to(self.device)
        compute = computation_of(model, self.precision)
        limits = self.limits
        predictor = Predictor(
            compute, name, self.metrics, max_waiting=limits.max_waiting, max_wait=limits.max_wait
        )
        return Served(name, model, predictor, names, source=source, kind=kind, index=index)

    def index_of(self, model: Runnable) -> Index | None:
        """Return the index that was made with a model, if there is one."""
        if not self.indexes:
            return None
        digest = fingerprint(model)
        cards = [index.card for index in self.indexes]
        made = [(card["fingerprint"], card["preprocess"]) == (digest, model.preprocess) for card in cards]
        return self.indexes[made.index(True)] if True in made else None

    def put(self, served: Served) -> None:
        """Serve it from now on; the model that had its name, and classifiers on its features, end."""
        with self.lock:
            before = self.models.get(served.name)
            self.models = {**self.models, served.name: served}
            self.refused.pop(served.name, None)
        if before is not None and before.head is None:
            for other in [one for one in self.models.values() if one.base == served.name]:
                note(f"{other.name} was made on the former {served.name}: make it again")
                self.remove(other.name)
            before.predictor.close()

    def remove(self, name: str) -> None:
        """Serve it no longer; what it has accepted is answered."""
        with self.lock:
            served = self.models.get(name)
            self.models = {other: one for other, one in self.models.items() if other != name}
            self.states.pop(name, None)
        if served is not None and served.head is None:
            served.predictor.close()

    def get(self, name: str) -> Served:
        if name not in self.models:
            raise UnknownModel(f"no model is called {name!r}; there are {', '.join(self.models)}")
        return self.models[name]

    def submit(
        self, name: str, images: Sequence[bytes], names: Sequence[str], seconds: float
    ) -> tuple[Served, list[Future[Answer]]]:
        """Queue images for a model; return the state of it that answers, too."""
        while True:
            served = self.get(name)
            try:
                return served, served.predictor.submit(images, names, seconds)
            except Closed:
                if self.closing.is_set():
                    raise
                time.sleep(0)  # the next `get` finds the one that took its place

    def waiting(self) -> int:
        """Count the images that wait for any model."""
        return sum(len(one.predictor) for one in self.models.values() if one.head is None)

    def watch(self) -> None:
        """Look at the files of all models again and again."""
        seen: dict[str, FilesState] = {}
        while not self.closing.wait(POLL):
            for name, before in list(self.states.items()):
                state = files_state(self.models[name].source) if name in self.models else before
                if state != before and seen.get(name) == state:  # nobody is writing any more
                    self.swap(name, state)
                seen[name] = state

    def swap(self, name: str, state: FilesState) -> None:
        """Serve the changed files of a model; refuse what cannot be read or computes nonsense."""
        former = self.models[name]
        self.states[name] = state
        try:
            self.put(self.read(name, former.source, former.kind))
        except Exception as error:
            self.refused[name] = str(error)
            self.metrics.count("vitrail_swaps_total", model=name, result="refused")
            note(f"{name}: its files changed and are refused, the former model stays: {error}")
        else:
            self.metrics.count("vitrail_swaps_total", model=name, result="swapped")
            note(f"{name}: its files changed, and the new model is served")

    def close(self) -> None:
        self.closing.set()
        if self.watcher.is_alive():
            self.watcher.join()
        for served in self.models.values():
            if served.head is None:
                served.predictor.close()


def files_state(source: str) -> FilesState:
    """Return what changes when the files of a model do; empty where there are none."""
    path = locate_weights(source)
    if path is None:
        return ()
    try:
        files = sorted(path.iterdir()) if path.is_dir() else [path]
        status = [(file.name, file.stat()) for file in files]
    except OSError:
        return ()
    return tuple((name, s.st_size, s.st_mtime_ns, s.st_ino) for name, s in status)


def name_sources(words: Sequence[str]) -> dict[str, str]:
    """Read MODEL or NAME=MODEL: by default a model has the name of its file or run."""
    sources: dict[str, str] = {}
    for word in words:
        name, mark, source = word.partition("=")
        if not mark or not NAME.fullmatch(name) or Path(word).exists():
            source, path = word, Path(word)
            name = path.resolve().parent.name if path.name == "model" else path.name
            name = re.sub(r"\.(npz|safetensors|pth|pt|bin|onnx)$", "", name)
            name = re.sub(r"[^A-Za-z0-9._-]+", "-", name).lstrip("._-")[:64] or "model"
        if name in sources:
            raise ConfigError(f"two models are called {name!r}: name one of them, as in OTHER={source}")
        sources[name] = source
    return sources
