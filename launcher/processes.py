"""Local processes: started in their own session, known by pid and start time, stopped with their children."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Collection, Iterable
from pathlib import Path

from splitplan.catalogs.errors import LaunchError, Problem, shorten
from splitplan.launcher.engines.base import Command

_children: dict[int, subprocess.Popen[bytes]] = {}
"""Processes this Python started, so that ended ones are reaped."""


def start(command: Command, log: Path, folder: Path) -> tuple[int, int]:
    """Start a command in a folder with its output in a log file; returns (pid, start time in clock ticks)."""
    log.parent.mkdir(parents=True, exist_ok=True)
    try:
        with log.open("ab") as stream:
            process = subprocess.Popen(
                command.argv,
                cwd=folder,
                env={**os.environ, **command.env},
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
    except OSError as error:
        program = shorten(command.argv[0])
        raise LaunchError(
            Problem(f"cannot start {program}: {error.strerror}", next_step="install the engine on this host")
        ) from None
    _children[process.pid] = process
    return process.pid, start_ticks(process.pid) or 0


def start_ticks(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None when it is gone or a zombie."""
    child = _children.get(pid)
    if child is not None and child.poll() is not None:
        return None
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else int(fields[19])


def is_alive(pid: int, started_ticks: int) -> bool:
    """Whether it is still the process that was started: a recycled pid is not."""
    return pid > 0 and start_ticks(pid) == started_ticks


def stop(processes: Iterable[tuple[int, int]], *, grace_s: float = 10.0) -> None:
    """End processes (pid, start time) and their children: SIGTERM, then SIGKILL after the grace."""
    alive = [(pid, ticks) for pid, ticks in processes if is_alive(pid, ticks)]
    for pid, _ in alive:
        _signal_group(pid, signal.SIGTERM)
    deadline_s = time.monotonic() + grace_s
    while alive and time.monotonic() < deadline_s:
        time.sleep(0.02)
        alive = [(pid, ticks) for pid, ticks in alive if is_alive(pid, ticks)]
    for pid, _ in alive:
        _signal_group(pid, signal.SIGKILL)
    while any(is_alive(pid, ticks) for pid, ticks in alive):
        time.sleep(0.02)


def listening_ports() -> set[int]:
    """TCP ports that something on this machine listens on."""
    ports: set[int] = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError), open(table, encoding="ascii") as lines:
            next(lines)
            for line in lines:
                fields = line.split()
                if fields[3] == "0A":  # LISTEN
                    ports.add(int(fields[1].rpartition(":")[2], 16))
    return ports


def taken(ports: Collection[int]) -> list[int]:
    """Those of `ports` that something already listens on."""
    return sorted(set(ports) & listening_ports())


def last_lines(log: Path, count: int = 5) -> list[str]:
    """The end of a log file, without reading all of it."""
    try:
        with log.open("rb") as stream:
            stream.seek(0, os.SEEK_END)
            stream.seek(max(0, stream.tell() - 500 * count))
            text = stream.read().decode("utf-8", "replace")
    except OSError:
        return []
    return text.splitlines()[-count:]


def _signal_group(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, number)
