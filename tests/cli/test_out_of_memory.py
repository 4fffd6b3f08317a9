"""Memory that has run out, on the command line: one line, with the flags that need less; never a traceback."""

import pytest
import torch

from tests.train.small import experiment
from vitrail.cli.out_of_memory import FLAGS, LESS
from vitrail.train.fit import Loop
from vitrail.train.run import run

SHAPES = "shapes?image_size=16&n=80"
CUDA = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 15.77 GiB."
SHM = "unable to allocate shared memory(shm) for file </torch_1_2_3>: No space left on device (28)"


@pytest.mark.parametrize("verb", FLAGS)
def test_the_flags_are_there(verb, vitrail_command):
    code, out, _ = vitrail_command(verb, "--help")
    assert code == 0
    assert [flag for flag in FLAGS[verb] if flag not in out] == []
    assert set(FLAGS[verb]) <= set(LESS)


@pytest.mark.parametrize(
    ("verb", "error", "words"),
    [
        ("evaluate", torch.OutOfMemoryError(CUDA), ["GPU", "2.00 GiB", "--batch"]),
        ("evaluate", MemoryError(), ["--batch-size", "--num-workers"]),
        ("fewshot", RuntimeError(SHM), ["shared memory", "--num-workers 0", "--shm-size"]),
        ("predict", RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED"), ["GPU", "--image-size"]),
        ("data", MemoryError("std::bad_alloc"), ["out of memory"]),
    ],
)  # fmt: skip
def test_one_line_and_exit_code_2(verb, error, words, vitrail_command, monkeypatch):
    def fail(given):
        raise error

    monkeypatch.setattr("vitrail.cli.run", fail)
    code, out, err = vitrail_command(verb)
    assert (code, out) == (2, "")
    assert err.startswith("error: ") and err.count("\n") == 1
    assert [word for word in words if word not in err] == []


def test_a_fault_of_ours_keeps_its_traceback(vitrail_command, monkeypatch):
    def fail(given):
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    monkeypatch.setattr("vitrail.cli.run", fail)
    with pytest.raises(RuntimeError, match="mat1"):
        vitrail_command("evaluate")


def training(out, *more):
    """The words of a run of six steps that saves every second."""
    return (
        "pretrain", "--model", "mu/8@16", "--data", SHAPES, "--batch-size", 8, "--steps", 6, "--warmup", 1,
        "--save-every", 2, "--evaluate-every", 0, "--compile", "off", "--out", out, "--device", "cpu", *more,
    )  # fmt: skip


def test_a_run_says_where_it_stands_and_goes_on(vitrail_command, monkeypatch, tmp_path, caplog):
    update = Loop.update

    def until_it_is_full(self, step, *others):
        if step == 5:
            raise torch.OutOfMemoryError(CUDA)
        return update(self, step, *others)

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "update", until_it_is_full)
        code, _, err = vitrail_command(*training(tmp_path / "run"))
        said = err.splitlines()[-1]
        assert code == 2 and "Traceback" not in err
        assert f"{tmp_path / 'run'} is saved at step 4" in said and "--grad-accum" in said
        with pytest.raises(torch.OutOfMemoryError):  # in Python it is what it was
            run(experiment(steps=6), tmp_path / "other", device="cpu")
    assert vitrail_command(*training(tmp_path / "run"))[0] == 0
    assert "step 4 of 6" in caplog.text
