"""Who serves what over which links: every class, at every hour, and with every failure domain gone."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np

from splitplan.planner.program.check import Check, Facts
from splitplan.planner.program.reduce import REACH_ORDER
from splitplan.planner.program.topology import Location
from splitplan.planner.program.types import FloatArray, Flow, Placed, ProgramSolution, ServedState


def check_state(check: Check, facts: Facts, state: ServedState, asked: FloatArray, headroom: float = 1.0) -> None:
    """The asked [classes] req/s are served, with time, KV and links for `headroom` times as much."""
    name = " ".join(part for part in (state.hour, state.gone and f"without {state.gone}") if part)
    label = f" ({name})" if name else ""
    _check_demand(check, facts, state, asked, label)
    _check_groups(check, facts, state, label)
    _check_time(check, facts, state, headroom, label)
    _check_flows(check, facts, state, label)
    _check_links(check, facts, state.flows, headroom, label)
    _check_nics_in_use(check, facts, state, headroom, label)
    if not state.gone:
        _check_share_per_rack(check, facts, state.placed, label)
    if facts.problem.options.whole_classes:
        for b, what in enumerate(facts.problem.class_names):
            serving = [entry for entry in state.placed if entry.rate_req_per_s[b] > 0]
            decoding = {entry.column for entry in serving if entry.role == "decode"}
            others = {entry.column for entry in serving if entry.role != "decode"}
            check.holds(f"class {what} is not split{label}", len(decoding) <= 1 and len(others) <= 1)


def check_other_states(check: Check, facts: Facts, solution: ProgramSolution) -> None:
    """Every other hour, and at every hour every failure: served by what is planned, less what is gone."""
    rates = dict(facts.problem.rates)
    planned = {(placed.column, placed.location): placed.instances for placed in solution.placed}
    domains = _failure_domains(facts)
    told: set[tuple[str, str]] = {(facts.problem.rates[0][0], "")}
    for state in solution.states:
        what = " ".join(part for part in (state.hour, state.gone and f"without {state.gone}") if part)
        known = state.hour in rates and (not state.gone or state.gone in domains)
        check.holds(f"state {what} is one that was asked about", known)
        if not known:
            continue
        lost = domains.get(state.gone, frozenset())
        for placed in state.placed:
            where = f"{placed.column} at {placed.location} ({what})"
            check.holds(f"{where}: planned", planned.get((placed.column, placed.location)) == placed.instances)
            check.holds(f"{where}: not gone", placed.location not in lost)
        asked = rates[state.hour] * np.array(solution.class_scale)
        check_state(check, facts, state, asked, 1.0 if state.gone else solution.headroom)
        told.add((state.hour, state.gone))
        for other in state.stands_for:
            alike = _likeness(facts, solution, lost) == _likeness(facts, solution, domains.get(other, frozenset()))
            check.holds(f"the loss of {other} is that of {state.gone} but for names", other == state.gone or alike)
            told.add((state.hour, other))
    in_use = {placed.location for placed in solution.placed}
    for hour in rates:
        check.holds(f"hour {hour or 'asked for'} is served", (hour, "") in told)
        for name, places in domains.items():
            if places & in_use:  # without instances there, its loss changes nothing
                check.holds(f"the loss of {name} is survived{hour and f' at {hour}'}", (hour, name) in told)


def _failure_domains(facts: Facts) -> dict[str, frozenset[str]]:
    """Names of the places that go together, by domain."""
    domains: dict[str, set[str]] = {}
    for name, place in facts.places.items():
        domain = {"node": name, "rack": place.rack, "power-domain": place.nodes[0].failure_domain}.get(
            facts.problem.options.survive, ""
        )
        if domain:
            domains.setdefault(domain, set()).add(name)
    return {domain: frozenset(names) for domain, names in domains.items()}


def _likeness(facts: Facts, solution: ProgramSolution, lost: frozenset[str]) -> object:
    """What a set of places is but for names: per rack its links, what its places hold, and what the lost ones do."""
    uplinks = {rack.name: rack.uplink_bytes_per_s for rack in facts.problem.fleet.racks}
    holds: dict[str, tuple[object, ...]] = {}
    for name, place in facts.places.items():
        instances = sorted((item.column, item.instances) for item in solution.placed if item.location == name)
        holds[name] = (place.gpu, place.gpu_link, place.nic_bytes_per_s, place.one_host, *instances)
    found = []
    for rack in {facts.places[name].rack for name in lost}:
        inside = [name for name, place in facts.places.items() if place.rack == rack]
        everything = sorted(str(holds[name]) for name in inside)
        gone = sorted(str(holds[name]) for name in inside if name in lost)
        found.append(str((facts.places[inside[0]].pod, uplinks[rack], everything, gone)))
    return sorted(found)


def _check_demand(check: Check, facts: Facts, state: ServedState, asked: FloatArray, label: str) -> None:
    for b, name in enumerate(facts.problem.class_names):
        first = _total(state.placed, b, lambda placed: placed.role != "decode")
        last = _total(state.placed, b, lambda placed: placed.role != "prefill")
        check.equal(f"class {name}: served by prefill and colocated{label}", first, float(asked[b]))
        check.equal(f"class {name}: served by decode and colocated{label}", last, float(asked[b]))


def _total(placed: Iterable[Placed], b: int, keep: Callable[[Placed], bool]) -> float:
    return math.fsum(entry.rate_req_per_s[b] for entry in placed if keep(entry))


def _check_groups(check: Check, facts: Facts, state: ServedState, label: str) -> None:
    """Each class is served by one group of classes per stage, and instances take them in proportion to their rates."""
    if not facts.problem.options.class_groups:
        return
    rates = dict(facts.problem.rates)[state.hour]
    groups: dict[tuple[bool, int], set[tuple[bool, ...]]] = {}
    for placed in state.placed:
        column = facts.columns[placed.column]
        served = tuple(math.isfinite(work) for work in column.work_s_per_request)
        loads = [placed.rate_req_per_s[b] / rates[b] for b, yes in enumerate(served) if yes and rates[b] > 0]
        where = f"{placed.column} at {placed.location}"
        check.equal(f"{where}: classes in proportion{label}", min(loads, default=0.0), max(loads, default=0.0))
        for b, yes in enumerate(served):
            if yes:
                groups.setdefault((column.role == "decode", b), set()).add(served)
    for (_, b), found in groups.items():
        check.at_most(f"class {facts.problem.class_names[b]}: groups that serve it{label}", len(found), 1)


def _check_time(check: Check, facts: Facts, state: ServedState, headroom: float, label: str) -> None:
    for placed in state.placed:
        works = facts.columns[placed.column].work_s_per_request
        work = sum(rate * float(works[b]) for b, rate in enumerate(placed.rate_req_per_s) if rate > 0)
        where = f"{placed.column} at {placed.location}"
        check.holds(f"{where}: no rate below zero{label}", min(placed.rate_req_per_s) >= 0)
        check.at_most(f"{where}: instance time{label}", work * headroom, placed.instances)
        check.equal(f"{where}: utilisation{label}", work / placed.instances, placed.utilisation)


def _check_flows(check: Check, facts: Facts, state: ServedState, label: str) -> None:
    moved: dict[tuple[str, str, str, int], float] = {}
    for flow in state.flows:
        for end in (
            ("prefill", flow.prefill, flow.prefill_location, flow.class_index),
            ("decode", flow.decode, flow.decode_location, flow.class_index),
        ):
            moved[end] = moved.get(end, 0.0) + flow.rate_req_per_s
    for placed in state.placed:
        if placed.role == "colocated":
            continue
        for b, name in enumerate(facts.problem.class_names):
            flowing = moved.pop((placed.role, placed.column, placed.location, b), 0.0)
            what = f"{placed.column} at {placed.location}: KV flow of class {name}{label}"
            check.equal(what, flowing, placed.rate_req_per_s[b])
    check.holds(f"every KV flow starts and ends at an instance{label}", not moved)
    for flow in state.flows:
        prefill, decode = facts.columns[flow.prefill], facts.columns[flow.decode]
        what = f"{flow.prefill} at {flow.prefill_location} to {flow.decode} at {flow.decode_location}"
        check.holds(f"{what}: connector{label}", facts.problem.pairs_allowed(prefill, decode))
        check.holds(f"{what}: positive{label}", flow.rate_req_per_s > 0)
        travelled = _distance(facts.places[flow.prefill_location], facts.places[flow.decode_location])
        allowed = min(REACH_ORDER[prefill.transfer_reach], REACH_ORDER[decode.transfer_reach])
        check.holds(f"{what}: reach{label}", travelled <= allowed and travelled == REACH_ORDER[flow.reach])


def _distance(start: Location, end: Location) -> int:
    if start.rack != end.rack:
        return 2
    return 0 if start.name == end.name and start.one_host else 1


def _check_links(check: Check, facts: Facts, flows: Iterable[Flow], headroom: float, label: str) -> None:
    """Bytes through every NIC, uplink and the spine, from the flows themselves."""
    problem, loads = facts.problem, dict[tuple[str, str], float]()
    for flow in flows:
        start, end = facts.places[flow.prefill_location], facts.places[flow.decode_location]
        kv_bytes = problem.kv_bytes_per_request[facts.columns[flow.prefill].kv_dtype]
        sent = headroom * flow.rate_req_per_s * float(kv_bytes[flow.class_index])
        for link in _links_between(start, end):
            loads[link] = loads.get(link, 0.0) + sent
    share = problem.options.network_utilisation
    limits: dict[tuple[str, str], float | None] = {("spine", ""): problem.fleet.spine_bytes_per_s}
    for direction in ("out", "in"):
        limits |= {(f"NIC {direction}", name): place.nic_bytes_per_s for name, place in facts.places.items()}
        limits |= {(f"rack uplink {direction}", rack.name): rack.uplink_bytes_per_s for rack in problem.fleet.racks}
        limits |= {(f"pod uplink {direction}", pod.name): pod.uplink_bytes_per_s for pod in problem.fleet.pods}
    for link, limit in limits.items():
        if limit is not None and (link in loads or not label):
            others = problem.held.on_links(_known_as(link, facts)) if problem.held.link_bytes_per_s else 0.0
            sent = loads.get(link, 0.0) + others
            check.at_most(f"{link[0]} {link[1]}: KV bytes per second{label}", sent, limit * share)


def _known_as(link: tuple[str, str], facts: Facts) -> list[str]:
    """The names under which other services' load on a link is kept."""
    what, name = link
    if what == "spine":
        return ["spine"]
    kind = what.lower().replace(" ", "_")
    nodes = facts.places[name].nodes if kind.startswith("nic") else ()
    return [f"{kind}[{node.name}]" for node in nodes] or [f"{kind}[{name}]"]


def _check_nics_in_use(check: Check, facts: Facts, state: ServedState, headroom: float, label: str) -> None:
    """A place of several nodes sends and receives no more than the nodes that can hold an instance of that stage."""
    share = facts.problem.options.network_utilisation
    for side, role in (("prefill", "out of"), ("decode", "into")):
        loads: dict[str, float] = {}
        for flow in state.flows:
            start, end = facts.places[flow.prefill_location], facts.places[flow.decode_location]
            if _distance(start, end) == 0:
                continue
            kv_bytes = facts.problem.kv_bytes_per_request[facts.columns[flow.prefill].kv_dtype]
            place = flow.prefill_location if side == "prefill" else flow.decode_location
            sent = headroom * flow.rate_req_per_s * float(kv_bytes[flow.class_index])
            loads[place] = loads.get(place, 0.0) + sent
        for name, load in loads.items():
            place_of, nodes = facts.places[name], 0
            spanned = max(len({node for node, _ in domain.slots}) for domain in place_of.domains)
            for placed in state.placed:
                if (placed.location, placed.role) == (name, side):
                    column = facts.columns[placed.column]
                    nodes += placed.instances * column.pipeline_parallel * min(column.num_gpus, spanned)
            if nodes < len(place_of.nodes):
                limit = place_of.nic_bytes_per_s / len(place_of.nodes) * nodes * share
                check.at_most(f"NICs {role} the nodes in use at {name}{label}", load, limit)


def _links_between(start: Location, end: Location) -> list[tuple[str, str]]:
    if _distance(start, end) == 0:
        return []
    links = [("NIC out", start.name), ("NIC in", end.name)]
    if start.rack == end.rack:
        return links
    links += [("rack uplink out", start.rack), ("rack uplink in", end.rack), ("spine", "")]
    if start.pod != end.pod:
        links += [("pod uplink out", start.pod), ("pod uplink in", end.pod)]
    return links


def _check_share_per_rack(check: Check, facts: Facts, placed_here: Iterable[Placed], label: str) -> None:
    """No rack serves more than its share of any role's requests."""
    share = facts.problem.options.max_share_per_rack
    if share is None:
        return
    by_role: dict[str, dict[str, float]] = {}
    for placed in placed_here:
        racks = by_role.setdefault(placed.role, {})
        racks[placed.rack] = racks.get(placed.rack, 0.0) + math.fsum(placed.rate_req_per_s)
    for role, racks in by_role.items():
        for rack, rate in racks.items():
            check.at_most(f"{rack}: share of {role}{label}", rate, share * math.fsum(racks.values()))
