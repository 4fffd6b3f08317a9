"""The command line: one function for each verb, thin over what Python users call.

A verb imports what it needs when it is called, so that `vitrail --help` answers at once. It returns an `Output`: a
table for people, an object for `--json`. Errors of the user (VitrailError), and running out of memory, become one
line and exit code 2. Only `main` prints results, and only `main` exits.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from io import TextIOWrapper

import tyro

import vitrail
from vitrail.cli.bench_verb import bench
from vitrail.cli.calibrate_verb import calibrate
from vitrail.cli.check_verb import data_check
from vitrail.cli.data_verbs import data_apply, data_dedup, data_inspect, data_shard
from vitrail.cli.demo_verb import demo
from vitrail.cli.evaluate_verbs import evaluate, fewshot, knn, linear
from vitrail.cli.export_verb import export
from vitrail.cli.index_verbs import index, search
from vitrail.cli.inspect_verbs import inspect
from vitrail.cli.map_verbs import data_map, data_next
from vitrail.cli.model_verbs import convert, cost, models, predict
from vitrail.cli.out_of_memory import out_of_memory
from vitrail.cli.push_verb import push
from vitrail.cli.run_verbs import runs
from vitrail.cli.serve_verb import serve
from vitrail.cli.study_verb import study_command
from vitrail.cli.train_verbs import finetune_command, pretrain_command
from vitrail.cli.transfer_verbs import transfer_command, vtab_command
from vitrail.cli.verb import COMMON, Output, show
from vitrail.errors import CheckFailed, ConfigError, Interrupted, VitrailError
from vitrail.runtime.interrupts import interruptible
from vitrail.runtime.log import visible
from vitrail.runtime.memory import exhausted_memory, requested_size

ABOUT = "The Vision Transformer paper as working software. `vitrail --version` prints the version."
ABOUT_DATA = "Data sets: inspect, check, apply, dedup, map, next, shard (each with its own --help)."
DATA_VERBS: dict[str, Callable[..., Output]] = {
    "inspect": data_inspect,
    "check": data_check,
    "dedup": data_dedup,
    "shard": data_shard,
    "apply": data_apply,
    "map": data_map,
    "next": data_next,
}
# A verb is a function whose arguments are the flags, or (text for --help, function of the words after the verb) where
# the flags depend on these words.
VERBS: dict[str, Callable[..., Output] | tuple[str, Callable[[list[str]], Output]]] = {
    "data": (ABOUT_DATA, lambda words: parse(words, DATA_VERBS, "vitrail data", ABOUT_DATA)),
    "models": models,
    "cost": cost,
    "convert": convert,
    "push": push,
    "calibrate": calibrate,
    "predict": predict,
    "evaluate": evaluate,
    "pretrain": (
        "Train a model by labels or by masked patches, from scratch or from weights; --recipe: published settings.",
        pretrain_command,
    ),
    "finetune": (
        "Fine-tune a checkpoint on labelled images: new head, new resolution, and a report of the mistakes.",
        finetune_command,
    ),
    "fewshot": fewshot,
    "linear": linear,
    "knn": knn,
    "transfer": (
        "Run few-shot, linear probe, kNN and fine-tuning on a list of data sets, in one table.",
        transfer_command,
    ),
    "vtab": ("Fine-tune on the 19 tasks of VTAB-1k.", vtab_command),
    "study": (
        "Run a study of the paper: tables and figures with the paper's numbers beside ours.",
        study_command,
    ),
    "index": index,
    "search": search,
    "inspect": inspect,
    "export": export,
    "runs": runs,
    "serve": serve,
    "bench": bench,
    "demo": demo,
}
# Verbs whose work the processes of torchrun share.
TOGETHER = {"pretrain", "finetune", "evaluate", "predict"}


def main(arguments: list[str] | None = None) -> None:
    """Parse, run, print; the only place that exits."""
    try:
        try:
            answer(list(sys.argv[1:] if arguments is None else arguments))
        finally:
            print(end="", flush=True)  # --help has printed, and raises SystemExit
    except BrokenPipeError:
        # The reader, such as `head`, has closed the pipe; Python would write to it once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)  # as rich does where it prints a table


def answer(words: list[str]) -> None:
    speaks = os.environ.get("RANK", "0") == "0"  # one of the processes that torchrun starts
    try:
        with interruptible():
            output = run(words)
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
        message = error_line(error, words)
        if not message:
            raise
        print(visible(f"error: {message}"), file=sys.stderr)
        sys.exit(1 if isinstance(error, CheckFailed) else 2)
    if not speaks:
        return
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # for names in letters that the encoding lacks
    show(output)
    print(end="", flush=True)  # before the problems on standard error
    for problem in output.problems:
        print(visible(f"error: {problem}"), file=sys.stderr)
    if output.problems:
        sys.exit(2)


def error_line(error: Exception, words: list[str]) -> str:
    """Return the message for an error that the user can fix; empty for a bug."""
    if isinstance(error, VitrailError):
        message = str(error)
    elif kind := exhausted_memory(error):
        message = out_of_memory("".join(words[:1]), kind, requested_size(error))
    elif isinstance(error, OSError):  # a place that cannot be written or read
        message = str(error)
    elif isinstance(error, UnicodeEncodeError):
        name = error.object[max(0, error.start - 80) : error.end + 20]
        message = f"{name}: bytes of this name are not UTF-8: rename it"
    else:
        return ""
    return ". ".join([message, *getattr(error, "__notes__", ())])


def run(words: list[str]) -> Output:
    verb = words[0] if words else ""
    if verb in VERBS and verb not in TOGETHER and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError(
            f"{verb} runs on one process: start it without torchrun. Commands that run on several: "
            f"{', '.join(sorted(TOGETHER))}"
        )
    if words == ["--version"]:
        return Output(COMMON, [], [], {}, after=[f"vitrail {vitrail.__version__}"])
    chosen = VERBS.get(verb)
    if isinstance(chosen, tuple):
        return chosen[1](words[1:])
    verbs = {name: listed(one[0]) if isinstance(one, tuple) else one for name, one in VERBS.items()}
    return parse(words, verbs, "vitrail", ABOUT)


def parse(words: list[str], verbs: dict[str, Callable[..., Output]], prog: str, about: str) -> Output:
    config = (tyro.conf.FlagCreatePairsOff, tyro.conf.OmitArgPrefixes)
    return tyro.extras.subcommand_cli_from_dict(
        verbs, prog=prog, description=about, args=words, config=config
    )


def listed(text: str) -> Callable[[], Output]:
    """Return a verb that only serves the list of --help."""

    def verb() -> Output:
        raise AssertionError("`run` calls it with the words")

    verb.__doc__ = text
    return verb
