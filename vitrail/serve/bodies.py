"""Bodies of requests -> images and options, in every form that the API takes.

    image/*, application/octet-stream     one image: the bytes of its file
    multipart/form-data                   an image for each file
    application/json                      {"image": BASE64} or {"images": [BASE64, ...]}, and options

Options may also be in the query; there they are text.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import UploadFile
from starlette.requests import Request

from vitrail.serve.guard import Refused

MAX_IMAGES = 64  # of a request
LARGE = 1 << 20  # bytes of a body from which on a thread parses it
FORMS = "the bytes of an image (image/*), multipart/form-data or application/json"


@dataclass(frozen=True)
class Asked:
    """Content of a request."""

    images: list[bytes]
    names: list[str]  # of the images, for messages
    options: dict[str, Any]

    def number(self, name: str, default: int, least: int, most: int) -> int:
        value = self.options.get(name, default)
        if isinstance(value, str) and value.isdecimal() and len(value) < 10:
            value = int(value)
        if type(value) is not int or not least <= value <= most:
            raise Refused(
                400, f"{name} must be a whole number from {least} to {most}, not {str(value)[:40]!r}"
            )
        return value

    def flag(self, name: str) -> bool:
        value = self.options.get(name, False)
        value = (
            {"true": True, "1": True, "false": False, "0": False}.get(value, value)
            if isinstance(value, str)
            else value
        )
        if type(value) is not bool:
            raise Refused(400, f"{name} must be true or false, not {str(value)[:40]!r}")
        return value

    def words(self, name: str) -> list[str]:
        """Return a list of words; in the query they are separated by commas."""
        value = self.options.get(name, [])
        value = [word for word in value.split(",") if word] if isinstance(value, str) else value
        if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
            raise Refused(400, f"{name} must be a list of words, not {str(value)[:40]!r}")
        return value


async def read_images(request: Request, allowed: frozenset[str]) -> Asked:
    """Read a request; `allowed`: the names of its options."""
    query = request.query_params
    options: dict[str, Any] = {name: query[name] for name in query}
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind.startswith("image/") or kind == "application/octet-stream":
        images, names = [await request.body()], ["the image"]
    elif kind == "multipart/form-data":
        images, names = await read_form(request)
    elif kind == "application/json":
        content = await read_object(request)
        listed = content.pop("images", None)
        single = content.pop("image", None)
        if (listed is None) == (single is None):
            raise Refused(400, 'the JSON needs either "image" or "images"')
        texts = [single] if listed is None else listed
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise Refused(400, "images are texts in base64")
        check_count(len(texts))
        names = [f"image {i}" for i in range(1, len(texts) + 1)] if len(texts) > 1 else ["the image"]
        images = [decode_text(text, name) for text, name in zip(texts, names, strict=True)]
        options |= content
    else:
        raise Refused(415, f"content type {kind[:60]!r}: send {FORMS}")
    if unknown := sorted(options.keys() - allowed):
        raise Refused(
            400, f"unknown option {unknown[0][:60]!r}; there are {', '.join(sorted(allowed)) or 'none'}"
        )
    check_count(len(images))
    return Asked(images, names, options)


def check_count(n: int) -> None:
    if not 1 <= n <= MAX_IMAGES:
        raise Refused(400, f"{n} images: a request has 1 to {MAX_IMAGES}")


async def read_form(request: Request) -> tuple[list[bytes], list[str]]:
    images, names = [], []
    async with request.form(max_files=MAX_IMAGES, max_fields=MAX_IMAGES) as form:
        for field, value in form.multi_items():
            if not isinstance(value, UploadFile):
                raise Refused(400, f"the field {field[:60]!r} is not a file; options are in the query")
            images.append(await value.read())
            names.append((value.filename or f"image {len(images)}")[:200])
    return images, names


async def read_object(request: Request) -> dict[str, Any]:
    """Read a JSON object."""
    body = await request.body()
    try:
        content = await asyncio.to_thread(json.loads, body) if len(body) > LARGE else json.loads(body)
    except (ValueError, RecursionError):
        raise Refused(400, "the body is not JSON") from None
    if not isinstance(content, dict):
        raise Refused(400, "the JSON must be an object")
    return content


def decode_text(text: str, name: str) -> bytes:
    """Decode base64, with or without the head of a data URI."""
    if text.startswith("data:"):
        text = text.partition(",")[2]
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise Refused(400, f"{name} is not base64") from None
