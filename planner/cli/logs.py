"""`planner logs`: the ends of the logs of a launched plan."""

from __future__ import annotations

from typing import Annotated

import typer

from splitplan.planner.cli.launch import PlanArgument


def logs(
    plan: PlanArgument,
    process: Annotated[list[str] | None, typer.Argument(help="Names as in `planner status`; default: all.")] = None,
    lines: Annotated[int, typer.Option("--lines", "-n", min=1, help="Lines of each log.")] = 20,
) -> None:
    """Print the last lines of each process's log.

    Example: planner logs plan.yaml decode-0 -n 100
    """
    from splitplan.launcher.lifecycle import logs as read

    for name, tail in read(plan, process or (), lines=lines).items():
        typer.echo(f"== {name}")
        for line in tail:
            typer.echo(line)
