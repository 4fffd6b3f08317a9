import json
import math
import os
import re
import resource
import shutil
from contextlib import closing
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError

from vitrail.checkpoints.run import Run
from vitrail.checkpoints.run.state import seal
from vitrail.errors import CheckpointError, ConfigError

CONFIG = {"model": {"name": "Ti/8", "width": 192}, "betas": (0.9, 0.999), "steps": 100}


def state_of(value):
    return {
        "model.w": torch.full((3, 4), float(value)),
        "model.half": torch.full((5,), float(value), dtype=torch.bfloat16),
        "optimizer.step": torch.tensor(value),
        "generator": torch.full((16,), value, dtype=torch.uint8),
    }


def assert_equal(state, value):
    for name, t in state_of(value).items():
        assert torch.equal(state[name], t), name


@pytest.fixture
def run(tmp_path):
    run = Run.open(tmp_path / "run", CONFIG)
    yield run
    run.close()


def checkpoint(run, step):
    return run.path / "checkpoints" / f"step-{step:08d}"


# --- opening ---


def test_run_json_says_what_the_run_is(run):
    card = json.loads((run.path / "run.json").read_text())
    assert card["config"] == {**CONFIG, "betas": [0.9, 0.999]}
    assert card["versions"].keys() == {"vitrail", "numerics", "python", "torch", "numpy"}
    assert card["versions"]["torch"] == torch.__version__
    assert card["git"] is None or len(card["git"]["commit"]) == 40


@pytest.mark.parametrize("version", [None, 1, 3])
def test_a_run_of_another_version_is_refused_in_one_sentence_and_stays_as_it_is(run, version):
    run.close()
    content = json.loads((run.path / "run.json").read_text())
    assert content.pop("format") == 2
    (run.path / "run.json").write_text(json.dumps(content | ({} if version is None else {"format": version})))
    before = (run.path / "run.json").read_bytes()
    with pytest.raises(
        CheckpointError, match=r"written by an? \w+ version of vitrail .*choose another folder"
    ):
        Run.open(run.path, CONFIG)
    assert (run.path / "run.json").read_bytes() == before


def test_opened_again_with_the_same_config_nothing_is_written_anew(run):
    before = (run.path / "run.json").read_bytes()
    run.close()
    Run.open(run.path, CONFIG).close()
    assert (run.path / "run.json").read_bytes() == before


def test_another_config_is_refused_by_the_names_and_values_that_differ(run):
    run.close()
    before = (run.path / "run.json").read_bytes()
    other = {"model": {"name": "Ti/8", "width": 384}, "betas": (0.9, 0.999), "epochs": 3}
    with pytest.raises(ConfigError) as refused:
        Run.open(run.path, other)
    for words in (
        "model.width is 192 there, 384 here",
        "steps is 100 there, not set here",
        "epochs is not set",
    ):
        assert words in str(refused.value)
    assert "betas" not in str(refused.value) and "Ti/8" not in str(refused.value)
    assert (run.path / "run.json").read_bytes() == before
    Run.open(run.path, CONFIG).close()  # the refusal has let go of it


def test_a_folder_of_something_else_is_refused(tmp_path):
    (tmp_path / "holiday.jpg").write_text("")
    with pytest.raises(ConfigError, match=r"contains holiday\.jpg"):
        Run.open(tmp_path, CONFIG)
    assert [p.name for p in tmp_path.iterdir()] == ["holiday.jpg"]
    with pytest.raises(ConfigError, match="is a file"):
        Run.open(tmp_path / "holiday.jpg", CONFIG)
    with pytest.raises(ConfigError, match="at least 1"):
        Run.open(tmp_path / "run", CONFIG, keep=0)


def test_a_second_writer_is_refused_until_the_first_is_gone(run):
    with pytest.raises(ConfigError, match=rf"in use: process {os.getpid()} on \S+ is writing this run"):
        Run.open(run.path, CONFIG)
    run.close()
    second = Run.open(run.path, CONFIG)
    path = second.path
    del second  # the last reference to it
    Run.open(path, CONFIG).close()


def test_other_versions_are_said(run, caplog):
    run.close()
    card = json.loads((run.path / "run.json").read_text())
    card["versions"]["torch"] = "1.0"
    (run.path / "run.json").write_text(json.dumps(card))
    Run.open(run.path, CONFIG).close()
    assert "torch 1.0, now" in caplog.text


def test_results_are_added_to_run_json(run):
    assert run.results() is None
    run.finish({"test_top1": 0.5, "loss": math.nan})
    assert run.results() == {"test_top1": 0.5, "loss": None}
    assert json.loads((run.path / "run.json").read_text())["config"]["steps"] == 100


# --- save and restore ---


def test_what_is_saved_comes_back_in_place_and_exactly(run):
    assert run.restore(state_of(0)) is None
    facts = {"seen": 3, "best": 0.1 + 0.2, "worst": -math.inf, "scores": {"top1": 1e-300}}
    run.save(7, state_of(7), facts)
    state = state_of(0)
    tensors = dict(state)
    assert run.restore(state) == (7, facts)
    assert_equal(tensors, 7)
    assert all(state[name] is t for name, t in tensors.items())


def test_parameters_and_strided_tensors_can_be_saved_and_filled(run):
    w = torch.nn.Parameter(torch.arange(6.0).reshape(2, 3))
    run.save(1, {"w": w, "wT": w.detach().clone().T}, {})
    w2, wT = torch.nn.Parameter(torch.zeros(2, 3)), torch.zeros(2, 3).T
    run.restore({"w": w2, "wT": wT})
    assert torch.equal(w2, w) and torch.equal(wT, w.T)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: s.pop("generator"), "generator is only there"),
        (lambda s: s.update(more=torch.zeros(1)), "more is not in it"),
        (lambda s: s.update({"model.w": torch.zeros(4, 3)}), r"\[3, 4\] there, float32 \[4, 3\] here"),
        (lambda s: s.update({"model.w": torch.zeros(3, 4, dtype=torch.half)}), "float32"),
    ],
)  # fmt: skip
def test_another_architecture_is_an_error_and_changes_nothing(run, change, words):
    run.save(1, state_of(1), {})
    state = state_of(0)
    change(state)
    before = {name: t.clone() for name, t in state.items()}
    with pytest.raises(CheckpointError, match=f"another architecture: .*{words}"):
        run.restore(state)
    assert all(torch.equal(state[name], t) for name, t in before.items())


def test_a_step_that_is_saved_again_is_replaced(run):
    run.save(5, state_of(5), {"n": 1})
    run.save(5, state_of(5), {"n": 2}, score=0.5)
    assert run.restore(state_of(0)) == (5, {"n": 2})
    assert run.best() == 5
    assert [p.name for p in checkpoint(run, 5).parent.iterdir()] == ["step-00000005"]


def test_a_step_can_be_asked_for(run):
    for step in (1, 2):
        run.save(step, state_of(step), {})
    state = state_of(0)
    assert run.restore(state, step=1) == (1, {})
    assert_equal(state, 1)
    with pytest.raises(CheckpointError, match="step-00000009"):
        run.restore(state, step=9)


@settings(max_examples=15)
@given(st.lists(st.sampled_from([None, 0.1, 0.2, 0.3, math.nan]), min_size=1, max_size=6), st.integers(1, 3))
def test_the_last_and_the_best_are_kept(tmp_path_factory, scores, keep):
    run = Run.open(tmp_path_factory.mktemp("run") / "run", {}, keep=keep)
    for step, score in enumerate(scores, 1):
        run.save(step, {"w": torch.tensor(step)}, {}, score=score)
    run.close()
    scored = [(score, -step) for step, score in enumerate(scores, 1) if score is not None and score == score]
    best = -max(scored)[1] if scored else None
    steps = range(1, len(scores) + 1)
    assert run.steps() == sorted({*steps[-keep:]} | ({best} if best else set()))
    assert run.best() == best


# --- damage ---


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGES = {
    "cut": lambda folder: os.truncate(folder / "state.safetensors", 100),
    "longer": lambda folder: os.truncate(folder / "state.safetensors", 10_000),
    "bit of the state": lambda folder: flip(folder / "state.safetensors"),
    "bit of the facts": lambda folder: flip(folder / "facts.json"),
    "bit of the manifest": lambda folder: flip(folder / "manifest.json"),
    "no manifest": lambda folder: (folder / "manifest.json").unlink(),
    "empty manifest": lambda folder: (folder / "manifest.json").write_text("{}"),
    "manifest of another kind": lambda folder: (folder / "manifest.json").write_text('{"files": [1]}'),
    "manifest that points away": lambda folder: (folder / "manifest.json").write_text(
        '{"files": {"facts.json": {}, "state.safetensors": {}, "../step-00000001/facts.json": {}}}'
    ),
    "no state": lambda folder: (folder / "state.safetensors").unlink(),
    "no facts": lambda folder: (folder / "facts.json").unlink(),
    "empty folder": lambda folder: (shutil.rmtree(folder), folder.mkdir()),
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_damaged_newest_checkpoint_is_passed_over_with_a_note(run, caplog, kind):
    for step in (1, 2):
        run.save(step, state_of(step), {"step": step})
    DAMAGES[kind](checkpoint(run, 2))
    state = state_of(0)
    assert run.restore(state) == (1, {"step": 1})
    assert_equal(state, 1)
    assert "step-00000002 is damaged" in caplog.text
    run.save(2, state_of(2), {"step": 2})  # made again
    assert run.restore(state) == (2, {"step": 2})


def test_a_damaged_checkpoint_is_neither_kept_nor_best(tmp_path):
    run = Run.open(tmp_path / "run", {}, keep=1)
    run.save(1, state_of(1), {}, score=0.1)
    run.save(2, state_of(2), {}, score=0.9)
    run.save(3, state_of(3), {}, score=0.2)
    run.save(9, state_of(9), {}, score=1.0)
    assert run.steps() == [9]
    run.keep = 2
    run.save(10, state_of(10), {})
    DAMAGES["cut"](checkpoint(run, 10))
    assert run.restore(state_of(0)) == (9, {})
    run.keep = 1
    run.save(11, state_of(11), {})
    assert run.steps() == [9, 11]  # not the damaged one
    run.close()


def test_the_best_whole_checkpoint_is_found(tmp_path, caplog):
    run, state = Run.open(tmp_path / "run", {}, keep=9), state_of(0)
    for step, score in ((1, 0.5), (2, 0.9), (3, 0.7), (4, None)):
        run.save(step, state_of(step), {"step": step}, score=score)
    for best in (2, 3, 1):
        assert run.restore(state, best=True) == (best, {"step": best})
        assert_equal(state, best)
        DAMAGES["cut"](checkpoint(run, best))
    assert run.restore(state, best=True) is None
    assert_equal(state, 1)  # as it was
    assert "step-00000002 is damaged" in caplog.text
    run.close()


def test_without_a_whole_checkpoint_it_is_an_error(run):
    for step in (1, 2):
        run.save(step, state_of(step), {})
        DAMAGES["cut"](checkpoint(run, step))
    with pytest.raises(CheckpointError, match="no checkpoint before it"):
        run.restore(state_of(0))
    with pytest.raises(CheckpointError, match="step-00000001 is damaged"):
        run.restore(state_of(0), step=1)


def test_a_full_disk_leaves_the_last_good_checkpoint(run):
    run.save(1, state_of(1), {})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
    try:
        with pytest.raises(
            CheckpointError, match=r"cannot be written.*last good checkpoint is .*step-00000001"
        ):
            run.save(2, {**state_of(2), "large": torch.zeros(1000)}, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [p.name for p in checkpoint(run, 1).parent.iterdir()] == ["step-00000001"]
    state = state_of(0)
    assert run.restore(state) == (1, {})
    assert_equal(state, 1)


def test_no_space_is_called_a_full_disk(run, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("vitrail.checkpoints.run.state.save_safetensors", full)
    with pytest.raises(CheckpointError, match=r"disk full .*has not been written yet"):
        run.save(1, state_of(1), {})


def test_what_torch_could_not_write_is_said_to_be_a_full_disk_where_it_is_full(run, monkeypatch):
    def fails(*_):
        raise SafetensorError("unexpected pos 704 vs 598")

    monkeypatch.setattr("vitrail.checkpoints.run.state.save_safetensors", fails)
    for free, words in ((0, r"disk full \(unexpected pos"), (1 << 40, "cannot be written: unexpected pos")):
        usage = SimpleNamespace(free=free)
        monkeypatch.setattr("vitrail.checkpoints.run.state.shutil.disk_usage", lambda _, usage=usage: usage)
        with pytest.raises(CheckpointError, match=words):
            run.save(1, state_of(1), {})


# --- metrics ---


def test_rows_come_back_in_order_and_are_rewound_to_a_step(run):
    for step in (1, 2, 3):
        run.append({"step": step, "loss": 1 / step})
    run.append({"note": "no step"})
    run.append({"step": 2, "loss": math.nan, "norms": [math.inf, 1.0]})
    run.rewind(2)
    assert run.rows() == [
        {"step": 1, "loss": 1.0},
        {"step": 2, "loss": 0.5},
        {"note": "no step"},
        {"step": 2, "loss": None, "norms": [None, 1.0]},
    ]


def test_a_torn_last_line_is_dropped_and_the_next_begins_anew(run):
    run.append({"step": 1})
    with (run.path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 2, "lo')
    assert run.rows() == [{"step": 1}]
    run.close()
    again = Run.open(run.path, CONFIG)
    again.rewind(1)
    again.append({"step": 2})
    assert again.rows() == [{"step": 1}, {"step": 2}]
    again.close()


def test_a_full_disk_tears_no_line(run):
    run.append({"step": 1})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (30, hard))
    try:
        with pytest.raises(OSError, match="space"):
            run.append({"step": 2, "loss": 0.123456789})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    run.append({"step": 3})
    assert run.rows() == [{"step": 1}, {"step": 3}]


@pytest.mark.parametrize("line", ["nonsense", "[" * 100_000, "5", '{"step": "x"}', '{"step": true}'])
def test_a_line_that_is_no_row_is_named(run, line):
    (run.path / "metrics.jsonl").write_text('{"step": 1}\n' + line + '\n{"step": 2}\n')
    with pytest.raises(CheckpointError, match="line 2"):
        run.rows()


def test_numbers_that_json_does_not_have_are_null_whoever_wrote_them(run):
    (run.path / "metrics.jsonl").write_text('{"step": 1, "loss": NaN, "norm": 1e999}\n')
    assert run.rows() == [{"step": 1, "loss": None, "norm": None}]


# --- what somebody changed ---


STEP = "checkpoints/step-00000001"
NAMES = [
    "run.json",
    "metrics.jsonl",
    ".lock",
    "results.md",
    "bad_files.jsonl",
    "figures",
    "model",
    "model/model.json",
]
NAMES += ["model/model.json", "checkpoints", STEP, f"{STEP}/facts.json", f"{STEP}/state.safetensors"]


def listing(folder):
    """Every file below a folder and what is in it."""
    return {p.relative_to(folder): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("kind", ["link", "pipe", "device"])
@pytest.mark.parametrize("name", NAMES)
def test_a_link_a_pipe_or_a_device_is_refused_and_what_it_leads_to_left_alone(run, tmp_path, name, kind):
    run.append({"step": 1})
    run.save(1, state_of(1), {})
    for folder in ("figures", "model", "checkpoints/.step-00000002.partial_", "figures/.loss.png.a1b2c3d4"):
        (run.path / folder).mkdir()
        (run.path / folder / "model.json").write_text("{}")
    run.close()
    place, theirs = run.path / name, tmp_path / "theirs"
    if place.exists():
        place.rename(theirs)
    else:
        theirs.write_text("content")
    before = listing(tmp_path)
    if kind == "pipe":
        os.mkfifo(place)
    else:
        place.symlink_to(theirs if kind == "link" else "/dev/zero")
    what = "neither a file nor a folder" if kind == "pipe" else "a link"
    with pytest.raises(ConfigError, match=rf"{re.escape(name)} is {what}"):
        Run.open(run.path, CONFIG)
    place.unlink()
    assert listing(tmp_path) == before


def test_the_folder_of_a_run_may_be_reached_by_a_link(run, tmp_path):
    run.save(1, state_of(1), {})
    run.close()
    (tmp_path / "link").symlink_to(run.path)
    with closing(Run.open(tmp_path / "link", CONFIG)) as again:
        assert again.restore(state_of(0)) == (1, {})


def test_a_step_of_another_folder_is_not_taken(run, caplog):
    for step in (1, 2):
        run.save(step, state_of(step), {"step": step})
    shutil.copytree(checkpoint(run, 1), checkpoint(run, 7))
    assert run.restore(state_of(0)) == (2, {"step": 2})
    assert "is of step 1" in caplog.text


@pytest.mark.parametrize("left", [[], ["checkpoints"]])
def test_checkpoints_that_are_gone_are_not_taken_for_a_new_run(run, left):
    run.append({"step": 1})
    for step in (1, 2):
        run.save(step, state_of(step), {})
    shutil.rmtree(run.path / "checkpoints")
    for name in left:
        (run.path / name).mkdir()
    run.close()
    with closing(Run.open(run.path, CONFIG)) as again:
        with pytest.raises(CheckpointError, match="written checkpoints since step 1"):
            again.restore(state_of(0))
        assert again.rows() == [{"step": 1}]


def test_a_run_that_was_stopped_before_its_first_checkpoint_begins_anew(run):
    run.append({"step": 1})
    run.close()
    with closing(Run.open(run.path, CONFIG)) as again:
        assert again.restore(state_of(0)) is None


def test_files_have_the_modes_that_the_umask_leaves(tmp_path):
    before = os.umask(0o027)
    try:
        with closing(Run.open(tmp_path / "run", CONFIG)) as run:
            run.append({"step": 1})
            run.save(1, state_of(1), {})
    finally:
        os.umask(before)
    modes = {p.name: p.stat().st_mode & 0o777 for p in (tmp_path / "run").rglob("*")}
    assert {name: mode for name, mode in modes.items() if mode != (0o640 if "." in name else 0o750)} == {}


@pytest.mark.parametrize(
    "config",
    [{"seed": 10**30}, {"a": "x" * (2 << 20)}, {"a": json.loads("[" * 40 + "]" * 40)}],
)
def test_a_config_that_could_not_be_read_again_is_refused_at_the_start(tmp_path, config):
    with pytest.raises(CheckpointError, match=r"run\.json cannot be read as JSON"):
        Run.open(tmp_path / "run", config)
    Run.open(tmp_path / "run", CONFIG).close()


def test_only_what_a_kill_left_is_tidied_away(run):
    run.save(1, state_of(1), {})
    run.close()
    kept = [
        run.path / ".run.json.swp",
        run.path / ".metrics.jsonl.bak",
        run.path / "checkpoints/.partial-backup",
    ]
    gone = [
        run.path / ".run.json.a1b2c3d4",
        run.path / "checkpoints/.step-00000002.partial_",
        run.path / "figures/.loss.png.a1b2c3d4",
        run.path / ".model.a1b2c3d4",
        run.path / ".model.old.a1b2c3d4",
    ]
    (run.path / "figures").mkdir()
    for path in (*kept, *gone):
        path.mkdir() if path.parent.name == "checkpoints" or "model" in path.name else path.write_text("")
    Run.open(run.path, CONFIG).close()
    assert all(path.exists() for path in kept) and not any(path.exists() for path in gone)


@pytest.mark.parametrize("change", [{"results": [1]}, {"results": "x"}, {"versions": [1]}, {"config": None}])
def test_a_run_json_that_was_changed_by_hand_is_an_error_in_words(run, change):
    card = json.loads((run.path / "run.json").read_text())
    (run.path / "run.json").write_text(json.dumps(card | change))
    with pytest.raises(CheckpointError, match="by hand"):
        run.results()


def test_results_are_of_the_kind_that_is_asked_for(run):
    run.finish({"top1": 0.5, "loss": math.nan})
    assert run.results(dict[str, float | None]) == {"top1": 0.5, "loss": None}
    with pytest.raises(CheckpointError, match="results: loss is missing"):
        run.results(dict[str, float])


@pytest.mark.parametrize("change", [{"tensors": None}, {"facts": []}, {"tensors": [1]}])
def test_facts_that_say_nothing_are_an_error(run, change):
    run.save(1, state_of(1), {})
    place = checkpoint(run, 1)
    facts = json.loads((place / "facts.json").read_text()) | change
    (place / "facts.json").write_text(json.dumps(facts))
    (place / "manifest.json").unlink()
    seal(place)
    with pytest.raises(CheckpointError, match=r"facts\.json: \w+ is missing"):
        run.restore(state_of(0))
