"""The `planner` command. Command modules import nothing heavy at the top, so that `--help` stays fast.

Exit codes: 0 a plan was found or the job was done, 1 an error, 2 wrong usage, 3 no plan meets the targets, 130 Ctrl-C.
With --json an error is on stdout too: {"kind": "Error", "exit_code": …, "problems": [{"message", "where", …}]}.
"""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
from dataclasses import asdict
from typing import Annotated

import typer

from splitplan.catalogs.errors import SplitplanError
from splitplan.planner.cli import (
    bench,
    calibrate,
    catalog,
    compare,
    destroy,
    diff,
    explain,
    fleet,
    frontier,
    launch,
    logs,
    profile,
    replan,
    scale,
    schedule,
    simulate,
    solve,
    status,
    workload,
)
from splitplan.planner.cli.output import INTERRUPTED, print_json

PROBLEM_LIMIT = 20

app = typer.Typer(
    name="planner",
    help="Plans where an LLM runs on a mixed GPU fleet: profile, solve, verify, launch.",
    epilog="Start with: planner solve --help",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"planner {version('splitplan')}")
        raise typer.Exit


@app.callback()
def planner(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Plans where an LLM runs on a mixed GPU fleet: profile, solve, verify, launch."""


PLAN, CLUSTER, FACTS = "Plan", "Cluster", "Facts"  # panels of `planner --help`, in the order a user meets them

app.command("solve", rich_help_panel=PLAN)(solve.solve)
app.command("schedule", rich_help_panel=PLAN)(schedule.schedule)
app.command("simulate", rich_help_panel=PLAN)(simulate.simulate)
app.command("explain", rich_help_panel=PLAN)(explain.explain)
app.command("diff", rich_help_panel=PLAN)(diff.diff)
app.command("replan", rich_help_panel=PLAN)(replan.replan)
app.command("compare", rich_help_panel=PLAN)(compare.compare)
app.command("frontier", rich_help_panel=PLAN)(frontier.frontier)
app.command("launch", rich_help_panel=CLUSTER)(launch.launch)
app.command("status", rich_help_panel=CLUSTER)(status.status)
app.command("logs", rich_help_panel=CLUSTER)(logs.logs)
app.command("bench", rich_help_panel=CLUSTER)(bench.bench)
app.command("scale", rich_help_panel=CLUSTER)(scale.scale)
app.command("destroy", rich_help_panel=CLUSTER)(destroy.destroy)
app.add_typer(profile.app, name="profile", rich_help_panel=FACTS)
app.command("calibrate", rich_help_panel=FACTS)(calibrate.calibrate)
app.add_typer(workload.app, name="workload", rich_help_panel=FACTS)
app.add_typer(fleet.app, name="fleet", rich_help_panel=FACTS)
app.add_typer(catalog.app, name="catalog", rich_help_panel=FACTS)


def run() -> None:
    """Entry point of the `planner` script: every deliberate error becomes a message on stderr and an exit code."""
    _tame_streams()
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        app()
    except SplitplanError as error:
        for problem in error.problems[:PROBLEM_LIMIT]:
            sys.stderr.write(f"error: {problem}\n")
        if len(error.problems) > PROBLEM_LIMIT:
            sys.stderr.write(f"… and {len(error.problems) - PROBLEM_LIMIT} more\n")
        if "--json" in sys.argv:
            problems = [asdict(problem) for problem in error.problems]
            print_json("Error", {"exit_code": error.exit_code, "problems": problems})
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.stderr.write("stopped\n")
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        sys.stderr.write("error: cannot write the output: no space left\n")
        sys.exit(1)


def _tame_streams() -> None:
    """Output that is closed goes nowhere, and characters that a terminal's encoding lacks are replaced, not fatal."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 (it stays open as long as the process)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
