"""`planner solve`: find, verify and print a plan."""

from __future__ import annotations

import math
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from splitplan.catalogs.errors import InputError, Problem, UsageError, nearest_names, shorten
from splitplan.planner.cli.output import JsonFlag, note, print_json, stdout_console
from splitplan.planner.cli.progress import SolveProgress

if TYPE_CHECKING:
    from splitplan.planner.question import PriceKind

DEFAULT_PROGRAM_S = 60.0
PRICE_KINDS: tuple[PriceKind, ...] = ("on_demand", "reserved", "spot")


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
    require: Annotated[
        list[str] | None, typer.Option(help="At least one such instance: l40s, decode:tp=4; repeatable.")
    ] = None,
    kinds: Annotated[
        int,
        typer.Option(min=1, help="Most different shapes per role and GPU type."),
    ] = 1,
    survive: Annotated[
        Literal["", "node", "rack", "power-domain"], typer.Option(help="Serve the load with any one of them gone.")
    ] = "",
    max_rack_share: Annotated[
        float | None, typer.Option(min=0, max=1, help="Most of any role's load in one rack, for instance 0.5.")
    ] = None,
    whole_classes: Annotated[
        bool, typer.Option("--whole-classes", help="One kind of instance per stage for each request class.")
    ] = False,
    class_weight: Annotated[
        list[str] | None, typer.Option(help="With goodput: worth of one request of a class, chat=3; repeatable.")
    ] = None,
    time_limit: Annotated[
        float | None,
        typer.Option(
            min=1, help="Seconds for all of it; the best plan by then is given. Default: 60 for each program."
        ),
    ] = None,
    engine: Annotated[str, typer.Option(help="Engine, for instance vllm or vllm@0.32.0.")] = "vllm",
    connector: Annotated[str, typer.Option(help="KV connector; default: the engine's first.")] = "",
    weight_dtype: Annotated[str, typer.Option(help="Default: as the model is published.")] = "",
    kv_dtype: Annotated[str, typer.Option(help="bf16 or fp8; default bf16.")] = "",
    memory_fraction: Annotated[
        float, typer.Option(min=0, max=1, help="Of total GPU memory; 0: the engine's default.")
    ] = 0.0,
    mix_pipelines: Annotated[
        bool, typer.Option(help="Pipelines over two GPU types of a rack, where a host of one cannot hold the model.")
    ] = True,
    price: Annotated[
        str,
        typer.Option(
            help="on_demand, reserved or spot; several, as spot,on_demand, are mixed, the cheapest first up to its cap."
        ),
    ] = "on_demand",
    confidence: Annotated[
        float,
        typer.Option(
            min=50, max=99, help="Percent of measured step times that those planned with cover; 50: best guess."
        ),
    ] = 50.0,
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

    With wishes: --survive node --max-rack-share 0.6 --price spot,on_demand --forbid l40s --require decode=h100-sxm
    --time-limit 60
    """
    from splitplan.planner.columns.options import ColumnOptions
    from splitplan.planner.patience import patience
    from splitplan.planner.plan import save_plan
    from splitplan.planner.program.types import ProgramOptions
    from splitplan.planner.question import Question
    from splitplan.planner.show.report import print_plan
    from splitplan.planner.solve import answer

    missing = [f"--{name}" for name, value in (("model", model), ("workload", workload), ("slo", slo)) if not value]
    if missing and services is None:
        raise UsageError(Problem(f"missing {', '.join(missing)}", expected="what to serve, or --services FILE"))
    for name, limit in (("--budget", budget), ("--max-power", max_power)):
        if limit is not None and not math.isfinite(limit):
            raise UsageError(f"{name} is {limit:g}: leave it out for no limit")
    kinds_of_price = _kinds_of_price(price)
    base_kind: PriceKind = "on_demand" if "on_demand" in kinds_of_price else kinds_of_price[0]
    progress = SolveProgress({"cost": "$/h", "power": "W"}.get(objective, "of the asked rate"))
    program = ProgramOptions(
        objective=objective,
        mode=mode,
        pin=tuple(pin or ()),
        forbid=tuple(forbid or ()),
        budget_usd_per_hour=budget,
        max_power_watts=max_power,
        max_kinds=kinds,
        survive=survive,
        require=tuple(require or ()),
        max_share_per_rack=max_rack_share,
        whole_classes=whole_classes,
        price_kinds=kinds_of_price if len(kinds_of_price) > 1 else (),
        time_limit_s=DEFAULT_PROGRAM_S if time_limit is None else min(time_limit, DEFAULT_PROGRAM_S),
    )
    if services is not None:
        from splitplan.planner.cli.solve_services import solve_together
        from splitplan.planner.services.read import Shared

        own = {
            "model": model, "workload": workload, "slo": slo, "rate": rate, "pin": pin, "forbid": forbid,
            "mode": mode != "auto", "engine": engine != "vllm", "connector": connector, "weight-dtype": weight_dtype,
            "kv-dtype": kv_dtype, "memory-fraction": memory_fraction, "profile": profile, "class-weight": class_weight,
            "length-buckets": length_buckets, "require": require, "max-rack-share": max_rack_share,
            "price with several kinds": len(kinds_of_price) > 1,
        }  # fmt: skip
        common = ColumnOptions(mix_pipelines=mix_pipelines, confidence=confidence)
        with progress, patience(time_limit, progress.report):
            solve_together(services, Shared(fleet, program, common, base_kind, seed), output, own, json=json)
        return
    if output is not None and not output.parent.is_dir():
        problem = Problem("no such folder", str(output.parent), next_step=f"mkdir -p {shlex.quote(str(output.parent))}")
        raise InputError(problem)
    chosen = (engine, connector, weight_dtype, kv_dtype, memory_fraction)
    columns = ColumnOptions(*chosen, mix_pipelines=mix_pipelines, confidence=confidence)
    question = Question(
        model=model,
        fleet=fleet,
        workload=workload,
        slo=slo,
        rate_req_per_s=rate,
        program=program,
        columns=columns,
        price_kind=base_kind,
        class_weights=_class_weights(class_weight or []),
        profiles=tuple(profile or ()),
        length_buckets=length_buckets,
        seed=seed,
    )
    with progress, patience(report=progress.report):
        found = answer(question, progress=progress.note, time_limit_s=time_limit)
    if output is not None:
        save_plan(found.plan, output)
        note(f"plan written to {output}")
    if json:
        print_json("Plan", found.plan.model_dump(mode="json"))
    else:
        print_plan(stdout_console(), found.plan, found.inputs, saved_as=str(output or ""))


def _kinds_of_price(text: str) -> tuple[PriceKind, ...]:
    """The kinds in "spot,on_demand", in that order, each once. Raises UsageError for others."""
    found: list[PriceKind] = []
    for part in text.split(","):
        kind = next((kind for kind in PRICE_KINDS if kind == part.strip()), None)
        if kind is None:
            near = nearest_names(part.strip(), PRICE_KINDS)
            hint = f"did you mean {' or '.join(near)}?" if near else ""
            message = f"unknown price kind '{shorten(part.strip())}'"
            raise UsageError(Problem(message, key="--price", expected=", ".join(PRICE_KINDS), next_step=hint))
        if kind not in found:
            found.append(kind)
    return tuple(found)


def _class_weights(texts: list[str]) -> tuple[tuple[str, float], ...]:
    """("chat", 3.0) of "chat=3". Raises UsageError."""
    found: dict[str, float] = {}
    for text in texts:
        name, _, value = text.rpartition("=")
        try:
            weight = float(value)
        except ValueError:
            weight = math.nan
        if not name or not 0 <= weight < math.inf or name in found:
            message = f"cannot read the class weight '{shorten(text)}'"
            raise UsageError(Problem(message, key="--class-weight", expected="CLASS=NUMBER, each class once"))
        found[name] = weight
    return tuple(found.items())
