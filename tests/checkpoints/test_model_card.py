import re

import vitrail
from tests.evaluators.split import named, small_model
from vitrail.checkpoints.checkpoint import from_model
from vitrail.checkpoints.model_card import plain, write_card
from vitrail.models.calibration import Calibration

HOSTILE = "<script>alert(1)</script> [x](http://evil) | `a` **b**\n# heading\n---\x1b[31m"


def card(model, **settings):
    return write_card(from_model(model), "me/model", load="hub:me/model", **settings)


def head(text):
    return text.split("---\n")[1]


def test_a_card_tells_what_the_model_knows():
    model = small_model(class_names=named(7))
    model.metrics = {"test": {"top1": 0.4567, "n": 1234}, "val": {"val_loss": 1.5}, "note": "text"}
    model.license = {"weights": "CC-BY-NC-4.0", "data": "unknown"}
    model.provenance = {
        "format": "trained",
        "step": 4000,
        "experiment": {"data": {"data": "/home/somebody/secret/photos/"}, "training": {"steps": "30ep"}},
        "start": {"name": "B/16", "hub": {"repository": "owner/base", "revision": "0" * 40}},
    }
    text = card(model, picture="picture.png")
    assert "license: cc-by-nc-4.0" in head(text) and "base_model: owner/base" in head(text)
    assert "pipeline_tag: image-classification" in head(text)
    for expected in (
        "16 x 16",
        "7 classes",
        "45.67%",
        "1,234",
        "1.5",
        "4,000",
        "30ep",
        "photos",
        "B/16",
        "class 6",
    ):
        assert expected in text, expected
    assert "![What the model answers](picture.png)" in text and 'vitrail.load("hub:me/model")' in text
    assert "secret" not in text and "non-commercial" in text


def test_how_sure_it_may_be_and_its_limits():
    model = small_model(class_names=named(7))
    assert "no temperature was fitted" in card(model) and "It was not tested" in card(model)
    fitted = {"data": "<b>photos", "n": 1200, "wanted_precision": 0.95}
    fitted |= {"before": {"loss": 1.25, "ece": 0.2}, "after": {"loss": 1.0, "ece": 0.05}}
    model.calibration = Calibration(1.75, (0.25, *[0.5] * 5, 0.75), fitted=fitted)
    model.metrics = {"test": {"top1": 0.9, "n": 200, "interval": {"top1": [0.85, 0.938]}, "answered": 0.7}}
    text = card(model)
    for expected in (
        "temperature 1.75, fitted on 1,200 held-out images",
        "loss 1.25 without, 1 with it; ECE 0.2 without, 0.05 with it",
        "from a probability of 0.25 to 0.75 on",
        "for a precision of 95%",
        "90.00% (85.0-93.8%)",
        "70.00%",
        "7 classes alone",
        "16 x 16 pixels",
    ):
        assert expected in text, expected
    assert "<b>" not in text and "not tested" not in text
    model.calibration = Calibration(multi_label=True)
    assert "a sigmoid of each output; no temperature" in card(model)


def test_a_damaged_interval_is_left_out():
    model = small_model(class_names=named(7))
    for interval in ("x", {"top1": [1]}, {"top1": ["a", "b"]}, [1]):
        model.metrics = {"test": {"top1": 0.9, "interval": interval}}
        assert "| 90.00% |" in card(model)


def test_what_a_model_does_not_know_is_left_out():
    model = vitrail.create("mu/8", classes=0, image_size=16)
    model.provenance = {}
    text = card(model)
    assert "license_name: unknown" in text or "license: unknown" in text
    assert "pipeline_tag: image-feature-extraction" in head(text) and "vitrail.features" in text
    for left_out in ("Scores", "Confidence", "Limits", "Origin", "Classes", "!["):
        assert left_out not in text


def test_text_of_strangers_stays_text():
    model = small_model(class_names=[HOSTILE, *named(6)])
    model.license = {"weights": HOSTILE, "data": HOSTILE}
    model.metrics = {HOSTILE: {"top1": 0.5}}
    model.provenance = {
        "format": HOSTILE,
        "file": HOSTILE,
        "start": {"name": HOSTILE, "hub": {"repository": HOSTILE}},
    }
    text = card(model)
    assert head(text).count("\n") == 5 and "base_model" not in text
    body = text.split("---\n", 2)[2]
    assert "<script" not in body and "](http" not in body and "\x1b" not in body and "**b**" not in body
    assert len(re.findall(r"^#+ ", body, re.MULTILINE)) == 8
    assert plain("a|b\nc") == "a&#124;b c" and len(plain("x" * 500)) == 200
