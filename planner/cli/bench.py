"""`planner bench`: load a running cluster and put what it served beside what was planned."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from splitplan.catalogs.errors import UsageError
from splitplan.planner.cli.output import JsonFlag, note, print_json, stdout_console

if TYPE_CHECKING:
    from splitplan.launcher.bench import BenchReport


def bench(
    where: Annotated[str, typer.Argument(metavar="PLAN|URL", help="A launched plan's file, or http://HOST:PORT.")],
    workload: Annotated[str, typer.Option(help="Workload; default: the plan's.")] = "",
    rate: Annotated[float | None, typer.Option(min=0.001, help="Requests per second; default: the plan's.")] = None,
    duration: Annotated[float, typer.Option(min=1.0, help="Seconds of arrivals.")] = 30.0,
    model: Annotated[str, typer.Option(help="Model name to ask for; needed for a URL.")] = "",
    slo: Annotated[str, typer.Option(help="Targets; default: the plan's.")] = "",
    seed: Annotated[int, typer.Option(min=0, help="Seed of arrivals, lengths and prompts.")] = 0,
    mock: Annotated[
        bool, typer.Option("--mock", help="Start a mock cluster of the plan for the time of the test.")
    ] = False,
    client: Annotated[str, typer.Option(help="Who sends the load: own, or guidellm where it is installed.")] = "own",
    tokenizer: Annotated[str, typer.Option(help="guidellm: the model's tokenizer; default: a word a token.")] = "",
    measurements: Annotated[
        Path | None, typer.Option(help="Write a CSV file that `planner calibrate` accepts.")
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Replay a workload open-loop against a running cluster; TTFT, TPOT, ITL and E2E beside the plan's predictions.

    Example: planner bench plan.yaml --duration 60

    Example: planner bench plan.yaml --mock
    """
    from dataclasses import asdict

    from splitplan.launcher.bench import bench as run_bench
    from splitplan.launcher.bench import measurement_csv
    from splitplan.launcher.demo import LABEL, serve_with_mocks
    from splitplan.launcher.files import write_file
    from splitplan.launcher.state import require_state
    from splitplan.planner.plan import load_plan

    title = ""
    if mock:
        if measurements is not None:
            raise UsageError("--mock is timed by the plan itself: its figures are no measurements")
        launched, report = serve_with_mocks(
            where, duration_s=duration, rate_req_per_s=rate, workload=workload, slo=slo, seed=seed, progress=note
        )
        title = LABEL
        if launched.report and not json:
            typer.echo(f"Probe  {launched.report.summary()}")
    else:
        report = run_bench(
            where,
            workload=workload,
            rate_req_per_s=rate,
            duration_s=duration,
            model=model,
            slo=slo,
            seed=seed,
            client=client,
            tokenizer=tokenizer,
        )
    if measurements is not None:
        text = measurement_csv(report, load_plan(where), engine=require_state(where).engine)
        write_file(measurements, text)
        note(f"wrote {measurements}")
    if json:
        print_json("BenchReport", asdict(report))
    else:
        print_bench(report, title=title)


def print_bench(report: BenchReport, *, title: str = "") -> None:
    """The table of planned against served."""
    from rich.table import Table

    from splitplan.launcher.bench import TPOT_DEFINITION, rows

    table = Table(title=title or None, title_justify="left", box=None, pad_edge=False)
    table.add_column("latency")
    table.add_column("planned", justify="right")
    if report.simulated_ms:
        table.add_column("these requests", justify="right")
    table.add_column("served", justify="right")
    for latency, planned, simulated, served in rows(report):
        table.add_row(latency, planned, *([simulated] if report.simulated_ms else []), served)
    console = stdout_console()
    console.print(table)
    console.print(
        f"{report.num_requests} requests at {report.offered_req_per_s:.2f}/s, {report.num_failed} failed; "
        f"{report.output_tokens_per_s:,.0f} output tokens/s; client at most {report.max_lag_ms:.0f} ms late. "
        f"{TPOT_DEFINITION}."
    )
    if report.simulated_ms:
        console.print(
            "planned: in the long run; these requests: the simulator's answer on the very ones that were sent."
        )
    for error in report.errors:
        note(f"failed: {error}")
