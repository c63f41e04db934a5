"""An independent check of a solution, in plain Python: it knows the fleet and the columns, not the linear program.

Here: instances inside NVLink domains. `verify_states.py`: who serves what over which links, at every hour and in every
failure. `verify_limits.py`: money, power, inventory, what was forbidden or required, and the reported sums.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from splitplan.planner.columns.column import Column
from splitplan.planner.program.check import Check, Facts
from splitplan.planner.program.topology import Location, fleet_locations
from splitplan.planner.program.types import Placed, ProgramInput, ProgramSolution, ServedState
from splitplan.planner.program.verify_limits import check_limits
from splitplan.planner.program.verify_states import check_other_states, check_state

SEARCH_STEPS = 20_000


def verify(problem: ProgramInput, solution: ProgramSolution) -> Check:
    """Check every promise of the solution: with everything up, at every hour, in every failure; and its sums."""
    check = Check()
    columns = {column.name: column for column in problem.columns}
    places = {location.name: location for location in fleet_locations(problem.fleet, solution.granularity)}
    facts = Facts(problem, columns, places)
    if not _all_known(check, facts, solution):
        return check
    _check_instances(check, facts, solution.placed)
    hour, rate = problem.rates[0]
    asked = rate * np.array(solution.class_scale)
    normal = ServedState(hour, "", (), solution.placed, solution.flows)
    check_state(check, facts, normal, asked, solution.headroom)
    check_other_states(check, facts, solution)
    check_limits(check, facts, solution)
    return check


def _all_known(check: Check, facts: Facts, solution: ProgramSolution) -> bool:
    """Every name is one of the question's; without that nothing else can be looked at."""
    kept = len(check.failures)
    placed = [*solution.placed, *(item for state in solution.states for item in state.placed)]
    flows = [*solution.flows, *(flow for state in solution.states for flow in state.flows)]
    columns = {item.column for item in placed} | {name for flow in flows for name in (flow.prefill, flow.decode)}
    places = {item.location for item in placed} | {stage.location for item in placed for stage in item.stages}
    places |= {name for flow in flows for name in (flow.prefill_location, flow.decode_location)}
    check.holds(f"columns that nobody knows: {sorted(columns - set(facts.columns))}", columns <= set(facts.columns))
    check.holds(f"places that nobody knows: {sorted(places - set(facts.places))}", places <= set(facts.places))
    return len(check.failures) == kept


def _check_instances(check: Check, facts: Facts, placed_here: Sequence[Placed]) -> None:
    """Whole instances of allowed kinds, inside NVLink domains of their GPU type."""
    for placed in placed_here:
        column, location = facts.columns[placed.column], facts.places[placed.location]
        where = f"{placed.column} at {placed.location}"
        if column.stages:
            _check_stages(check, placed, column, facts.places)
        else:
            check.holds(f"{where}: GPU type", column.gpu == location.gpu)
            check.holds(f"{where}: host link", column.gpu_link in ("", location.gpu_link))
        check.holds(f"{where}: whole instances", isinstance(placed.instances, int) and placed.instances > 0)
        check.holds(f"{where}: role and rack", (column.role, location.rack) == (placed.role, placed.rack))
    entries = Counter((placed.column, placed.location) for placed in placed_here)
    check.holds("one entry per kind and place", all(count == 1 for count in entries.values()))
    by_place: dict[str, list[int]] = {}
    for placed in placed_here:
        column = facts.columns[placed.column]
        for stage in placed.stages:
            by_place.setdefault(stage.location, []).extend([column.tensor_parallel] * stage.groups)
        if not column.stages:
            by_place.setdefault(placed.location, []).extend(_groups(placed, column, facts.places[placed.location]))
    for name, groups in by_place.items():
        check.holds(f"{name}: groups fit NVLink domains", _fits(groups, facts.places[name]))


def _check_stages(check: Check, placed: Placed, column: Column, places: Mapping[str, Location]) -> None:
    """A mixed pipeline has all its stages, on the types it says, in one rack, the first ones at home."""
    where = f"{placed.column} at {placed.location}"
    for number, part in enumerate(column.parts):
        mine = [stage for stage in placed.stages if stage.part == number]
        check.equal(f"{where}: stages on {part.gpu}", sum(s.groups for s in mine), part.count * placed.instances)
        for stage in mine:
            location = places[stage.location]
            check.holds(f"{where}: GPU type of stages", part.gpu == location.gpu)
            check.holds(f"{where}: host link of stages", part.gpu_link in ("", location.gpu_link))
            check.holds(f"{where}: stages in one rack", location.rack == placed.rack)
    home = sum(stage.groups for stage in placed.stages if stage.part == 0 and stage.location == placed.location)
    check.at_most(f"{where}: first stages at home", placed.instances, home)


def _groups(placed: Placed, column: Column, location: Location) -> list[int]:
    """Sizes of the groups of GPUs that the instances of an unmixed column take."""
    widest = max(domain.num_gpus for domain in location.domains)
    whole = column.num_gpus <= widest
    size, count = (column.num_gpus, 1) if whole else (column.tensor_parallel, column.pipeline_parallel)
    return [size] * (count * math.ceil(placed.instances))


def _fits(groups: list[int], location: Location) -> bool:
    """Put every group into a domain, the largest first; search further when that fails."""
    free = sorted(domain.num_gpus for domain in location.domains)
    groups.sort(reverse=True)
    return _first_fit(groups, list(free)) or _search_fit(groups, free, [SEARCH_STEPS])


def _first_fit(groups: list[int], free: list[int]) -> bool:
    """Largest first into the tightest domain: never wrong when sizes divide each other."""
    for size in groups:
        room = min((space for space in free if space >= size), default=0)
        if not room:
            return False
        free.remove(room)
        free.append(room - size)
    return True


def _search_fit(groups: list[int], free: list[int], steps_left: list[int]) -> bool:
    if not groups:
        return True
    steps_left[0] -= 1
    if sum(free) < sum(groups) or steps_left[0] <= 0:
        return False
    size, rest = groups[0], groups[1:]
    for room in dict.fromkeys(sorted(space for space in free if space >= size)):
        left = list(free)
        left.remove(room)
        if _search_fit(rest, [*left, room - size], steps_left):
            return True
    return False
