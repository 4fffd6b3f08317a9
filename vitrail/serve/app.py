"""The application: endpoints of the API, and the page. docs/serving.md has every request and answer.

    request ──► guard.py ──► a function here ──► bodies.py reads images ──► predictor.py, explain.py ──► JSON

`create_app` puts the parts together; server.py runs it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

import vitrail
from vitrail.errors import ConfigError, DataError, ImageError, VitrailError
from vitrail.serve.answers import describe_model, prediction
from vitrail.serve.bodies import MAX_IMAGES, Asked, read_images
from vitrail.serve.explain import Explainer, check_methods
from vitrail.serve.guard import MAX_BODY, Access, App, Guard, Refused
from vitrail.serve.json_answer import answer
from vitrail.serve.learning import Conflict, Learning, Missing
from vitrail.serve.learning_app import learning_routes
from vitrail.serve.metrics import Metrics, resident_bytes
from vitrail.serve.openapi import describe_api
from vitrail.serve.predictor import Answer, Closed, Late, Overloaded
from vitrail.serve.served import Served, ServedModels, UnknownModel

ASSETS = Path(__file__).parents[1] / "assets"
PAGE = Path(__file__).parent / "page"
# Files of the page by the folder of their address, the longest first.
STATIC = {
    "/static/look": ASSETS / "look",
    "/static/pictures": ASSETS / "pictures",
    "/static": PAGE,
}
GRACE = 30.0  # seconds after the deadline in which a batch is still computed
TOP = 5


@dataclass
class State:
    """Everything that the endpoints use."""

    models: ServedModels
    metrics: Metrics
    access: Access
    explainer: Explainer = field(default_factory=Explainer)
    seconds: float = 10.0  # deadline of an image
    learning: Learning | None = None
    draining: bool = False
    connections: Any = ()  # the open ones, for the metrics

    def close(self) -> None:
        """Answer what was accepted, and end all threads."""
        if self.learning is not None:
            self.learning.close()
        self.explainer.close()
        self.models.close()


def create_app(state: State) -> App:
    """Return the ASGI application."""
    routes = [
        Route("/", page),
        Route("/healthz", health),
        Route("/readyz", ready),
        Route("/metrics", metrics),
        Route("/openapi.json", openapi),
        Route("/v1/session", session),
        Route("/v1/models", models),
        Route("/v1/models/{name}", model),
        Route("/v1/models/{name}/predict", predict, methods=["POST"]),
        Route("/v1/models/{name}/features", features, methods=["POST"]),
        Route("/v1/models/{name}/explain", explain, methods=["POST"]),
    ]
    routes += learning_routes() if state.learning is not None else []
    mounts = [Mount(path, Fresh(directory=folder)) for path, folder in STATIC.items()]
    handlers: Any = {HTTPException: refused, Refused: refused, VitrailError: failed}
    handlers |= {ClientDisconnect: gone, Exception: broken}
    app = Starlette(routes=[*routes, *mounts], exception_handlers=handlers)
    app.router.redirect_slashes = False
    app.state.serve = state
    return Guard(app, state.access, state.metrics)


def state_of(request: Request) -> State:
    state: State = request.app.state.serve
    return state


async def refused(request: Request, error: Exception) -> Response:
    """Answer what cannot be answered: a refusal, an unknown path or method."""
    if isinstance(error, Refused):
        return answer({"error": str(error)}, error.status, **error.headers)
    assert isinstance(error, HTTPException)
    text = {404: "there is no such path: GET /openapi.json lists them", 405: "this path has other methods"}
    return answer(
        {"error": text.get(error.status_code, error.detail)}, error.status_code, **(error.headers or {})
    )


async def failed(request: Request, error: Exception) -> Response:
    """Answer an error of the user, and an overload."""
    if isinstance(error, Overloaded):
        return answer({"error": str(error)}, 503, retry_after=str(error.retry_after))
    if isinstance(error, Late | Closed):
        return answer({"error": str(error)}, 503, retry_after="1")
    statuses = {UnknownModel: 404, Missing: 404, Conflict: 409, DataError: 422}
    status = next((status for kind, status in statuses.items() if isinstance(error, kind)), 400)
    return answer({"error": str(error)}, status)


async def broken(request: Request, error: Exception) -> Response:
    """Answer a fault of ours; starlette logs it."""
    return answer({"error": "an error inside the server, which its log describes"}, 500)


async def gone(request: Request, error: Exception) -> Response:
    """Answer a client that closed the connection while it sent: nobody reads it."""
    return answer({"error": "the body is not complete"}, 400)


class Fresh(StaticFiles):
    """Files of the page. Browsers ask each time whether they changed, as after an update of the package."""

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        response = super().file_response(*args, **kwargs)
        response.headers["cache-control"] = "no-cache"
        return response


async def page(request: Request) -> Response:
    """Send the page."""
    return FileResponse(PAGE / "index.html", headers={"cache-control": "no-cache"})


async def health(request: Request) -> Response:
    """Say that the process lives."""
    return answer({"status": "ok"})


async def ready(request: Request) -> Response:
    """Say whether requests are welcome: not while the server drains."""
    state = state_of(request)
    if state.draining:
        return answer({"status": "draining"}, 503)
    return answer({"status": "ready", "models": list(state.models.models)})


async def metrics(request: Request) -> Response:
    state = state_of(request)
    served = state.models.models.values()
    gauges: list[Any] = [
        ("vitrail_queue_images", (("model", one.name),), len(one.predictor))
        for one in served
        if one.head is None
    ]
    gauges += [
        ("vitrail_explain_queue", (), state.explainer.waiting),
        ("vitrail_connections", (), len(state.connections)),
        ("vitrail_resident_bytes", (), resident_bytes()),
    ]
    return PlainTextResponse(state.metrics.text(gauges), media_type="text/plain; version=0.0.4")


async def openapi(request: Request) -> Response:
    return answer(describe_api())


async def session(request: Request) -> Response:
    """Return what the page needs to know; no page of another origin can read it."""
    state = state_of(request)
    return answer(
        {
            "version": vitrail.__version__,
            "token": state.access.token,
            "learn": state.learning is not None,
            "limits": {"body_bytes": MAX_BODY, "images": MAX_IMAGES, "seconds": state.seconds},
        }
    )


async def models(request: Request) -> Response:
    state = state_of(request).models
    return answer({"models": [describe_model(one, state.refused) for one in state.models.values()]})


async def model(request: Request) -> Response:
    state = state_of(request).models
    served = state.get(request.path_params["name"])
    names = {"class_names": served.class_names}
    return answer({**describe_model(served, state.refused), **names})


async def predict(request: Request) -> Response:
    """Return the most probable classes of each image."""
    asked = await read_images(request, frozenset(("top", "probabilities")))
    top, whole = asked.number("top", TOP, 1, 1000), asked.flag("probabilities")
    served, answers = await compute(request, asked)
    if not served.class_names:
        raise ConfigError(f"{served.name} has no classifier: it has /features")
    names, calibration = served.class_names, served.model.calibration
    return each(served, answers, lambda one: prediction(served.logits(one), names, calibration, top, whole))


async def features(request: Request) -> Response:
    """Return the input of the classifier for each image."""
    served, answers = await compute(request, await read_images(request, frozenset()))

    def numbers(one: Answer) -> dict[str, Any]:
        return {"features": [float(f"{value:.7g}") for value in one.features.tolist()]}

    return each(served, answers, numbers)


async def explain(request: Request) -> Response:
    """Return what the model looks at in one image."""
    asked = await read_images(request, frozenset(("methods",)))
    if len(asked.images) != 1:
        raise Refused(400, f"{len(asked.images)} images: one is explained at a time")
    state = state_of(request)
    served = state.models.get(request.path_params["name"])
    methods = check_methods(asked.words("methods"), served.model, served.index)
    maps = await asyncio.wrap_future(
        state.explainer.submit(served.model, asked.images[0], methods, served.index)
    )
    return answer({"model": served.name, **maps})


async def compute(request: Request, asked: Asked) -> tuple[Served, list[Answer | ImageError]]:
    """Compute all images of a request; an unreadable one has its error in its place."""
    state = state_of(request)
    served, futures = state.models.submit(
        request.path_params["name"], asked.images, asked.names, state.seconds
    )
    answers: list[Answer | ImageError] = []
    async with asyncio.timeout(state.seconds + GRACE):
        for future in map(asyncio.wrap_future, futures):
            try:
                answers.append(await future)
            except ImageError as error:
                answers.append(error)
    return served, answers


def each(served: Served, answers: list[Answer | ImageError], describe: Any) -> Response:
    """Answer for every image; 422 if none can be read."""
    results = [{"error": str(one)} if isinstance(one, ImageError) else describe(one) for one in answers]
    if all(isinstance(one, ImageError) for one in answers):
        errors = {"error": "; ".join(str(one) for one in answers[:3])}
        return answer(
            {**errors, "model": served.name, "results": results} if len(results) > 1 else errors, 422
        )
    return answer({"model": served.name, "results": results})
