"""`planner profile`: measure a device, or import published measurements."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from splitplan.catalogs.errors import ProfileError
from splitplan.planner.cli import output

app = typer.Typer(
    help="Operation times of a GPU: measured here, or imported.",
    epilog="Example: planner profile import aiconfigurator --gpu h100 --engine vllm",
)
importers = typer.Typer(help="Turn published measurements into a profile.", no_args_is_help=True)
app.add_typer(importers, name="import")


@app.callback(invoke_without_command=True)
def profile(context: typer.Context) -> None:
    """Measure this machine's device, or import published measurements (`planner profile import`)."""
    if context.invoked_subcommand is None:
        raise ProfileError("measuring is not part of this build; `planner profile import` is")


@importers.command(epilog="Example: planner profile import aiconfigurator --gpu l40s --engine sglang -o profiles/")
def aiconfigurator(
    root: Annotated[
        Path | None, typer.Option(help="An unpacked copy of the package; default: the installed one.")
    ] = None,
    gpu: Annotated[list[str] | None, typer.Option(help="GPU to import; repeat for several. Default: all.")] = None,
    engine: Annotated[list[str] | None, typer.Option(help="vllm, sglang or trtllm; repeat for several.")] = None,
    folder: Annotated[
        Path | None, typer.Option("-o", "--output", help="Folder to write to; default: the shipped catalog.")
    ] = None,
    json: output.JsonFlag = False,
) -> None:
    """Import the measured op tables of an installed aiconfigurator-core (Apache-2.0; needs the extra `import`)."""
    from splitplan.profiler.importers.aiconfigurator import import_profiles

    written: list[dict[str, Any]] = []
    for path, imported in import_profiles(root, gpu or (), engine or ("vllm",), folder):
        rows = sum(len(table) for table in imported.tables.values())
        entry = {"path": str(path), "gpu": imported.gpu, "engine": imported.engine, "version": imported.engine_version}
        written.append({**entry, "rows": rows, "content_hash": imported.content_hash})
        if not json:
            typer.echo(f"{path}  {imported.engine} {imported.engine_version}, {rows:,} rows")
    if json:
        output.print_json("profiles", {"profiles": written})
