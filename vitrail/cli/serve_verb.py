"""The verb that serves models over HTTP."""

from __future__ import annotations

from typing import Annotated

from tyro.conf import Positional, arg

from vitrail.cli.verb import COMMON, Common, Output, Precision
from vitrail.errors import ConfigError


def serve(
    models: Annotated[Positional[tuple[str, ...]], arg(metavar="MODEL...")],
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    key_file: str | None = None,
    allow_host: tuple[str, ...] = (),
    learn: str | None = None,
    index: tuple[str, ...] = (),
    precision: Precision = "auto",
    max_waiting: int = 256,
    max_wait_ms: float = 2.0,
    deadline: float = 10.0,
    common: Common = COMMON,
) -> Output:
    """Serve models over HTTP, with a page for people. Ctrl-C or SIGTERM: answer what is under way, and stop.

    Args:
        models: included models (ti8-64), bundles, runs, or any supported checkpoint; NAME=MODEL names one. A model
            whose files change is read again
        host: address to listen on; any but the loopback address needs --key-file
        port: port to listen on; 0: any that is free
        key_file: file with a key that every request needs: Authorization: Bearer KEY
        allow_host: further names by which clients know this server, as of a proxy in front of it
        learn: folder in which the page may collect photographs and train classifiers; if unset, it may not
        index: folders of `vitrail index`: explanations show the nearest images of the one that was made with the same
            model
        precision: of the computation; auto: bf16 on a GPU, else float32; fp8 needs `vitrail calibrate` first
        max_waiting: images that may wait for a model; more are refused at once (status 503)
        max_wait_ms: on a GPU, how long a batch waits to fill up
        deadline: seconds after which an image that still waits is given up
    """
    try:
        from vitrail.serve.server import listen, serve
    except ModuleNotFoundError as error:
        raise ConfigError(f"{error.name} is not installed: pip install 'vitrail[serve]'") from error
    from vitrail.serve.start import make_state

    if not models:
        raise ConfigError("no model: name at least one, such as ti8-64")
    if min(max_waiting, deadline) <= 0 or max_wait_ms < 0:
        raise ConfigError("max_waiting and deadline must be above 0, max_wait_ms at least 0")
    with listen(host, port) as listener:
        address = listener.getsockname()
        state = make_state(
            models, host=host, key_file=key_file, allow_host=allow_host, learn=learn, indexes=index,
            device=common.device,
            precision=precision, max_waiting=max_waiting, max_wait=max_wait_ms / 1000, seconds=deadline,
        )  # fmt: skip
        where = f"http://{f'[{host}]' if ':' in host else host}:{address[1]}"
        names = ", ".join(state.models.models)

        def started() -> None:
            print(f"Serving {names} at {where}", flush=True)

        try:
            serve(state, listener, started)
        finally:
            state.close()
    return Output(common, [], [], {"models": list(models), "address": where}, after=["Stopped"])
