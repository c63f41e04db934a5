"""`planner profile`: measure a device, or import published measurements."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from splitplan.planner.cli import output, profile_sources

app = typer.Typer(
    help="Operation times of a GPU: measured here, or imported.",
    epilog="Example: planner profile --device cpu --model qwen3-0.6b --budget-s 60",
)
importers = typer.Typer(help="Turn published measurements into a profile.", no_args_is_help=True)
app.add_typer(importers, name="import")
app.command(epilog=profile_sources.ENGINE_EXAMPLE)(profile_sources.engine)
app.command(epilog=profile_sources.LINK_EXAMPLE)(profile_sources.link)
app.command(epilog=profile_sources.MERGE_EXAMPLE)(profile_sources.merge)
app.command(hidden=True)(profile_sources.worker)


@app.callback(invoke_without_command=True)
def profile(
    context: typer.Context,
    device: Annotated[str, typer.Option(help="What to measure: cuda, cuda:N or cpu.")] = "cuda",
    gpu: Annotated[str, typer.Option(help="Catalog name, where the driver's name is not in the catalog.")] = "",
    model: Annotated[list[str] | None, typer.Option(help="Model whose shapes to measure; repeat for several.")] = None,
    tp: Annotated[str, typer.Option(help="Tensor parallel sizes, such as 1,2,4. Default: up to one node.")] = "",
    dtype: Annotated[list[str] | None, typer.Option(help="Weight dtype; repeat for several. Default: bf16.")] = None,
    kv_dtype: Annotated[list[str] | None, typer.Option(help="KV dtype; repeat for several. Default: bf16.")] = None,
    budget_s: Annotated[float | None, typer.Option(help="Seconds in all; the least informative points go.")] = None,
    plan_only: Annotated[bool, typer.Option("--plan-only", help="Print the points and an estimate; no GPU.")] = False,
    via: Annotated[
        Literal["", "slurm", "ssh", "ray", "k8s"],
        typer.Option(help="Measure one node of each kind of --fleet."),
    ] = "",
    fleet: Annotated[str, typer.Option(help="With --via: fleet file, or the name of a shipped one.")] = "",
    image: Annotated[str, typer.Option(help="With --via k8s: image with splitplan and its extra gpu.")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="With --via: print the jobs, run nothing.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Continue earlier rows; measure what is missing.")] = False,
    file: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Profile to write; default: <gpu>.splitplan.npz. With --via: a folder."),
    ] = None,
    json: output.JsonFlag = False,
) -> None:
    """Measure this machine's device, or import published measurements (`planner profile import`).

    Writes a profile, and beside it every measured row (.rows.jsonl) as it finishes. Sets nothing on the device.
    """
    if context.invoked_subcommand is not None:
        return
    from splitplan.planner.cli import profile_measure as shown
    from splitplan.profiler import session

    options = session.Options(
        models=tuple(model or session.DEFAULT_MODELS),
        tensor_parallel=session.parse_sizes(tp),
        dtypes=tuple(dtype or ("bf16",)),
        kv_dtypes=tuple(kv_dtype or ("bf16",)),
        budget_s=budget_s,
    )
    if plan_only:
        name = session.gpu_to_plan_for(device, gpu)
        plan = session.plan_without_hardware(name, options)
        if json:
            output.print_json("profile-plan", shown.plan_document(name, plan))
        else:
            shown.print_plan(name, plan)
        return
    if via:
        shown.profile_fleet(via, fleet, options, file or Path("profiles"), image, dry_run=dry_run, as_json=json)
        return
    with shown.progress_bar() as show, shown.interruptible():
        measured = session.measure_device(device, options, file, gpu_name=gpu, resume=resume, show=show)
    if json:
        output.print_json("profile-run", shown.measured_document(measured))
    else:
        shown.print_measured(measured)


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
