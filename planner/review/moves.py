"""From what runs to a new plan, one start or stop at a time, without serving less than the load on the way.

A state is the set of instances that run. It is safe when they serve the whole load by the program's arithmetic, links
included (or, where the load has outgrown what runs, no less than what ran at first). Starting is always safe; stopping
only when what is left is. An instance that needs GPUs of one to be stopped
has to wait for that stop, so starts come first wherever GPUs are free, and among stops those first that let a start go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from splitplan.planner.program.rounding import served_share
from splitplan.planner.program.topology import fleet_locations
from splitplan.planner.program.types import ProgramInput

Slot = tuple[str, int]
TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True)
class Unit:
    """One instance as the moves see it: its column and its GPUs."""

    column: str
    slots: tuple[Slot, ...]


@dataclass(frozen=True, slots=True)
class Move:
    """One step and the share of the load that can be served once it is done (1: all of it)."""

    action: Literal["start", "stop"]
    unit: Unit
    served: float
    safe: bool  # serves the whole load, or at least as much as before the first move


def order_moves(problem: ProgramInput, before: Iterable[Unit], after: Iterable[Unit]) -> tuple[Move, ...]:
    """An order in which all moves are safe where there is one in this scheme; else the drops are as small as may be.

    A unit whose column `problem.columns` does not know holds its GPUs and serves nothing. Moves that drop the load are
    not `safe`.
    """
    state, goal = list(before), list(after)
    starts, stops = _without(goal, state), _without(state, goal)
    measure = _measure(problem)
    floor = min(1.0, measure(state)) - TOLERANCE
    moves: list[Move] = []
    while starts or stops:
        ready = [unit for unit in starts if not _overlap(unit, state)]
        if ready:
            unit = ready[0]
            starts.remove(unit)
            state.append(unit)
            served = measure(state)
            moves.append(Move("start", unit, served, served >= floor))
            continue
        unit, served = _best_stop(state, starts, stops, measure, floor)
        stops.remove(unit)
        state.remove(unit)
        moves.append(Move("stop", unit, served, served >= floor))
    return tuple(moves)


def _without(units: Sequence[Unit], others: Sequence[Unit]) -> list[Unit]:
    left = list(others)
    rest = []
    for unit in units:
        if unit in left:
            left.remove(unit)
        else:
            rest.append(unit)
    return rest


def _overlap(unit: Unit, state: Iterable[Unit]) -> bool:
    taken = {slot for other in state for slot in other.slots}
    return not taken.isdisjoint(unit.slots)


def _best_stop(
    state: Sequence[Unit],
    starts: Sequence[Unit],
    stops: Sequence[Unit],
    measure: Callable[[Sequence[Unit]], float],
    floor: float,
) -> tuple[Unit, float]:
    """The stop that keeps the load served, if any does, and frees GPUs that a start waits for."""
    waiting = {slot for unit in starts for slot in unit.slots}
    options = []
    for number, unit in enumerate(stops):
        left = list(state)
        left.remove(unit)
        served = measure(left)
        helps = not waiting.isdisjoint(unit.slots)
        options.append(((min(served, floor), helps or not starts, served, -number), unit, served))
    _, unit, served = max(options, key=lambda option: option[0])
    return unit, served


def _measure(problem: ProgramInput) -> Callable[[Sequence[Unit]], float]:
    """The share of the load that a set of instances serves over the links of the fleet, never asked twice."""
    columns = tuple(problem.columns)
    index_of = {column.name: index for index, column in enumerate(columns)}
    place_of = {node.name: place.name for place in fleet_locations(problem.fleet, "rack") for node in place.nodes}
    known: dict[tuple[tuple[tuple[int, str], int], ...], float] = {}

    def measure(state: Sequence[Unit]) -> float:
        counts: dict[tuple[int, str], int] = {}
        for unit in state:
            if unit.column not in index_of:
                continue
            key = (index_of[unit.column], place_of[unit.slots[0][0]])
            counts[key] = counts.get(key, 0) + 1
        key_of_state = tuple(sorted(counts.items()))
        if key_of_state not in known:
            known[key_of_state] = served_share(problem, columns, counts) if counts else 0.0
        return known[key_of_state]

    return measure
