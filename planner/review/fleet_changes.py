"""One thing more in the fleet: the questions whose answers are shadow prices in people's terms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from splitplan.planner.program.types import ProgramInput
from splitplan.planner.spec.fleet import Fleet, Node, Rack

MORE = 1.1
RACKS_ASKED = 8


@dataclass(frozen=True, slots=True)
class Change:
    """A program with one thing changed, and what that is."""

    name: str
    problem: ProgramInput


def fleet_changes(problem: ProgramInput) -> list[Change]:
    """One more node of each type in each rack that has one, 10 % more of every link and limit, 10 % less load."""
    changes = [*_more_nodes(problem), *_wider_links(problem), *_looser_limits(problem)]
    lighter = replace(
        problem,
        rate_req_per_s=problem.rate_req_per_s * 0.9,
        hours=tuple(replace(hour, rate_req_per_s=hour.rate_req_per_s * 0.9) for hour in problem.hours),
    )
    if problem.options.objective != "goodput":
        changes.append(Change("10 % less load", lighter))
    return changes


def _more_nodes(problem: ProgramInput) -> list[Change]:
    changes, seen = [], set()
    for rack in problem.fleet.racks[:RACKS_ASKED]:
        for node in rack.nodes:
            if (rack.name, node.gpu) in seen:
                continue
            seen.add((rack.name, node.gpu))
            name = f"one more {node.gpu} node ({node.num_gpus} GPUs) in rack {rack.name}"
            changes.append(Change(name, replace(problem, fleet=with_node(problem.fleet, rack.name, node))))
    return changes


def with_node(fleet: Fleet, rack: str, like: Node) -> Fleet:
    """The fleet with one more node like a given one, all its GPUs free."""
    taken = {node.name for node in fleet.nodes}
    name = next(f"{like.name}+{number}" for number in range(1, len(taken) + 2) if f"{like.name}+{number}" not in taken)
    extra = replace(like, name=name, gpus_in_use=())
    return _with_rack(fleet, rack, lambda old: replace(old, nodes=(*old.nodes, extra)))


def _with_rack(fleet: Fleet, name: str, change: Callable[[Rack], Rack]) -> Fleet:
    return replace(fleet, racks=tuple(change(rack) if rack.name == name else rack for rack in fleet.racks))


def _wider_links(problem: ProgramInput) -> list[Change]:
    fleet, changes = problem.fleet, []
    if fleet.spine_bytes_per_s is not None:
        wider = replace(fleet, spine_bytes_per_s=fleet.spine_bytes_per_s * MORE)
        changes.append(Change("10 % more spine", replace(problem, fleet=wider)))
    if any(rack.uplink_bytes_per_s is not None for rack in fleet.racks):
        racks = tuple(_with_uplink(rack) for rack in fleet.racks)
        changes.append(Change("10 % more on every rack uplink", replace(problem, fleet=replace(fleet, racks=racks))))
    nodes = [
        replace(rack, nodes=tuple(replace(node, nic_bytes_per_s=node.nic_bytes_per_s * MORE) for node in rack.nodes))
        for rack in fleet.racks
    ]
    changes.append(Change("10 % more on every NIC", replace(problem, fleet=replace(fleet, racks=tuple(nodes)))))
    return changes


def _with_uplink(rack: Rack) -> Rack:
    return rack if rack.uplink_bytes_per_s is None else replace(rack, uplink_bytes_per_s=rack.uplink_bytes_per_s * MORE)


def _with_kilowatt(rack: Rack) -> Rack:
    return replace(rack, power_limit_watts=(rack.power_limit_watts or 0.0) + 1000.0)


def _looser_limits(problem: ProgramInput) -> list[Change]:
    options, changes = problem.options, []
    limited = [rack for rack in problem.fleet.racks if rack.power_limit_watts is not None]
    for rack in limited[:RACKS_ASKED]:
        fleet = _with_rack(problem.fleet, rack.name, _with_kilowatt)
        changes.append(Change(f"1 kW more in rack {rack.name}", replace(problem, fleet=fleet)))
    if options.budget_usd_per_hour is not None:
        looser = replace(options, budget_usd_per_hour=options.budget_usd_per_hour * MORE)
        changes.append(Change("10 % more budget", replace(problem, options=looser)))
    if options.max_power_watts is not None:
        looser = replace(options, max_power_watts=options.max_power_watts * MORE)
        changes.append(Change("10 % more power", replace(problem, options=looser)))
    return changes
