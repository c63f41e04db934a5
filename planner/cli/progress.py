"""How far a long solve is, on stderr: one line that is written over on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import typer

from splitplan.planner.cli.output import INTERRUPTED

if TYPE_CHECKING:
    from splitplan.planner.patience import Progress

PLAIN_EVERY_S = 5.0


class SolveProgress:
    """Notes and progress of one command; a note clears the line that a solve has written over."""

    def __init__(self, unit: str) -> None:
        self._unit = unit
        self._terminal = sys.stderr.isatty()
        self._open = False
        self._told_s = 0.0

    def __enter__(self) -> SolveProgress:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        """Leave no half line behind; an interrupt ends the command with one line."""
        self.clear()
        if isinstance(error, KeyboardInterrupt):
            self.note("stopped: nothing was written")
            raise typer.Exit(INTERRUPTED) from None

    def note(self, message: str) -> None:
        """A line that stays."""
        self.clear()
        sys.stderr.write(message + "\n")

    def clear(self) -> None:
        """Take away the line that is written over."""
        if self._open:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
        self._open, self._told_s = False, 0.0

    def report(self, progress: Progress) -> None:
        """Incumbent, bound and gap of a solve that takes its time."""
        text = progress_line(progress, self._unit)
        if self._terminal:
            sys.stderr.write(f"\r\x1b[K{text}")
            sys.stderr.flush()
            self._open = True
        elif progress.elapsed_s < self._told_s or progress.elapsed_s - self._told_s >= PLAIN_EVERY_S:
            sys.stderr.write(text + "\n")
            self._told_s = progress.elapsed_s


def progress_line(progress: Progress, unit: str) -> str:
    """`solving for 12 s: best 47.88 $/h, bound 45.2 $/h, gap 5.6 %`."""
    stage = f" ({progress.stage})" if progress.stage else ""
    best, bound = progress.incumbent, progress.bound
    parts = ["no plan yet" if best is None else f"best {best:.5g} {unit}"]
    if bound is not None:
        parts.append(f"bound {bound:.5g} {unit}")
    if best is not None and bound is not None and best > 0:
        parts.append(f"gap {100 * abs(best - bound) / best:.2g} %")
    return f"solving for {progress.elapsed_s:.0f} s{stage}: {', '.join(parts)}"
