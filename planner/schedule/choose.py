"""The cheapest round through plans that have passed: one for every period, with what switching between them costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from splitplan.planner.schedule.joint import Switching
from splitplan.planner.schedule.layout import Counts
from splitplan.planner.schedule.periods import Period

INFINITY = float("inf")


@dataclass(frozen=True, slots=True)
class Choice:
    """Instances that passed at a level, and so serve every lower one."""

    level: int
    counts: Counts
    usd_per_hour: float


@dataclass(frozen=True, slots=True)
class Facts:
    """Dollars per hour and GPUs of one instance by (column, kind of host), and free GPUs by kind of host."""

    price: Mapping[tuple[str, str], float]
    gpus: Mapping[tuple[str, str], int]
    free: Mapping[str, int]


def best_round(
    choices: Sequence[Choice], periods: Sequence[Period], switching: Switching, facts: Facts
) -> tuple[Choice, ...] | None:
    """A choice per period with the least dollars a round, by dynamic programming from every first choice.

    Only between choices whose instances fit side by side, so that the load stays served; between any where that leaves
    no round. Of equally cheap ones the first found in the order of the choices.
    """
    for side_by_side in (True, False):
        moves = [[_move_usd(a, b, switching, facts, side_by_side=side_by_side) for b in choices] for a in choices]
        found = _best(choices, periods, moves)
        if found is not None:
            return tuple(choices[number] for number in found)
    return None


def _best(choices: Sequence[Choice], periods: Sequence[Period], moves: Sequence[Sequence[float]]) -> list[int] | None:
    able = [[n for n, choice in enumerate(choices) if choice.level <= period.level] for period in periods]
    best: tuple[float, list[int]] | None = None
    for first in able[0]:
        ways = {first: (periods[0].num_hours * choices[first].usd_per_hour, [first])}
        for period, options in zip(periods[1:], able[1:], strict=True):
            ways = {
                n: min(
                    (usd + moves[last][n] + period.num_hours * choices[n].usd_per_hour, [*way, n])
                    for last, (usd, way) in ways.items()
                )
                for n in options
            }
        for last, (usd, way) in ways.items():
            total = usd + (moves[last][first] if len(periods) > 1 else 0.0)
            if total < INFINITY and (best is None or total < best[0] - 1e-9):
                best = (total, way)
    return best[1] if best else None


def _move_usd(before: Choice, after: Choice, switching: Switching, facts: Facts, *, side_by_side: bool) -> float:
    """Dollars for the starts and stops from one choice to another; infinite where they do not fit side by side."""
    ours, theirs = dict(before.counts), dict(after.counts)
    usd, held = 0.0, dict.fromkeys(facts.free, 0)
    for key in dict.fromkeys((*ours, *theirs)):
        more = theirs.get(key, 0) - ours.get(key, 0)
        held[key[1]] += max(ours.get(key, 0), theirs.get(key, 0)) * facts.gpus[key]
        if more:
            cost = switching.start_usd if more > 0 else switching.stop_usd
            usd += abs(more) * cost(facts.price[key])
    if side_by_side and usd and any(held[kind] > free for kind, free in facts.free.items()):
        return INFINITY
    return usd
