"""`planner replan`: a new plan from what runs now, and the moves to it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from splitplan.catalogs.errors import Problem, UsageError
from splitplan.planner.cli.output import JsonFlag, note, print_json


def replan(
    plan: Annotated[Path, typer.Argument(help="The plan that runs now.")],
    rate: Annotated[float | None, typer.Option(help="Requests per second from now on.")] = None,
    slo: Annotated[str | None, typer.Option(help="Other targets.")] = None,
    fleet: Annotated[str | None, typer.Option(help="The fleet as it is now, if it has changed.")] = None,
    workload: Annotated[str | None, typer.Option(help="Another workload.")] = None,
    move_cost: Annotated[float, typer.Option(min=0, help="Dollars per instance started or stopped.")] = 1.0,
    hours: Annotated[
        float, typer.Option(min=0.01, help="Hours the new plan will stand; moves are spread over.")
    ] = 24.0,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the new plan to this YAML file.")] = None,
    json: JsonFlag = False,
) -> None:
    """Plan again from what runs, keeping what pays to keep; moves in an order that keeps the load served if any does.

    Example: planner replan plan.yaml --rate 36 -o next.yaml
    """
    from splitplan.planner.plan import load_plan, save_plan
    from splitplan.planner.review.diff import diff_plans
    from splitplan.planner.review.replan import Wanted
    from splitplan.planner.review.replan import move_lines as lines_of
    from splitplan.planner.review.replan import replan as plan_again

    for name, value in (("--move-cost", move_cost), ("--hours", hours)):
        if not math.isfinite(value):
            raise UsageError(Problem(f"{name} is {value:g}", expected="a finite number"))
    running = load_plan(plan)
    result = plan_again(running, Wanted(rate, slo, fleet, workload, move_cost, hours))
    if output is not None:
        save_plan(result.plan, output)
        note(f"plan written to {output}")
    for text in result.notes:
        note(text)
    drops = sum(not move.safe for move in result.moves)
    if drops:
        note(f"{drops} moves drop the load because every GPU they need is held: make them when the load is low")
    if json:
        moves = [
            {"action": m.action, "column": m.unit.column, "gpus": [list(s) for s in m.unit.slots], "served": m.served}
            for m in result.moves
        ]
        print_json("Replan", {"plan": result.plan.model_dump(mode="json"), "moves": moves})
        return
    lines = [str(change) for change in diff_plans(running, result.plan)]
    typer.echo("\n".join([*lines, "", "Moves", *(lines_of(result) or ["none"])]))
