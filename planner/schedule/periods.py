"""Hours as levels of load and as stretches of equal level, around the clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from splitplan.catalogs.errors import InputError, Problem
from splitplan.planner.spec.workload import check_rate

MOST_HOURS = 168


@dataclass(frozen=True, slots=True)
class Level:
    """Hours that are planned alike: for the busiest of them."""

    rate_req_per_s: float
    hours: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Period:
    """Hours in a row at one level; it may run over the end of the round."""

    first_hour: int
    num_hours: int
    level: int  # index into the levels


def levels_of(hourly_req_per_s: Sequence[float], most: int) -> tuple[Level, ...]:
    """At most `most` levels, the highest first, that carry the least load beyond what the hours ask for.

    Groups of hours next to each other by rate, each planned at its busiest hour; found exactly by dynamic programming
    over the sorted rates. Hours without load join the lowest level. Raises InputError for no hours, too many, or rates
    that are none.
    """
    hourly = list(hourly_req_per_s)
    if not 2 <= len(hourly) <= MOST_HOURS:
        message = f"{len(hourly)} hours to plan" if hourly else "the workload has one rate for all hours"
        expected = f"2 to {MOST_HOURS} rates: `hourly_req_per_s` of the workload, or --hourly 2,2,8,12"
        raise InputError(Problem(message, expected=expected))
    for rate in hourly:
        if rate != 0:
            check_rate(rate, key="hourly_req_per_s")
    if not any(hourly):
        raise InputError(Problem("no hour has any load", key="hourly_req_per_s", expected="at least one rate above 0"))
    rates = sorted({rate for rate in hourly if rate > 0})
    counts = [sum(rate == value or (value == rates[0] and rate == 0) for rate in hourly) for value in rates]
    tops = _tops(rates, counts, min(most, len(rates)))
    levels = []
    for low, top in zip([-1.0, *tops], tops, strict=False):
        inside = (low < rate <= top or (rate == 0 and low < 0) for rate in hourly)
        levels.append(Level(top, tuple(hour for hour, yes in enumerate(inside) if yes)))
    return tuple(reversed(levels))


def _tops(rates: Sequence[float], counts: Sequence[int], most: int) -> list[float]:
    """The highest rate of each of at most `most` groups of neighbours with the least load on top."""

    def beyond(first: int, last: int) -> float:
        return sum((rates[last] - rates[i]) * counts[i] for i in range(first, last + 1))

    size = len(rates)
    best = [[beyond(0, last) for last in range(size)]]
    cut: list[list[int]] = [[0] * size]
    for groups in range(1, most):
        row, places = [], []
        for last in range(size):
            options = [
                (best[groups - 1][first - 1] + beyond(first, last), first) for first in range(groups, last + 1)
            ] or [(best[groups - 1][last], 0)]
            load, first = min(options)
            row.append(load)
            places.append(first)
        best.append(row)
        cut.append(places)
    tops, last = [], size - 1
    for groups in range(most - 1, -1, -1):
        tops.append(rates[last])
        last = cut[groups][last] - 1
        if last < 0:
            break
    return sorted(tops)


def periods_of(levels: Sequence[Level]) -> tuple[Period, ...]:
    """Hours in a row at one level, around the clock, the one that holds hour 0 first."""
    level_at = {hour: number for number, level in enumerate(levels) for hour in level.hours}
    size = len(level_at)
    starts = [hour for hour in range(size) if level_at[hour] != level_at[(hour - 1) % size]]
    if not starts:
        return (Period(0, size, level_at[0]),)
    periods = [
        Period(start, (after - start) % size or size, level_at[start])
        for start, after in zip(starts, [*starts[1:], starts[0]], strict=True)
    ]
    return tuple(sorted(periods, key=lambda period: (0 - period.first_hour) % size >= period.num_hours))
