"""Assignment: every instance of a solution on named nodes and GPU indices, and who feeds whom.

Tensor ranks stay inside one NVLink domain, pipeline stages inside one rack. Among places that fit, instances of one
column spread over nodes, prefill goes where the decode it feeds stands, and the PCI roots of a node share the load.
Everything is decided in a fixed order, so the same solution gives the same assignment.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from splitplan.catalogs.errors import Problem, SolverError
from splitplan.planner.columns.column import ROLES, Column
from splitplan.planner.place.pipeline_seats import StageSeat, deal_stages
from splitplan.planner.place.routes import route_instances
from splitplan.planner.plan import GpuSlot, Instance, Route
from splitplan.planner.program.topology import Location, fleet_locations
from splitplan.planner.program.types import Flow, Placed, ProgramInput, ProgramSolution, Running
from splitplan.planner.spec.fleet import Node

Slot = tuple[str, int]  # node name, GPU index
SEARCH_STEPS = 200_000


@dataclass(frozen=True, slots=True)
class Seat:
    """One instance on its GPUs: pipeline stage after stage, tensor ranks in order."""

    name: str
    column: Column
    location: Location
    stages: tuple[tuple[Slot, ...], ...]
    rate_req_per_s: tuple[float, ...]  # by class

    @property
    def slots(self) -> tuple[Slot, ...]:
        """All its GPUs."""
        return tuple(slot for stage in self.stages for slot in stage)

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes it stands on, in order."""
        return tuple(dict.fromkeys(node for node, _ in self.slots))


@dataclass(frozen=True, slots=True)
class Assignment:
    """Where everything runs. `instances` are by column name, in the order of the solution's columns."""

    instances: Mapping[str, tuple[Instance, ...]]
    routes: tuple[Route, ...]
    seats: tuple[Seat, ...]
    link_loads: Mapping[tuple[tuple[str, str], tuple[str, str]], float]  # bytes/s on every used link of the fleet graph


def assign(problem: ProgramInput, solution: ProgramSolution) -> Assignment:
    """Place a solution. Raises SolverError if its groups of GPUs cannot be placed, which a verified solution's can."""
    return joined(problem, solution, seats_of(problem, solution))


def seats_of(problem: ProgramInput, solution: ProgramSolution) -> tuple[Seat, ...]:
    """Every instance on its GPUs, without a name yet. Raises SolverError as `assign` does."""
    columns = {column.name: column for column in problem.columns}
    places = fleet_locations(problem.fleet, solution.granularity)
    try:
        seats = _seats(
            problem, solution, columns, places, deal_stages(solution.placed, columns, places, problem.running)
        )
    except SolverError:
        if not any(placed.stages for placed in solution.placed) or not problem.running:
            raise
        seats = _seats(problem, solution, columns, places, deal_stages(solution.placed, columns, places, ()))
    return tuple(seats)


def joined(problem: ProgramInput, solution: ProgramSolution, seats: Sequence[Seat]) -> Assignment:
    """Seats with names, shares and routes between them."""
    seats = _named(seats, solution)
    routes, loads = route_instances(problem, solution, seats)
    total = {role: sum(sum(seat.rate_req_per_s) for seat in seats if seat.column.role == role) for role in ROLES}
    instances = {
        name: tuple(_instance(seat, total[seat.column.role]) for seat in seats if seat.column.name == name)
        for name in dict.fromkeys(placed.column for placed in solution.placed)
    }
    return Assignment(instances, routes, tuple(seats), loads)


def _seats(
    problem: ProgramInput,
    solution: ProgramSolution,
    columns: Mapping[str, Column],
    places: Sequence[Location],
    stages: Sequence[StageSeat],
) -> list[Seat]:
    """Every instance on its GPUs, location by location; mixed pipelines are put together at the end."""
    seats: list[Seat] = []
    slots = {(stage.instance, stage.stage): stage.slots for stage in stages if stage.slots}
    held = {slot for own in slots.values() for slot in own}
    for location in places:
        here = [placed for placed in solution.placed if placed.location == location.name and not placed.stages]
        visits = [stage for stage in stages if stage.location == location.name and not stage.slots]
        if here or visits:
            found, pieces = _seat_location(location, here, columns, solution.flows, problem.running, visits, held)
            seats += found
            slots |= pieces
    by_name = {location.name: location for location in places}
    for first in stages:
        if first.stage == 0:
            own = tuple(slots[first.instance, number] for number in range(len(first.column.stages)))
            seats.append(Seat("", first.column, by_name[first.home], own, first.rate_req_per_s))
    return seats


def _instance(seat: Seat, total_rate: float) -> Instance:
    share = sum(seat.rate_req_per_s) / total_rate if total_rate > 0 else 0.0
    gpus = tuple(GpuSlot(node=node, index=index) for node, index in seat.slots)
    return Instance(name=seat.name, rack=seat.location.rack, gpus=gpus, share=round(share, 12))


def _named(seats: Sequence[Seat], solution: ProgramSolution) -> list[Seat]:
    """prefill-0, prefill-1, … per role, in the order of columns, then of places."""
    order = {name: number for number, name in enumerate(dict.fromkeys(placed.column for placed in solution.placed))}
    counters = dict.fromkeys(ROLES, 0)
    named = []
    for seat in sorted(seats, key=lambda seat: order[seat.column.name]):  # stable: places keep their order
        role = seat.column.role
        name = f"{role}-{counters[role]}"
        counters[role] += 1
        named.append(Seat(name, seat.column, seat.location, seat.stages, seat.rate_req_per_s))
    return named


@dataclass(slots=True)
class _Room:
    """Free GPUs of one NVLink domain, and what stands on its nodes already."""

    free: list[Slot]
    nodes: tuple[Node, ...]
    roles_on_root: dict[tuple[str, int], list[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Group:
    """One group of GPUs to place: a whole instance, or one stage of one."""

    column: Column
    instance: int
    size: int
    rate_req_per_s: tuple[float, ...]
    stage: int = -1  # of a mixed pipeline, whose other stages stand elsewhere


Pieces = dict[tuple[int, int], tuple[Slot, ...]]  # (instance, stage) of mixed pipelines → its GPUs


def _seat_location(
    location: Location,
    here: Sequence[Placed],
    columns: Mapping[str, Column],
    flows: Iterable[Flow],
    running: Iterable[Running],
    visits: Sequence[StageSeat],
    held: set[Slot],
) -> tuple[list[Seat], Pieces]:
    """What runs keeps its GPUs; the rest is placed around it, or everything anew where that does not fit.

    New instances stay off GPUs that only a stop sets free, where there are others: so they can start before it.
    """
    partners = _partners(flows, location.name)
    kept = _kept_seats(location, here, columns, running, held)
    leaving = {slot for entry in running for slot in entry.slots} - {slot for seat in kept for slot in seat.slots}
    around = _seat_around(location, here, columns, partners, kept, visits, held | leaving) if leaving else None
    if around is None:
        around = _seat_around(location, here, columns, partners, kept, visits, held)
    if around is None and kept:
        kept = []
        around = _seat_around(location, here, columns, partners, kept, visits, held)
    if around is None:
        raise SolverError(Problem(f"the instances planned for {location.name} do not fit its NVLink domains"))
    return [*kept, *around[0]], around[1]


def _kept_seats(
    location: Location,
    here: Sequence[Placed],
    columns: Mapping[str, Column],
    running: Iterable[Running],
    held: set[Slot],
) -> list[Seat]:
    """Running instances of planned columns on free GPUs of this location, no more than are planned."""
    free = {slot for domain in location.domains for slot in domain.slots} - held
    seats = []
    for placed in here:
        column, left = columns[placed.column], placed.instances
        rates = tuple(rate / placed.instances for rate in placed.rate_req_per_s)
        for entry in running:
            fits = len(entry.slots) == column.num_gpus and free.issuperset(entry.slots)
            if entry.column == column.name and left and fits:
                free -= set(entry.slots)
                left -= 1
                size = column.num_gpus if _is_whole(column, location) else column.tensor_parallel
                stages = tuple(entry.slots[at : at + size] for at in range(0, column.num_gpus, size))
                seats.append(Seat("", column, location, stages, rates))
    return seats


def _is_whole(column: Column, location: Location) -> bool:
    """Whether an instance sits in one NVLink domain, all stages together."""
    return column.num_gpus <= max(domain.num_gpus for domain in location.domains)


def _seat_around(
    location: Location,
    here: Sequence[Placed],
    columns: Mapping[str, Column],
    partners: Mapping[str, set[str]],
    kept: Sequence[Seat],
    visits: Sequence[StageSeat],
    held: set[Slot],
) -> tuple[list[Seat], Pieces] | None:
    by_name = {node.name: node for node in location.nodes}
    taken = {slot for seat in kept for slot in seat.slots} | held
    rooms = []
    for domain in location.domains:
        nodes = tuple(by_name[name] for name in dict.fromkeys(node for node, _ in domain.slots))
        room = _Room([slot for slot in domain.slots if slot not in taken], nodes)
        for seat in kept:
            for root in dict.fromkeys(_root_of(slot, nodes) for slot in seat.slots if slot in domain.slots):
                room.roles_on_root.setdefault(root, []).append(seat.column.role)
        rooms.append(room)
    groups = _groups(location, here, columns, kept, visits)
    chosen = _choose_rooms(groups, rooms, partners)
    if chosen is None:
        return None
    stages: dict[int, list[tuple[Slot, ...]]] = {}
    pieces: Pieces = {}
    for group, number in zip(groups, chosen, strict=True):
        slots = _take(rooms[number], group)
        if group.stage >= 0:
            pieces[group.instance, group.stage] = slots
        else:
            stages.setdefault(group.instance, []).append(slots)
    first = {group.instance: group for group in reversed(groups) if group.stage < 0}
    seats = [
        Seat("", first[number].column, location, tuple(stages[number]), first[number].rate_req_per_s)
        for number in sorted(stages)
    ]
    return seats, pieces


def _groups(
    location: Location,
    here: Sequence[Placed],
    columns: Mapping[str, Column],
    kept: Sequence[Seat],
    visits: Sequence[StageSeat],
) -> list[_Group]:
    """Groups of GPUs still to place, the largest first; stages of one instance stay next to each other."""
    groups, number = [], 0
    for placed in here:
        column = columns[placed.column]
        whole = _is_whole(column, location)
        size, count = (column.num_gpus, 1) if whole else (column.tensor_parallel, column.pipeline_parallel)
        rates = tuple(rate / placed.instances for rate in placed.rate_req_per_s)
        for _ in range(placed.instances - sum(seat.column.name == placed.column for seat in kept)):
            groups += [_Group(column, number, size, rates)] * count
            number += 1
    groups += [
        _Group(visit.column, visit.instance, visit.column.tensor_parallel, visit.rate_req_per_s, visit.stage)
        for visit in visits
    ]
    return sorted(groups, key=lambda group: -group.size)


def _partners(flows: Iterable[Flow], location: str) -> dict[str, set[str]]:
    """Columns at the location that exchange KV with each other there."""
    partners: dict[str, set[str]] = {}
    for flow in flows:
        if flow.prefill_location == flow.decode_location == location:
            partners.setdefault(flow.prefill, set()).add(flow.decode)
            partners.setdefault(flow.decode, set()).add(flow.prefill)
    return partners


def _choose_rooms(
    groups: Sequence[_Group], rooms: Sequence[_Room], partners: Mapping[str, set[str]]
) -> list[int] | None:
    """A domain for every group. Largest first never fails where sizes divide each other; otherwise search."""
    sizes = sorted({group.size for group in groups})
    space = [len(room.free) for room in rooms]
    standing: list[list[_Group]] = [[] for _ in rooms]
    if all(large % small == 0 for small, large in pairwise(sizes)):
        chosen = []
        for group in groups:
            options = [room for room in range(len(rooms)) if space[room] >= group.size]
            if not options:
                return None
            best = min(options, key=lambda room: _preference(group, room, rooms, standing, space, partners))
            space[best] -= group.size
            standing[best].append(group)
            chosen.append(best)
        return chosen
    return _search(list(groups), space, [SEARCH_STEPS])


def _preference(
    group: _Group,
    room: int,
    rooms: Sequence[_Room],
    standing: Sequence[Sequence[_Group]],
    space: Sequence[int],
    partners: Mapping[str, set[str]],
) -> tuple[int, int, int, int, int]:
    """Smaller is better: beside the other stages, away from its own kind, near partners, tight, first."""
    name = group.column.name
    same_instance = sum(other.instance == group.instance and other.column.name == name for other in standing[room])
    same_kind = sum(other.column.name == name and other.instance != group.instance for other in standing[room])
    friends = sum(other.column.name in partners.get(name, ()) for other in standing[room])
    return (-same_instance, same_kind, -friends, space[room] % group.size, room)


def _search(groups: list[_Group], space: list[int], steps_left: list[int]) -> list[int] | None:
    """Depth first, the largest group first, domains with equal room tried once."""
    if not groups:
        return []
    steps_left[0] -= 1
    if steps_left[0] <= 0 or sum(space) < sum(group.size for group in groups):
        return None
    tried = set()
    for room in sorted(range(len(space)), key=lambda room: (space[room], room)):
        if space[room] < groups[0].size or space[room] in tried:
            continue
        tried.add(space[room])
        left = list(space)
        left[room] -= groups[0].size
        rest = _search(groups[1:], left, steps_left)
        if rest is not None:
            return [room, *rest]
    return None


def _take(room: _Room, group: _Group) -> tuple[Slot, ...]:
    """GPUs for a group: from the PCI root with the fewest of its role and the most room, whole roots for large ones."""
    by_root: dict[tuple[str, int], list[Slot]] = {}
    for slot in room.free:
        by_root.setdefault(_root_of(slot, room.nodes), []).append(slot)
    role = group.column.role
    present = room.roles_on_root

    def calm(root: tuple[str, int]) -> tuple[int, int, int]:
        roles = present.get(root, [])
        return (roles.count(role), len(roles), -len(by_root[root]))

    roots = list(by_root)
    fitting = [root for root in roots if len(by_root[root]) >= group.size]
    if fitting:
        order = [min(fitting, key=lambda root: (*calm(root), roots.index(root)))]
    else:
        order = sorted(roots, key=lambda root: (-len(by_root[root]), *calm(root), roots.index(root)))
    taken: list[Slot] = []
    for root in order:
        part = by_root[root][: group.size - len(taken)]
        taken += part
        if part:
            present.setdefault(root, []).append(role)
        if len(taken) == group.size:
            break
    room.free = [slot for slot in room.free if slot not in set(taken)]
    position = {node.name: number for number, node in enumerate(room.nodes)}
    return tuple(sorted(taken, key=lambda slot: (position[slot[0]], slot[1])))


def _root_of(slot: Slot, nodes: Iterable[Node]) -> tuple[str, int]:
    """The PCI root of a GPU; all GPUs of a node count as one root where the fleet does not say."""
    name, index = slot
    for node in nodes:
        if node.name == name:
            return next(((name, number) for number, root in enumerate(node.pci_roots) if index in root), (name, -1))
    return name, -1
