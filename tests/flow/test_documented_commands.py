"""Every command of README.md and docs/ is run, as a person would: each page from top to bottom, in one folder, which
holds small stand-ins under the names that the pages use (test_documented_commands_stand_ins.py).

What makes it quick, and nothing else: the stand-ins; SMALLER, flags by verb; one process for all. A command whose
documented flags are replaced by these is first given as it stands, as a dry run or with data that is not there: that
must be all that is wrong with it. NOT_RUN is held to no more than that.
"""

import dataclasses
import json
import re
import runpy
import shutil
import subprocess
import sys

import pytest

import vitrail
import vitrail.cli
from tests.checkpoints.hub_stand_in import in_place_of_the_hub, put
from tests.flow.test_documented_commands_found import BEGINNINGS, COMMANDS, ROOT, Command
from tests.flow.test_documented_commands_stand_ins import write_stand_ins

TRAINING = {"--steps": "2", "--batch-size": "8", "--warmup": "0", "--num-workers": "0"}
# Verb: flags that take the place of the documented ones.
SMALLER = {
    "pretrain": TRAINING | {"--evaluate-every": "0"},
    "finetune": TRAINING | {"--lrs": "0.003 0.01", "--seeds": "1"},
    "transfer": {"--steps": "2", "--batch-size": "8", "--num-workers": "0", "--seeds": "1"},
    "vtab": {"--steps": "1", "--batch-size": "4", "--image-size": "32", "--train-examples": "16",
             "--val-examples": "4", "--num-workers": "0"},
    "demo": {"--steps": "1", "--batch-size": "8", "--shots": "1", "--seeds": "1",
             "--max-images": "30", "--pictures": "2"},
    "inspect": {"--closely": "1"},
    "evaluate": {"--num-workers": "0"},
    "study": {"--override": "steps=2 batch_size=8 save_every=0", "--seeds": "1",
              "--data": "shapes:colour?n=240&image_size=32"},
    "bench": {"--model": "mu/16", "--image-size": "32", "--batch-size": "4", "--rounds": "1",
              "--round-seconds": "0.05"},
}  # fmt: skip
FIELDS = {
    "steps": 2,
    "batch_size": 8,
    "warmup": 0,
    "num_workers": 0,
    "device": "cpu",
}  # likewise, from Python
PYTHON = {"pretrain": FIELDS, "finetune": FIELDS | {"lrs": (0.003, 0.01), "seeds": 1}}
FIRST_SCREEN = 40  # lines of README.md
# What a command has in it: why it is not run.
NOT_RUN = {
    "--size small": "a GPU",
    "--nnodes": "several machines",
    "tensorflow_datasets": "no part of the project",
    "vitrail serve": "runs until it is stopped; tests/serve does that",
    "--server": "needs that server",
}


class Story:
    """A page in its folder: what is typed later finds what was made before."""

    def __init__(self, folder, page):
        self.folder, self.names = folder, {"__name__": "__main__"}
        self.left = [command for command in COMMANDS if command.page == page]


@pytest.fixture(scope="module")
def stand_ins(tmp_path_factory):
    return write_stand_ins(tmp_path_factory.mktemp("stand-ins"))


@pytest.fixture(scope="module")
def stories(stand_ins, tmp_path_factory):
    made: dict[str, Story] = {}

    def story(page):
        if page not in made:
            folder = tmp_path_factory.mktemp(page.replace("/", "-")) / "work"
            made[page] = Story(shutil.copytree(stand_ins, folder), page)
            if page == "README.md":
                shutil.rmtree(folder / "ti8-64")  # there it is the included one
        return made[page]

    return story


@pytest.fixture(scope="module")
def hub(stand_ins, tmp_path_factory):
    """A stand-in of the Hugging Face hub, with the model that the pages name."""
    with (
        pytest.MonkeyPatch.context() as patch,
        in_place_of_the_hub(patch, tmp_path_factory.mktemp("hub")) as hub,
    ):
        put(hub, "owner/name", stand_ins / "ti8-64")
        yield hub


@pytest.fixture
def perform(vitrail_command, monkeypatch, hub):
    """Runs a command in a story; an AssertionError says what is wrong with it."""

    def run(command: Command, story: Story) -> None:
        monkeypatch.chdir(story.folder)
        monkeypatch.setenv("VITRAIL_CACHE", str(story.folder / "cache"))
        monkeypatch.setattr(vitrail.cli, "show", shown_twice)
        for name, fields in PYTHON.items():
            monkeypatch.setattr(vitrail, name, smaller(getattr(vitrail, name), fields), raising=False)
        if command.python:
            code = compile(command.text, str(command), "exec")
            if not reasons(command):
                exec(code, story.names)
            return
        KINDS.get(command.words[0], unknown)(command, vitrail_command)

    return run


def case(command):
    """README.md's first screen is run by `make test`, the rest by `make test-long`; a page stays on one process."""
    quick = command.page == "README.md" and command.line < FIRST_SCREEN
    marks = [pytest.mark.xdist_group(command.page), *([] if quick else [pytest.mark.long])]
    return pytest.param(command, marks=marks, id=str(command))


@pytest.mark.parametrize("command", [case(command) for command in COMMANDS])
def test_documented(command, stories, perform):
    story = stories(command.page)
    while (earlier := story.left.pop(0)) != command:  # where this test alone was asked for
        perform(earlier, story)
    perform(command, story)


def reasons(command):
    return [why for part, why in NOT_RUN.items() if part in command.text]


def shown_twice(shown):
    """The table, and the object of --json."""
    show(shown)
    show(dataclasses.replace(shown, common=dataclasses.replace(shown.common, json=True)))


show = vitrail.cli.show


def smaller(function, replaced):
    return lambda *given, **fields: function(*given, **(fields | replaced))


def by_vitrail(command, run):
    words = command.words[1:]
    if replaced(words) or reasons(command):
        understood(words, run)
    if not reasons(command):
        code, out, err = run(*small(words))
        assert code == 0, f"{command}: {command.text}\n{err}"
        assert isinstance(json.loads(out.splitlines()[-1]), dict)


def replaced(words):
    return set(words) & SMALLER.get(words[0], {}).keys()


def understood(words, run, processes=1):
    """Nothing is wrong with it; or, where that cannot be asked for, nothing but the data is missing."""
    if words[0] == "pretrain":  # counts, without data, with that of the authors
        code, _, err = run(*words, "--data", "", "--dry-run", "--processes", processes)
        assert code == 0, f"vitrail {' '.join(words)}\n{err}"
    elif "--server" in words:
        code, _, err = run(*words)
        assert code == 2 and "cannot be reached" in err, f"vitrail {' '.join(words)}\n{err}"
    elif words[0] == "serve":
        code, _, err = run(*words, "--host", "nowhere.invalid")
        assert code == 2 and "nowhere.invalid" in err, f"vitrail {' '.join(words)}\n{err}"
    else:
        code, _, err = run(*words, "--data", "nowhere")
        missing = re.search(r"^error: .*nowhere", err, re.MULTILINE)
        assert code == 2 and missing, f"vitrail {' '.join(words)}\n{err}"


def small(words):
    """The same, quickly, on the CPU; what trains nothing stays as it is."""
    verb = words[0]
    if "--dry-run" in words or words[-2:] == ["--recipe", "list"] or words == ["study", "list"]:
        return words
    smaller = " ".join(f"{flag} {value}" for flag, value in SMALLER.get(verb, {}).items())
    made = [*words, *smaller.split(), "--device", "cpu"]
    if "ti8-64-masked" in words:
        made += [
            "--train",
            "train[:50% per class]",
            "--val",
            "train[50%: per class]",
        ]  # of so few images 1% is none
    if verb == "pretrain" and "--model" not in words:
        made += ["--model", f"mu/{patch_of(words[words.index('--recipe') + 1])}"]
    return made


def patch_of(recipe):
    from vitrail.recipes.names import RECIPES

    return RECIPES[recipe].make().model.model.partition("/")[2]


def by_torchrun(command, run):
    """README's on two processes, which takes seconds; the others on one, which is this."""
    from torch.distributed.run import get_args_parser

    given = get_args_parser().parse_args(command.words[1:])
    assert given.module and given.training_script == "vitrail"
    words, nodes = given.training_script_args, int(given.nnodes.split(":")[-1])
    if words[0] in SMALLER:  # else it is run as it stands
        understood(words, run, nodes * int(given.nproc_per_node))
    if reasons(command):
        return
    if command.page == "README.md":
        launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "vitrail"]
        done = subprocess.run([*launch, *small(words)], capture_output=True, text=True, check=False)
        code, err = done.returncode, done.stderr
    else:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in ALONE.items():
                patch.setenv(name, value)
            code, _, err = run(*small(words))
    assert code == 0, f"{command}: {command.text}\n{err}"


# What torchrun tells a process that is the only one; 0: any port that is free.
ALONE = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "0"}


def by_make(command, run):
    """What it would do; doing it is another clone's affair."""
    if shutil.which("make") is None:
        pytest.skip("there is no make")
    done = subprocess.run(
        ["make", "-n", *command.words[1:]], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def by_pip(command, run):
    """Parsed only: installing is test_wheel.py's task."""
    assert command.words[1:] == ["install", "."], command.text


def by_python(command, run):
    """Benchmarks take minutes: what they can be told is asked for, from the clone."""
    assert command.words[1] == "-m" and command.words[2].split(".")[0] == "benchmarks", command.text
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as stop:
        patch.setattr(sys, "argv", [*command.words[2:], "--help"])
        runpy.run_module(command.words[2], run_name="__main__")
    assert stop.value.code == 0


def unknown(command, run):
    pytest.fail(f"{command}: `{command.text}` begins with none of {', '.join(BEGINNINGS)}")


KINDS = {"vitrail": by_vitrail, "torchrun": by_torchrun, "make": by_make, "pip": by_pip, "python": by_python}


@pytest.mark.parametrize(
    "text",
    [
        "vitrail predict ti8-64 photo.jpg --topp 3",
        "vitrail predict ti8-64 no-such-photo.jpg",
        "vitrail look ti8-64",
        "vitrail finetune --data photos --model ti8-64 --batch-size 3o",
        "vitrail demo --dato photos",
        "torchrun --nproc-per-node 8 -m vitrail finetune --data photos --model ti8-64 --bach 3",
        "make no-such-target",
        "pip install vitrial",
        "python -m benchmarks.no_such_benchmark",
        "rm -rf photos",
    ],
)
def test_a_wrong_command_is_noticed(text, stories, perform):
    with pytest.raises((AssertionError, ImportError, pytest.fail.Exception)):
        perform(Command("README.md", 1, text), stories("README.md"))


def test_wrong_python_is_noticed(stories, perform):
    with pytest.raises(vitrail.ConfigError, match="stepz"):
        text = 'import vitrail\nvitrail.finetune("photos", "ti8-64", stepz=3)'
        perform(Command("README.md", 1, text, python=True), stories("README.md"))
