"""Pipelines that mix GPU types, between the solution and the seats: which stage of which instance stands where.

A solution says how many stages of a part stand at each location; here they are dealt to instances, the first stage at
home. What runs keeps its GPUs where the solution still has an instance with such stages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from splitplan.planner.columns.column import Column
from splitplan.planner.program.topology import Location
from splitplan.planner.program.types import Placed, Running

Slot = tuple[str, int]


@dataclass(frozen=True, slots=True)
class StageSeat:
    """One stage of one mixed instance at a location, without or (where it runs already) with its GPUs."""

    instance: int
    stage: int
    column: Column
    home: str
    location: str
    rate_req_per_s: tuple[float, ...]  # of the instance, by class
    slots: tuple[Slot, ...] = ()


def deal_stages(
    placed: Sequence[Placed], columns: Mapping[str, Column], places: Sequence[Location], running: Iterable[Running]
) -> list[StageSeat]:
    """Every stage of every mixed instance of a solution, instance by instance."""
    location_of = {node.name: location.name for location in places for node in location.nodes}
    free = {slot for location in places for domain in location.domains for slot in domain.slots}
    seats: list[StageSeat] = []
    number = 0
    for entry in placed:
        if not entry.stages:
            continue
        column = columns[entry.column]
        left = Counter({(stage.part, stage.location): 0 for stage in entry.stages})
        for stage in entry.stages:
            left[stage.part, stage.location] += stage.groups
        left[0, entry.location] -= entry.instances  # first stages, which are at home in any case
        rates = tuple(rate / entry.instances for rate in entry.rate_req_per_s)
        kept = _kept(entry, column, left, location_of, free, running)
        for slots in [*kept, *[()] * (entry.instances - len(kept))]:
            where = _locations(column, entry.location, left, slots, location_of)
            for stage_number, location in enumerate(where):
                own = slots[stage_number * column.tensor_parallel :][: column.tensor_parallel]
                seats.append(StageSeat(number, stage_number, column, entry.location, location, rates, own))
            number += 1
    return seats


def part_numbers(column: Column) -> list[int]:
    """The part that each stage belongs to."""
    kinds = [(part.gpu, part.gpu_link) for part in column.parts]
    return [kinds.index((stage.gpu, stage.gpu_link)) for stage in column.stages]


def _kept(
    entry: Placed,
    column: Column,
    left: Counter[tuple[int, str]],
    location_of: Mapping[str, str],
    free: set[Slot],
    running: Iterable[Running],
) -> list[tuple[Slot, ...]]:
    """GPUs of running instances that can stay: free, at home with the first stage, and elsewhere as planned."""
    kept: list[tuple[Slot, ...]] = []
    room = Counter(left)
    for old in running:
        if old.column != column.name or len(kept) == entry.instances or len(old.slots) != column.num_gpus:
            continue
        if not free.issuperset(old.slots) or location_of.get(old.slots[0][0]) != entry.location:
            continue
        first = range(0, column.num_gpus, column.tensor_parallel)
        at = [location_of[old.slots[slot][0]] for slot in first]
        wanted = Counter(list(zip(part_numbers(column), at, strict=True))[1:])
        if all(room[key] >= count for key, count in wanted.items()):
            room -= wanted
            free -= set(old.slots)
            kept.append(old.slots)
    return kept


def _locations(
    column: Column,
    home: str,
    left: Counter[tuple[int, str]],
    slots: tuple[Slot, ...],
    location_of: Mapping[str, str],
) -> list[str]:
    """Where each stage of the next instance stands: the first at home, the others where stages are left, in order."""
    found = [home]
    for number, part in list(enumerate(part_numbers(column)))[1:]:
        if slots:
            where = location_of[slots[number * column.tensor_parallel][0]]
        else:
            where = next(location for (own, location), many in left.items() if own == part and many > 0)
        left[part, where] -= 1
        found.append(where)
    return found
