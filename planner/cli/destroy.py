"""`planner destroy`: stop everything that was launched from a plan."""

from __future__ import annotations

import typer

from splitplan.planner.cli.launch import PlanArgument
from splitplan.planner.cli.output import note


def destroy(plan: PlanArgument) -> None:
    """Stop a launched plan: routers first, then instances. Logs stay.

    Example: planner destroy plan.yaml
    """
    from splitplan.launcher.lifecycle import destroy as stop

    names = stop(plan, progress=note)
    typer.echo(f"stopped {len(names)} processes")
