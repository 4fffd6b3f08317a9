"""The license of weights and data: stated once, inherited by everything that is made from them, never guessed."""

import json

import pytest
import torch

import vitrail
from tests.train.small import DATA, experiment
from vitrail.checkpoints import license
from vitrail.checkpoints.formats import FORMATS, convert
from vitrail.checkpoints.license import find_license
from vitrail.errors import CheckpointError, ConfigError
from vitrail.train.run import run

STATED = {"weights": "for my\nstudents only", "data": "photographs of mine"}
CARRYING = ("bundle", "timm", "huggingface")


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """A small model whose license is stated."""
    torch.manual_seed(0)
    model = vitrail.create("mu/8@16", classes=3)
    model.license = STATED
    path = tmp_path_factory.mktemp("start") / "model"
    vitrail.save(model, path)
    return path


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    """The included model, fine-tuned a little."""
    out = tmp_path_factory.mktemp("tuned") / "run"
    return vitrail.finetune(
        DATA, "ti8-64", out=out, device="cpu", steps=1, batch_size=4, image_size=16, test="none"
    )


def where(folder, to):
    return folder / {"npz": "m.npz", "torchvision": "m.pth"}.get(to, to)


def test_the_box_is_for_non_commercial_use():
    stated = vitrail.load("ti8-64").license
    assert set(stated) == {"weights", "data"}
    assert all("non-commercial" in text for text in stated.values()) and "ImageNet" in stated["data"]


def test_fine_tuning_inherits_it(tuned):
    included, made = vitrail.load("ti8-64").license, tuned.model().license
    assert made["weights"] == included["weights"]
    assert (
        made["data"].startswith(included["data"]) and "unknown" in made["data"]
    )  # of the data that came on top
    assert tuned.results["license"] == made
    assert json.loads((tuned.folder / "model/model.json").read_text())["license"] == made
    assert included["weights"] in (tuned.folder / "results.md").read_text()


@pytest.mark.parametrize("to", FORMATS)
def test_every_format_carries_it_or_says_that_it_does_not(tuned, to, tmp_path, caplog):
    made = convert(tuned.folder / "model", where(tmp_path, to), to=to)
    stated = tuned.model().license
    assert made.license == stated
    said = [record.getMessage() for record in caplog.records if stated["weights"] in record.getMessage()]
    if to not in CARRYING:
        assert len(said) == 1
        return
    assert not said
    assert vitrail.load(where(tmp_path, to)).license == stated
    if to != "bundle":
        card = (where(tmp_path, to) / "README.md").read_text()
        assert card.startswith("---\nlicense: other\nlicense_name: non-commercial-")
        assert stated["data"] in card


def test_it_comes_through_any_chain(start, tmp_path):
    path = start
    for i, to in enumerate(("timm", "bundle", "huggingface", "timm", "huggingface", "bundle")):
        convert(path, tmp_path / str(i), to=to)
        path = tmp_path / str(i)
    assert vitrail.load(path, classes=5, image_size=24).license == STATED


def test_training_on_from_weights_inherits_it(start, tmp_path):
    trained = run(experiment(model=str(start), steps=3, evaluate_every=0), tmp_path / "a", device="cpu")
    made = trained.model().license
    assert made["weights"] == STATED["weights"] and made["data"].startswith(STATED["data"])
    more = experiment(model=str(trained.folder / "model"), steps=3, evaluate_every=0)
    assert run(more, tmp_path / "b", device="cpu").model().license == made  # said once


def test_fine_tuning_says_it_once_at_the_start(start, tmp_path, caplog):
    vitrail.finetune(
        DATA, start, out=tmp_path / "a", device="cpu", steps=1, batch_size=4, seeds=2, sweep=True, lrs=(0.1,)
    )
    said = [r.getMessage() for r in caplog.records if STATED["data"] in r.getMessage()]
    assert len(said) == 1 and "\n" not in said[0]


def test_of_fresh_weights_nothing_is_claimed(tmp_path, caplog):
    trained = run(experiment(steps=3, evaluate_every=0), tmp_path / "run", device="cpu")
    unknown = {"weights": "unknown", "data": "unknown"}
    assert json.loads((trained.folder / "model/model.json").read_text())["license"] == unknown
    assert trained.results["license"] == unknown
    assert trained.model().license == {}
    for to in FORMATS:
        convert(trained.folder / "model", where(tmp_path, to), to=to)
    assert "license" not in caplog.text
    for to in ("timm", "huggingface"):
        assert (tmp_path / to / "README.md").read_text().startswith("---\nlicense: unknown\n---")
        assert vitrail.load(tmp_path / to).license == {}
    assert "license" not in json.loads((tmp_path / "timm/config.json").read_text())["pretrained_cfg"]


def test_a_bundle_from_before_is_of_unknown_license(start, tmp_path):
    convert(start, tmp_path / "old")
    path = tmp_path / "old/model.json"
    card = json.loads(path.read_text())
    del card["license"], card["sha256"]
    path.write_text(json.dumps(card | {"version": 1}))
    assert vitrail.load(tmp_path / "old").license == {}


def test_who_made_the_weights_states_it_and_others_do_not_change_it(start, tmp_path):
    vitrail.save(vitrail.create("mu/8@16", classes=3), tmp_path / "mine")
    convert(tmp_path / "mine", tmp_path / "timm", to="timm", license="Apache-2.0")
    assert vitrail.load(tmp_path / "timm").license == {"weights": "Apache-2.0"}
    assert (tmp_path / "timm/README.md").read_text().startswith("---\nlicense: apache-2.0\n---")
    settings = json.loads((tmp_path / "timm/config.json").read_text())["pretrained_cfg"]
    assert settings["license"] == "Apache-2.0"
    with pytest.raises(ConfigError, match="students only"):
        convert(start, tmp_path / "other", license="Apache-2.0")
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("wrong", ["MIT", None, {"weights": 1}, {"code": "MIT"}, {"data": "x" * 10_000}])
def test_what_is_no_license_is_refused(wrong, start, tmp_path):
    model = vitrail.create("mu/8@16")
    model.license = wrong
    with pytest.raises(ConfigError, match="license"):
        vitrail.save(model, tmp_path / "model")
    convert(start, tmp_path / "bundle")
    path = tmp_path / "bundle/model.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"license": wrong}))
    with pytest.raises(CheckpointError, match="license"):
        vitrail.load(tmp_path / "bundle")


@pytest.mark.parametrize(
    ("card", "found"),
    [
        (None, {}),
        ({"license": "mit"}, {"weights": "mit"}),
        ({"pretrained_cfg": {"license": "apache-2.0"}}, {"weights": "apache-2.0"}),
        ({"license": {"weights": "unknown", "data": "mine"}}, {"data": "mine"}),
        ({"license": ["mit"], "pretrained_cfg": 3}, {}),
        ({"license": {"weights": 3, "code": "mit"}}, {}),
    ],
)
def test_what_other_peoples_config_files_state(card, found):
    assert license.find_license(card) == found


def test_on_the_command_line(start, tmp_path, vitrail_command):
    code, out, _ = vitrail_command("models")
    assert code == 0 and "non-commercial" in out
    (one,) = json.loads(vitrail_command("models", "--json")[1])["included"]
    assert one["license"] == vitrail.load("ti8-64").license
    made = json.loads(vitrail_command("convert", start, tmp_path / "a.npz", "--to", "npz", "--json")[1])
    assert made["license"] == STATED
    assert "students only" in vitrail_command("convert", start, tmp_path / "b")[1]


@pytest.mark.parametrize(
    ("readme", "stated"),
    [
        ("---\nlicense: apache-2.0\ntags: [x]\n---\ntext", "apache-2.0"),
        (
            "---\nlicense: other\nlicense_name: dinov3-license\nlicense_link: https://x.y\n---\n",
            "dinov3-license, https://x.y",
        ),
        ("---\nlicense: unknown\n---\n", None),
        ("license: mit", None),
        ("", None),
    ],
)
def test_the_license_of_a_readme(readme, stated):
    assert find_license({}, readme) == ({"weights": stated} if stated else {})
    assert find_license({"license": {"weights": "MIT"}}, readme) == {"weights": "MIT"}
