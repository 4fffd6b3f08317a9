"""The verbs that fine-tune and probe a model on many data sets: vtab, transfer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vitrail.cli.verb import Common, Output


def vtab_command(words: list[str]) -> Output:
    """Fine-tune on the 19 tasks of VTAB-1k, by default as the paper does. Repeat the command to continue; several at
    once on one --out share the tasks. Left unset, the image size is 384 or the nearest that the patches divide,
    dropout is 0, and the preprocessing depends on the task."""
    from vitrail.cli.train_flags import parse_flags
    from vitrail.cli.transfer_flags import VTABOptions, hide_own
    from vitrail.inspection import figures
    from vitrail.train.assemble import default_folder
    from vitrail.transfer.vtab import VTAB, VTABSettings, table, vtab

    text = " ".join((vtab_command.__doc__ or "").split())
    own = hide_own(VTAB.experiment)
    options, experiment, more, common = parse_flags(
        words, VTABOptions(), own, {"protocol": VTAB.protocol}, "vitrail vtab", text
    )
    folder = Path(options.out) if options.out else default_folder("vtab", options.model)
    result = vtab(
        options.model,
        options.data,
        folder,
        tasks=options.tasks,
        manifests=options.manifests,
        paper=options.paper,
        device=common.device,
        figures=figures,
        settings=VTABSettings(experiment, more["protocol"]),
    )
    return show_results(common, result, *table(result), folder)


def transfer_command(words: list[str]) -> Output:
    """Run few-shot, linear probe, kNN and fine-tuning on a list of data sets, in one table. Repeat the command to
    continue. Settings of fine-tuning that are left unset are chosen by --protocol for each data set; the values below
    are for 1,000 photographs."""
    from vitrail.cli.train_flags import facts_in, parse_flags, word_after
    from vitrail.cli.transfer_flags import TaskSweep, TransferOptions, find_changes, hide_own
    from vitrail.inspection import figures
    from vitrail.train.assemble import default_folder
    from vitrail.transfer.facts import Facts
    from vitrail.transfer.protocols import PROTOCOLS
    from vitrail.transfer.suite import SUITE, table, transfer

    protocol = PROTOCOLS.get(word_after("--protocol", words), PROTOCOLS["default"])
    finetuning = protocol(Facts(**facts_in(words)))
    groups = {"suite": SUITE, "sweep": TaskSweep(**vars(finetuning.sweep) | {"sweep": False})}
    text = " ".join((transfer_command.__doc__ or "").split())
    options, e, more, common = parse_flags(
        words, TransferOptions(), hide_own(finetuning.experiment), groups, "vitrail transfer", text
    )
    settings = (e.model, e.data, e.optimizer, e.training, e.objective, more["sweep"])
    changes = find_changes(words, *settings) | ({"seed": e.seed} if word_after("--seed", words) else {})
    folder = Path(options.out) if options.out else default_folder("transfer", options.model)
    result = transfer(
        options.model,
        options.data,
        folder,
        methods=options.methods,
        paper=options.paper,
        device=common.device,
        figures=figures,
        settings=more["suite"],
        **changes,
    )
    return show_results(common, result, *table(result), folder)


def show_results(
    common: Common, result: Any, columns: list[str], rows: list[list[str]], below: list[str], folder: Path
) -> Output:
    """Return the table; all columns but the first two are numbers, which are right-aligned."""
    headings = [*columns[:2], *(f">{column}" for column in columns[2:])]
    files = f"Results written to {folder / 'results.md'}, results.csv and results.json"
    return Output(common, headings, rows, result, after=[*below, files])
