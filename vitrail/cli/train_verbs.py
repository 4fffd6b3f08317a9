"""Training: pretrain, finetune, and the lists of their recipes. dry_run.py: what a run would need."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from vitrail.cli.verb import Common, Shown

if TYPE_CHECKING:
    from vitrail.cli.train_flags import Finetune, Pretrain


def pretrain_command(words: list[str]) -> Shown:
    """Train a model by labels or by masked patches: from scratch, or on from the weights of --model PATH. --recipe
    names a published experiment, and any of its fields can be set by flag."""
    import tyro

    from vitrail.cli.train_flags import Pretrain
    from vitrail.recipes.names import recipe

    name = word_after("--recipe", words)
    if name == "list":
        return recipe_list(Common(json="--json" in words))
    known = recipe(name or "small")
    text = " ".join((pretrain_command.__doc__ or "").split())
    if name:
        text += f"\n\n{known.claim}.\n\n{known.command}\n\n{known.cost}."
    given = tyro.cli(
        Pretrain,
        args=words,
        default=Pretrain(recipe=name, experiment=known.make()),
        prog="vitrail pretrain",
        description=text,
        config=(tyro.conf.FlagCreatePairsOff, tyro.conf.OmitArgPrefixes),
    )
    if given.dry_run:
        from vitrail.cli.dry_run import dry_run

        return dry_run(given, known)
    return pretrain(given)


def word_after(flag: str, words: list[str]) -> str:
    """--flag WORD or --flag=WORD; nothing where it is not there."""
    for here, following in pairwise([*words, ""]):
        if here == flag or here.startswith(f"{flag}="):
            return following if here == flag else here.removeprefix(f"{flag}=")
    return ""


def pretrain(given: Pretrain) -> Shown:
    from shlex import quote

    from vitrail.checkpoints.license import in_words, known
    from vitrail.recipes.pretrain import by_recipe, default_out
    from vitrail.transfer.tables import decimals

    out = given.out or default_out(given.recipe, given.experiment)
    trained = by_recipe(given.recipe, given.experiment, out, given.common.device)
    results = trained.results
    rows = [["steps", f"{results['steps']:,}"], ["training images", f"{results['train_examples']:,}"]]
    for split in ("val", "test"):
        scores = results[split] or {}
        rows += [[f"{split} {name.removeprefix('val_')}", decimals(value)] for name, value in scores.items()]
    if results["broken"]:
        rows.append(["broken files", f"{results['broken']:,}"])
    if known(results.get("license", {})):
        rows.append(["license", in_words(results["license"])])
    rows.append(["folder", str(trained.folder)])
    model = quote(str(trained.folder / "model"))
    after = [f"Next: vitrail finetune --model {model} --data PATH"]
    if given.experiment.objective.objective != "masked":
        after.append(f"      vitrail evaluate {model} {quote(given.experiment.data.data)}")
    result = {"folder": str(trained.folder), "results": results}
    return Shown(given.common, ["", ""], rows, result, after=after)


def recipe_list(common: Common) -> Shown:
    """Name, model, data, length, rate; the claim, which is a sentence, only in the JSON."""
    from vitrail.recipes.names import RECIPES

    rows, result = [], []
    for name, known in RECIPES.items():
        experiment = known.make()
        steps, rate, model = experiment.training.steps, experiment.training.rate, experiment.model.model
        rows.append([name, model, known.data.name, str(steps), f"{rate:g}"])
        result.append({"name": name, "model": model, "data": known.data.name, "steps": steps, "rate": rate})
        result[-1] |= {"claim": known.claim, "command": known.command, "cost": known.cost}
    columns = ["name", "model", "data", ">length", ">rate"]
    after = ["vitrail pretrain --recipe NAME --dry-run shows all of one, with its claim; --help its flags."]
    return Shown(common, columns, rows, {"recipes": result}, after=after)


def finetune_command(words: list[str]) -> Shown:
    """Fine-tune a checkpoint on labelled images: new head, new resolution, and a report of the mistakes. The
    defaults are for a folder of photographs; --protocol paper and bit are the published ones."""
    import tyro

    from vitrail.cli.train_flags import Finetune
    from vitrail.recipes.names import finetuning_recipe
    from vitrail.transfer.finetune_settings import Finetuning

    name = word_after("--recipe", words)
    if name == "list":
        return finetuning_list(Common(json="--json" in words))
    text = " ".join((finetune_command.__doc__ or "").split())
    known = finetuning_recipe(name) if name else None
    if known is not None:
        text += f"\n\n{known.claim}.\n\n{known.command}\n\n{known.cost}."
    given = tyro.cli(
        Finetune,
        args=words,
        default=Finetune(recipe=name, finetuning=known.make() if known else Finetuning()),
        prog="vitrail finetune",
        description=text,
        config=(tyro.conf.FlagCreatePairsOff, tyro.conf.OmitArgPrefixes),
    )
    return finetune(given)


def finetune(given: Finetune) -> Shown:
    from pathlib import Path
    from shlex import quote

    from vitrail.transfer.finetune import default_out, run_finetuning
    from vitrail.transfer.tables import decimals

    out = Path(given.out) if given.out else default_out(given.finetuning)
    tuned = run_finetuning(given.finetuning, out, device=given.common.device)
    results, rows = tuned.results, []
    for name, score in results["scores"].items():
        spread = "" if score["std"] is None else f"{score['std']:.4f}"
        rows.append([name, decimals(score["mean"]), spread, str(len(score["values"]))])
    tested = results["test_split"] is not None and results["test_examples"] is not None
    after = [
        (f"{results['test_examples']:,} images of {results['test_split']}; " if tested else "")
        + f"{results['train_examples']:,} trained on; {results['steps']:,} steps at rate {results['rate']:g}"
        + (f", chosen on {results['dev']:.0%} of train" if results["dev"] is not None else "")
    ]
    if not tested:
        after.append(
            "Not tested: --train 'train[:90% per class]' --test 'train[90%: per class]' would hold out a part"
        )
    if results["broken"]:
        after.append(f"{results['broken']} broken images were left out")
    if results.get("wrong"):
        after.append(f"Mistakes of the first run: {results['wrong']:,}, by name in {out / 'mistakes.jsonl'}")
    model = quote(str(out / "model"))
    after += [
        f"Pictures: {out / 'figures'} (loss"
        + (", confusion matrix, most confident mistakes)" if tested else ")"),
        f"Next: vitrail predict {model} IMAGE...    vitrail inspect {model} IMAGE... --out DIR",
    ]
    result = {"folder": str(out), "results": results}
    return Shown(given.common, ["score", ">mean", ">std", ">runs"], rows, result, after=after)


def finetuning_list(common: Common) -> Shown:
    from vitrail.recipes.names import FINETUNING_RECIPES

    rows = [[name, known.claim, known.cost] for name, known in FINETUNING_RECIPES.items()]
    result = [{"name": n, "claim": k.claim, "command": k.command} for n, k in FINETUNING_RECIPES.items()]
    after = ["vitrail finetune --recipe NAME --model PATH --data PATH"]
    return Shown(common, ["name", "claim", "cost"], rows, {"recipes": result}, after=after)
