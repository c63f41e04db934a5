"""`planner solve --services`: several models on one fleet."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from splitplan.catalogs.errors import InputError, Problem, UsageError
from splitplan.planner.cli.output import note, print_json, stdout_console

if TYPE_CHECKING:
    from splitplan.planner.services.read import Shared


def solve_together(path: Path, shared: Shared, output: Path | None, given: dict[str, Any], *, json: bool) -> None:
    """Plan, write one plan per service into a folder, and print the summary."""
    from splitplan.planner.plan import save_plan
    from splitplan.planner.services.report import as_json, print_services
    from splitplan.planner.services.solve import solve_services

    refuse(given)
    if output is not None:
        _folder(output)
    answer = solve_services(path, shared, progress=note)
    saved = {}
    if output is not None:
        output.mkdir(exist_ok=True)
        for name, plan in answer.plans.items():
            saved[name] = str(output / f"{name}.yaml")
            save_plan(plan, saved[name])
        note(f"{len(saved)} plans written to {output}")
    if json:
        print_json("Services", as_json(answer))
    else:
        print_services(stdout_console(), answer, saved)


def refuse(given: dict[str, Any]) -> None:
    """Options that the services file answers for each service cannot be given for all."""
    named = [f"--{name.replace('_', '-')}" for name, value in given.items() if value]
    if named:
        message = f"{', '.join(named)} with --services"
        raise UsageError(Problem(message, expected="what is each service's own in the services file"))


def _folder(output: Path) -> None:
    parent = output.parent
    if output.exists() and not output.is_dir():
        raise InputError(Problem("is a file", str(output), expected="a folder for one plan per service"))
    if not parent.is_dir():
        raise InputError(Problem("no such folder", str(parent), next_step=f"mkdir -p {shlex.quote(str(parent))}"))
