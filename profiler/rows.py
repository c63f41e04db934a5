"""Measured rows on disk: one JSON object a line, appended as each point finishes, so that a killed run loses nothing.

A line that the kill tore off is dropped and measured again; every other finished point is kept and never measured
twice. Each row says what was run, on what, with what, and how it went.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal, Protocol, TextIO

import numpy as np

from splitplan.catalogs.errors import Problem, ProfileError, shorten
from splitplan.profiler.families import FAMILIES
from splitplan.profiler.profile import Profile
from splitplan.profiler.store import make_table

ROW_VERSION = 1


@dataclass(frozen=True, slots=True)
class Row:
    """One finished point. `status` "failed" carries the error and no times."""

    key: str
    family: str
    shape: Mapping[str, int | str]
    status: Literal["measured", "failed"]
    median_s: float | None = None
    p20_s: float | None = None
    p80_s: float | None = None
    repetitions: int = 0
    how: str = ""  # "eager" or "graph"
    launch_overhead_s: float | None = None
    cache: str = ""  # "cold" or "warm"
    throttled: bool = False
    clock_mhz: float | None = None
    power_watts: float | None = None
    temperature_c: float | None = None
    error: str = ""
    provenance: Mapping[str, str] = field(default_factory=dict)


class RowSink(Protocol):
    """Where finished rows go, and what is there already."""

    @property
    def rows(self) -> list[Row]:
        """Rows that are finished."""
        ...

    @property
    def path(self) -> Path | str:
        """What to call it in an error."""
        ...

    def append(self, row: Row) -> None:
        """Takes a finished row; it is safe when this returns."""
        ...


class RowFile:
    """An append-only file of rows, locked while it is open for writing."""

    def __init__(self, path: Path, *, resume: bool) -> None:
        self.path = path
        self.rows: list[Row] = []
        if path.exists() and path.stat().st_size:
            if not resume:
                raise ProfileError(_already_there(path))
            self.rows = read_rows(path)
            _drop_torn_end(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._handle: TextIO = open(path, "a", encoding="utf-8")  # noqa: SIM115 (lives as long as the object)
        except OSError as error:
            raise ProfileError(Problem(f"cannot be written: {error.strerror}", str(path))) from None
        _lock(self._handle, path)

    def append(self, row: Row) -> None:
        """Writes a row through to the disk before it returns."""
        document = {"version": ROW_VERSION, **asdict(row)}
        self._handle.write(json.dumps(document, ensure_ascii=False, allow_nan=False) + "\n")
        self._handle.flush()
        os.fsync(self._handle.fileno())
        self.rows.append(row)

    def close(self) -> None:
        """Lets go of the file and its lock."""
        self._handle.close()

    def __enter__(self) -> RowFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_rows(path: Path) -> list[Row]:
    """Every whole row, in order. A torn last line is left out; any other damage is a ProfileError with its line."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise ProfileError(Problem(f"cannot read rows: {error.strerror}", str(path))) from None
    rows = []
    for number, line in enumerate(lines, 1):
        is_torn = number == len(lines)  # a whole file ends in a newline, so its last piece is empty
        if is_torn or not line.strip():
            continue
        rows.append(parse_row(line, f"{path}:{number}"))
    return rows


def parse_row(line: bytes, where: str) -> Row:
    """One line of a rows file."""
    try:
        document = json.loads(line)
        version = document.pop("version")
        row = Row(**document)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        problem = Problem(f"not a measured row ({shorten(error)})", where, next_step="move the file away and run again")
        raise ProfileError(problem) from None
    if version != ROW_VERSION:
        raise ProfileError(Problem(f"rows of version {version}", where, expected=f"version {ROW_VERSION}"))
    return row


def _drop_torn_end(path: Path) -> None:
    """Cuts the file after its last newline, so that the next row starts on a line of its own."""
    content = path.read_bytes()
    if not content.endswith(b"\n"):
        with open(path, "r+b") as handle:
            handle.truncate(content.rfind(b"\n") + 1)


def _lock(handle: TextIO, path: Path) -> None:
    import fcntl

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        handle.close()
        problem = Problem("another run is writing these rows", str(path), next_step="wait for it, or choose another -o")
        raise ProfileError(problem) from None


def _already_there(path: Path) -> Problem:
    return Problem(
        "rows of an earlier run are here",
        str(path),
        next_step="--resume continues it and measures only what is missing; another -o starts afresh",
    )


def profile_from_rows(
    rows: Iterable[Row], *, gpu: str, engine: str, engine_version: str, provenance: Mapping[str, str]
) -> Profile:
    """Tables of the measured rows; failed and throttled ones are counted in the notes.

    Raises ProfileError when nothing was measured.
    """
    rows = list(rows)
    measured = [row for row in rows if row.status == "measured" and row.median_s is not None]
    if not measured:
        raise ProfileError(Problem("not one point could be measured", next_step="see the errors in the rows file"))
    by_family: dict[str, list[Row]] = {}
    for row in measured:
        by_family.setdefault(row.family, []).append(row)
    tables = {
        family: make_table(
            family,
            {name: np.array([row.shape[name] for row in group]) for name in FAMILIES[family]},
            np.array([row.median_s for row in group]),
        )
        for family, group in sorted(by_family.items())
    }
    return Profile(gpu, engine, engine_version, tables, dict(provenance), notes=tuple(_notes(rows, measured)))


def _notes(rows: list[Row], measured: list[Row]) -> list[str]:
    failed, throttled = len(rows) - len(measured), sum(row.throttled for row in measured)
    spread = sorted(
        (row.p80_s - row.p20_s) / row.median_s for row in measured if row.p80_s and row.p20_s and row.median_s
    )
    notes = [f"{len(measured)} points measured; half of them spread less than {_percent(spread)} from p20 to p80"]
    if failed:
        notes.append(f"{failed} points failed and are left out")
    if throttled:
        notes.append(f"{throttled} points ran while the clock fell by more than 10 %: they are slower than a cool chip")
    return notes


def _percent(spread: list[float]) -> str:
    return f"{100 * spread[len(spread) // 2]:.1f} %" if spread else "0 %"
