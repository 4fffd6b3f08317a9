"""A client of an ASGI application without a network, and pictures to send."""

import asyncio
import io
import json
from dataclasses import dataclass

import numpy as np
from PIL import Image

HOST = "127.0.0.1:8000"
ORIGIN = f"http://{HOST}"


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self):
        return json.loads(self.body)


def ask(app, method, path, body=b"", **headers):
    """Send one request; the body may be bytes, an object for JSON, or a list of parts, None: nothing more comes."""
    if isinstance(body, dict):
        body, headers = json.dumps(body).encode(), {"content_type": "application/json", **headers}
    parts = body if isinstance(body, list) else [body]
    headers = {"host": HOST, **{name.replace("_", "-"): value for name, value in headers.items()}}
    if isinstance(body, bytes) and body:
        headers.setdefault("content-length", str(len(body)))
    elif isinstance(body, list):
        headers.setdefault("transfer-encoding", "chunked")
    path, _, query = path.partition("?")
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
        "path": path, "raw_path": path.encode(), "query_string": query.encode(), "root_path": "",
        "headers": [(k.encode(), v.encode("latin-1")) for k, v in headers.items()], "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 8000), "state": {},
    }  # fmt: skip
    sent, left = [], list(parts)

    async def receive():
        part = left.pop(0) if left else None
        if part is None:
            await asyncio.sleep(3600)
        return {"type": "http.request", "body": part, "more_body": bool(left)}

    async def send(message):
        sent.append(message)

    asyncio.run(app(scope, receive, send))
    start = sent[0]
    body = b"".join(message.get("body", b"") for message in sent[1:])
    return Reply(start["status"], {k.decode(): v.decode() for k, v in start["headers"]}, body)


def picture(seed=0, kind="JPEG", size=(40, 30)):
    """Return the file of a picture of noise around a colour."""
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 255, (1, 1, 3)) * 0.8 + rng.integers(0, 50, (*size, 3))
    file = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(file, kind)
    return file.getvalue()


def multipart(**files):
    """Return the body and the content type of a form with files."""
    body = b"".join(
        b'--edge\r\ncontent-disposition: form-data; name="%s"; filename="%s.jpg"\r\n\r\n%s\r\n'
        % (name.encode(), name.encode(), data)
        for name, data in files.items()
    )
    return body + b"--edge--\r\n", "multipart/form-data; boundary=edge"
