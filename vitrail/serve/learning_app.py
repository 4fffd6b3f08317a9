"""Endpoints of learning: collections, photographs, classifiers. docs/serving.md has every request and answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, BinaryIO

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from vitrail.serve.bodies import read_images, read_object
from vitrail.serve.guard import Refused
from vitrail.serve.json_answer import answer
from vitrail.serve.learning import MOST_COLLECTIONS, Learned, Learning
from vitrail.serve.onnx_file import export_onnx
from vitrail.serve.photos import MOST_CLASSES, MOST_PHOTOS, check_class_name, thumbnail

MOST_STEPS = 100_000
PIECE = 1 << 20  # bytes of a file that are sent at a time


def learning_routes() -> list[Route]:
    one = "/v1/learn/{collection}"
    return [
        Route("/v1/learn", collections),
        Route("/v1/learn", create, methods=["POST"]),
        Route(one, collection),
        Route(one, delete, methods=["DELETE"]),
        Route(f"{one}/photos", add, methods=["POST"]),
        Route(f"{one}/photos/{{photo}}", photo),
        Route(f"{one}/photos/{{photo}}", remove, methods=["DELETE"]),
        Route(f"{one}/classes", remove_class, methods=["DELETE"]),
        Route(f"{one}/fewshot", fewshot, methods=["POST"]),
        Route(f"{one}/finetune", finetuning),
        Route(f"{one}/finetune", finetune, methods=["POST"]),
        Route(f"{one}/finetune", stop, methods=["DELETE"]),
        Route(f"{one}/download", download),
        Route(f"{one}/onnx", onnx, methods=["POST"]),
    ]


def learning_of(request: Request) -> Learning:
    learning: Learning = request.app.state.serve.learning
    return learning


def collection_of(request: Request) -> Learned:
    return learning_of(request).get(request.path_params["collection"])


def class_of(request: Request) -> str:
    name = request.query_params.get("class")
    if name is None:
        raise Refused(400, "name the class, as in ?class=mug")
    return check_class_name(name)


async def described(request: Request, learned: Learned, status: int = 200) -> Response:
    return answer(await asyncio.to_thread(learning_of(request).describe, learned), status)


async def collections(request: Request) -> Response:
    learning = learning_of(request)
    listed = [await asyncio.to_thread(learning.describe, one) for one in list(learning.all.values())]
    limits = {"photos": MOST_PHOTOS, "classes": MOST_CLASSES, "collections": MOST_COLLECTIONS}
    return answer({"collections": listed, "limits": limits})


async def create(request: Request) -> Response:
    content = await read_object(request)
    name, model = content.get("name"), content.get("model")
    if not isinstance(name, str) or not isinstance(model, str) or len(content) != 2:
        raise Refused(400, 'a collection is made from {"name": TEXT, "model": TEXT}')
    return await described(request, await asyncio.to_thread(learning_of(request).create, name, model), 201)


async def collection(request: Request) -> Response:
    return await described(request, collection_of(request))


async def delete(request: Request) -> Response:
    name = collection_of(request).collection.name
    await asyncio.to_thread(learning_of(request).delete, name)
    return answer({"deleted": name})


async def add(request: Request) -> Response:
    learned, name = collection_of(request), class_of(request)
    asked = await read_images(request, frozenset(("class",)))
    return answer(await asyncio.to_thread(learning_of(request).add, learned, asked.images, asked.names, name))


async def photo(request: Request) -> Response:
    """Send a photograph, made small: never the bytes of a stranger."""
    found = learning_of(request).photo(collection_of(request), request.path_params["photo"])
    headers = {"cache-control": "private, max-age=86400"}
    return Response(await asyncio.to_thread(thumbnail, found), 200, headers, "image/jpeg")


async def remove(request: Request) -> Response:
    learning, learned = learning_of(request), collection_of(request)
    found = learning.photo(learned, request.path_params["photo"])
    await asyncio.to_thread(learning.remove, learned, [found])
    return await described(request, learned)


async def remove_class(request: Request) -> Response:
    learned, name = collection_of(request), class_of(request)
    photos = [one for one in list(learned.collection.photos.values()) if one.class_name == name]
    await asyncio.to_thread(learning_of(request).remove, learned, photos)
    return await described(request, learned)


async def fewshot(request: Request) -> Response:
    return answer(await asyncio.to_thread(learning_of(request).fewshot, collection_of(request)))


async def finetuning(request: Request) -> Response:
    return answer(await asyncio.to_thread(learning_of(request).describe_finetuning, collection_of(request)))


async def finetune(request: Request) -> Response:
    learned = collection_of(request)
    content = await read_object(request) if await request.body() else {}
    steps: Any = content.get("steps")
    if content.keys() - {"steps"} or not (steps is None or (type(steps) is int and 0 < steps <= MOST_STEPS)):
        raise Refused(400, f'fine-tuning takes {{"steps": 1 to {MOST_STEPS:,}}}, or nothing')
    return answer(await asyncio.to_thread(learning_of(request).finetune, learned, steps), 202)


async def stop(request: Request) -> Response:
    return answer(await asyncio.to_thread(learning_of(request).stop, collection_of(request)))


async def download(request: Request) -> Response:
    learned, what = collection_of(request), what_of(request)
    file = await asyncio.to_thread(learning_of(request).download, learned, what)
    return zip_file(file, f"{learned.collection.name}-{what}.zip")


async def onnx(request: Request) -> Response:
    learned, what = collection_of(request), what_of(request)
    file = await export_onnx(learning_of(request), learned, what)
    return zip_file(file, f"{learned.collection.name}-{what}-onnx.zip")


def what_of(request: Request) -> str:
    what = request.query_params.get("what", "")
    if what not in ("fewshot", "finetuned"):
        raise Refused(400, "what must be fewshot or finetuned")
    return what


def zip_file(file: BinaryIO, name: str) -> Response:
    headers = {"content-disposition": f'attachment; filename="{name}"', "cache-control": "no-store"}
    return StreamingResponse(pieces(file), 200, headers, "application/zip")


async def pieces(file: BinaryIO) -> AsyncIterator[bytes]:
    with file:
        while data := await asyncio.to_thread(file.read, PIECE):
            yield data
