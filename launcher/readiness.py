"""Waiting for a cluster: every instance until it lists its model, with an eye on those that die."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from splitplan.catalogs.errors import LaunchError, Problem
from splitplan.launcher.processes import last_lines
from splitplan.launcher.state import ClusterState, Process
from splitplan.launcher.web import answers

POLL_S = 0.1
Progress = Callable[[str], None]


Tail = Callable[[Process], list[str]]


def log_tail(process: Process) -> list[str]:
    """The end of a log file on this machine."""
    return last_lines(Path(process.log)) if process.log else []


def wait_until_ready(
    state: ClusterState,
    is_running: Callable[[Process], bool],
    *,
    timeout_s: float,
    progress: Progress,
    tail: Tail = log_tail,
) -> None:
    """Return when all serve. LaunchError names every process that ended or is not ready in time, with its log's end."""
    began_s = time.monotonic()
    waiting = list(state.processes)
    while waiting:
        ended = [process for process in waiting if not is_running(process)]
        if ended:
            raise LaunchError([_ended(process, tail) for process in ended])
        ready = [process for process in waiting if not process.ready_url or answers(process.ready_url)]
        for process in ready:
            waiting.remove(process)
            progress(f"{process.name} ready after {time.monotonic() - began_s:.1f} s")
        if waiting and time.monotonic() - began_s > timeout_s:
            raise LaunchError([_late(process, timeout_s, tail) for process in waiting])
        if waiting:
            time.sleep(POLL_S)


def _ended(process: Process, tail: Tail) -> Problem:
    return Problem(f"{process.name} ended before it was ready{_indented(tail(process))}", process.log)


def _late(process: Process, timeout_s: float, tail: Tail) -> Problem:
    return Problem(
        f"{process.name} is not ready after {timeout_s:g} s{_indented(tail(process))}",
        process.log,
        next_step="planner launch PLAN --timeout SECONDS, or --keep to look at it",
    )


def _indented(lines: list[str]) -> str:
    return "".join(f"\n    {line[:300]}" for line in lines)
