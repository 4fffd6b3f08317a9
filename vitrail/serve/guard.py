"""The guard before the application: who may use it, how much they may send, how long it may take. ASGI.

    Host       one of the names that the server listens as: other names may be a web site's, pointed here
    Origin     absent, or the server's own: other sites' pages may not use the server
    key        where the server has one, `Authorization: Bearer KEY`
    token      requests that change something also need the server's own Origin and the token of GET /v1/session,
               which only a page of the server can read
    body       bounded in bytes, in seconds, and together with those of all other requests

A refusal is a 4xx or 503 with {"error": text}. Where the body was not read, the connection is closed, but what still
arrives is read for a moment, so that the client sees the answer and not a reset.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import json
import secrets
import time
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vitrail.data.bounded_files import read_text
from vitrail.errors import ConfigError
from vitrail.serve.metrics import SECONDS, Metrics

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

LOOPBACK = frozenset(("localhost", "127.0.0.1", "::1"))
OPEN = ("/healthz", "/readyz", "/", "/favicon.ico")  # without a key; /static/ too
CHANGES = "/v1/learn"  # below it, every method but GET and HEAD changes something
READING = ("GET", "HEAD")
MAX_BODY = 64 << 20  # bytes of a request
MAX_BODIES = 512 << 20  # bytes of all requests together
BODY_SECONDS = 60.0
ANSWER_SECONDS = 60.0  # for a client to take an answer
LINGER_SECONDS, LINGER_BYTES = 2.0, 64 << 20  # that are read of a body that was refused
SHORTEST_KEY = 16
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; media-src 'self' blob:; "
    "connect-src 'self'; font-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = [
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(self), microphone=(), geolocation=()"),
]


class Refused(Exception):  # noqa: N818
    """A request that is not answered: the status, and why."""

    def __init__(self, status: int, message: str, **headers: str) -> None:
        super().__init__(message)
        self.status = status
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


@dataclass(frozen=True)
class Access:
    """Rules of access to the server."""

    hosts: frozenset[str] = LOOPBACK  # names in Host, without ports
    addresses: bool = (
        False  # any IP address in Host, as load balancers send it; no web site can have one as its name
    )
    key: bytes | None = None  # SHA-256
    token: str = field(default_factory=lambda: secrets.token_urlsafe(32))

    def check(self, method: str, path: str, headers: dict[bytes, list[bytes]]) -> None:
        """Raise Refused for a request that is not allowed."""
        host = self.check_host(headers.get(b"host", []))
        origin = headers.get(b"origin", [])
        own = [one for one in origin if one.lower() in (b"http://" + host, b"https://" + host)]
        if len(own) != len(origin):
            raise Refused(403, "a page of another origin may not use this server")
        if self.key is not None and path not in OPEN and not path.startswith("/static/"):
            self.check_key(headers.get(b"authorization", []))
        if method not in READING and (path == CHANGES or path.startswith(CHANGES + "/")):
            tokens = headers.get(b"x-vitrail-token", [])
            right = len(tokens) == 1 and hmac.compare_digest(digest(tokens[0]), digest(self.token.encode()))
            if not own or not right:
                raise Refused(
                    403,
                    "this changes something: it needs the server's own Origin, and X-Vitrail-Token with the token of "
                    "GET /v1/session",
                )

    def check_host(self, hosts: list[bytes]) -> bytes:
        if len(hosts) != 1:
            raise Refused(400, "a request needs one Host header")
        host = hosts[0].lower()
        name = host.decode("latin-1")
        if not name.endswith("]"):  # not an IPv6 address without a port
            front, colon, port = name.rpartition(":")
            name = front if colon and port.isdecimal() else name
        name = name.removeprefix("[").removesuffix("]")
        if name not in self.hosts and not (self.addresses and is_address(name)):
            raise Refused(421, "this server is not known by the name in Host; --allow-host adds one")
        return host

    def check_key(self, headers: list[bytes]) -> None:
        scheme, _, key = headers[0].partition(b" ") if len(headers) == 1 else (b"", b"", b"")
        assert self.key is not None
        # Of the digests, whose length and first bytes say nothing about the key.
        right = hmac.compare_digest(digest(key.strip()), self.key)
        if scheme.lower() != b"bearer" or not right:
            raise Refused(401, "a key is needed: Authorization: Bearer KEY", www_authenticate="Bearer")


def digest(text: bytes) -> bytes:
    return hashlib.sha256(text).digest()


def is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def read_key(path: str | Path) -> str:
    """Read a key file: one line, of at least SHORTEST_KEY characters."""
    key = read_text(path, "a key", 1 << 16).strip()
    if len(key) < SHORTEST_KEY or not key.isascii() or not key.isprintable() or " " in key:
        raise ConfigError(
            f"{path}: a key is one line of at least {SHORTEST_KEY} printable ASCII characters without spaces, as "
            "`openssl rand -hex 32` makes them"
        )
    return key


class Guard:
    """ASGI application around another."""

    def __init__(
        self, app: App, access: Access, metrics: Metrics, body_seconds: float = BODY_SECONDS
    ) -> None:
        self.app, self.access, self.metrics, self.body_seconds = app, access, metrics, body_seconds
        self.held = 0  # bytes of the bodies of all requests

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        start = time.perf_counter()
        exchange = Exchange(self, scope, receive, send)
        try:
            self.access.check(scope["method"], scope["path"], exchange.headers)
            exchange.check_length()
            await self.app(scope, exchange.receive, exchange.send)
        except Refused as refused:
            await exchange.refuse(refused)
        finally:
            self.held -= exchange.received
            endpoint = getattr(scope.get("endpoint"), "__name__", "none")
            self.metrics.count("vitrail_requests_total", endpoint=endpoint, status=str(exchange.status))
            seconds = time.perf_counter() - start
            self.metrics.observe("vitrail_request_seconds", seconds, SECONDS, endpoint=endpoint)


class Exchange:
    """One request and its answer."""

    def __init__(self, guard: Guard, scope: Message, receive: Receive, send: Send) -> None:
        self.guard, self.inner_receive, self.inner_send = guard, receive, send
        self.headers: dict[bytes, list[bytes]] = {}
        for name, value in scope["headers"]:
            self.headers.setdefault(name, []).append(value)
        self.deadline = asyncio.get_running_loop().time() + guard.body_seconds
        length = self.headers.get(b"content-length", [b"0"])
        self.complete = length == [b"0"] and b"transfer-encoding" not in self.headers
        self.received = 0  # bytes of the body
        self.status = 0

    def check_length(self) -> None:
        lengths = self.headers.get(b"content-length", [])
        if lengths and (not lengths[0].isdigit() or int(lengths[0][:20]) > MAX_BODY):
            raise Refused(
                413, f"a body of {lengths[0][:20].decode('latin-1')} bytes; at most {MAX_BODY:,} are read"
            )

    async def receive(self) -> Message:
        """Receive a part of the body within the limits; after its end, that the client has gone."""
        if self.complete:
            return await self.inner_receive()
        try:
            async with asyncio.timeout_at(self.deadline):
                message = await self.inner_receive()
        except TimeoutError:
            raise Refused(408, f"the body took more than {self.guard.body_seconds:g} seconds") from None
        if message["type"] == "http.request":
            n = len(message.get("body", b""))
            self.received += n
            self.guard.held += n
            self.complete = not message.get("more_body", False)
            if self.received > MAX_BODY:
                raise Refused(413, f"the body is longer than {MAX_BODY:,} bytes")
            if self.guard.held > MAX_BODIES:
                raise Refused(503, "too many bodies are being read: try again later", retry_after="1")
        return message

    async def send(self, message: Message) -> None:
        """Send with the headers of every answer; close the connection if the body was not read."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = [*message.get("headers", []), *HEADERS]
            if not self.complete:
                message["headers"].append((b"connection", b"close"))
        elif not self.complete and not message.get("more_body", False):
            await self.inner_send({**message, "more_body": True})
            await self.linger()
            message = {"type": "http.response.body", "body": b""}
        async with asyncio.timeout(ANSWER_SECONDS):
            await self.inner_send(message)

    async def linger(self) -> None:
        """Read and forget what still arrives, for a moment."""
        read = 0
        with suppress(TimeoutError):
            async with asyncio.timeout(LINGER_SECONDS):
                while not self.complete and read < LINGER_BYTES:
                    message = await self.inner_receive()
                    read += len(message.get("body", b""))
                    self.complete = message["type"] != "http.request" or not message.get("more_body", False)

    async def refuse(self, refused: Refused) -> None:
        if self.status:
            return  # an answer has begun
        body = json.dumps({"error": str(refused)}).encode()
        headers = {"content-type": "application/json", "content-length": str(len(body)), **refused.headers}
        start = {"type": "http.response.start", "status": refused.status}
        await self.send({**start, "headers": [(k.encode(), v.encode()) for k, v in headers.items()]})
        await self.send({"type": "http.response.body", "body": body})
