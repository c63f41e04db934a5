"""`planner status`: what runs of a launched plan."""

from __future__ import annotations

import typer

from splitplan.planner.cli.launch import PlanArgument
from splitplan.planner.cli.output import JsonFlag, print_json, stdout_console


def status(plan: PlanArgument, json: JsonFlag = False) -> None:
    """Every process of a launched plan: running, ready, how many requests. Exit code 1 when one is missing.

    Example: planner status plan.yaml
    """
    from dataclasses import asdict

    from splitplan.launcher.lifecycle import status as look

    state, found = look(plan)
    if json:
        processes = [
            {**asdict(each.process), "running": each.is_running, "ready": each.is_ready,
             "requests_running": each.requests_running, "requests_waiting": each.requests_waiting}
            for each in found
        ]  # fmt: skip
        data = {"target": state.target, "engine": state.engine, "phase": state.phase, "processes": processes}
        print_json("Status", {"name": state.name, "endpoints": list(state.endpoints), **data})
    else:
        from rich.table import Table

        table = Table(box=None, pad_edge=False)
        for heading in ("process", "host", "rack", "state", "running", "waiting", "url"):
            table.add_column(heading)
        for each in found:
            process = each.process
            word = "serving" if each.is_ready else ("starting" if each.is_running else "gone")
            counts = ["" if n is None else str(n) for n in (each.requests_running, each.requests_waiting)]
            table.add_row(process.name, process.host, process.rack, word, *counts, process.url)
        console = stdout_console()
        console.print(f"{state.name}: {state.engine} on {state.target}, {state.phase}; {'  '.join(state.endpoints)}")
        console.print(table)
    if not all(each.is_ready for each in found):
        raise typer.Exit(1)
