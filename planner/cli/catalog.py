"""`planner catalog`: what the project knows, with its sources."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from splitplan.planner.cli import output

if TYPE_CHECKING:
    from collections.abc import Sequence

    from splitplan.planner.show.listing import Fact

app = typer.Typer(
    no_args_is_help=True,
    help="GPUs, links, models, engines, workloads, fleets and profiles.",
    epilog="Example: planner catalog show gpu h100",
)
KINDS_HELP = "gpus, links, models, engines, workloads, fleets or profiles."


@app.command("list", epilog="Example: planner catalog list gpus")
def list_(
    kind: Annotated[str, typer.Argument(help=KINDS_HELP + " Left out: how many there are of each.")] = "",
    json: output.JsonFlag = False,
) -> None:
    """List one catalog."""
    from splitplan.planner.show.listing import KINDS, list_entries

    rows = list_entries(kind) if kind else [{"catalog": name, "entries": len(list_entries(name))} for name in KINDS]
    if json:
        output.print_json("catalog", {"catalog": kind or "all", "entries": rows})
        return
    _print_rows(rows)


@app.command(epilog="Example: planner catalog show gpu h100")
def show(
    kind: Annotated[str, typer.Argument(help=KINDS_HELP)],
    name: Annotated[str, typer.Argument(help="A name or alias; for models also a config.json or its folder.")],
    json: output.JsonFlag = False,
) -> None:
    """Show one entry with confidence and source of every figure."""
    from dataclasses import asdict

    from splitplan.planner.show.listing import describe_entry

    facts = describe_entry(kind, name)
    if json:
        output.print_json("catalog-entry", {"catalog": kind, "facts": [asdict(fact) for fact in facts]})
        return
    _print_facts(facts)


def _print_rows(rows: Sequence[dict[str, Any]]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for index, (key, value) in enumerate((rows[0] if rows else {}).items()):
        table.add_column(
            header(key), justify="right" if _is_number(value) else "left", overflow="fold", no_wrap=index == 0
        )
    for row in rows:
        table.add_row(*(Text(_text(value)) for value in row.values()))
    output.stdout_console().print(table)


def _print_facts(facts: Sequence[Fact]) -> None:
    """Facts with numbered sources; the sources follow."""
    from rich.table import Table
    from rich.text import Text

    sources = list(dict.fromkeys(fact.source for fact in facts if fact.source))
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("", "value", "confidence", "source"):
        table.add_column(name, overflow="fold", no_wrap=name == "")
    for fact in facts:
        number = f"[{sources.index(fact.source) + 1}]" if fact.source else ""
        table.add_row(*(Text(text) for text in (header(fact.key), _text(fact.value), fact.confidence, number)))
    console = output.stdout_console()
    console.print(table)
    for index, source in enumerate(sources, 1):
        console.print(Text(f"[{index}] {source}"))


UNITS = {
    "usd_per_gpu_hour": "$/GPU/h",
    "gbit_per_s": "Gbit/s",
    "gb_per_s": "GB/s",
    "kib_per_token": "KiB/token",
    "bytes_per_token": "bytes/token",
    "tflops": "TFLOP/s",
    "watts": "W",
    "gib": "GiB",
    "mib": "MiB",
    "kib": "KiB",
    "us": "µs",
}


def header(key: str) -> str:
    """`memory_gib` as people read it: "memory GiB"."""
    words = f"_{key}_"
    for unit, shown in UNITS.items():
        words = words.replace(f"_{unit}_", f" {shown} ")
    return words.replace("_", " ").strip()


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _text(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.10g}"
    if isinstance(value, (list, tuple)):
        return ", ".join(str(item) for item in value) or "–"
    if isinstance(value, dict):
        return ", ".join(f"{key} {item}" for key, item in value.items() if item is not None)
    return str(value)
