"""The API as an OpenAPI document, with examples. docs/serving.md says the same in words."""

from __future__ import annotations

from typing import Any

import vitrail

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
TOP: dict[str, Any] = {
    "class": 43,
    "name": "n02268443 dragonfly",
    "label": "dragonfly",
    "probability": 0.311826,
}
MODEL: dict[str, Any] = {
    "name": "ti8-64", "kind": "model", "source": "ti8-64", "base": None, "classes": 200,
    "architecture": {
        "image_size": [64, 64], "parameters": 5427080, "family": "vit", "width": 192, "depth": 12, "heads": 3,
        "patch_size": 8, "grid": [8, 8],
    },
    "preprocess": "resize_small(73)|central_crop(64)|uint8|to_range(-1, 1)",
    "temperature": 1.0, "multi_label": False,
    "explain": ["rollout", "attention", "occlusion", "neighbours"], "metrics": {"test": {"top1": 0.5901}},
    "license": {"weights": "MIT", "data": "unknown"}, "opened": "2026-11-18T20:05:03+00:00", "refused": None,
}  # fmt: skip
FEWSHOT: dict[str, Any] = {
    "model": "cups-fewshot", "classes": ["mug", "glass", "vase"], "photos": 30, "accuracy": 0.933, "folds": 10,
    "seconds": 0.08, "stale": False,
}  # fmt: skip
FINETUNE: dict[str, Any] = {
    "state": "running", "model": None, "step": 40, "steps": 200, "curve": [{"step": 1, "loss": 1.0986}],
    "evaluations": [{"step": 20, "top1": 0.66, "loss": 0.8}], "test": None, "seconds": 12.3, "message": "",
    "stale": False,
}  # fmt: skip
PHOTO = {"id": "3f0c5d6a7b8c9d0e1f2a3b4c", "url": "/v1/learn/cups/photos/3f0c5d6a7b8c9d0e1f2a3b4c"}
COLLECTION: dict[str, Any] = {
    "name": "cups", "model": "ti8-64", "photos": 1, "classes": [{"name": "mug", "photos": [PHOTO]}],
    "fewshot": None, "finetune": None,
}  # fmt: skip
JSON_IMAGES = {"images": [PIXEL, PIXEL]}
STATUSES = {
    400: "not understood",
    401: "a key is needed",
    403: "another origin, or no token",
    404: "no such name",
    408: "the body took too long",
    409: "it exists, or its state does not allow this",
    413: "the body is too long",
    415: "not a content type that is read",
    421: "not a name of this server",
    422: "not an image that can be decoded",
    503: "too much waits: see Retry-After",
}
ALWAYS = (400, 401, 403, 421)
IMAGES = (404, 408, 413, 415, 422, 503)
CHANGES = (404, 408, 409, 413)


def operation(
    summary: str,
    example: Any,
    errors: tuple[int, ...] = (),
    *,
    kind: str = "application/json",
    status: int = 200,
    images: bool = False,
    body: dict[str, Any] | None = None,
    parameters: list[dict[str, Any]] | None = None,
) -> dict[str, Any]:
    responses: dict[str, Any] = {
        str(status): {
            "description": summary,
            "content": {kind: {"schema": schema_of(example), "example": example}},
        }
    }
    for code in sorted({*ALWAYS, *errors}):
        error = {"schema": schema_of({"error": ""}), "example": {"error": STATUSES[code]}}
        responses[str(code)] = {"description": STATUSES[code], "content": {"application/json": error}}
    result: dict[str, Any] = {
        "summary": summary,
        "responses": responses,
        "parameters": list(parameters or ()),
    }
    if images:
        binary = {"schema": {"type": "string", "format": "binary"}}
        files = {"type": "object", "additionalProperties": binary["schema"]}
        result["requestBody"] = {
            "required": True,
            "content": {
                "image/*": binary,
                "application/octet-stream": binary,
                "multipart/form-data": {"schema": files},
                "application/json": {"schema": schema_of(JSON_IMAGES), "example": JSON_IMAGES},
            },
        }
    elif body is not None:
        content = {"application/json": {"schema": schema_of(body), "example": body}}
        result["requestBody"] = {"required": status == 201, "content": content}
    return result


def query(name: str, kind: str, description: str, example: Any) -> dict[str, Any]:
    return {
        "name": name,
        "in": "query",
        "description": description,
        "schema": {"type": kind},
        "example": example,
    }


def schema_of(example: Any) -> dict[str, Any]:
    """Return the types of an example."""
    if isinstance(example, dict):
        return {"type": "object", "properties": {name: schema_of(value) for name, value in example.items()}}
    if isinstance(example, list):
        return {"type": "array", "items": schema_of(example[0]) if example else {}}
    if example is None:
        return {}
    kinds = {bool: "boolean", int: "integer", float: "number", str: "string"}
    return {"type": kinds[type(example)]}


NAMED, CUPS = "/v1/models/{name}", "/v1/learn/{collection}"
TOP_QUERY = [
    query("top", "integer", "how many classes", 5),
    query("probabilities", "boolean", "of all classes", False),
]
METHODS = query(
    "methods",
    "string",
    "rollout, attention, occlusion, neighbours, separated by commas; none: all",
    "rollout",
)
WHAT = query("what", "string", "fewshot or finetuned", "fewshot")
CLASS = query("class", "string", "name of the class", "mug")
MAPS: dict[str, Any] = {
    "model": "ti8-64", "image_size": [64, 64], "picture": "data:image/png;base64,...", "grid": [8, 8],
    "rollout": [[0.013]], "occlusion": {"cell": 8, "falls": [[0.02]]},
    "attention": {"layers": ["1"], "heads": 3, "maps": [[[[0.01]]]]},
    "neighbours": [
        {
            "key": "train/0001.jpg", "name": "n02268443 dragonfly", "label": "dragonfly", "similarity": 0.8123,
            "picture": "data:image/png;base64,...",
        }
    ],
}  # fmt: skip
NEW = {"name": "cups", "model": "ti8-64"}
ADDED = {"added": [PHOTO], "present": [], "errors": [], "collection": COLLECTION}
PATHS: dict[str, dict[str, Any]] = {
    "/healthz": {"get": operation("The process lives", {"status": "ok"})},
    "/readyz": {"get": operation("Requests are welcome", {"status": "ready", "models": ["ti8-64"]}, (503,))},
    "/metrics": {"get": operation("Numbers for Prometheus", "vitrail_queue_images 0\n", kind="text/plain")},
    "/openapi.json": {"get": operation("This document", {"openapi": "3.1.0"})},
    "/v1/session": {
        "get": operation("The token for changes, and limits", {"version": "0.1.0", "token": "...", "learn": True})
    },
    "/v1/models": {"get": operation("All models", {"models": [MODEL]})},
    NAMED: {"get": operation("One model", {**MODEL, "class_names": ["n01443537 goldfish"]}, (404,))},
    f"{NAMED}/predict": {
        "post": operation(
            "The most probable classes",
            {"model": "ti8-64", "results": [{"top": [TOP], "answer": [TOP["name"]]}]}, IMAGES, images=True,
            parameters=TOP_QUERY,
        )
    },
    f"{NAMED}/features": {
        "post": operation(
            "The input of the classifier", {"model": "ti8-64", "results": [{"features": [0.1271]}]}, IMAGES,
            images=True,
        )
    },
    f"{NAMED}/explain": {
        "post": operation("Maps over one image", MAPS, IMAGES, images=True, parameters=[METHODS])
    },
    "/v1/learn": {
        "get": operation("All collections", {"collections": [COLLECTION], "limits": {"photos": 2000}}, (404,)),
        "post": operation("A new collection", COLLECTION, CHANGES, body=NEW, status=201),
    },
    CUPS: {
        "get": operation("A collection", COLLECTION, (404,)),
        "delete": operation("Remove it", {"deleted": "cups"}, CHANGES),
    },
    f"{CUPS}/photos": {
        "post": operation("Add photographs", ADDED, (*IMAGES, 409), images=True, parameters=[CLASS])
    },
    f"{CUPS}/photos/{{photo}}": {
        "get": operation("A small picture", "JPEG", (404,), kind="image/jpeg"),
        "delete": operation("Remove a photograph", COLLECTION, CHANGES),
    },
    f"{CUPS}/classes": {"delete": operation("Remove a class", COLLECTION, CHANGES, parameters=[CLASS])},
    f"{CUPS}/fewshot": {"post": operation("Make a classifier at once", FEWSHOT, CHANGES)},
    f"{CUPS}/finetune": {
        "get": operation("The last fine-tuning", FINETUNE, (404,)),
        "post": operation("Fine-tune in the background", FINETUNE, CHANGES, body={"steps": 200}, status=202),
        "delete": operation("Save and stop", FINETUNE, CHANGES),
    },
    f"{CUPS}/download": {
        "get": operation("A bundle", "a zip file", (404,), kind="application/zip", parameters=[WHAT])
    },
    f"{CUPS}/onnx": {
        "post": operation("An ONNX file", "a zip file", (*CHANGES, 503), kind="application/zip", parameters=[WHAT])
    },
}  # fmt: skip


def describe_api() -> dict[str, Any]:
    """Return the document."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "vitrail serve", "version": vitrail.__version__},
        "paths": {path: with_places(path, operations) for path, operations in PATHS.items()},
        "components": {"securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
        "security": [{}, {"key": []}],
    }


def with_places(path: str, operations: dict[str, Any]) -> dict[str, Any]:
    """Add the parts of a path that are names."""
    places = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    named = [{"name": one, "in": "path", "required": True, "schema": {"type": "string"}} for one in places]
    return {method: {**one, "parameters": [*one["parameters"], *named]} for method, one in operations.items()}
