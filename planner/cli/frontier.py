"""`planner frontier`: cost against one target, or against the rate."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from splitplan.planner.cli.output import JsonFlag, ParallelOption, note, print_json


def frontier(
    model: Annotated[str, typer.Option(help="Catalog name, or a Hugging Face config.json.")],
    fleet: Annotated[str, typer.Option(help="Fleet file or shipped name.")],
    workload: Annotated[str, typer.Option(help="Workload or trace file, shipped name, or fixed:1024/200.")],
    slo: Annotated[str, typer.Option(help="Targets; the one on the axis is varied.")],
    axis: Annotated[Literal["ttft", "tpot", "rate"], typer.Option(help="What is varied.")] = "ttft",
    low: Annotated[float, typer.Option("--from", help="Lowest value: ms for ttft and tpot, req/s for rate.")] = 300.0,
    high: Annotated[float, typer.Option("--to", help="Highest value.")] = 2000.0,
    points: Annotated[int, typer.Option(min=2, max=50, help="How many values.")] = 6,
    rate: Annotated[float | None, typer.Option(help="Requests per second; default: the workload's own.")] = None,
    parallel: ParallelOption = "1",
    json: JsonFlag = False,
) -> None:
    """What each step of a looser target saves: plans solved and verified along one axis, with a plot.

    Example: planner frontier --model llama-3.1-8b --fleet four-racks --workload azure-conv --rate 20
    --slo ttft=1s@p99,tpot=60ms@p99 --axis ttft --from 200 --to 2000
    """
    from splitplan.planner.question import Question
    from splitplan.planner.review.sweep import axis_values, plot_lines, table_lines
    from splitplan.planner.review.sweep import frontier as sweep
    from splitplan.planner.simulate.parallel import parse_parallel

    unit = 1.0 if axis == "rate" else 1e-3
    values = [value * unit for value in axis_values(low, high, points)]
    question = Question(model, fleet, workload, slo, rate)
    found = sweep(question, axis, values, progress=note, parallel=parse_parallel(parallel))
    if json:
        print_json("Frontier", {"axis": axis, "points": [point.as_json() for point in found]})
        return
    label = "req/s" if axis == "rate" else f"{axis} in s"
    typer.echo("\n".join([*table_lines(found), "", *plot_lines(found, label)]))
