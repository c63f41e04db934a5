"""`planner solve`: find, verify and print a plan."""

from __future__ import annotations

import math
import shlex
from pathlib import Path
from typing import Annotated, Literal

import typer

from splitplan.catalogs.errors import InputError, Problem, UsageError
from splitplan.planner.cli.output import JsonFlag, note, print_json, stdout_console


def solve(
    fleet: Annotated[str, typer.Option(help="Fleet file, or the name of a shipped one.")],
    model: Annotated[str, typer.Option(help="Catalog name, or a Hugging Face config.json.")] = "",
    workload: Annotated[str, typer.Option(help="Workload or trace file, shipped name, or fixed:1024/200.")] = "",
    slo: Annotated[str, typer.Option(help="For instance ttft=800ms@p99,tpot=50ms@p99.")] = "",
    services: Annotated[
        Path | None, typer.Option(help="Several models in one fleet: a Services file, instead of the three above.")
    ] = None,
    rate: Annotated[float | None, typer.Option(help="Requests per second; default: the workload's own.")] = None,
    mode: Annotated[
        Literal["auto", "disagg", "colocated"], typer.Option(help="Which kinds of serving may be chosen.")
    ] = "auto",
    objective: Annotated[
        Literal["cost", "goodput", "power"],
        typer.Option(help="Least cost, most goodput (a multiple of the rate), or least power."),
    ] = "cost",
    budget: Annotated[float | None, typer.Option(min=0, help="Most dollars per hour.")] = None,
    max_power: Annotated[float | None, typer.Option(min=0, help="Most watts.")] = None,
    pin: Annotated[list[str] | None, typer.Option(help="Only such columns: decode=a100-sxm-80, prefill:tp=2.")] = None,
    forbid: Annotated[list[str] | None, typer.Option(help="No such columns: l40s, colocated:tp=8.")] = None,
    kinds: Annotated[
        int,
        typer.Option(min=1, help="Most different shapes per role and GPU type."),
    ] = 1,
    survive: Annotated[
        Literal["", "node", "rack", "power-domain"], typer.Option(help="Serve the load with any one of them gone.")
    ] = "",
    time_limit: Annotated[float, typer.Option(min=0.1, help="Seconds for each program; the gap is shown.")] = 60.0,
    engine: Annotated[str, typer.Option(help="Engine, for instance vllm or vllm@0.32.0.")] = "vllm",
    connector: Annotated[str, typer.Option(help="KV connector; default: the engine's first.")] = "",
    weight_dtype: Annotated[str, typer.Option(help="Default: as the model is published.")] = "",
    kv_dtype: Annotated[str, typer.Option(help="bf16 or fp8; default bf16.")] = "",
    memory_fraction: Annotated[
        float, typer.Option(min=0, max=1, help="Of total GPU memory; 0: the engine's default.")
    ] = 0.0,
    price: Annotated[
        Literal["on_demand", "reserved", "spot"], typer.Option(help="Which price of the fleet to plan with.")
    ] = "on_demand",
    length_buckets: Annotated[
        str,
        typer.Option(
            help="Let instances serve prompts of some lengths only: auto, a number, or edges in input tokens."
        ),
    ] = "",
    profile: Annotated[list[str] | None, typer.Option(help="Profile file for one GPU type; repeatable.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of every sample.")] = 0,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="YAML file to write; with --services a folder.")
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Find the cheapest plan that meets the targets, and verify it by simulation.

    With --services, several models share the fleet: one program over all of them, a plan for each in a folder.

    Example: planner solve --model llama-3.1-70b --fleet four-racks --workload azure-conv --rate 24
    --slo ttft=1s@p99,tpot=60ms@p99 -o plan.yaml
    """
    from splitplan.planner.columns.options import ColumnOptions
    from splitplan.planner.plan import save_plan
    from splitplan.planner.program.types import ProgramOptions
    from splitplan.planner.question import Question
    from splitplan.planner.report import print_plan
    from splitplan.planner.solve import answer

    missing = [f"--{name}" for name, value in (("model", model), ("workload", workload), ("slo", slo)) if not value]
    if missing and services is None:
        raise UsageError(Problem(f"missing {', '.join(missing)}", expected="what to serve, or --services FILE"))
    for name, limit in (("--budget", budget), ("--max-power", max_power)):
        if limit is not None and not math.isfinite(limit):
            raise UsageError(f"{name} is {limit:g}: leave it out for no limit")
    program = ProgramOptions(
        objective=objective,
        mode=mode,
        pin=tuple(pin or ()),
        forbid=tuple(forbid or ()),
        budget_usd_per_hour=budget,
        max_power_watts=max_power,
        max_kinds=kinds,
        survive=survive,
        time_limit_s=time_limit,
    )
    if services is not None:
        from splitplan.planner.cli.solve_services import solve_together
        from splitplan.planner.services.read import Shared

        own = {
            "model": model, "workload": workload, "slo": slo, "rate": rate, "pin": pin, "forbid": forbid,
            "mode": mode != "auto", "engine": engine != "vllm", "connector": connector, "weight-dtype": weight_dtype,
            "kv-dtype": kv_dtype, "memory-fraction": memory_fraction, "profile": profile,
        }  # fmt: skip
        solve_together(services, Shared(fleet, program, price, seed), output, own, json=json)
        return
    if output is not None and not output.parent.is_dir():
        problem = Problem("no such folder", str(output.parent), next_step=f"mkdir -p {shlex.quote(str(output.parent))}")
        raise InputError(problem)
    question = Question(
        model=model,
        fleet=fleet,
        workload=workload,
        slo=slo,
        rate_req_per_s=rate,
        program=program,
        columns=ColumnOptions(engine, connector, weight_dtype, kv_dtype, memory_fraction),
        price_kind=price,
        profiles=tuple(profile or ()),
        length_buckets=length_buckets,
        seed=seed,
    )
    found = answer(question, progress=note)
    if output is not None:
        save_plan(found.plan, output)
        note(f"plan written to {output}")
    if json:
        print_json("Plan", found.plan.model_dump(mode="json"))
    else:
        print_plan(stdout_console(), found.plan, found.inputs, saved_as=str(output or ""))
