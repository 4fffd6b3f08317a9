"""Settings of a server -> its parts, ready to run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vitrail.curate.index import open_index
from vitrail.errors import ConfigError
from vitrail.inference.precision import Precision
from vitrail.runtime.device import Device
from vitrail.serve.app import State
from vitrail.serve.guard import LOOPBACK, Access, digest, is_address, read_key
from vitrail.serve.learning import Learning
from vitrail.serve.metrics import Metrics
from vitrail.serve.served import Limits, ServedModels, name_sources


def make_state(
    models: Sequence[str],
    *,
    host: str = "127.0.0.1",
    key_file: str | None = None,
    allow_host: Sequence[str] = (),
    learn: str | None = None,
    indexes: Sequence[str] = (),
    device: Device = "auto",
    precision: Precision = "auto",
    max_waiting: int = 256,
    max_wait: float = 0.002,
    seconds: float = 10.0,
) -> State:
    """Open the models and decide who may use them."""
    sources = name_sources(models)
    access = make_access(host, key_file, allow_host)
    metrics = Metrics()
    limits = Limits(max_waiting, max_wait)
    opened = [open_index(folder) for folder in indexes]
    served = ServedModels(metrics, device=device, precision=precision, limits=limits, indexes=opened)
    for name, source in sources.items():
        served.open(name, source)
    used = [one.index for one in served.models.values()]
    for index in opened:
        if not any(index is one for one in used):
            served.close()
            raise ConfigError(
                f"{index.folder} was made with another model, {index.card['model']}, than those that are served"
            )
    served.watcher.start()
    learning = None if learn is None else Learning(Path(learn), served)
    return State(served, metrics, access, seconds=seconds, learning=learning)


def make_access(host: str, key_file: str | None, allow_host: Sequence[str]) -> Access:
    """Return who may use a server that listens on `host`: without a key, only this machine."""
    key = None if key_file is None else digest(read_key(key_file).encode())
    if host not in LOOPBACK and key is None:
        raise ConfigError(
            f"host {host} can be reached by others: that needs --key-file, and a proxy in front that speaks HTTPS"
        )
    hosts = {host.lower(), *(name.lower() for name in allow_host), *LOOPBACK}
    return Access(frozenset(hosts), addresses=host not in LOOPBACK and is_address(host), key=key)
