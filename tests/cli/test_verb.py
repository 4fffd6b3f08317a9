"""What verbs have to say, printed: names from other people's files are only ever shown."""

import inspect
import io
import json
import math
from typing import get_args

import pytest
from rich.console import Group
from rich.text import Text

from vitrail.checkpoints.bundle import PRECISIONS
from vitrail.checkpoints.formats import FORMATS
from vitrail.cli import evaluate_verbs, model_verbs
from vitrail.cli.verb import Common, Device, Extracting, Format, Output, show
from vitrail.data.bad_files import BadFiles
from vitrail.evaluators import accuracy, fewshot, knn
from vitrail.inference.features import Extraction
from vitrail.runtime import device
from vitrail.train import estimate
from vitrail.transfer import protocols, suite

CLIPBOARD = "\x1b]52;c;cm0gLXJmIH4=\x1b\\"
HOSTILE = [CLIPBOARD, "\x1b[31m", "\x9b31m", "\u202e", "\udce9", "\ud800"]


@pytest.fixture
def printed(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")

    def printed(*given, json=False, **more):
        show(Output(Common(json=json), *given, **more))
        return capsys.readouterr().out

    return printed


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize(
    "place",
    [
        lambda name: ((["image", ">class"], [[name, name]], {}), {}),
        lambda name: (([f">{name}"], [["a"]], {}), {}),
        lambda name: (([], [], {}), {"body": Group(Text(f"- {name}"), Text("all"))}),
        lambda name: ((["a"], [["b"]], {}), {"after": [f"Worst classes: {name}"]}),
    ],
    ids=["cells", "heading", "body", "after"],
)
def test_no_name_speaks_to_the_terminal(printed, place, text):
    given, more = place(f"cat{text}dog")
    out = printed(*given, **more)
    assert text not in out and "cat\\" in out
    assert all(c == "\n" or c.isprintable() for c in out)


def test_a_name_of_two_lines_is_one_cell(printed):
    out = printed(["image"], [["a\nerror: b"], ["c"]], {})
    assert r"a\nerror: b" in out


def test_json_is_exact(printed):
    result = {"name": "".join(HOSTILE), "long": "y" * 100_000}
    assert json.loads(printed([], [], result, json=True)) == result


def test_letters_that_the_terminal_does_not_have(monkeypatch):
    from vitrail.cli import main

    monkeypatch.setattr(
        "vitrail.cli.run", lambda _: Output(Common(), ["class"], [["日本 é"]], {}, after=["日本"])
    )
    stdout = io.TextIOWrapper(io.BytesIO(), encoding="latin-1", errors="strict")
    monkeypatch.setattr("sys.stdout", stdout)
    main([])
    assert rb"\u65e5\u672c " + b"\xe9" in stdout.buffer.getvalue()


def default(function, name):
    """Of a verb's flag, or of a class's field."""
    return inspect.signature(function).parameters[name].default


# the value: where else it is written
TWICE = {
    "l2 of fewshot": ("2^10", f"2^{math.log2(fewshot.L2):g}"),  # as --help says
    "seeds of fewshot": (3, default(evaluate_verbs.fewshot, "seeds"), default(fewshot.FewShot, "seeds")),
    "draws": (
        get_args(fewshot.Draws),
        get_args(inspect.get_annotations(evaluate_verbs.fewshot, eval_str=True)["draws"]),
    ),
    "k": ((20,), default(evaluate_verbs.knn, "k"), default(knn.KNN, "k")),
    "temperature": (0.07, default(evaluate_verbs.knn, "temperature"), knn.TEMPERATURE),
    "l2 of linear": ((), default(evaluate_verbs.linear, "l2"), suite.SUITE.l2),
    "peak": (61.5e12, default(model_verbs.cost, "peak_tflops") * 1e12, estimate.TPU_V3_CORE),
    "utilisation": (0.4, default(model_verbs.cost, "utilisation"), estimate.UTILISATION),
    "broken images": (
        0.01,
        default(evaluate_verbs.Probing, "max_bad"),
        default(evaluate_verbs.Passing, "max_bad"),
        default(Extracting, "max_bad"),
        default(BadFiles, "max_bad"),
        default(Extraction, "max_bad"),
        default(accuracy.evaluate, "max_bad"),
    ),
    "features": (
        "pre_logits",
        *(default(one, "which") for one in (evaluate_verbs.Probing, Extracting, Extraction)),
    ),
    "devices": (("auto", "cpu", "cuda", "mps"), get_args(Device), get_args(device.Device)),
    "formats": (("bundle", "npz", "timm", "huggingface", "torchvision"), get_args(Format), tuple(FORMATS)),
    "methods": (("fewshot", "linear", "knn", "finetune"), get_args(suite.Method), tuple(suite.FIELDS)),
    "protocols": (
        ("default", "plain", "paper", "augreg", "bit"),
        get_args(inspect.get_annotations(suite.SuiteSettings, eval_str=True)["protocol"]),
        tuple(protocols.PROTOCOLS),
    ),
    "precisions": (
        ("float32", "float16"),
        get_args(inspect.signature(model_verbs.convert, eval_str=True).parameters["precision"].annotation),
        tuple(PRECISIONS),
    ),
}


@pytest.mark.parametrize("name", TWICE)
def test_what_is_written_twice_is_written_alike(name):
    """So that --help is free of torch, the flags say again what the code behind them says."""
    value, *others = TWICE[name]
    assert others == [value] * len(others)
