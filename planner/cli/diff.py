"""`planner diff`: two plans as + − ~."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from splitplan.planner.cli.output import JsonFlag, note, print_json


def diff(
    old: Annotated[Path, typer.Argument(help="A plan.")],
    new: Annotated[Path, typer.Argument(help="Another plan.")],
    json: JsonFlag = False,
) -> None:
    """What changes from one plan to another: question, instances on their GPUs, cost.

    Example: planner diff monday.yaml tuesday.yaml
    """
    from splitplan.planner.plan import load_plan
    from splitplan.planner.review.diff import diff_plans

    changes = diff_plans(load_plan(old), load_plan(new))
    if json:
        print_json("PlanDiff", {"changes": [{"sign": c.sign, "text": c.text} for c in changes]})
    elif changes:
        typer.echo("\n".join(str(change) for change in changes))
    else:
        note("no difference")
