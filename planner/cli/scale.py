"""`planner scale`: more or fewer of the planned instances."""

from __future__ import annotations

from typing import Annotated

import typer

from splitplan.catalogs.errors import Problem, UsageError
from splitplan.planner.cli.launch import PlanArgument
from splitplan.planner.cli.output import note


def scale(
    plan: PlanArgument,
    counts: Annotated[
        list[str], typer.Argument(metavar="ROLE=N…", help="For instance prefill=2; a pool's name works too.")
    ],
) -> None:
    """Run the first N planned instances of a role or pool, without dropping a stream.

    Example: planner scale plan.yaml prefill=2 decode=1
    """
    from splitplan.launcher.changes import scale as change
    from splitplan.launcher.render import LaunchOptions
    from splitplan.launcher.state import require_state
    from splitplan.planner.plan import load_plan

    wanted = dict(_count(text) for text in counts)
    state = require_state(plan)
    options = LaunchOptions(target=state.target, engine=state.engine)
    changed = change(load_plan(plan), plan, wanted, options, progress=note)
    names = ", ".join(process.instance for process in changed.processes if process.instance)
    typer.echo(f"running: {names}")


def _count(text: str) -> tuple[str, int]:
    name, _, number = text.rpartition("=")
    if not name or not number.isdecimal():
        raise UsageError(Problem(f"{text!r} is not a count", expected="ROLE=N, for instance prefill=2"))
    return name, int(number)
