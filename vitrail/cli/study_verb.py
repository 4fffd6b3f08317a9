"""The paper's studies on the command line: study."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitrail.cli.verb import Common, Output

if TYPE_CHECKING:
    from vitrail.studies.run import Estimate, Finished
    from vitrail.studies.study import Study


def study_command(words: list[str]) -> Output:
    """Run a study of the paper: plan it, show what it costs, run what is missing, collect, draw, write a page. Repeat
    the command to continue. `vitrail study list` lists them."""
    from vitrail.cli.study_flags import parse_study_flags
    from vitrail.studies.names import find_study
    from vitrail.studies.run import estimate_study, run_study

    if words[:1] == ["list"]:
        return study_list(Common(json="--json" in words))
    options = parse_study_flags(words, " ".join((study_command.__doc__ or "").split()))
    study, choices = find_study(options.name), options.choices
    out = Path(options.out) if options.out else Path("studies", f"{study.name}-{choices.size}")
    if options.dry_run or (choices.size == "paper" and not options.yes):
        output = show_estimate(
            study, estimate_study(study, choices, out, options.machine, options.common.device), options.common
        )
        if not options.dry_run:
            output.problems.append(
                "a study at the paper's scale runs with --yes alone; this is what it costs"
            )
        return output
    return show_study(
        study, run_study(study, choices, out, options.machine, options.common.device), options.common
    )


def study_list(common: Common) -> Output:
    from vitrail.studies.names import STUDIES

    rows = [[study.name, study.section, study.title] for study in STUDIES.values()]
    studies = [
        {
            "name": s.name,
            "section": s.section,
            "title": s.title,
            "statement": s.statement,
            "sizes": list(s.scales),
        }
        for s in STUDIES.values()
    ]
    after = [
        "vitrail study NAME --dry-run shows every point and the cost; docs/studies.md says how to add one."
    ]
    return Output(common, ["study", "of the paper", "question"], rows, {"studies": studies}, after=after)


def show_estimate(study: Study, estimate: Estimate, common: Common) -> Output:
    """Return a row for each point: what one run of it is and costs."""
    from vitrail.recipes.recipe import hours_of_h200

    plan, rows, points = estimate.plan, [], []
    for name in dict.fromkeys(piece.point for piece in plan.pieces if not piece.trial):
        pieces = [piece for piece in plan.pieces if piece.point == name]
        costs = [estimate.costs[piece.name] for piece in pieces]
        model = pieces[0].experiment().model.model
        c, flops = costs[-1], sum(one.flops for one in costs)
        cells = [
            f"{c.parameters / 1e6:,.2f}M",
            f"{c.gflops:,.3g}",
            f"{c.examples:,}",
            f"{c.steps:,}",
            f"{flops / 1e18:,.3g}",
        ]
        rows.append([name, model, *cells[:4], str(len(pieces)), cells[4]])
        points.append(
            {
                "point": name,
                "model": model,
                "parameters": c.parameters,
                "gflops": c.gflops,
                "examples": c.examples,
            }
        )
        points[-1] |= {"steps": c.steps, "runs": len(pieces), "exaflops": flops / 1e18}
    columns = ["point", "model", ">parameters", ">GFLOPs", ">images", ">steps", ">runs", ">exaFLOPs in all"]
    after = [study.statement, f"{plan.size}: {estimate.sentence()}."]
    if plan.size == "paper":
        after.append(f"At the paper's scale: {hours_of_h200(estimate.exaflops * 1e18)}.")
    result: dict[str, Any] = {
        "study": study.name,
        "size": plan.size,
        "points": points,
        "runs": len(plan.pieces),
    }
    result |= {
        "left": estimate.left,
        "exaflops": estimate.exaflops,
        "seconds": estimate.seconds,
        "basis": estimate.basis,
    }
    return Output(common, columns, rows, result, after=after)


def show_study(study: Study, finished: Finished, common: Common) -> Output:
    from vitrail.studies.page import numbers_table, score_name

    results, folder = finished.results, finished.folder
    # In a terminal the scores and the paper's numbers; the page has more.
    wanted = 1 + len(study.scores) + (study.paper is not None and not study.figure.x)
    head, *rows = (row[:wanted] for row in numbers_table(study, results))
    planned = len(finished.plan.pieces)
    after = [finished.verdict]
    if results.left:
        after.append(
            f"Unfinished: {planned - len(results.left)} of {planned} runs. The same command continues."
        )
    if results.failed:
        after.append(f"Failed runs, listed on the page: {len(results.failed)}")
    after.append(f"Page: {folder / 'page.html'}; figure.png, figure.svg and results.csv are beside it")
    points = {
        score: {
            name: {"mean": p.mean, "se": p.se if len(p.values) > 1 else None, "values": list(p.values)}
            for name, p in by_name.items()
        }
        for score, by_name in results.points.items()
    }
    result: dict[str, Any] = {
        "study": study.name,
        "size": finished.plan.size,
        "folder": str(folder),
        "verdict": finished.verdict,
    }
    result |= {"finished": not results.left, "runs": planned, "left": len(results.left), "scores": points}
    result |= {"failed": results.failed, "score_names": {score: score_name(score) for score in study.scores}}
    return Output(common, [head[0], *(f">{cell}" for cell in head[1:])], rows, result, after=after)
