"""`planner simulate`: replay a workload against a saved plan."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from splitplan.planner.cli.output import JsonFlag, ParallelOption, print_json, stdout_console


def simulate(
    plan: Annotated[Path, typer.Argument(help="Plan file written by planner solve.")],
    workload: Annotated[str, typer.Option(help="Another workload or trace; default: the plan's own.")] = "",
    rate: Annotated[float | None, typer.Option(help="Requests per second; default: the plan's own.")] = None,
    slo: Annotated[str, typer.Option(help="Other targets; default: the plan's own.")] = "",
    requests: Annotated[int, typer.Option(min=100, help="Requests per seed.")] = 20_000,
    seeds: Annotated[int, typer.Option(min=1, help="Independent runs.")] = 3,
    confidence: Annotated[
        float | None, typer.Option(min=50, max=99, help="Of step times, as in planner solve; default: the plan's own.")
    ] = None,
    step_scale: Annotated[
        float, typer.Option(min=0.1, max=10, help="What if every step took this many times as long.")
    ] = 1.0,
    parallel: ParallelOption = "1",
    json: JsonFlag = False,
) -> None:
    """Replay a workload against a plan and report TTFT, TPOT and SLO attainment.

    Example: planner simulate plan.yaml --rate 30 --requests 50000
    """
    from splitplan.planner.plan import load_plan
    from splitplan.planner.review.replay import replay
    from splitplan.planner.show.report import replay_table
    from splitplan.planner.simulate.parallel import parse_parallel

    verdict = replay(
        load_plan(plan),
        workload=workload,
        rate_req_per_s=rate,
        slo=slo,
        num_requests=requests,
        num_seeds=seeds,
        confidence=confidence,
        step_scale=step_scale,
        parallel=parse_parallel(parallel),
    )
    if json:
        print_json("Verification", verdict.model_dump(mode="json"))
    else:
        console = stdout_console()
        console.print(replay_table(verdict))
        console.print("passes" if verdict.passed else "misses: " + "; ".join(verdict.misses), markup=False)
    if not verdict.passed:
        raise typer.Exit(3)
