"""A client of `vitrail serve`, with the standard library for HTTP: images -> the most probable classes, in order.

Several images are under way at once, each in a request of its own. A server that is too busy says when to ask again,
and is asked again then.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from vitrail.data.sources import read_image_file
from vitrail.errors import ConfigError, DataError, ImageError, VitrailError
from vitrail.inference.predict import Prediction

AT_ONCE = 16
PATIENCE = 60.0  # seconds of waiting for a busy server
SECONDS = 60.0  # for an answer
MAX_ANSWER = 64 << 20  # bytes
LONGEST_WAIT = 10.0


class ServerError(VitrailError):
    """A server that cannot be reached, or refuses."""


class Client:
    """Connections to one server, one for each thread."""

    def __init__(self, url: str, key: str | None = None) -> None:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in ("http", "https") or not parts.hostname or port == -1:
            raise ConfigError(f"server {url!r} is not an address such as http://127.0.0.1:8000")
        self.url, self.host, self.port = url, parts.hostname, port
        self.kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        self.prefix = parts.path.rstrip("/")
        self.headers = {"content-type": "application/octet-stream"}
        self.headers |= {} if key is None else {"authorization": f"Bearer {key}"}
        self.local = threading.local()
        self.connections: list[HTTPConnection] = []

    def predict_each(self, model: str, paths: Sequence[Path], top: int) -> Iterator[Prediction | ImageError]:
        """Yield the prediction of each image in turn, or what is wrong with it."""
        place = f"{self.prefix}/v1/models/{quote(model, safe='')}/predict?top={top}"
        pool = ThreadPoolExecutor(AT_ONCE, "vitrail client")
        waiting: deque[Future[Prediction | ImageError]] = deque()
        try:
            for path in paths:
                waiting.append(pool.submit(self.predict, place, path))
                if len(waiting) >= 2 * AT_ONCE:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)
            for connection in self.connections:
                connection.close()

    def predict(self, place: str, path: Path) -> Prediction | ImageError:
        try:
            image = read_image_file(str(path), str(path))
        except DataError as error:
            return ImageError(str(error))
        status, answer = self.ask(place, image)
        if status == 422:
            return ImageError(f"{path}: {str(answer['error']).removeprefix('the image: ')}")
        try:
            result = answer["results"][0]
            pairs = [(str(one["name"]), float(one["probability"])) for one in result["top"]]
            return Prediction(pairs, map(str, result["answer"]))
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise ServerError(f"{self.url} does not answer as vitrail serve does") from error

    def ask(self, place: str, body: bytes) -> tuple[int, dict[str, Any]]:
        """Post a body until the server has time for it; return the status, 200 or 422, and the answer."""
        until = time.monotonic() + PATIENCE
        while True:
            status, answer, wait = self.post(place, body)
            if status in (200, 422):
                return status, answer
            if status != 503 or time.monotonic() + wait > until:
                raise ServerError(f"{self.url} answers with status {status}: {answer.get('error', '')}")
            time.sleep(wait)

    def post(self, place: str, body: bytes) -> tuple[int, dict[str, Any], float]:
        """Return status, answer, and after how many seconds to ask again."""
        connection = getattr(self.local, "connection", None)
        if connection is not None:
            try:
                return self.exchange(connection, place, body)
            except (OSError, HTTPException):  # it had waited, and the server may have closed it
                connection.close()
        connection = self.local.connection = self.kind(self.host, self.port, timeout=SECONDS)
        self.connections.append(connection)
        try:
            return self.exchange(connection, place, body)
        except (OSError, HTTPException) as error:
            connection.close()
            raise ServerError(f"{self.url} cannot be reached: {error or type(error).__name__}") from error

    def exchange(
        self, connection: HTTPConnection, place: str, body: bytes
    ) -> tuple[int, dict[str, Any], float]:
        connection.request("POST", place, body, self.headers)
        response = connection.getresponse()
        text = response.read(MAX_ANSWER)
        try:
            answer = json.loads(text)
        except ValueError:
            answer = {}
        wait = response.getheader("retry-after") or "1"
        seconds = min(float(wait), LONGEST_WAIT) if wait.isdecimal() else 1.0
        return response.status, answer if isinstance(answer, dict) else {}, seconds
