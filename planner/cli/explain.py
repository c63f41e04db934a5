"""`planner explain`: why the plan is what it is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from splitplan.planner.cli.output import JsonFlag, print_json


def explain(
    plan: Annotated[Path, typer.Argument(help="A plan written by planner solve.")],
    component: Annotated[
        str | None, typer.Argument(help="A rack, GPU type, role, pool or instance; default: the whole plan.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Name every change that is worth nothing.")] = False,
    json: JsonFlag = False,
) -> None:
    """What binds, what one thing more is worth, who came second, and why a GPU type is idle.

    Every figure is the difference between two solved programs. Example: planner explain plan.yaml h100
    """
    from splitplan.planner.plan import load_plan
    from splitplan.planner.review.explain_plan import PlanExplanation, as_json, as_text, explain_plan

    result = explain_plan(load_plan(plan), component)
    if not isinstance(result, PlanExplanation):
        if json:
            print_json("Explanation", {"component": component, "lines": list(result)})
        else:
            typer.echo("\n".join(result))
        return
    if json:
        print_json("Explanation", as_json(result))
    else:
        typer.echo("\n".join(as_text(result, everything=everything)))
