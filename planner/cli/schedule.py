"""`planner schedule`: which plan runs at which hours of the day."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Literal

import typer

from splitplan.catalogs.errors import InputError, Problem, UsageError
from splitplan.planner.cli.output import JsonFlag, note, print_json, stdout_console


def schedule(
    model: Annotated[str, typer.Option(help="Catalog name, or a Hugging Face config.json.")],
    fleet: Annotated[str, typer.Option(help="Fleet file, or the name of a shipped one.")],
    workload: Annotated[str, typer.Option(help="Workload file with hourly_req_per_s, or any with --hourly.")],
    slo: Annotated[str, typer.Option(help="For instance ttft=800ms@p99,tpot=50ms@p99.")],
    hourly: Annotated[str, typer.Option(help="Requests per second of each hour: 2,2,3,8,12,12,9,4.")] = "",
    rate: Annotated[float | None, typer.Option(help="Of the busiest hour; the others are scaled along.")] = None,
    levels: Annotated[int, typer.Option(min=1, max=24, help="Most levels of load that get a plan of their own.")] = 4,
    move_cost: Annotated[float, typer.Option(min=0, help="Dollars per instance started or stopped.")] = 1.0,
    reload: Annotated[float, typer.Option(min=0, help="Seconds from a start to serving: GPUs are paid.")] = 300.0,
    drain: Annotated[float, typer.Option(min=0, help="Seconds an instance drains before it stops.")] = 60.0,
    mode: Annotated[
        Literal["auto", "disagg", "colocated"], typer.Option(help="Which kinds of serving may be chosen.")
    ] = "auto",
    pin: Annotated[list[str] | None, typer.Option(help="Only such columns: decode=a100-sxm-80.")] = None,
    forbid: Annotated[list[str] | None, typer.Option(help="No such columns: l40s, colocated:tp=8.")] = None,
    kinds: Annotated[int, typer.Option(min=1, help="Most different shapes per role and GPU type at a time.")] = 1,
    time_limit: Annotated[float, typer.Option(min=0.1, help="Seconds for each program; the gap is shown.")] = 120.0,
    engine: Annotated[str, typer.Option(help="Engine, for instance vllm or vllm@0.32.0.")] = "vllm",
    price: Annotated[
        Literal["on_demand", "reserved", "spot"], typer.Option(help="Which price of the fleet to plan with.")
    ] = "on_demand",
    seed: Annotated[int, typer.Option(min=0, help="Seed of every sample.")] = 0,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder for schedule.yaml and a plan per level.")
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Plan the hours of a day together: a plan per level of load, and the moves between them, priced.

    Example: planner schedule --model llama-3.1-8b --fleet a100-l40s --workload azure-conv
    --hourly 8,8,12,32,48,72,64,32 --slo ttft=1s@p95,tpot=40ms@p95 -o day
    """
    from splitplan.planner.columns.options import ColumnOptions
    from splitplan.planner.program.types import ProgramOptions
    from splitplan.planner.question import Question
    from splitplan.planner.schedule.document import document_of
    from splitplan.planner.schedule.joint import Switching
    from splitplan.planner.schedule.report import as_json, drops, print_schedule
    from splitplan.planner.schedule.solve import Asked, solve_schedule

    rates = _rates(hourly)
    if rates and rate is not None:
        raise UsageError(Problem("--rate with --hourly", expected="one of the two"))
    _check_folder(output)
    program = ProgramOptions(
        mode=mode, pin=tuple(pin or ()), forbid=tuple(forbid or ()), max_kinds=kinds, time_limit_s=time_limit
    )
    question = Question(model, fleet, workload, slo, rate, program, ColumnOptions(engine), price_kind=price, seed=seed)
    asked = Asked(question, rates, levels, Switching(move_cost, reload, drain))
    found = solve_schedule(asked, progress=note)
    document = document_of(found, asked.switching)
    if drops(document.switches):
        note(f"{drops(document.switches)} moves drop the load because every GPU they need is held")
    if output is not None:
        _write(found, document, output)
    if json:
        print_json("Schedule", as_json(found, document))
    else:
        print_schedule(stdout_console(), found, document)


def _rates(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(",")) if text else ()
    except ValueError:
        raise UsageError(Problem(f"cannot read --hourly {text}", expected="numbers, as in 2,2,8,12")) from None


def _check_folder(output: Path | None) -> None:
    if output is None:
        return
    if output.exists() and not output.is_dir():
        raise InputError(Problem("is a file", str(output), expected="a folder for the schedule and its plans"))
    parent = output.parent
    if not parent.is_dir():
        raise InputError(Problem("no such folder", str(parent), next_step=f"mkdir -p {shlex.quote(str(parent))}"))


def _write(found: object, document: object, output: Path) -> None:
    from splitplan.planner.plan import save_plan
    from splitplan.planner.schedule.document import ScheduleFile, save_schedule
    from splitplan.planner.schedule.solve import Schedule

    assert isinstance(found, Schedule)
    assert isinstance(document, ScheduleFile)
    output.mkdir(exist_ok=True)
    for name, plan in zip(document.plans.values(), found.plans, strict=True):
        save_plan(plan, output / name)
    save_schedule(document, output / "schedule.yaml")
    note(f"schedule.yaml and {len(found.plans)} plans written to {output}")
