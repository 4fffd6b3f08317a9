"""Models of the hub, against a stand-in of its HTTP interface."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import vitrail
from tests.checkpoints.hub_stand_in import in_place_of_the_hub, put
from tests.evaluators.split import named, small_model
from vitrail.checkpoints import repositories
from vitrail.checkpoints.checkpoint import model_digest
from vitrail.errors import CheckpointError, ConfigError

hub_package = pytest.importorskip("huggingface_hub")
pytest.importorskip("huggingface_hub.constants")
ROOT = Path(__file__).parents[2]


@pytest.fixture
def hub(tmp_path, monkeypatch):
    with in_place_of_the_hub(monkeypatch, tmp_path / "cache") as hub:
        yield hub


@pytest.fixture
def model():
    return small_model(class_names=named(7))


@pytest.mark.parametrize("to", ["bundle", "huggingface", "timm"])
def test_a_model_is_loaded_by_its_name(tmp_path, hub, model, to):
    vitrail.save(model, tmp_path / "model", to=to)
    sha = put(hub, "owner/name", tmp_path / "model")
    loaded = vitrail.load("hub:owner/name")
    assert model_digest(loaded) == model_digest(model)
    assert to == "timm" or loaded.class_names == model.class_names
    assert loaded.provenance["hub"] == {"repository": "owner/name", "revision": sha}
    vitrail.save(loaded, tmp_path / "again")
    assert vitrail.load(tmp_path / "again").provenance["hub"]["revision"] == sha


def test_revisions(tmp_path, hub, model):
    vitrail.save(model, tmp_path / "old")
    old = put(hub, "owner/name", tmp_path / "old")
    hub.repositories["owner/name"].branches["v1"] = old
    model.head.classifier.bias.data += 1
    vitrail.save(model, tmp_path / "new")
    new = put(hub, "owner/name", tmp_path / "new")
    for name, sha in (("", new), ("@v1", old), (f"@{old}", old), ("@main", new)):
        loaded = vitrail.load(f"hub:owner/name{name}")
        assert loaded.provenance["hub"]["revision"] == sha
        assert (model_digest(loaded) == model_digest(model)) == (sha == new)
    with pytest.raises(CheckpointError, match="'v2'"):
        vitrail.load("hub:owner/name@v2")


def test_nothing_but_safetensors_and_json_is_fetched_or_read(tmp_path, hub, model):
    vitrail.save(model, tmp_path / "model", to="huggingface")
    (tmp_path / "model" / "pytorch_model.bin").write_bytes(b"pickle")
    (tmp_path / "model" / "modeling.py").write_text("raise SystemExit")
    put(hub, "owner/name", tmp_path / "model")
    vitrail.load("hub:owner/name")
    fetched = {path.name for path in (tmp_path / "cache").glob("*/snapshots/*/*")}
    assert fetched == {"config.json", "preprocessor_config.json", "model.safetensors"}
    (tmp_path / "model" / "model.safetensors").unlink()
    hub.repositories.clear()
    put(hub, "owner/pickled", tmp_path / "model")
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin"):
        vitrail.load("hub:owner/pickled")
    torch.save(model.state_dict(), tmp_path / "model" / "model.safetensors")
    put(hub, "owner/disguised", tmp_path / "model")
    with pytest.raises(CheckpointError, match=r"not a \.safetensors"):
        vitrail.load("hub:owner/disguised")
    (tmp_path / "model" / "model.safetensors").unlink()
    (tmp_path / "model" / "model-00001-of-00001.safetensors").write_bytes(b"")
    for place in ("pytorch_model.bin", "../../x.safetensors", 3):
        (tmp_path / "model" / "model.safetensors.index.json").write_text(
            json.dumps({"weight_map": {"a": place}})
        )
        repositories.fetch.cache_clear()
        put(hub, "owner/indexed", tmp_path / "model")
        with pytest.raises(CheckpointError, match="no part of a model"):
            vitrail.load("hub:owner/indexed")


def test_the_cache_serves_offline_and_when_the_hub_is_down(tmp_path, hub, model, monkeypatch, caplog):
    vitrail.save(model, tmp_path / "model")
    sha = put(hub, "owner/name", tmp_path / "model")
    hub.broken = True
    with pytest.raises(CheckpointError, match="not in the cache"):
        vitrail.load("hub:owner/name")
    hub.broken = False
    vitrail.load("hub:owner/name")
    hub.broken = True
    repositories.fetch.cache_clear()
    assert vitrail.load("hub:owner/name").provenance["hub"]["revision"] == sha
    assert "from the cache" in caplog.text
    monkeypatch.setattr(hub_package.constants, "ENDPOINT", "http://127.0.0.1:9")  # nobody listens there
    repositories.fetch.cache_clear()
    assert vitrail.load("hub:owner/name").provenance["hub"]["revision"] == sha
    with pytest.raises(CheckpointError, match=r"cannot be reached.*not in the cache"):
        vitrail.load("hub:owner/other")
    hub.requests.clear()
    monkeypatch.setattr(hub_package.constants, "HF_HUB_OFFLINE", True)
    repositories.fetch.cache_clear()
    for name in ("hub:owner/name", f"hub:owner/name@{sha}"):
        assert vitrail.load(name).provenance["hub"]["revision"] == sha
    with pytest.raises(CheckpointError, match=r"HF_HUB_OFFLINE.*not in the cache"):
        vitrail.load("hub:owner/other")
    with pytest.raises(ConfigError, match="HF_HUB_OFFLINE"):
        vitrail.push(model, "owner/name")
    assert not hub.requests


def test_what_the_hub_refuses(tmp_path, hub, model, monkeypatch):
    vitrail.save(model, tmp_path / "model")
    put(hub, "owner/private", tmp_path / "model", private=True)
    put(hub, "owner/gated", tmp_path / "model", gated=True)
    put(hub, "owner/theirs", tmp_path / "model", read_only=True)
    assert vitrail.load("hub:owner/private").class_names == model.class_names
    with pytest.raises(CheckpointError, match="no model owner/nothing"):
        vitrail.load("hub:owner/nothing")
    with pytest.raises(CheckpointError, match="may not write"):
        vitrail.push(model, "owner/theirs")
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr(hub_package.constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    repositories.fetch.cache_clear()
    with pytest.raises(CheckpointError, match=r"private.*token"):
        vitrail.load("hub:owner/private")
    with pytest.raises(CheckpointError, match=r"gated.*terms"):
        vitrail.load("hub:owner/gated")
    with pytest.raises(ConfigError, match="token"):
        vitrail.push(model, "owner/name")
    for name in ("hub:", "hub:a/b/c", "hub:../x", "hub:a/b@", "hub:a b/c"):
        with pytest.raises((ConfigError, CheckpointError)):
            vitrail.load(name)


def test_a_damaged_model_is_refused(tmp_path, hub, model):
    vitrail.save(model, tmp_path / "model")
    content = bytearray((tmp_path / "model" / "model.safetensors").read_bytes())
    content[-3] ^= 0xFF
    (tmp_path / "model" / "model.safetensors").write_bytes(content)
    put(hub, "owner/name", tmp_path / "model")
    with pytest.raises(CheckpointError, match="damaged"):
        vitrail.load("hub:owner/name")


def test_the_license_of_a_repository_is_kept_and_said(tmp_path, hub, model, caplog):
    vitrail.save(model, tmp_path / "model", to="timm")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    (tmp_path / "model" / "config.json").write_text(
        json.dumps({k: v for k, v in config.items() if k != "license"})
    )
    caplog.clear()
    put(hub, "owner/free", tmp_path / "model", card={"license": "apache-2.0"})
    assert vitrail.load("hub:owner/free").license == {"weights": "apache-2.0"} and not caplog.text
    put(hub, "owner/limited", tmp_path / "model", card={"license": "other", "license_name": "cc-by-nc-4.0"})
    assert vitrail.load("hub:owner/limited").license == {"weights": "cc-by-nc-4.0"}
    assert "non-commercial" in caplog.text


def test_a_model_is_pushed_and_loaded_again(tmp_path, hub, model, vitrail_command):
    model.metrics, model.license = {"test": {"top1": 0.5}}, {"weights": "MIT"}
    vitrail.save(model, tmp_path / "model")
    for to in ("bundle", "huggingface", "timm"):
        code, out, err = vitrail_command(
            "push", tmp_path / "model", f"me/{to}", "--to", to, "--private", "--json"
        )
        assert code == 0, err
        pushed, repository = json.loads(out), hub.repositories[f"me/{to}"]
        assert repository.private and pushed["revision"] == repository.branches["main"]
        files = repository.commits[pushed["revision"]]
        assert files["picture.png"].startswith(b"\x89PNG") and b"license: mit" in files["README.md"]
        loaded = vitrail.load(f"hub:me/{to}@{pushed['revision']}")
        assert model_digest(loaded) == model_digest(model) and loaded.license == model.license
    vitrail.push(model, "hub:me/bundle", revision="second", message="Again")
    repository = hub.repositories["me/bundle"]
    assert "picture.png" in repository.commits[repository.branches["main"]]
    card = repository.commits[repository.branches["second"]]["README.md"].decode()
    assert "hub:me/bundle@second" in card
    for settings in ({"to": "npz"}, {"repository": "a/b/c"}):
        with pytest.raises(ConfigError):
            vitrail.push(model, **({"repository": "me/x"} | settings))
    code, _, err = vitrail_command("push", tmp_path / "model", "me/x", "--license", "GPL-3.0")
    assert code == 2 and "states its license" in err and "me/x" not in hub.repositories


def test_every_verb_takes_such_names_from_the_shell(tmp_path, hub, model):
    """As people set it up: by variables alone."""
    vitrail.save(model, tmp_path / "model")
    sha = put(hub, "owner/name", tmp_path / "model")
    for i, name in enumerate(named(7)):
        (tmp_path / "photos" / name).mkdir(parents=True)
        (tmp_path / "photos" / name / f"{i}.ppm").write_bytes(b"P6 1 1 255\n" + bytes([9 * i] * 3))
    script = f"""
import sys
from vitrail import cli
for words in (["cost", "hub:owner/name"], ["predict", "hub:owner/name", "photos", "--json"],
              ["evaluate", "hub:owner/name@{sha}", "photos?test=0&validation=0", "--split", "train"],
              ["convert", "hub:owner/name", "converted"]):
    cli.main(words)
"""
    variables = {"HF_ENDPOINT": hub.url, "HF_HUB_CACHE": str(tmp_path / "other"), "HF_HUB_DISABLE_XET": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script], env=os.environ | variables | {"PYTHONPATH": str(ROOT)},
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert vitrail.load(tmp_path / "converted").provenance["hub"]["revision"] == sha
