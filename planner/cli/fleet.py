"""`planner fleet`: a fleet as the planner sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from splitplan.planner.cli import fleet_import, output

if TYPE_CHECKING:
    from splitplan.planner.spec.fleet import Fleet

app = typer.Typer(
    no_args_is_help=True, help="Fleets: show, check, import.", epilog="Example: planner fleet show four-racks"
)
app.add_typer(fleet_import.importers, name="import")

Source = Annotated[str, typer.Argument(help="A Fleet file, or the name of a shipped fleet.")]
PriceKind = Annotated[str, typer.Option("--price-kind", help="on_demand, reserved or spot.")]


@app.command(epilog="Example: planner fleet show four-racks")
def show(fleet: Source, price_kind: PriceKind = "on_demand", json: output.JsonFlag = False) -> None:
    """Draw racks, nodes, links and prices."""
    from splitplan.planner.spec.fleet import as_document, load_fleet

    loaded = load_fleet(fleet, price_kind=price_kind)
    if json:
        output.print_json("fleet", {**_totals(loaded), "fleet": as_document(loaded)})
        return
    from splitplan.planner.spec.fleet_draw import fleet_tree, price_table

    console = output.stdout_console()
    console.print(fleet_tree(loaded))
    console.print()
    console.print(price_table(loaded, price_kind))
    _print_notes(loaded)


@app.command(epilog="Example: planner fleet check fleet.yaml")
def check(fleet: Source, price_kind: PriceKind = "on_demand", json: output.JsonFlag = False) -> None:
    """Check a Fleet file: every problem with its line, every assumption, and what will hold plans back."""
    from splitplan.planner.show.fleet_findings import fleet_findings
    from splitplan.planner.spec.fleet import load_fleet

    loaded = load_fleet(fleet, price_kind=price_kind)
    findings = fleet_findings(loaded)
    if json:
        output.print_json("fleet-check", {**_totals(loaded), "findings": findings})
        return
    gpus = ", ".join(f"{count} {gpu}" for gpu, count in loaded.num_gpus.items())
    typer.echo(f"{loaded.name}: {gpus} in {len(loaded.nodes)} nodes and {len(loaded.racks)} racks; no problems")
    for finding in findings:
        typer.echo(f"- {finding}")
    _print_notes(loaded)


def _totals(fleet: Fleet) -> dict[str, Any]:
    return {
        "name": fleet.name,
        "racks": len(fleet.racks),
        "nodes": len(fleet.nodes),
        "gpus": fleet.num_gpus,
        "usd_per_gpu_hour": dict(fleet.usd_per_gpu_hour),
        "price_sources": dict(fleet.price_sources),
        "notes": list(fleet.notes),
        "content_hash": fleet.content_hash,
    }


def _print_notes(fleet: Fleet) -> None:
    for line in fleet.notes:
        output.note(f"note: {line}")
