"""Training: pretrain, finetune, and the lists of their recipes. dry_run.py: what a run would need."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vitrail.cli.verb import Common, Output

if TYPE_CHECKING:
    from vitrail.train.run import Trained
    from vitrail.transfer.protocols import Finetuning


def pretrain_command(words: list[str]) -> Output:
    """Train a model by labels or by masked patches: from scratch, or from the weights of --model PATH. --recipe names
    a published experiment; any of its settings can be changed by flag."""
    from dataclasses import replace
    from pathlib import Path

    from vitrail.api import default_out, run_recipe
    from vitrail.cli.train_flags import (
        PretrainOptions,
        asks_for_help,
        parse_flags,
        show_architecture,
        word_after,
    )
    from vitrail.objectives import OBJECTIVES, objective_name, objective_named
    from vitrail.recipes.names import find_recipe
    from vitrail.train.assemble import read_start

    name = word_after("--recipe", words)
    if name == "list":
        return recipe_list(Common(json="--json" in words))
    recipe = find_recipe(name or "small")
    experiment = recipe.make()
    if (objective := word_after("--objective", words)) in OBJECTIVES:
        experiment = replace(experiment, objective=objective_named(objective))
    if asks_for_help(words):
        model = replace(experiment.model, model=word_after("--model", words) or experiment.model.model)
        experiment = show_architecture(replace(experiment, model=model), read_start(model))
    text = " ".join((pretrain_command.__doc__ or "").split())
    if name:
        text += f"\n\n{recipe.claim}.\n\n{recipe.command}\n\n{recipe.cost}."
    defaults: Any = PretrainOptions(recipe=name, objective=objective_name(experiment.objective))
    options, experiment, _, common = parse_flags(words, defaults, experiment, {}, "vitrail pretrain", text)
    if options.dry_run:
        from vitrail.cli.dry_run import dry_run

        return dry_run(options, experiment, recipe, common)
    out = Path(options.out) if options.out else default_out(options.recipe, experiment)
    trained = run_recipe(options.recipe, experiment, out, common.device)
    return show_pretrained(trained, experiment.objective.needs_labels, experiment.data.data, common)


def show_pretrained(trained: Trained, labels: bool, data: str, common: Common) -> Output:
    from shlex import quote

    from vitrail.checkpoints.license import describe_license, stated_license
    from vitrail.evaluators.score import format_score, score_label

    results = trained.results
    rows = [["steps", f"{results['steps']:,}"], ["training images", f"{results['train_examples']:,}"]]
    for split in ("val", "test"):
        n = results.get(f"{split}_examples")
        for name, value in (results[split] or {}).items():
            rows.append([f"{split} {score_label(name.removeprefix('val_'))}", format_score(name, value, n)])
    if results["broken"]:
        rows.append(["broken files", f"{results['broken']:,}"])
    if stated_license(results.get("license", {})):
        rows.append(["license", describe_license(results["license"])])
    rows.append(["folder", str(trained.folder)])
    model = quote(str(trained.folder / "model"))
    after = [f"Next: vitrail finetune --model {model} --data PATH"]
    if labels:
        after.append(f"      vitrail evaluate {model} {quote(data)}")
    result = {"folder": str(trained.folder), "results": results}
    return Output(common, ["", ""], rows, result, after=after)


def finetune_command(words: list[str]) -> Output:
    """Fine-tune a checkpoint on labelled images: new head, new resolution, and a report of the mistakes. Options left
    unset are chosen by --protocol from your data and checkpoint; the default one is for a folder of photographs."""
    from dataclasses import replace
    from pathlib import Path

    from vitrail.cli.train_flags import (
        FinetuneOptions,
        asks_for_help,
        facts_in,
        parse_flags,
        show_architecture,
        word_after,
    )
    from vitrail.inspection import figures
    from vitrail.recipes.names import find_finetuning_recipe
    from vitrail.train.assemble import default_folder
    from vitrail.transfer.facts import Facts
    from vitrail.transfer.finetune import prepare, run_finetuning
    from vitrail.transfer.protocols import PROTOCOLS

    name = word_after("--recipe", words)
    if name == "list":
        return finetuning_list(Common(json="--json" in words))
    text = " ".join((finetune_command.__doc__ or "").split())
    recipe = find_finetuning_recipe(name) if name else None
    if recipe is not None:
        text += f"\n\n{recipe.claim}.\n\n{recipe.command}\n\n{recipe.cost}."
    named = word_after("--protocol", words) or "default"
    protocol = recipe.make if recipe is not None else PROTOCOLS.get(named, PROTOCOLS["default"])
    data, model = word_after("--data", words), word_after("--model", words)
    facts, sweep = facts_in(words), dict[str, Any]()

    def parse_over(finetuning: Finetuning) -> tuple[Any, Any, dict[str, Any], Common]:
        # A switch that is on by default has no flag to turn it on.
        sweep = replace(finetuning.sweep, sweep=finetuning.sweep.sweep and "--sweep" not in words)
        options = FinetuneOptions(name)
        return parse_flags(words, options, finetuning.experiment, {"sweep": sweep}, "vitrail finetune", text)

    if not (asks_for_help(words) and data and model):
        text += "\n\nThe values below are for 1,000 photographs; add --data and --model to see those for your data."
        # A wrong flag is refused before data and weights are read.
        _, _, more, _ = parse_over(protocol(Facts(**facts)))
        sweep = {"seeds": more["sweep"].seeds, "lrs": more["sweep"].lrs}
    device: Any = word_after("--device", words) or "auto"
    known = sweep | {setting: value for setting, value in facts.items() if value}
    known |= {name: word for name in ("train", "val", "test") if (word := word_after(f"--{name}", words))}
    folder = Path(word_after("--out", words) or default_folder(data, model))
    prepared = prepare(data, model, protocol=protocol, device=device, out=folder, **known)
    if asks_for_help(words):
        experiment = show_architecture(prepared.finetuning.experiment, prepared.inputs.start)
        parse_over(replace(prepared.finetuning, experiment=experiment))
    options, experiment, more, common = parse_over(prepared.finetuning)
    finetuning = replace(prepared.finetuning, experiment=experiment, sweep=more["sweep"])
    out = Path(options.out) if options.out else default_folder(data, model)
    prepared = replace(prepared, finetuning=finetuning)
    return show_finetuned(run_finetuning(prepared, out, device=common.device, figures=figures), common)


def show_finetuned(trained: Trained, common: Common) -> Output:
    from shlex import quote

    from vitrail.train.held_out import describe_calibration
    from vitrail.transfer.results_page import describe_mistakes, score_table

    results, folder = trained.results, trained.folder
    columns, rows = score_table(results)
    tested = results.get("test_split") is not None
    after = [
        f"Trained on {results['train_examples']:,} images for {results['steps']:,} steps at lr {results['lr']:g}"
        + (f", chosen on {results['dev']:.0%} of train" if results["dev"] is not None else "")
        + (f"; tested on {results['test_examples']:,} ({results['test_split']})" if tested else "")
    ]
    if not tested:
        after.append(
            "Not tested: --train 'train[:90% per class]' --test 'train[90%: per class]' would hold out a part"
        )
    if calibrated := describe_calibration(results.get("calibration", {})):
        after.append(calibrated)
    if results["broken"]:
        after.append(f"Left out {results['broken']:,} broken images: see {folder / 'bad_files.jsonl'}")
    if results.get("wrong"):
        after.append(describe_mistakes(results, folder / "mistakes.jsonl"))
    model = quote(str(folder / "model"))
    after += [
        f"Pictures: {folder / 'figures'} (loss"
        + (", confusion matrix, most confident mistakes)" if tested else ")"),
        f"Next: vitrail predict {model} IMAGE...    vitrail inspect {model} IMAGE... --out DIR",
    ]
    result = {"folder": str(folder), "results": results}
    return Output(common, columns, rows, result, after=after)


def recipe_list(common: Common) -> Output:
    """Return name, model, data, length and lr of each recipe; the claim, which is a sentence, only in the JSON."""
    from vitrail.recipes.names import RECIPES

    rows, recipes = [], []
    for name, recipe in RECIPES.items():
        experiment = recipe.make()
        steps, lr, model = experiment.training.steps, experiment.optimizer.lr, experiment.model.model
        rows.append([name, model, recipe.data.name, str(steps), f"{lr:g}"])
        recipes.append({"name": name, "model": model, "data": recipe.data.name, "steps": steps, "lr": lr})
        recipes[-1] |= {"claim": recipe.claim, "command": recipe.command, "cost": recipe.cost}
    columns = ["name", "model", "data", ">length", ">lr"]
    after = "vitrail pretrain --recipe NAME --dry-run shows all settings of one, with its claim; --help its flags."
    return Output(common, columns, rows, {"recipes": recipes}, after=[after])


def finetuning_list(common: Common) -> Output:
    from vitrail.recipes.names import FINETUNING_RECIPES

    recipes = [
        {"name": name, "claim": recipe.claim, "command": recipe.command, "cost": recipe.cost}
        for name, recipe in FINETUNING_RECIPES.items()
    ]
    columns = ["name", "claim", "cost"]
    rows = [[recipe[column] for column in columns] for recipe in recipes]
    after = "vitrail finetune --recipe NAME --model PATH --data PATH"
    return Output(common, columns, rows, {"recipes": recipes}, after=[after])
