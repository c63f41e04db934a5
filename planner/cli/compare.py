"""`planner compare`: fleets or targets side by side."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from splitplan.planner.cli.output import JsonFlag, ParallelOption, note, print_json


def compare(
    model: Annotated[str, typer.Option(help="Catalog name, or a Hugging Face config.json.")],
    fleet: Annotated[list[str], typer.Option(help="Fleet file or shipped name; repeatable.")],
    workload: Annotated[str, typer.Option(help="Workload or trace file, shipped name, or fixed:1024/200.")],
    slo: Annotated[list[str], typer.Option(help="Targets; repeatable.")],
    rate: Annotated[float | None, typer.Option(help="Requests per second; default: the workload's own.")] = None,
    objective: Annotated[Literal["cost", "goodput", "power"], typer.Option(help="What to optimise.")] = "cost",
    parallel: ParallelOption = "1",
    json: JsonFlag = False,
) -> None:
    """Solve and verify the same load on several fleets or under several targets, one line each.

    Example: planner compare --model llama-3.1-8b --fleet all-h100 --fleet a100-l40s --workload azure-conv --rate 20
    --slo ttft=1s@p99,tpot=60ms@p99
    """
    from splitplan.planner.program.types import ProgramOptions
    from splitplan.planner.question import Question
    from splitplan.planner.review.sweep import compare as compare_all
    from splitplan.planner.review.sweep import table_lines
    from splitplan.planner.simulate.parallel import parse_parallel

    question = Question(model, fleet[0], workload, slo[0], rate, ProgramOptions(objective=objective))
    points = compare_all(question, fleet, slo, progress=note, parallel=parse_parallel(parallel))
    if json:
        print_json("Comparison", {"points": [point.as_json() for point in points]})
    else:
        typer.echo("\n".join(table_lines(points)))
