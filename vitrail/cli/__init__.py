"""The command line: one function for each verb, thin over what Python users call.

A verb imports what it needs when it is used, so that `vitrail --help` answers at once. It returns a `Shown`: a
table for people, an object for `--json`. Errors of the user (VitrailError) become one line and exit code 2.
Only `main` prints results, and only `main` exits.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import tyro

from vitrail.cli.data_verbs import data_dedup, data_inspect, data_shard
from vitrail.cli.model_verbs import convert, cost, demo, models, predict
from vitrail.cli.verb import Shown, show
from vitrail.errors import VitrailError

Verb = Callable[..., Shown]


def data() -> Shown:
    """Data sets: inspect, dedup, shard (each with its own --help)."""
    raise AssertionError("main takes the words after `data` apart")


DATA_VERBS: dict[str, Verb] = {"inspect": data_inspect, "dedup": data_dedup, "shard": data_shard}
VERBS: dict[str, Verb] = {
    "data": data,
    "models": models,
    "cost": cost,
    "convert": convert,
    "predict": predict,
    "demo": demo,
}


def main(arguments: list[str] | None = None) -> None:
    """Parse, run, print; the only place that exits."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    group = given[:1] == ["data"]
    try:
        shown = tyro.extras.subcommand_cli_from_dict(
            DATA_VERBS if group else VERBS,
            prog="vitrail data" if group else "vitrail",
            description=data.__doc__ if group else "The Vision Transformer paper as working software.",
            args=given[1:] if group else given,
            config=(tyro.conf.FlagCreatePairsOff, tyro.conf.OmitArgPrefixes),
        )
    except (VitrailError, OSError) as error:  # OSError: a place that cannot be written or read
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    show(shown)
    for problem in shown.problems:
        print(f"error: {problem}", file=sys.stderr)
    if shown.problems:
        sys.exit(2)
