"""The command line: one function for each verb, thin over what Python users call.

A verb imports what it needs when it is used, so that `vitrail --help` answers at once. It returns a `Shown`: a
table for people, an object for `--json`. Errors of the user (VitrailError), and memory that has run out, become one
line and exit code 2.
Only `main` prints results, and only `main` exits.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from io import TextIOWrapper

import tyro

import vitrail
from vitrail.cli.data_verbs import data_dedup, data_inspect, data_shard
from vitrail.cli.demo_verb import demo
from vitrail.cli.evaluate_verbs import evaluate
from vitrail.cli.inspect_verbs import inspect
from vitrail.cli.model_verbs import convert, cost, models, predict
from vitrail.cli.out_of_memory import out_of_memory
from vitrail.cli.probe_verbs import fewshot, knn, linear
from vitrail.cli.run_verbs import runs
from vitrail.cli.train_verbs import finetune_command, pretrain_command
from vitrail.cli.transfer_verbs import transfer_command, vtab_command
from vitrail.cli.verb import COMMON, Shown, show
from vitrail.errors import ConfigError, Interrupted, VitrailError
from vitrail.runtime.interrupts import interruptible
from vitrail.runtime.log import visible
from vitrail.runtime.memory import exhausted_memory, requested_size

Verb = Callable[..., Shown]
ABOUT = "The Vision Transformer paper as working software. `vitrail --version` says which."


def data() -> Shown:
    """Data sets: inspect, dedup, shard (each with its own --help)."""
    raise AssertionError("main takes the words after `data` apart")


def pretrain() -> Shown:
    """Train a model by labels or by masked patches, from scratch or on from weights; --recipe: as published."""
    raise AssertionError("its flags depend on --recipe: train_verbs.py parses them")


def finetune() -> Shown:
    """Fine-tune a checkpoint on labelled images: new head, new resolution, and a report of the mistakes."""
    raise AssertionError("its flags depend on --recipe: train_verbs.py parses them")


def transfer() -> Shown:
    """Run few-shot, linear probe, kNN and fine-tuning on a list of data sets, in one table."""
    raise AssertionError("its flags depend on --protocol: transfer_verbs.py parses them")


def vtab() -> Shown:
    """Fine-tune on the 19 tasks of VTAB-1k."""
    raise AssertionError("transfer_verbs.py parses its flags")


DATA_VERBS: dict[str, Verb] = {"inspect": data_inspect, "dedup": data_dedup, "shard": data_shard}
VERBS: dict[str, Verb] = {
    "data": data,
    "models": models,
    "cost": cost,
    "convert": convert,
    "predict": predict,
    "evaluate": evaluate,
    "pretrain": pretrain,
    "finetune": finetune,
    "fewshot": fewshot,
    "linear": linear,
    "knn": knn,
    "transfer": transfer,
    "vtab": vtab,
    "inspect": inspect,
    "runs": runs,
    "demo": demo,
}


# Verbs whose flags depend on what is asked for.
COMMANDS: dict[str, Callable[[list[str]], Shown]] = {
    "pretrain": pretrain_command,
    "finetune": finetune_command,
    "transfer": transfer_command,
    "vtab": vtab_command,
}
# Verbs that the processes of torchrun do together.
TOGETHER = {"pretrain", "finetune", "evaluate"}


def main(arguments: list[str] | None = None) -> None:
    """Parse, run, print; the only place that exits."""
    try:
        try:
            answer(list(sys.argv[1:] if arguments is None else arguments))
        finally:
            print(end="", flush=True)  # --help has printed, and is on its way out
    except BrokenPipeError:
        # Who reads it has seen enough, as `head`; Python would write once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)  # as rich does where it prints a table


def answer(given: list[str]) -> None:
    speaks = os.environ.get("RANK", "0") == "0"  # of the processes that torchrun starts, one
    try:
        with interruptible():
            shown = run(given)
    except Interrupted as error:
        if speaks:
            print(visible(str(error)), file=sys.stderr)
        sys.exit(128 + signal.Signals[error.by] if error.by in signal.Signals.__members__ else 1)
    except BrokenPipeError:
        raise
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    except Exception as error:
        said = error_line(error, given)
        if not said:
            raise  # a fault of ours
        print(visible(f"error: {said}"), file=sys.stderr)
        sys.exit(2)
    if not speaks:
        return
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # for names in a script that it has no letters for
    show(shown)
    print(end="", flush=True)  # before what is said of problems
    for problem in shown.problems:
        print(visible(f"error: {problem}"), file=sys.stderr)
    if shown.problems:
        sys.exit(2)


def error_line(error: Exception, given: list[str]) -> str:
    """What to say of an error that the person can do something about; empty: it is none."""
    if isinstance(error, VitrailError):
        said = str(error)
    elif kind := exhausted_memory(error):
        said = out_of_memory("".join(given[:1]), kind, requested_size(error))
    elif isinstance(error, OSError):  # a place that cannot be written or read
        said = str(error)
    elif isinstance(error, UnicodeEncodeError):
        name = error.object[max(0, error.start - 80) : error.end + 20]
        said = f"{name}: bytes of this name are not UTF-8: rename it"
    else:
        return ""
    return ". ".join([said, *getattr(error, "__notes__", ())])


def run(given: list[str]) -> Shown:
    if given and given[0] in set(VERBS) - TOGETHER and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError(
            f"{given[0]} is for one process: start it without torchrun. These share their work: "
            f"{', '.join(sorted(TOGETHER))}"
        )
    if given == ["--version"]:
        return Shown(COMMON, [], [], {}, after=[f"vitrail {vitrail.__version__}"])
    if given and given[0] in COMMANDS:
        return COMMANDS[given[0]](given[1:])
    group = given[:1] == ["data"]
    return tyro.extras.subcommand_cli_from_dict(
        DATA_VERBS if group else VERBS,
        prog="vitrail data" if group else "vitrail",
        description=data.__doc__ if group else ABOUT,
        args=given[1:] if group else given,
        config=(tyro.conf.FlagCreatePairsOff, tyro.conf.OmitArgPrefixes),
    )
