"""The states of a day on named GPUs: each set of instances placed once, with what its neighbours run kept in place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from splitplan.planner.inputs import SolveInputs
from splitplan.planner.judge.candidates import Candidate, candidate
from splitplan.planner.program.solve import solution_of_counts
from splitplan.planner.program.topology import fleet_locations
from splitplan.planner.program.types import ProgramInput, Running
from splitplan.planner.review.moves import Move, Unit, order_moves
from splitplan.planner.schedule.joint import Switching
from splitplan.planner.schedule.periods import Period
from splitplan.planner.spec.fleet import Fleet
from splitplan.planner.spec.held import Held, fleet_left

Counts = tuple[tuple[tuple[str, str], int], ...]


@dataclass(frozen=True, slots=True)
class State:
    """Instances that run in one or more periods, planned for the highest level among them."""

    level: int
    counts: Counts
    found: Candidate

    @property
    def units(self) -> tuple[Unit, ...]:
        """Its instances on their GPUs."""
        return tuple(Unit(seat.column.name, seat.slots) for seat in self.found.assignment.seats)

    def price_of(self, unit: Unit) -> float:
        """Dollars per hour of one of its instances."""
        seats = self.found.assignment.seats
        seat = next(seat for seat in seats if (seat.column.name, seat.slots) == (unit.column, unit.slots))
        return seat.location.usd_per_gpu_hour * seat.column.num_gpus


@dataclass(frozen=True, slots=True)
class Misfit:
    """Counts that cannot be laid out on the real fleet, or do not serve there."""

    counts: Counts


@dataclass(frozen=True, slots=True)
class Switch:
    """What starts and stops where a period begins; `at_s` of each move is relative to that hour."""

    hour: int
    before: int  # index of the state
    after: int
    moves: tuple[Move, ...]
    at_s: tuple[float, ...]
    usd: float


def host_kinds_of(fleet: Fleet) -> dict[str, str]:
    """The kind of host of every node, as the grouped relaxation tells them apart."""
    return {node.name: place.name for place in fleet_locations(fleet, "fleet") for node in place.nodes}


def counts_of_candidate(found: Candidate, kind_of: Mapping[str, str]) -> Counts:
    """Instances of a candidate by column and kind of host."""
    counts: dict[tuple[str, str], int] = {}
    for seat in found.assignment.seats:
        key = (seat.column.name, kind_of[seat.location.nodes[0].name])
        counts[key] = counts.get(key, 0) + 1
    return tuple(sorted(counts.items()))


def lay_out_day(
    problems: Sequence[ProgramInput],
    inputs: Sequence[SolveInputs],
    periods: Sequence[Period],
    counts: Sequence[Counts],
) -> tuple[tuple[State, ...], tuple[int, ...]] | Misfit:
    """The distinct states and the state of every period; or the counts that do not fit the real fleet.

    `counts` by period. The largest state is placed first; every other one keeps the GPUs of a neighbour in time that is
    placed already, and where there is room new instances stay off GPUs that its neighbours free only by switching.
    """
    of_state = list(dict.fromkeys(counts))
    state_of = tuple(of_state.index(one) for one in counts)
    level_of = [min(p.level for p, s in zip(periods, state_of, strict=True) if s == n) for n in range(len(of_state))]
    size = {column.name: column.num_gpus for problem in problems for column in problem.columns}
    gpus = [sum(size[name] * count for (name, _), count in one) for one in of_state]
    placed: dict[int, State] = {}
    for number in sorted(range(len(of_state)), key=lambda n: (-gpus[n], n)):
        level, neighbours = level_of[number], _neighbours(number, state_of, placed)
        state = _place(problems[level], inputs[level], of_state[number], neighbours, level)
        if state is None:
            return Misfit(of_state[number])
        placed[number] = state
    return tuple(placed[number] for number in range(len(of_state))), state_of


def _neighbours(number: int, state_of: Sequence[int], placed: Mapping[int, State]) -> list[State]:
    """Placed states that come right before or after this one, each once."""
    size = len(state_of)
    beside = [state_of[(t + step) % size] for t in range(size) if state_of[t] == number for step in (-1, 1)]
    return [placed[other] for other in dict.fromkeys(beside) if other in placed]


def _place(
    problem: ProgramInput, inputs: SolveInputs, counts: Counts, neighbours: Sequence[State], level: int
) -> State | None:
    """A state around what its neighbours run: off the GPUs they leave, if that fits, else on them."""
    best = max(neighbours, key=lambda state: _common(state, counts), default=None)
    stay = _staying(best, counts) if best is not None else ()
    running = tuple(Running(unit.column, unit.slots[0][0], 1, unit.slots) for unit in stay)
    kind_of = host_kinds_of(inputs.fleet)
    kept = {slot for unit in stay for slot in unit.slots}
    leaving = {slot for state in neighbours for unit in state.units for slot in unit.slots} - kept
    for barred in dict.fromkeys((tuple(sorted(leaving)), ())):
        fleet = fleet_left(problem.fleet, Held(gpus=barred))
        asked = replace(problem, fleet=fleet, running=running)
        solution = solution_of_counts(asked, problem.columns, dict(counts), kind_of)
        if solution is not None:
            return State(level, counts, candidate(asked, solution, inputs))
    return None


def _common(state: State, counts: Counts) -> int:
    return len(_staying(state, counts))


def _staying(state: State, counts: Counts) -> tuple[Unit, ...]:
    """Units of a neighbour that a state with these counts keeps."""
    left: dict[str, int] = {}
    for (name, _), count in counts:
        left[name] = left.get(name, 0) + count
    kept = []
    for unit in state.units:
        if left.get(unit.column, 0) > 0:
            left[unit.column] -= 1
            kept.append(unit)
    return tuple(kept)


def switches_of(
    states: Sequence[State],
    state_of: Sequence[int],
    periods: Sequence[Period],
    problems: Sequence[ProgramInput],
    switching: Switching,
) -> tuple[Switch, ...]:
    """The moves where one state follows another, in an order that keeps the load served if any does.

    Where load rises they are done before the hour begins, under the load before it; where it falls, from the hour on,
    under the load after it. `problems` by level, with the corrections the schedule was found under.
    """
    found = []
    for number, period in enumerate(periods):
        last = periods[number - 1]
        if state_of[number - 1] != state_of[number]:
            lighter = problems[max(period.level, last.level)]
            pair = (state_of[number - 1], state_of[number])
            found.append(_switch(period.first_hour, pair, states, lighter, switching, rising=period.level < last.level))
    return tuple(found)


def _switch(
    hour: int,
    pair: tuple[int, int],
    states: Sequence[State],
    lighter: ProgramInput,
    switching: Switching,
    *,
    rising: bool,
) -> Switch:
    before, after = states[pair[0]], states[pair[1]]
    moves = order_moves(replace(lighter, running=()), before.units, after.units)
    usd = 0.0
    for move in moves:
        started = move.action == "start"
        price = (after if started else before).price_of(move.unit)
        usd += switching.start_usd(price) if started else switching.stop_usd(price)
    return Switch(hour, *pair, moves, _times(moves, switching, rising=rising), usd)


def _times(moves: Sequence[Move], switching: Switching, *, rising: bool) -> tuple[float, ...]:
    """When each move begins, in seconds from the hour: starts (or stops) in a row together, one row after the other."""
    begins, at, last = [], 0.0, ""
    for move in moves:
        if last and move.action != last:
            at += switching.reload_s if last == "start" else switching.drain_s
        begins.append(at)
        last = move.action
    length = at + (switching.reload_s if last == "start" else switching.drain_s)
    return tuple(begin - length if rising else begin for begin in begins)
