"""A change that should not change training does not change a bit of it, on the processor of the stored numbers."""

import json

import numpy as np
import pytest

from tests.golden import regenerate
from tests.golden.traces import FOLDER, STEPS, TRACES, trace


@pytest.mark.parametrize("name", TRACES)
def test_twenty_steps_are_those_that_were_stored(name, tmp_path):
    stored = json.loads((FOLDER / f"{name}.json").read_text())
    assert stored["why"] and len(stored["losses"]) == STEPS and np.ptp(stored["losses"]) > 0.05
    made = trace(name, tmp_path)
    np.testing.assert_allclose(made["losses"], stored["losses"], rtol=0, atol=2e-5)
    if made["key"] == stored["key"]:
        assert made["losses"] == stored["losses"]
        assert made["weights"] == stored["weights"]


@pytest.mark.parametrize("words", [[], ["--why", " "], ["pretraining"], ["--why", "new words", "nothing"]])
def test_nothing_is_written_without_a_reason(words, tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        regenerate.main(words, tmp_path)
    assert stop.value.code == 2
    assert not any(tmp_path.iterdir())
    assert "--why" in capsys.readouterr().err


def test_the_reason_is_stored(tmp_path, monkeypatch):
    monkeypatch.setattr(regenerate, "trace", lambda name, folder: {"losses": [1.5], "weights": "ab"})
    regenerate.main(["--why", "another rate", "pretraining"], tmp_path)
    (path,) = tmp_path.iterdir()
    assert path.name == "pretraining.json"
    assert json.loads(path.read_text()) == {"why": "another rate", "losses": [1.5], "weights": "ab"}
