"""`planner workload`: what a workload asks for, fitting a description to a trace, and sampling requests."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from splitplan.catalogs.errors import UsageError
from splitplan.planner.cli import output

if TYPE_CHECKING:
    from splitplan.planner.spec.summary import LengthSummary, WorkloadSummary
    from splitplan.planner.spec.workload import Workload

app = typer.Typer(
    no_args_is_help=True,
    help="Workloads and traces: show, fit, sample.",
    epilog="Example: planner workload show azure-conv",
)

Name = Annotated[
    str,
    typer.Argument(help="A shipped name, fixed:1024/200, lognormal:mean=…/mean=…, a Workload file, or a trace."),
]
Rate = Annotated[float | None, typer.Option("--rate", help="Requests per second, instead of the workload's own.")]
Start = Annotated[float, typer.Option("--start", help="Start of a window of a trace, in seconds.")]
End = Annotated[float | None, typer.Option("--end", help="End of a window of a trace, in seconds.")]
Column = Annotated[
    list[str] | None, typer.Option("--column", help="ROLE=NAME of a trace's column; roles time, input, output, class.")
]


@app.command(epilog="Example: planner workload show azure-conv")
def show(
    name: Name,
    rate: Rate = None,
    start: Start = 0.0,
    end: End = None,
    column: Column = None,
    json: output.JsonFlag = False,
) -> None:
    """Show rates, burstiness, quantiles of lengths, and how much prefixes repeat."""
    from dataclasses import asdict

    from splitplan.planner.spec.summary import summarise

    summary = summarise(_load(name, rate, start, end, column))
    if json:
        output.print_json("workload", asdict(summary))
        return
    _print_summary(summary)
    for line in summary.notes:
        output.note(f"note: {line}")


@app.command(epilog="Example: planner workload fit my-chat.csv --out my-chat.yaml")
def fit(
    trace: Annotated[Path, typer.Argument(help="A trace, in any format that `show` reads.")],
    name: Annotated[str, typer.Option("--name", help="Name of the workload; default: the file's.")] = "",
    out: Annotated[Path | None, typer.Option("--out", "-o", help="File to write; left out: stdout.")] = None,
    points: Annotated[int, typer.Option("--points", min=16, max=100_000, help="Rows of the joint sample.")] = 1024,
    cache_tokens: Annotated[int, typer.Option("--cache-tokens", min=0, help="Size of the prefix cache.")] = 1_048_576,
    source: Annotated[str, typer.Option("--source", help="Where the trace comes from, for the file.")] = "",
    licence: Annotated[str, typer.Option("--licence", help="Licence of the trace, for the file.")] = "",
    hourly: Annotated[bool, typer.Option("--hourly", help="Keep the rate of each hour.")] = False,
    profile: Annotated[float | None, typer.Option("--profile", help="Keep the rate of every so many seconds.")] = None,
    split: Annotated[str, typer.Option("--split", help="Classes by prompt length, as in 2000,8000.")] = "",
    start: Start = 0.0,
    end: End = None,
    column: Column = None,
    json: output.JsonFlag = False,
) -> None:
    """Fit a description, small enough to ship, to a trace."""
    from splitplan.planner.spec.describe import fit_document
    from splitplan.planner.spec.trace.read import read_trace
    from splitplan.planner.spec.trace.shape import parse_edges, split_by_input
    from splitplan.planner.spec.yaml_text import write_text, yaml_text

    found = read_trace(trace, columns=_columns(column), start_s=start, end_s=end)
    requests, class_names = found.requests, found.class_names
    if split:
        requests, class_names = split_by_input(requests, parse_edges(split))
    document = fit_document(
        requests,
        name or trace.stem,
        class_names=class_names,
        source=source or f"fitted to {trace.name}",
        licence=licence,
        cache_tokens=cache_tokens,
        num_points=points,
        hourly=hourly,
        profile_step_s=profile,
    )
    for line in found.report.lines():
        output.note(f"note: {line}")
    if json:
        output.print_json("workload-fit", {"report": found.report.as_json(), "workload": document})
    elif out is None:
        typer.echo(yaml_text(document), nl=False)
    else:
        write_text(out, yaml_text(document))
        output.note(f"wrote {out}")


@app.command(epilog="Example: planner workload sample azure-conv --rate 24 -n 1000 > requests.jsonl")
def sample(
    name: Name,
    n: Annotated[int, typer.Option("-n", min=1, max=100_000_000, help="How many requests.")] = 1000,
    seed: Annotated[int, typer.Option("--seed", min=0, help="The same seed gives the same requests.")] = 0,
    rate: Rate = None,
    start: Start = 0.0,
    end: End = None,
    column: Column = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="File to write; left out: stdout.")] = None,
    json: output.JsonFlag = False,
) -> None:
    """Sample requests as JSON lines, which every command reads as a trace."""
    from splitplan.planner.spec.trace.write import json_lines, records
    from splitplan.planner.spec.workload import sample as draw
    from splitplan.planner.spec.yaml_text import write_text

    workload = _load(name, rate, start, end, column)
    requests = draw(workload, n, seed)
    class_names = [each.name for each in workload.classes]
    if json:
        output.print_json("requests", {"seed": seed, "requests": list(records(requests, class_names))})
    elif out is None:
        for line in json_lines(requests, class_names):
            typer.echo(line)
    else:
        write_text(out, "".join(f"{line}\n" for line in json_lines(requests, class_names)))
        output.note(f"wrote {out}")


def _load(name: str, rate: float | None, start: float, end: float | None, column: list[str] | None) -> Workload:
    from splitplan.planner.spec.workload import load_workload

    return load_workload(name, rate, start_s=start, end_s=end, columns=_columns(column))


def _columns(texts: list[str] | None) -> dict[str, str]:
    pairs = [text.partition("=") for text in texts or []]
    for role, equals, name in pairs:
        if not (role and equals and name):
            raise UsageError(f"--column {role}{equals}{name}: expected ROLE=NAME, as in --column input=ContextTokens")
    return {role.strip(): name.strip() for role, _, name in pairs}


def _print_summary(summary: WorkloadSummary) -> None:
    from rich.markup import escape
    from rich.table import Table

    console = output.stdout_console()
    console.print(f"[bold]{escape(summary.name)}[/bold]  {escape(summary.source)}")
    for label, text in _facts(summary):
        console.print(f"{label:<10}{escape(text)}")
    table = Table(box=None, pad_edge=False, header_style="bold")
    for header in ("class", "share", "tokens", "mean", "p50", "p90", "p95", "p99", "max", "SLO"):
        table.add_column(header, justify="left" if header in ("class", "tokens", "SLO") else "right")
    for each in summary.classes:
        table.add_row(escape(each.name), f"{100 * each.share:.1f} %", "in", *_cells(each.input_tokens), each.slo or "")
        table.add_row("", "", "out", *_cells(each.output_tokens), "")
    console.print(table)
    for hits in summary.prefix_hits:
        size = "no limit" if hits.cache_tokens is None else f"{hits.cache_tokens / 1e6:.1f} M tokens"
        shares = f"{100 * hits.block_share:5.1f} % of blocks, {100 * hits.token_share:5.1f} % of prompt tokens"
        console.print(f"prefix hits, one LRU cache of {size:>13}: {shares}")


def _facts(summary: WorkloadSummary) -> list[tuple[str, str]]:
    facts = []
    if summary.num_requests is not None and summary.span_s is not None:
        facts.append(("trace", f"{summary.num_requests} requests in {summary.span_s:.0f} s"))
    tokens = f"{summary.input_tokens_per_s:.0f} prompt and {summary.output_tokens_per_s:.0f} generated tokens/s"
    facts.append(("rate", f"{summary.rate_req_per_s:.4g} requests/s, {tokens}"))
    if summary.busiest_req_per_s:
        windows = ", ".join(f"{rate:.4g} over {window}" for window, rate in summary.busiest_req_per_s.items())
        facts.append(("busiest", f"{windows} (requests/s)"))
    cv = summary.arrival_scv**0.5
    facts.append(("bursts", f"squared CV of inter-arrival times {summary.arrival_scv:.4g} (CV {cv:.3g}; Poisson is 1)"))
    if summary.hourly_req_per_s:
        facts.append(("hours", ", ".join(f"{rate:.4g}" for rate in summary.hourly_req_per_s) + " requests/s"))
    facts.append(("lengths", f"correlation of prompt and output {summary.correlation:.2f}"))
    if summary.prefix_hit_ratio:
        facts.append(("prefixes", f"{100 * summary.prefix_hit_ratio:.1f} % of prompt tokens found in a warm cache"))
    return facts


def _cells(lengths: LengthSummary) -> list[str]:
    values: list[Any] = [lengths.p50, lengths.p90, lengths.p95, lengths.p99, lengths.max]
    return [f"{lengths.mean:.0f}", *(str(value) for value in values)]
