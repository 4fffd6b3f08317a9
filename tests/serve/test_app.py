"""Endpoints: every form of a body, answers that agree with the engine, refusals in words."""

import base64
import json

import numpy as np
import pytest

import vitrail
from tests.serve.asking import ask, multipart, picture
from tests.serve.conftest import CLASSES
from vitrail.inspection.attention import attention_maps, rollout
from vitrail.inspection.occlusion import occlusion
from vitrail.models.calibration import Calibration
from vitrail.serve.app import create_app
from vitrail.serve.openapi import PATHS
from vitrail.serve.start import make_state

PREDICT = "/v1/models/small/predict"
BYTES = {"content_type": "application/octet-stream"}


def top_of(result):
    return [(one["name"], one["probability"]) for one in result["top"]]


def agrees(result, image, model):
    (expected,) = vitrail.predict(vitrail.load(model), [image], top=3)
    assert [name for name, _ in expected] == [name for name, _ in top_of(result)]
    assert np.allclose([p for _, p in expected], [p for _, p in top_of(result)], atol=1e-5)


def test_all_forms_of_a_body_give_the_answers_of_the_engine(app, small_model):
    images = [picture(i, kind) for i, kind in enumerate(("JPEG", "PNG", "WEBP"))]
    texts = [base64.b64encode(image).decode() for image in images]
    form, kind = multipart(**{f"f{i}": image for i, image in enumerate(images)})
    many = [
        ask(app, "POST", PREDICT, form, content_type=kind),
        ask(app, "POST", PREDICT, {"images": texts}),
        ask(app, "POST", PREDICT, {"images": [f"data:image/png;base64,{text}" for text in texts]}),
    ]
    for reply in many:
        assert reply.status == 200, reply.body
        for result, image in zip(reply.json["results"], images, strict=True):
            agrees(result, image, small_model)
    single = [
        ask(app, "POST", PREDICT, images[0], **BYTES),
        ask(app, "POST", PREDICT, images[0], content_type="image/jpeg"),
        ask(app, "POST", PREDICT, [images[0][:100], images[0][100:]], **BYTES),
        ask(app, "POST", PREDICT, {"image": texts[0]}),
    ]
    for reply in single:
        (result,) = reply.json["results"]
        agrees(result, images[0], small_model)


def test_the_answer_is_what_the_model_is_sure_of(app, state):
    model = state.models.get("small").model
    (whole,) = ask(app, "POST", f"{PREDICT}?probabilities=1", picture(), **BYTES).json["results"]
    assert whole["answer"] == [whole["top"][0]["name"]]
    K = len(CLASSES)
    model.calibration = Calibration(4.0, (1.0,) * K)
    (unsure,) = ask(app, "POST", PREDICT, picture(), **BYTES).json["results"]
    assert unsure["answer"] == []
    assert [name for name, _ in top_of(unsure)] == [name for name, _ in top_of(whole)]
    assert unsure["top"][0]["probability"] < whole["top"][0]["probability"]
    model.calibration = Calibration(thresholds=(0.0,) * K, multi_label=True)
    (many,) = ask(app, "POST", f"{PREDICT}?top=1", picture(), **BYTES).json["results"]
    assert set(many["answer"]) == {name for name, _ in top_of(many)} == set(CLASSES)


def test_options_of_predict(app):
    reply = ask(app, "POST", f"{PREDICT}?top=1&probabilities=true", picture(), **BYTES)
    (result,) = reply.json["results"]
    assert len(result["top"]) == 1 and len(result["probabilities"]) == len(CLASSES)
    assert abs(sum(result["probabilities"]) - 1) < 1e-5
    first = result["top"][0]
    assert result["probabilities"][first["class"]] == pytest.approx(first["probability"], abs=1e-5)
    text = base64.b64encode(picture()).decode()
    same = ask(app, "POST", PREDICT, {"image": text, "top": 1, "probabilities": True}).json
    assert same["results"][0]["top"] == result["top"]
    labels = {one["label"] for one in ask(app, "POST", PREDICT, picture(), **BYTES).json["results"][0]["top"]}
    assert labels == {"Chihuahua", "cat", "fish"}


@pytest.mark.parametrize(
    "query", ["top=0", "top=-1", "top=x", "top=1e9", "probabilities=maybe", "tip=3", "top=" + "9" * 5000]
)
def test_wrong_options_are_refused(app, query):
    reply = ask(app, "POST", f"{PREDICT}?{query}", picture(), **BYTES)
    assert reply.status == 400 and reply.json["error"] and len(reply.body) < 500


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (422, b"no image", "image/jpeg"),
        (422, b"", "image/jpeg"),
        (422, picture()[:300], "application/octet-stream"),
        (415, b"hello", "text/plain"),
        (415, picture(), "text/html"),
        (400, b"{", "application/json"),
        (400, b"[1]", "application/json"),
        (400, b"{}", "application/json"),
        (400, b'{"image": 3}', "application/json"),
        (400, b'{"image": "!!"}', "application/json"),
        (400, b'{"images": []}', "application/json"),
        (400, b'{"image": "", "images": []}', "application/json"),
        (400, json.dumps({"images": ["AAAA"] * 65}).encode(), "application/json"),
        (400, b"[" * 100_000, "application/json"),
        (400, b"--edge\r\nbroken", "multipart/form-data; boundary=edge"),
        (400, b"x", "multipart/form-data"),
        (400, multipart()[0], "multipart/form-data; boundary=edge"),
        (400, multipart(**{f"f{i}": b"x" for i in range(65)})[0], "multipart/form-data; boundary=edge"),
    ],
)  # fmt: skip
def test_bodies_that_are_not_understood(app, status, body, kind):
    reply = ask(app, "POST", PREDICT, body, content_type=kind)
    assert reply.status == status, reply.body
    assert set(reply.json) == {"error"} and reply.json["error"]


def test_a_broken_image_has_its_error_among_the_answers_of_others(app):
    form, kind = multipart(good=picture(), bad=b"text")
    reply = ask(app, "POST", PREDICT, form, content_type=kind)
    good, bad = reply.json["results"]
    assert reply.status == 200 and "top" in good and "bad.jpg" in bad["error"]


@pytest.mark.parametrize("name", ["nope", "..", "%2e%2e%2fetc%2fpasswd", "small%00", "a" * 5000, "<script>"])
def test_unknown_models(app, name):
    reply = ask(app, "POST", f"/v1/models/{name}/predict", picture(), **BYTES)
    assert reply.status == 404 and reply.headers["content-type"] == "application/json"


def test_unknown_paths_and_methods(app):
    assert ask(app, "GET", "/nothing").status == 404
    assert ask(app, "GET", PREDICT).status == 405
    assert ask(app, "GET", "/v1/models/").status == 404


def test_features_are_those_of_the_library(app, small_model):
    reply = ask(app, "POST", "/v1/models/small/features", picture(), **BYTES)
    expected = vitrail.features(vitrail.load(small_model), [picture()])[0]
    assert np.allclose(reply.json["results"][0]["features"], expected, atol=1e-5)


def test_explanations_are_those_of_the_library(app, small_model):
    model, image = vitrail.load(small_model), picture()
    content = ask(app, "POST", "/v1/models/small/explain", image, **BYTES).json
    assert content["image_size"] == [32, 32] and content["grid"] == [4, 4]
    assert content["picture"].startswith("data:image/png;base64,")
    assert np.allclose(content["rollout"], rollout(model, [image])[0], atol=1e-3)
    assert np.allclose(content["attention"]["maps"], attention_maps(model, [image])[0], atol=1e-3)
    assert np.allclose(content["occlusion"]["falls"], occlusion(model, image), atol=1e-3)
    only = ask(app, "POST", "/v1/models/small/explain?methods=rollout", image, **BYTES).json
    assert "rollout" in only and "occlusion" not in only
    assert ask(app, "POST", "/v1/models/small/explain?methods=magic", image, **BYTES).status == 400
    assert ask(app, "POST", "/v1/models/small/explain", b"no image", **BYTES).status == 422
    form, kind = multipart(a=image, b=image)
    assert ask(app, "POST", "/v1/models/small/explain", form, content_type=kind).status == 400


def test_explanations_have_a_bounded_queue(app, state):
    state.explainer.most_waiting = 0
    reply = ask(app, "POST", "/v1/models/small/explain", picture(), **BYTES)
    assert reply.status == 503 and int(reply.headers["retry-after"]) >= 0
    assert ask(app, "POST", PREDICT, picture(), **BYTES).status == 200


def test_a_full_queue_says_when_to_come_again(app, state):
    state.models.get("small").predictor.max_waiting = 0
    reply = ask(app, "POST", PREDICT, picture(), **BYTES)
    assert reply.status == 503 and int(reply.headers["retry-after"]) >= 1


def test_models_and_health(app, state):
    (entry,) = ask(app, "GET", "/v1/models").json["models"]
    assert (entry["name"], entry["classes"], entry["kind"]) == ("small", 3, "model")
    assert entry["explain"] == ["rollout", "attention", "occlusion"]
    assert ask(app, "GET", "/v1/models/small").json["class_names"] == CLASSES
    assert ask(app, "GET", "/healthz").status == ask(app, "GET", "/readyz").status == 200
    state.draining = True
    assert ask(app, "GET", "/healthz").status == 200
    assert ask(app, "GET", "/readyz").status == 503


def test_metrics_count_what_happened(app):
    for _ in range(3):
        ask(app, "POST", PREDICT, picture(), **BYTES)
    ask(app, "POST", PREDICT, b"no image", **BYTES)
    text = ask(app, "GET", "/metrics").body.decode()
    assert 'vitrail_requests_total{endpoint="predict",status="200"} 3' in text
    assert 'vitrail_requests_total{endpoint="predict",status="422"} 1' in text
    assert 'vitrail_images_total{model="small",result="unreadable"} 1' in text
    assert 'vitrail_request_seconds_bucket{endpoint="predict",le="+Inf"} 4' in text
    assert 'vitrail_queue_images{model="small"} 0' in text


def test_every_route_is_in_the_document(app):
    described = {(path, method.upper()) for path, operations in PATHS.items() for method in operations}
    routes = {
        (route.path, method)
        for route in app.app.routes
        if hasattr(route, "methods") and route.path != "/"
        for method in route.methods - {"HEAD"}
    }
    assert described == routes
    document = ask(app, "GET", "/openapi.json").json
    assert document["openapi"].startswith("3.") and document["paths"].keys() == PATHS.keys()


def test_examples_in_the_document_have_the_fields_of_real_answers(app):
    def example(path, method="post"):
        return PATHS[path][method]["responses"]["200"]["content"]["application/json"]["example"]

    entry = ask(app, "GET", "/v1/models").json["models"][0]
    assert example("/v1/models", "get")["models"][0].keys() == entry.keys()
    explained = ask(app, "POST", "/v1/models/small/explain", picture(), **BYTES).json
    assert example("/v1/models/{name}/explain").keys() - {"neighbours"} == explained.keys()
    predicted = ask(app, "POST", PREDICT, picture(), **BYTES).json
    expected = example("/v1/models/{name}/predict")
    assert expected.keys() == predicted.keys()
    assert expected["results"][0]["top"][0].keys() == predicted["results"][0]["top"][0].keys()


def test_without_learn_there_is_no_learning(small_model):
    state = make_state([f"small={small_model}"], device="cpu")
    try:
        app = create_app(state)
        assert ask(app, "GET", "/v1/session").json["learn"] is False
        assert ask(app, "GET", "/v1/learn").status == 404
        headers = {"origin": "http://127.0.0.1:8000", "x_vitrail_token": state.access.token}
        assert ask(app, "POST", "/v1/learn", {"name": "a", "model": "small"}, **headers).status == 404
    finally:
        state.close()
