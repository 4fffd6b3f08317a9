"""pretrain and finetune, as the command line calls them: what is shown, and that the flags reach the experiment."""

import json
import re

import pytest

import vitrail
from vitrail.api import default_out
from vitrail.cli.train_flags import word_after
from vitrail.cli.train_verbs import finetune_command, pretrain_command
from vitrail.cli.verb import show
from vitrail.errors import ConfigError
from vitrail.recipes.names import RECIPES
from vitrail.train.keywords import override
from vitrail.train.settings import Experiment

SHAPES = "shapes?image_size=32"
TINY = ("--data", SHAPES, "--model", "mu/8", "--image-size", "32", "--batch-size", "64", "--device", "cpu")


def command(*words):
    return pretrain_command([str(word) for word in words])


def values(shown):
    """field -> value of a dry run's table."""
    return {name.strip(): value for _, name, value in shown.rows}


def test_a_dry_run_needs_no_data(capsys):
    shown = command("--recipe", "vit-b16-i21k", "--dry-run", "--json", "--device", "cpu")
    show(shown)
    made = json.loads(capsys.readouterr().out)
    assert made["steps"] == made["experiment"]["training"]["steps"] == round(90 * 12_400_000 / 4096)
    assert made["experiment"]["optimizer"]["warmup"] == 10_000
    assert made["experiment"]["optimizer"]["lr"] == 1e-3
    assert made["exaflops"] == pytest.approx(117.7, rel=1e-3)
    assert made["memory_bytes"] == made["state_bytes"] + made["activation_bytes"]
    assert made["seconds"] == pytest.approx(made["accelerator_days"] * 86_400)
    assert "83.97" in made["claim"]


def test_the_ramp_of_an_average_is_a_flag():
    made = command("--ema", "0.9", "--ema-ramp", "--dry-run", "--device", "cpu").result["experiment"]
    assert (made["optimizer"]["ema"], made["optimizer"]["ema_ramp"]) == (0.9, True)
    boxed = command("--recipe", "ti8-64", "--dry-run", "--device", "cpu").result["experiment"]
    assert boxed["optimizer"]["ema_ramp"]
    plain = command("--recipe", "ti8-64", "--no-ema-ramp", "--dry-run", "--device", "cpu")
    assert plain.result["changes"] == ["ema_ramp"]


def test_a_recipe_with_other_settings_makes_no_claim():
    as_it_is = command("--recipe", "vit-b16-i1k", "--dry-run", "--num-workers", "3", "--device", "cpu")
    assert as_it_is.result["changes"] == [] and len(as_it_is.after) == 1
    other = command(
        "--recipe", "vit-b16-i1k", "--dry-run", "--model", "Ti/16", "--lr", "1", "--device", "cpu"
    )
    assert sorted(other.result["changes"]) == ["lr", "model"]
    assert "lr" in other.after[-1] and "model" in other.after[-1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["--model", "ti8-64", "--pool", "mean", "--pre-logits"],
            "pool, pre_logits cannot be set for weights",
        ),
        (["--objective", "masked-patches", "--mixup", "0.1"], "mixup 0.1"),
    ],
)
def test_the_dry_run_refuses_what_the_run_would(words, said):
    with pytest.raises(ConfigError, match=said):
        command("--dry-run", "--device", "cpu", *words)


def test_the_dry_run_is_for_the_processes_that_it_names():
    sharded = ("--dry-run", *TINY, "--parallel", "fsdp", "--replicas", "2")
    assert command(*sharded, "--processes", "4").result["processes"] == 4
    with pytest.raises(ConfigError, match="replicas=2: 1 processes cannot form"):
        command(*sharded)
    with pytest.raises(
        ConfigError, match="batch_size 64 cannot be split into equal parts: 3 for the processes"
    ):
        command("--dry-run", *TINY, "--processes", "3")


def test_settings_that_contradict_each_other_are_refused_by_the_parser(capsys):
    with pytest.raises(SystemExit):
        command("--patience", "3", "--device", "cpu")
    assert "patience 3" in capsys.readouterr().err


def test_the_dry_run_of_b16_on_jft_has_the_papers_exaflops():
    shown = command("--recipe=vit-b16-jft", "--dry-run", "--device", "cpu")
    assert values(shown)["exaFLOPs"] == "223.7"  # the paper: 224
    assert values(shown)["steps"] == "517,822 (2,120,998,912 images)"
    assert "TPUv3 core" in values(shown)["time"]


def test_the_dry_run_counts_the_users_data():
    shown = command(*TINY, "--dry-run", "--steps", "2ep", "--peak-tflops", "1", "--processes", "2")
    assert shown.result["examples"] == 3600
    assert shown.result["classes"] == 10
    assert shown.result["steps"] == round(2 * 3600 / 64)
    assert shown.result["seconds"] == pytest.approx(shown.result["flops"] / (2 * 1e12 * 0.4))
    assert shown.result["image_size"] == (32, 32)


def test_the_dry_run_shows_what_the_model_and_the_data_fill_in():
    shown = command(*TINY, "--dry-run", "--pool", "mean")
    made = shown.result["experiment"]
    assert {"image_size": 32, "pool": "mean", "dropout": 0.0, "drop_path": 0.0}.items() <= made[
        "model"
    ].items()
    data = made["data"]
    assert (data["train"], data["val"]) == ("train[:90% per class]", "train[90%: per class]")
    assert data["test"] == "test"
    assert data["preprocess"] == "inception_crop(32)|flip_lr|uint8|to_range(-1, 1)"
    assert data["evaluate_preprocess"] == "resize_small(37)|central_crop(32)|uint8|to_range(-1, 1)"
    assert values(shown)["preprocess"] == data["preprocess"]


def test_the_dry_run_from_weights_shows_what_they_say():
    box = vitrail.load("ti8-64")
    made = command("--data", SHAPES, "--model", "ti8-64", "--dry-run").result["experiment"]
    assert made["model"]["drop_path"] == box.config.drop_path == 0.1
    assert (made["model"]["image_size"], made["data"]["evaluate_preprocess"]) == (64, box.preprocess)
    given = ("--evaluate-preprocess", "resize(32)|to_range(0, 1)", "--image-size", "32", "--test", "none")
    data = command("--data", SHAPES, "--model", "ti8-64", "--dry-run", *given).result["experiment"]["data"]
    assert data["preprocess"] == "inception_crop(32)|flip_lr|uint8|to_range(0, 1)"
    assert (data["evaluate_preprocess"], data["test"]) == ("resize(32)|to_range(0, 1)", "none")


def test_the_dry_run_of_a_resnet_has_no_settings_of_a_vit():
    made = command("--recipe", "r50x1-jft", "--dry-run").result["experiment"]
    assert (made["model"]["image_size"], made["model"]["pool"]) == (224, None)
    assert made["data"]["train"] == "auto"  # there is no data to look at


def test_any_field_by_flag():
    shown = command(
        "--recipe", "vit-l16-jft", "--dry-run", "--lr", "3e-5", "--weight-decay", "0.2", "--steps", "10_000",
        "--warmup", "10%", "--batch-size", "512", "--no-pre-logits", "--precision", "float32", "--seed", "7",
    )  # fmt: skip
    made = shown.result["experiment"]
    optimizer = made["optimizer"]
    assert (optimizer["lr"], optimizer["warmup"], optimizer["weight_decay"]) == (3e-5, 1000, 0.2)
    assert made["training"]["steps"] == 10_000
    assert (made["data"]["batch_size"], made["model"]["pre_logits"], made["seed"]) == (512, False, 7)
    assert (made["model"]["model"], optimizer["schedule"]) == ("L/16", "linear")  # the recipe's


def test_the_list():
    shown = command("--recipe", "list", "--json")
    assert shown.common.json
    assert [row[0] for row in shown.rows] == list(RECIPES)
    first = {row["name"]: row for row in shown.result["recipes"]}["vit-h14-jft"]
    assert (first["model"], first["data"], first["steps"], first["lr"]) == (
        "H/14",
        "JFT-300M",
        "14ep",
        3e-4,
    )
    assert "2,500 TPUv3-core-days" in first["cost"] and "88.08%" in first["claim"]


def test_the_list_has_a_line_for_each_recipe_at_80_columns(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    show(command("--recipe", "list"))
    begun = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert [word for word in begun if word in RECIPES] == begun[2:-1] == list(RECIPES)


@pytest.mark.parametrize("parse", [pretrain_command, finetune_command])
def test_every_flag_has_its_text(capsys, monkeypatch, parse):
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit):
        parse(["--help"])
    texts = help_texts(capsys.readouterr().out)
    assert len(texts) > 40
    bare = {flag for flag, text in texts.items() if text.startswith("(default")}
    assert not bare
    architecture = {f"--{name.replace('_', '-')}" for name in vars(Experiment().model)}  # their group says it
    unsaid = {flag for flag, text in texts.items() if "(default: None)" in text and "if unset" not in text}
    assert unsaid <= architecture


def help_texts(said):
    """flag -> what --help says of it"""
    flag, texts = "", {}
    for line in said.splitlines():
        entry = line.strip("│| ")
        if entry.startswith("--"):
            words, *text = re.split(" {2,}", entry, maxsplit=1)
            flag = words.split()[0]
            texts[flag] = "".join(text)
        elif line[1:].startswith("   ") and flag:
            texts[flag] = f"{texts[flag]} {entry}".strip()
    return texts


def test_help_shows_the_recipe(capsys):
    with pytest.raises(SystemExit) as stop:
        command("--recipe", "vit-b16-i1k", "--help")
    assert stop.value.code == 0
    said = capsys.readouterr().out
    assert "77.91" in said and "TPUv3-core-days" in said and "--weight-decay" in said


def test_it_trains(tmp_path):
    shown = command(
        *TINY, "--steps", "3", "--evaluate-every", "3", "--test", "none", "--out", tmp_path / "run"
    )
    rows = dict(shown.rows)
    assert rows["steps"] == "3"
    assert "% (" in rows["val top-1"] and "n = 400" in rows["val top-1"]
    assert (tmp_path / "run" / "model" / "model.json").exists()
    assert shown.result["folder"] == str(tmp_path / "run")
    assert f"finetune --model {tmp_path / 'run' / 'model'}" in shown.after[0]
    assert "evaluate" in shown.after[1] and "'shapes?image_size=32'" in shown.after[1]


def test_without_a_test_split_finetune_says_so_and_names_only_what_is_there(tmp_path):
    words = [*TINY, "--steps", "1", "--test", "none", "--out", tmp_path / "run"]
    said = finetune_command([str(word) for word in words]).after
    assert "4,000 images for 1 steps" in said[0]
    assert "Not tested" in said[1] and "--test 'train[90%: per class]'" in said[1]
    assert said[2].startswith("Calibrated on 1,000 images")
    assert said[3] == f"Pictures: {tmp_path / 'run' / 'figures'} (loss)"
    assert [file.name for file in (tmp_path / "run" / "figures").iterdir()] == ["loss.png"]


def test_the_help_of_finetune_explains_what_can_be_trained(capsys):
    with pytest.raises(SystemExit):
        finetune_command(["--help"])
    said = capsys.readouterr().out
    assert said.count("adapters of rank 8 and") == 1 and "largest global norm of" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--recipe", "vit-b17-i21k"], "did you mean vit-b16-i21k"),
        (["--recipe", "vit-b16-i21k"], "no data"),
        (["--dry-run", "--model", "Q/16"], "Q/16"),
        (["--dry-run", "--image-size", "225"], "225"),
        (["--dry-run", "--processes", "3"], "256 .* 3 "),
        (["--dry-run", "--data", SHAPES, "--recipe", "vit-b16-i1k"], "3600 examples"),
        (["--dry-run", "--steps", "soon"], "soon"),
    ],
)
def test_bad_input(words, said):
    with pytest.raises(ConfigError, match=said):
        command(*words, "--device", "cpu")


@pytest.mark.parametrize(
    ("recipe", "model", "data", "folder"),
    [
        ("vit-b16-i21k", "B/16", "/data/photos/", "runs/data-photos-vit-b16-i21k"),
        ("", "B/16", "shapes?image_size=32", "runs/shapes-b-16"),
        ("", "Ti/16@64", "hf:owner/My Set", "runs/owner-my-set-ti-16-64"),
    ],
)
def test_default_folder(recipe, model, data, folder):
    made = override(Experiment(), {"model": model, "data": data})
    assert default_out(recipe, made).as_posix() == folder


def test_default_folder_of_what_is_there(tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "run/model").mkdir(parents=True)
    paths = {"model": f"{tmp_path}/run/model", "data": f"{tmp_path}/photos/"}
    made = default_out("", override(Experiment(), paths))
    assert made.as_posix() == "runs/photos-run"


def test_word_after():
    assert word_after("--recipe", ["--a", "--recipe", "b"]) == "b"
    assert word_after("--recipe", ["--recipe=c", "--d"]) == "c"
    assert word_after("--recipe", ["--recipes", "x"]) == word_after("--recipe", ["--recipe"]) == ""
    assert word_after("--recipe", []) == ""


def test_every_field_of_the_architecture_is_a_flag():
    words = [
        "--positions",
        "2d",
        "--positions-at",
        "every",
        "--pool",
        "mean",
        "--depth",
        "3",
        "--mlp-dim",
        "96",
    ]
    made = command(*TINY, "--dry-run", *words).result["experiment"]["model"]
    assert (made["positions"], made["positions_at"], made["pool"]) == ("2d", "every", "mean")
    assert (made["depth"], made["mlp_dim"], made["width"]) == (3, 96, 32)


def test_help_of_finetune_shows_the_values_that_will_be_used(capsys, monkeypatch):
    """The protocol's, for this data and this model; what is given goes before them."""
    monkeypatch.setenv("COLUMNS", "100")

    def defaults(*words):
        with pytest.raises(SystemExit):
            finetune_command([*words, "--help"])
        texts = help_texts(capsys.readouterr().out)
        return {flag: text.rpartition("(default: ")[2].rstrip(")") for flag, text in texts.items()}

    small = defaults(*TINY[:4], "--device", "cpu")
    assert (small["--steps"], small["--lr"], small["--batch-size"]) == ("1250", "0.01", "64")
    paper = defaults(*TINY[:4], "--device", "cpu", "--protocol", "paper", "--optimizer", "adamw")
    assert (paper["--steps"], paper["--lr"], paper["--batch-size"]) == ("500", "0.0003", "512")
    assert defaults("--data", "shapes?image_size=16&n=80", *TINY[2:4])["--batch-size"] == "8"
    assert defaults("--recipe", "flowers")["--dev"] == "0.1"


def test_help_shows_the_architecture_that_will_be_used(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")

    def defaults(parse, *words):
        with pytest.raises(SystemExit):
            parse([*words, "--help"])
        texts = help_texts(capsys.readouterr().out)
        return {flag: text.rpartition("(default: ")[2].rstrip(")") for flag, text in texts.items()}

    fresh = defaults(pretrain_command, "--model", "S/8@64")
    assert (fresh["--width"], fresh["--heads"], fresh["--image-size"]) == ("384", "6", "64")
    assert (fresh["--positions"], fresh["--pool"], fresh["--model"]) == ("1d", "token", "S/8@64")
    assert defaults(pretrain_command, "--model", "R50x1")["--width"] == "None"  # a ResNet has no such setting
    loaded = defaults(finetune_command, "--data", "shapes?image_size=16&n=80", "--model", "ti8-64")
    assert (loaded["--width"], loaded["--drop-path"]) == ("192", "0.1")


def test_whatever_pretrain_can_set_finetune_can_set(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    flags = []
    for parse in (pretrain_command, finetune_command):
        with pytest.raises(SystemExit):
            parse(["--help"])
        flags.append(set(help_texts(capsys.readouterr().out)))
    apart = {"--objective", "--dry-run", "--processes", "--peak-tflops", "--utilisation"}
    assert flags[0] - flags[1] == apart
    assert flags[1] - flags[0] == {"--protocol", "--sweep", "--lrs", "--dev", "--seeds", "--budget"}
