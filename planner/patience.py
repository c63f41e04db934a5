"""How long a command may take, and who hears how far its solver is: one setting for everything below a caller.

    with patience(seconds=30, report=print_it):
        solve(question)

Solvers stop when the time is over and simulations do not start any more: both raise OutOfTimeError. Without `patience`
there is no limit but each program's own, and answers do not depend on the clock.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from splitplan.catalogs.errors import OutOfTimeError, Problem


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a long solve stands. `incumbent` and `bound` are dollars per hour, watts or rate scale; None: not yet."""

    stage: str
    incumbent: float | None
    bound: float | None
    elapsed_s: float


Report = Callable[[Progress], None]


@dataclass(frozen=True, slots=True)
class _Setting:
    seconds: float
    deadline: float  # of time.monotonic
    report: Report | None


_setting: ContextVar[_Setting | None] = ContextVar("patience", default=None)


@contextmanager
def patience(seconds: float | None = None, report: Report | None = None) -> Iterator[None]:
    """All that runs inside ends within `seconds` from now (None: no limit), and long solves tell `report`.

    Inside another `patience` the shorter one counts.
    """
    limit, outer = math.inf if seconds is None else seconds, _setting.get()
    setting = _Setting(limit, time.monotonic() + limit, report)
    if outer is not None:
        setting = _Setting(min(limit, outer.seconds), min(setting.deadline, outer.deadline), report or outer.report)
    token = _setting.set(setting)
    try:
        yield
    finally:
        _setting.reset(token)


def seconds_left() -> float:
    """Seconds until the time is over; infinite without a limit. Raises OutOfTimeError when it is."""
    setting = _setting.get()
    if setting is None:
        return math.inf
    left = setting.deadline - time.monotonic()
    if left <= 0:
        message = f"the time limit of {setting.seconds:g} s is over"
        raise OutOfTimeError(Problem(message, next_step="raise --time-limit, or ask for less"))
    return left


def listener() -> Report | None:
    """Who wants to hear of long solves."""
    setting = _setting.get()
    return setting.report if setting else None
