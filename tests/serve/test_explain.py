"""Explanations by an index of training images, and what an exported file can explain."""

import pytest

import vitrail
from tests.serve.asking import ORIGIN, ask, picture
from tests.serve.conftest import save_model
from vitrail.curate.build_index import build_index
from vitrail.curate.search_images import search_images
from vitrail.errors import ConfigError, DataError
from vitrail.serve.app import create_app
from vitrail.serve.openapi import MAPS
from vitrail.serve.start import make_state

BYTES = {"content_type": "application/octet-stream"}
EXPLAIN = "/v1/models/small/explain"


@pytest.fixture(scope="module")
def indexed(tmp_path_factory):
    """Return a model and an index of nine training images."""
    folder = tmp_path_factory.mktemp("indexed")
    for i in range(9):
        place = folder / "data" / "train" / f"n0000000{i % 3} class {i % 3}"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{i}.jpg").write_bytes(picture(i))
    model = save_model(folder / "model")
    build_index(vitrail.load(model), str(folder / "data"), folder / "index")
    return folder


@pytest.fixture
def state(indexed, tmp_path):
    opened = make_state(
        [f"small={indexed / 'model'}"],
        indexes=[str(indexed / "index")],
        learn=str(tmp_path / "learn"),
        device="cpu",
    )
    yield opened
    opened.close()


def test_the_nearest_training_images(state, indexed):
    app = create_app(state)
    assert "neighbours" in ask(app, "GET", "/v1/models").json["models"][0]["explain"]
    content = ask(app, "POST", f"{EXPLAIN}?methods=neighbours", picture(4), **BYTES).json
    nearest = content["neighbours"]
    ((expected,), _) = search_images(
        state.models.get("small").index, vitrail.load(indexed / "model"), [picture(4)], 6
    )
    assert [one["key"] for one in nearest] == [one.key for one in expected]
    first = nearest[0]
    assert first["similarity"] == pytest.approx(1, abs=1e-3) and first["key"].endswith("4.jpg")
    assert (first["name"], first["label"]) == ("n00000001 class 1", "class 1")
    assert first["picture"].startswith("data:image/png;base64,")
    assert first.keys() == MAPS["neighbours"][0].keys() and "rollout" not in content
    assert "neighbours" in ask(app, "POST", EXPLAIN, picture(), **BYTES).json  # all that the model has


def test_a_classifier_has_the_index_of_its_base(state):
    app = create_app(state)

    def change(path, body=b"", **headers):
        return ask(app, "POST", path, body, origin=ORIGIN, x_vitrail_token=state.access.token, **headers)

    change("/v1/learn", {"name": "cups", "model": "small"})
    for i, title in enumerate(("mug", "glass")):
        change(f"/v1/learn/cups/photos?class={title}", picture(i), **BYTES)
    assert change("/v1/learn/cups/fewshot").status == 200
    content = ask(app, "POST", "/v1/models/cups-fewshot/explain?methods=neighbours", picture(4), **BYTES).json
    assert content["neighbours"][0]["key"].endswith("4.jpg")


def test_an_index_of_another_model_is_refused(indexed, tmp_path):
    other = save_model(tmp_path / "other", seed=5)
    with pytest.raises(ConfigError, match="another model"):
        make_state([f"other={other}"], indexes=[str(indexed / "index")], device="cpu")
    with pytest.raises(DataError, match="no index"):
        make_state([f"other={other}"], indexes=[str(tmp_path)], device="cpu")


def test_a_damaged_picture_of_an_index_is_left_out(state, monkeypatch):
    monkeypatch.setattr(type(state.models.get("small").index), "thumbnail", lambda self, row: b"no JPEG")
    content = ask(create_app(state), "POST", f"{EXPLAIN}?methods=neighbours", picture(), **BYTES).json
    assert [one["picture"] for one in content["neighbours"]] == [None] * 6


@pytest.mark.long
@pytest.mark.parametrize("kind", ["pixels", "tensor"])
def test_an_exported_file_is_served(tmp_path, small_model, kind):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    vitrail.export(str(small_model), tmp_path / "file", to="onnx", input=kind)
    state = make_state([f"file={tmp_path / 'file'}"], learn=str(tmp_path / "learn"), device="cpu")
    try:
        app = create_app(state)
        (entry,) = ask(app, "GET", "/v1/models").json["models"]
        assert (entry["classes"], entry["explain"]) == (3, [])
        image = picture(3, size=(50, 70))
        top = ask(app, "POST", "/v1/models/file/predict", image, **BYTES).json["results"][0]["top"]
        ((expected, p), *_) = vitrail.predict(str(small_model), [image])[0]
        assert top[0]["name"] == expected and top[0]["probability"] == pytest.approx(p, abs=1e-3)
        features = ask(app, "POST", "/v1/models/file/features", image, **BYTES).json["results"][0]["features"]
        assert features == pytest.approx(
            vitrail.features(vitrail.load(small_model), [image])[0].tolist(), abs=1e-3
        )
        refused = ask(app, "POST", "/v1/models/file/explain", image, **BYTES)
        assert refused.status == 400 and "exported" in refused.json["error"]
        headers = {"origin": ORIGIN, "x_vitrail_token": state.access.token}
        assert ask(app, "POST", "/v1/learn", {"name": "a", "model": "file"}, **headers).status == 400
    finally:
        state.close()
