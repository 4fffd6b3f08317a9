"""Run the application: the socket, bounded connections, and a stop that loses no request.

uvicorn and httptools speak HTTP. What they leave open is bounded here: how long the headers of a request may take,
how long they may be, and how many connections there may be. When there are too many, the one that has waited longest
without a request is closed, so that idle connections never keep others out.

SIGTERM and Ctrl-C: nothing new is accepted, what is under way is answered, and the process ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import signal
import socket
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from vitrail.errors import ConfigError
from vitrail.serve.app import State, create_app

BACKLOG = 2048
HEADER_SECONDS = 10.0
HEADER_BYTES = 64 << 10
IDLE_SECONDS = 65  # of a connection between two requests; load balancers keep theirs for 60
MOST_CONNECTIONS = 1024
RESERVED = 128  # files that are open besides the connections
DRAIN_SECONDS = 30  # for requests that are under way
CLOSING_SECONDS = (
    1.0  # in which clients with an open connection may send one more request, to be told that it ends
)
TOO_LONG = b'{"error": "the headers are too long"}'
TOO_MANY = b'{"error": "too many connections: try again later"}'


def reply(status: bytes, body: bytes, more: bytes = b"") -> bytes:
    head = b"HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\n" % (status, len(body))
    return head + b"connection: close\r\n" + more + b"\r\n" + body


def bounded_protocol(most: int, header_seconds: float = HEADER_SECONDS) -> type[HttpToolsProtocol]:
    """Return the protocol of a server with at most so many connections."""
    idle: dict[Any, None] = {}  # connections that wait for a request, the oldest first

    class BoundedProtocol(HttpToolsProtocol):
        timer: asyncio.TimerHandle | None = None
        header_bytes = 0

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            if len(self.connections) > most:
                if not idle:
                    transport.write(reply(b"503 Service Unavailable", TOO_MANY, b"retry-after: 1\r\n"))
                    transport.close()
                    return
                next(iter(idle)).end()
            self.await_request()

        def await_request(self) -> None:
            idle[self] = None
            if self.timer is None:
                self.timer = self.loop.call_later(header_seconds, self.end)

        def end(self) -> None:
            idle.pop(self, None)
            self.transport.abort()

        def cancel_timer(self) -> None:
            if self.timer is not None:
                self.timer.cancel()
                self.timer = None

        def data_received(self, data: bytes) -> None:
            if self in idle:
                self.header_bytes += len(data)
            super().data_received(data)
            if self in idle and self.header_bytes > HEADER_BYTES and not self.transport.is_closing():
                self.transport.write(reply(b"431 Request Header Fields Too Large", TOO_LONG))
                self.transport.close()

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self.await_request()

        def on_headers_complete(self) -> None:
            idle.pop(self, None)
            self.cancel_timer()
            self.header_bytes = 0
            super().on_headers_complete()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            if not self.pipeline and not self.transport.is_closing():
                idle[self] = None  # uvicorn's own timer ends it

        def connection_lost(self, exc: Exception | None) -> None:
            idle.pop(self, None)
            self.cancel_timer()
            super().connection_lost(exc)

    return BoundedProtocol


class Server(uvicorn.Server):
    """A server that finishes what it has accepted, and then returns."""

    def __init__(self, config: uvicorn.Config, state: State, started: Callable[[], None]) -> None:
        super().__init__(config)
        self.state, self.on_start = state, started
        state.connections = self.server_state.connections

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop at SIGTERM and Ctrl-C; a second Ctrl-C does not wait."""
        numbers = (signal.SIGTERM, signal.SIGINT)
        before = {number: signal.signal(number, self.handle_exit) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.on_start()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.state.draining = True
        await asyncio.sleep(0.05)  # what the system has accepted is taken from it
        for server in self.servers:
            server.close()
        self.server_state.default_headers = [*self.server_state.default_headers, (b"connection", b"close")]
        waited = 0.0
        while self.server_state.connections and waited < CLOSING_SECONDS and not self.force_exit:
            await asyncio.sleep(0.05)
            waited += 0.05
        await super().shutdown(sockets)


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens."""
    if not 0 <= port <= 65535:
        raise ConfigError(f"port {port} is not from 0 to 65535")
    try:
        (family, kind, protocol, _, address), *_ = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        listener = socket.socket(family, kind, protocol)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"{host} port {port}: no address to listen on ({error})") from error
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(BACKLOG)
    except (OSError, OverflowError) as error:
        listener.close()
        raise ConfigError(
            f"{host} port {port}: cannot listen there ({error}); choose another --port"
        ) from error
    return listener


def most_connections() -> int:
    """Return how many connections there may be: as many as open files allow, within reason."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_CONNECTIONS + RESERVED
    wanted = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return max(1, min(MOST_CONNECTIONS, wanted - RESERVED))


def serve(state: State, listener: socket.socket, started: Callable[[], None]) -> None:
    """Answer requests until a signal comes; then finish those that are under way."""
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # not each invalid request of a stranger
    config = uvicorn.Config(
        create_app(state),
        http=bounded_protocol(most_connections()),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=IDLE_SECONDS,
        timeout_graceful_shutdown=DRAIN_SECONDS,
        backlog=BACKLOG,
    )
    Server(config, state, started).run(sockets=[listener])
