"""What `planner profile` prints while and after it measures."""

from __future__ import annotations

import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from splitplan.planner.cli import output

if TYPE_CHECKING:
    from splitplan.profiler.fleet import Job, JobOutcome, Via
    from splitplan.profiler.measure import Progress
    from splitplan.profiler.points import MeasurementPlan, Point
    from splitplan.profiler.session import Measured, Options


@contextmanager
def progress_bar() -> Iterator[Callable[[Progress], None]]:
    """A bar with the time left on a terminal's stderr; silence anywhere else."""
    if not sys.stderr.isatty():
        yield lambda progress: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.progress import Progress as Bar

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[left]} left  {task.description}"))
    with Bar(*columns, console=output.stderr_console(), transient=True) as bar:
        task = bar.add_task("", total=None, left="?")

        def show(progress: Progress) -> None:
            left = f"{progress.left_s:.0f} s" if progress.left_s < 90 else f"{progress.left_s / 60:.0f} min"
            bar.update(task, total=progress.total, completed=progress.done, description=progress.key, left=left)

        yield show


@contextmanager
def interruptible() -> Iterator[None]:
    """Ctrl-C loses nothing: says how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        output.note("stopped; the same command with --resume measures what is missing")
        raise typer.Exit(1) from None


def plan_document(gpu: str, plan: MeasurementPlan) -> dict[str, Any]:
    """A plan of points as JSON data."""
    return {
        "gpu": gpu,
        "estimate_s": round(plan.estimate_s, 3),
        "plan_hash": plan.plan_hash,
        "points": [_point_document(point) for point in plan.points],
        "shed": [_point_document(point) for point in plan.shed],
    }


def print_plan(gpu: str, plan: MeasurementPlan) -> None:
    """Every point with its estimate, then the sum by family."""
    for point in plan.points:
        typer.echo(f"{1e3 * point.op_s:10.3f} ms  level {point.level}  {point.key}")
    counts = Counter(point.family for point in plan.points)
    families = ", ".join(f"{count} {family}" for family, count in sorted(counts.items()))
    typer.echo(f"{len(plan.points)} points on {gpu}: {families}")
    typer.echo(f"about {plan.estimate_s:.0f} s (an estimate from rated speeds, not a measurement)")
    if plan.shed:
        typer.echo(f"{len(plan.shed)} points do not fit the budget and are left out, least informative first")


def measured_document(measured: Measured) -> dict[str, Any]:
    """A finished run as JSON data."""
    outcome, profile = measured.outcome, measured.profile
    return {
        "path": str(measured.path),
        "rows_path": str(measured.rows_path),
        "gpu": profile.gpu,
        "engine": profile.engine,
        "measured": outcome.measured,
        "failed": outcome.failed,
        "resumed": outcome.resumed,
        "throttled": outcome.throttled,
        "left_out": len(outcome.unmeasured) + len(measured.plan.shed),
        "tables": {family: len(table) for family, table in profile.tables.items()},
        "notes": list(profile.notes),
    }


def print_measured(measured: Measured) -> None:
    """What was measured, what failed, what the budget left out, and where it all is."""
    outcome, profile = measured.outcome, measured.profile
    tables = ", ".join(f"{len(table)} {family}" for family, table in profile.tables.items())
    typer.echo(f"{measured.path}  {profile.gpu}, {tables}")
    for line in profile.notes:
        typer.echo(f"  {line}")
    if outcome.resumed:
        typer.echo(f"  {outcome.resumed} points were there already; {outcome.measured} measured now")
    left_out = len(outcome.unmeasured) + len(measured.plan.shed)
    if left_out:
        typer.echo(f"  {left_out} points left out for the budget; a larger --budget-s with --resume measures them")
    if outcome.failed:
        typer.echo(f'  {outcome.failed} points failed: see "status": "failed" in {measured.rows_path}')
    output.note(f"Next: planner catalog show profile {measured.path}")


def profile_fleet(
    via: Via, fleet: str, options: Options, folder: Path, image: str, *, dry_run: bool, as_json: bool
) -> None:
    """`planner profile --via …`: prints or runs one job for each kind of node of a fleet."""
    from splitplan.planner.spec.profile_fleet import fleet_jobs
    from splitplan.profiler.fleet import run_jobs

    jobs = fleet_jobs(fleet, via, options, folder, image=image)
    if dry_run:
        _print_jobs(jobs, as_json=as_json)
        return
    for job in jobs:
        output.note(f"{job.kind.name} on {job.kind.node}: {len(job.plan.points)} points, {job.finished} there already")
    outcomes = run_jobs(jobs, options)
    if as_json:
        output.print_json("profile-fleet", {"jobs": [_outcome_document(outcome) for outcome in outcomes]})
    else:
        for outcome in outcomes:
            state = outcome.error or f"{outcome.measured} points measured, {outcome.failed} failed"
            typer.echo(f"{outcome.job.path}  {outcome.job.kind.name}: {state}")
    if any(outcome.error for outcome in outcomes):
        raise typer.Exit(1)


def _print_jobs(jobs: list[Job], *, as_json: bool) -> None:
    if as_json:
        output.print_json("profile-jobs", {"jobs": [_job_document(job) for job in jobs]})
        return
    for job in jobs:
        typer.echo(f"# {job.kind.name} on {job.kind.node}: {len(job.plan.points)} points → {job.path}")
        if job.manifest:
            typer.echo(job.manifest, nl=False)
        typer.echo(shlex.join(job.command))


def _job_document(job: Job) -> dict[str, Any]:
    return {
        "kind": job.kind.name,
        "node": job.kind.node,
        "path": str(job.path),
        "points": len(job.plan.points),
        "finished": job.finished,
        "command": list(job.command),
        "manifest": job.manifest,
    }


def _outcome_document(outcome: JobOutcome) -> dict[str, Any]:
    return {
        "path": str(outcome.job.path),
        "kind": outcome.job.kind.name,
        "measured": outcome.measured,
        "failed": outcome.failed,
        "resumed": outcome.job.finished,
        "error": outcome.error,
    }


def _point_document(point: Point) -> dict[str, Any]:
    return {"family": point.family, **dict(point.shape), "level": point.level, "estimate_s": point.op_s}
