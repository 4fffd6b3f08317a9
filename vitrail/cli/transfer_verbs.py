"""The verbs that fine-tune and probe a model on many data sets: vtab, transfer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from vitrail.cli.verb import Output


def vtab_command(words: list[str]) -> Output:
    """Fine-tune on the 19 tasks of VTAB-1k, by default as the paper does. Repeat the command to continue; several at
    once on one --out share the tasks. Left unset, the image size is 384 or the nearest that the patches divide,
    dropout is 0, and the preprocessing depends on the task."""
    from vitrail.cli.train_flags import parse
    from vitrail.cli.transfer_flags import TaskData, TaskModel, VTABOptions
    from vitrail.inspection import figures
    from vitrail.train.folders import default_folder
    from vitrail.transfer.vtab import VTAB, VTABSettings, remarks, table, vtab

    experiment = VTAB.experiment
    experiment = replace(
        experiment,
        model=TaskModel(**vars(experiment.model) | {"model": ""}),
        data=TaskData(**vars(experiment.data)),
    )
    text = " ".join((vtab_command.__doc__ or "").split())
    options, experiment, more, common = parse(
        words, VTABOptions(), experiment, {"protocol": VTAB.protocol}, "vitrail vtab", text
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
    columns, rows = table(result)
    return Output(common, align(columns), rows, result, after=[*remarks(result), name_results(folder)])


def transfer_command(words: list[str]) -> Output:
    """Run few-shot, linear probe, kNN and fine-tuning on a list of data sets, in one table. Repeat the command to
    continue. Settings of fine-tuning that are left unset are chosen by --protocol for each data set; the values below
    are for 1,000 photographs."""
    from vitrail.cli.train_flags import facts_in, parse, word_after
    from vitrail.cli.transfer_flags import TaskData, TaskModel, TaskSweep, TransferOptions, find_changes
    from vitrail.inspection import figures
    from vitrail.train.folders import default_folder
    from vitrail.transfer.protocols import PROTOCOLS, Facts
    from vitrail.transfer.suite import SUITE, remarks, table, transfer

    protocol = PROTOCOLS.get(word_after("--protocol", words), PROTOCOLS["default"])
    finetuning = protocol(Facts(**facts_in(words)))
    experiment = replace(
        finetuning.experiment,
        model=TaskModel(**vars(finetuning.experiment.model) | {"model": ""}),
        data=TaskData(**vars(finetuning.experiment.data)),
    )
    sweep = TaskSweep(**vars(finetuning.sweep) | {"sweep": False})
    text = " ".join((transfer_command.__doc__ or "").split())
    options, experiment, more, common = parse(
        words, TransferOptions(), experiment, {"suite": SUITE, "sweep": sweep}, "vitrail transfer", text
    )
    e = experiment
    groups = (e.model, e.data, e.optimizer, e.training, e.objective, more["sweep"])
    changes = find_changes(words, *groups) | ({"seed": e.seed} if word_after("--seed", words) else {})
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
    columns, rows = table(result["rows"])
    return Output(common, align(columns), rows, result, after=[*remarks(result), name_results(folder)])


def align(columns: list[str]) -> list[str]:
    """Mark all columns but the first two as numbers, which are right-aligned."""
    return [*columns[:2], *(f">{column}" for column in columns[2:])]


def name_results(folder: Path) -> str:
    return f"Results written to {folder / 'results.md'}, results.csv and results.json"
