"""`planner catalog`: what the project knows, with its sources."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from splitplan.planner.cli import output

if TYPE_CHECKING:
    from collections.abc import Sequence

    from splitplan.planner.listing import Fact

app = typer.Typer(no_args_is_help=True, help="GPUs, links, models, engines, workloads, fleets and profiles.")
KINDS_HELP = "gpus, links, models, engines, workloads, fleets or profiles."


@app.command("list", epilog="Example: planner catalog list gpus")
def list_(
    kind: Annotated[str, typer.Argument(help=KINDS_HELP + " Left out: how many there are of each.")] = "",
    json: output.JsonFlag = False,
) -> None:
    """List one catalog."""
    from splitplan.planner.listing import KINDS, list_entries

    if kind:
        rows = list_entries(kind)
    else:
        rows = [{"catalog": name, "entries": len(list_entries(name))} for name in KINDS]
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

    from splitplan.planner.listing import describe_entry

    facts = describe_entry(kind, name)
    if json:
        output.print_json("catalog-entry", {"catalog": kind, "facts": [asdict(fact) for fact in facts]})
        return
    _print_facts(facts)


def _print_rows(rows: Sequence[dict[str, Any]]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for key, value in (rows[0] if rows else {}).items():
        table.add_column(key.replace("_", " "), justify="right" if _is_number(value) else "left", overflow="fold")
    for row in rows:
        table.add_row(*(_text(value) for value in row.values()))
    output.stdout_console().print(table)


def _print_facts(facts: Sequence[Fact]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for header in ("", "value", "confidence", "source"):
        table.add_column(header, overflow="fold")
    for fact in facts:
        table.add_row(fact.key, _text(fact.value), fact.confidence, fact.source)
    output.stdout_console().print(table)


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
