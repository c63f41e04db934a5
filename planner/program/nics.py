"""NICs of locations with several hosts: what the hosts in use can send and receive, not what all of them could.

    nic_used[ℓ]   Σ_{b,k} GB[b,k] · up[b,k,ℓ] ≤ safe share · NIC · Σ_{c sends} hosts_c · n[c,ℓ]       and down alike

An instance sends through the NICs of the hosts it stands on, at most hosts_c of them. That is necessary, not enough:
two instances may share a host. So the answer is assigned to GPUs and its flows are routed over the concrete graph of
links; where a NIC has too much then, the program is solved again with *fair* NICs: every instance has of its host's NIC
no more than its share of the host's GPUs, which holds whatever stands beside it.

    nic_share[c,ℓ]   Σ_b GB[b,c] · x[b,c,ℓ] ≤ safe share · NIC · gpus_c / GPUs of a host · n[c,ℓ]
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from splitplan.planner.place.assign import assign
from splitplan.planner.place.routes import overloaded_links
from splitplan.planner.program.linear import Terms
from splitplan.planner.program.topology import fleet_locations

if TYPE_CHECKING:
    from splitplan.planner.columns.column import Column
    from splitplan.planner.program.build import Program, Service
    from splitplan.planner.program.topology import Location
    from splitplan.planner.program.types import ProgramInput, ProgramSolution

GIGABYTE = 1e9

SIDES = (("out", "prefill"), ("in", "decode"))


def hosts_of(column: Column, location: Location) -> int:
    """The most nodes that an instance's KV leaves from: one per group of GPUs, or as many as its domain spans."""
    widest = max(domain.num_gpus for domain in location.domains)
    whole = column.num_gpus <= widest and not column.stages
    size, groups = (column.num_gpus, 1) if whole else (column.tensor_parallel, column.pipeline_parallel)
    spanned = max(len({node for node, _ in domain.slots}) for domain in location.domains)
    return min(len(location.nodes), groups * min(size, spanned))


def nic_bytes_per_s(location: Location) -> float:
    """The NICs of one of its nodes, which are alike."""
    return location.nic_bytes_per_s / len(location.nodes)


def define_nics_in_use(program: Program, service: Service) -> None:
    """nic_used[ℓ] of every location with several hosts, and nic_share[c,ℓ] where NICs are to be fair."""
    share = program.problem.options.network_utilisation / GIGABYTE
    places = {place: location for place, location in enumerate(program.locations) if len(location.nodes) > 1}
    if not places:
        return
    for (direction, role), flows in zip(SIDES, (service.up, service.down), strict=True):
        loads: dict[str, Terms] = {}
        for (b, number, vertex), variable in flows.items():
            if vertex[0] == "location":
                kind = program.families.kinds[number]
                sent = float(program.problem.kv_bytes_per_request[kind.kv_dtype][b]) / GIGABYTE
                loads.setdefault(vertex[1], []).append((variable, sent))
        able: dict[int, Terms] = {}
        for (index, place), variable in program.n.items():
            column = program.columns[index]
            if place in places and column.role == role:
                through = _through_bytes_per_s(column, places[place], fair=program.problem.fair_nics)
                able.setdefault(place, []).append((variable, -through * share))
        for place, terms in able.items():
            name = places[place].name
            if name in loads:
                row = [*loads[name], *terms]
                program.model.add_constraint(f"nic_used_{direction}[{name}{service.name}]", row, "<=", 0.0)
        if program.problem.fair_nics:
            _define_shares(program, service, role, direction, places)


def _through_bytes_per_s(column: Column, location: Location, *, fair: bool) -> float:
    """What one instance can send: all NICs of its hosts, or its share of them."""
    hosts, gpus = hosts_of(column, location), location.nodes[0].num_gpus
    part = min(1.0, column.num_gpus / (gpus * hosts)) if fair else 1.0
    return hosts * part * nic_bytes_per_s(location)


def _define_shares(program: Program, service: Service, role: str, direction: str, places: dict[int, Location]) -> None:
    share = program.problem.options.network_utilisation / GIGABYTE
    loads: dict[tuple[int, int], Terms] = {}
    for (b, index, place), variable in service.x.items():
        column = program.columns[index]
        if place in places and column.role == role and not places[place].one_host:  # else some of x may stay inside
            sent = float(program.problem.kv_bytes_per_request[column.kv_dtype][b]) / GIGABYTE
            loads.setdefault((index, place), []).append((variable, sent))
    for (index, place), row in loads.items():
        column, location = program.columns[index], places[place]
        through = _through_bytes_per_s(column, location, fair=True) * share
        name = f"nic_share_{direction}[{column.name}, {location.name}{service.name}]"
        program.model.add_constraint(name, [*row, (program.n[index, place], -through)], "<=", 0.0)


def idle_nics(program: Program, counts: Mapping[int, float]) -> set[str]:
    """Rows of places without an instance that could send (or receive): nothing is held back by NICs nobody needs."""
    in_use = {
        (program.columns[index].role, program.locations[place].name)
        for (index, place), variable in program.n.items()
        if counts[variable]
    }
    return {
        f"nic_used_{direction}[{location.name}]"
        for location in program.locations
        for direction, role in SIDES
        if (role, location.name) not in in_use
    }


def overloaded_nics(problem: ProgramInput, solution: ProgramSolution) -> list[str]:
    """The flow check on the concrete graph: links that carry more than their safe share once GPUs are assigned.

    Where every place is one node, the program has looked at these very links, and nothing is assigned.
    """
    places = {location.name: location for location in fleet_locations(problem.fleet, solution.granularity)}
    if not any(len(places[placed.location].nodes) > 1 for placed in solution.placed) or not solution.flows:
        return []
    found = overloaded_links(problem, assign(problem, solution).link_loads)
    return [
        f"{start[0]} {start[1]} to {end[0]} {end[1]} {load / GIGABYTE:.3g} GB/s, planned for {safe / GIGABYTE:.3g}"
        for (start, end), load, safe in found
    ]


def with_fair_nics(problem: ProgramInput) -> ProgramInput:
    """The same question with fair NICs."""
    return replace(problem, fair_nics=True)
