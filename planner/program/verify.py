"""An independent check of a solution, in plain Python: it knows the fleet and the columns, not the linear program."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from splitplan.planner.columns.column import Column
from splitplan.planner.program.pipelines import gpus_at
from splitplan.planner.program.reduce import REACH_ORDER, parse_filter
from splitplan.planner.program.types import Placed, ProgramInput, ProgramSolution
from splitplan.planner.topology import Location, fleet_locations

RELATIVE_TOLERANCE = 1e-6
ABSOLUTE_TOLERANCE = 1e-7
SEARCH_STEPS = 20_000


@dataclass(slots=True)
class Check:
    """Counts what was checked and keeps what failed."""

    num_checked: int = 0
    failures: list[str] = field(default_factory=list)

    def at_most(self, what: str, value: float, limit: float) -> None:
        """value ≤ limit, up to rounding."""
        self.num_checked += 1
        if not value <= limit + ABSOLUTE_TOLERANCE + RELATIVE_TOLERANCE * abs(limit):
            self.failures.append(f"{what}: {value:g} > {limit:g}")

    def equal(self, what: str, value: float, other: float) -> None:
        """value = other, up to rounding."""
        self.num_checked += 1
        if not abs(value - other) <= ABSOLUTE_TOLERANCE + RELATIVE_TOLERANCE * max(abs(value), abs(other)):
            self.failures.append(f"{what}: {value:g} is not {other:g}")

    def holds(self, what: str, truth: bool) -> None:
        """A yes-or-no rule."""
        self.num_checked += 1
        if not truth:
            self.failures.append(what)


def verify(problem: ProgramInput, solution: ProgramSolution) -> Check:
    """Check every promise of the solution for the normal state of the fleet, and the sums it reports."""
    check = Check()
    columns = {column.name: column for column in problem.columns}
    places = {location.name: location for location in fleet_locations(problem.fleet, solution.granularity)}
    _check_instances(check, problem, solution, columns, places)
    _check_demand(check, problem, solution, columns)
    _check_groups(check, problem, solution, columns)
    _check_flows(check, problem, solution, columns, places)
    _check_links(check, problem, solution, columns, places)
    _check_limits(check, problem, solution, columns, places)
    return check


def _check_instances(
    check: Check,
    problem: ProgramInput,
    solution: ProgramSolution,
    columns: dict[str, Column],
    places: dict[str, Location],
) -> None:
    for placed in solution.placed:
        column, location = columns[placed.column], places[placed.location]
        where = f"{placed.column} at {placed.location}"
        if column.stages:
            _check_stages(check, placed, column, places)
        else:
            check.holds(f"{where}: GPU type", column.gpu == location.gpu)
            check.holds(f"{where}: host link", column.gpu_link in ("", location.gpu_link))
        check.holds(f"{where}: whole instances", isinstance(placed.instances, int) and placed.instances > 0)
        work = sum(
            rate * float(column.work_s_per_request[b]) for b, rate in enumerate(placed.rate_req_per_s) if rate > 0
        )
        check.at_most(f"{where}: instance time", work, placed.instances)
    by_place: dict[str, list[int]] = {}
    for placed in solution.placed:
        column = columns[placed.column]
        for stage in placed.stages:
            by_place.setdefault(stage.location, []).extend([column.tensor_parallel] * stage.groups)
        if not column.stages:
            by_place.setdefault(placed.location, []).extend(_groups(placed, column, places[placed.location]))
    for name, groups in by_place.items():
        check.holds(f"{name}: groups fit NVLink domains", _fits(groups, places[name]))


def _check_stages(check: Check, placed: Placed, column: Column, places: dict[str, Location]) -> None:
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
    return [size] * (count * placed.instances)


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


def _check_demand(check: Check, problem: ProgramInput, solution: ProgramSolution, columns: dict[str, Column]) -> None:
    for b, name in enumerate(problem.class_names):
        asked = float(problem.rates[0][1][b]) * solution.class_scale[b]
        first = _total(solution.placed, b, lambda placed: placed.role != "decode")
        last = _total(solution.placed, b, lambda placed: placed.role != "prefill")
        check.equal(f"class {name}: served by prefill and colocated", first, asked)
        check.equal(f"class {name}: served by decode and colocated", last, asked)


def _total(placed: Iterable[Placed], b: int, keep: Callable[[Placed], bool]) -> float:
    return math.fsum(entry.rate_req_per_s[b] for entry in placed if keep(entry))


def _check_groups(check: Check, problem: ProgramInput, solution: ProgramSolution, columns: dict[str, Column]) -> None:
    """Each class is served by one group of classes per stage, and instances take them in proportion to their rates."""
    if not problem.options.class_groups:
        return
    asked = problem.rates[0][1]
    groups: dict[tuple[bool, int], set[tuple[bool, ...]]] = {}
    for placed in solution.placed:
        column = columns[placed.column]
        served = tuple(math.isfinite(work) for work in column.work_s_per_request)
        loads = [placed.rate_req_per_s[b] / asked[b] for b, yes in enumerate(served) if yes and asked[b] > 0]
        where = f"{placed.column} at {placed.location}"
        check.equal(f"{where}: classes in proportion", min(loads, default=0.0), max(loads, default=0.0))
        for b, yes in enumerate(served):
            if yes:
                groups.setdefault((column.role == "decode", b), set()).add(served)
    for (_, b), found in groups.items():
        check.at_most(f"class {problem.class_names[b]}: groups that serve it", len(found), 1)


def _check_flows(
    check: Check,
    problem: ProgramInput,
    solution: ProgramSolution,
    columns: dict[str, Column],
    places: dict[str, Location],
) -> None:
    moved: dict[tuple[str, str, str, int], float] = {}
    for flow in solution.flows:
        for end in (
            ("prefill", flow.prefill, flow.prefill_location, flow.class_index),
            ("decode", flow.decode, flow.decode_location, flow.class_index),
        ):
            moved[end] = moved.get(end, 0.0) + flow.rate_req_per_s
    for placed in solution.placed:
        if placed.role == "colocated":
            continue
        for b, name in enumerate(problem.class_names):
            flowing = moved.pop((placed.role, placed.column, placed.location, b), 0.0)
            what = f"{placed.column} at {placed.location}: KV flow of class {name}"
            check.equal(what, flowing, placed.rate_req_per_s[b])
    check.holds("every KV flow starts and ends at an instance", not moved)
    for flow in solution.flows:
        prefill, decode = columns[flow.prefill], columns[flow.decode]
        what = f"{flow.prefill} at {flow.prefill_location} to {flow.decode} at {flow.decode_location}"
        check.holds(f"{what}: connector", problem.pairs_allowed(prefill, decode))
        check.holds(f"{what}: positive", flow.rate_req_per_s > 0)
        travelled = _distance(places[flow.prefill_location], places[flow.decode_location])
        allowed = min(REACH_ORDER[prefill.transfer_reach], REACH_ORDER[decode.transfer_reach])
        check.holds(f"{what}: reach", travelled <= allowed and travelled == REACH_ORDER[flow.reach])


def _distance(start: Location, end: Location) -> int:
    if start.rack != end.rack:
        return 2
    return 0 if start.name == end.name and start.one_host else 1


def _check_links(
    check: Check,
    problem: ProgramInput,
    solution: ProgramSolution,
    columns: dict[str, Column],
    places: dict[str, Location],
) -> None:
    """Bytes through every NIC, uplink and the spine, from the flows themselves."""
    loads: dict[tuple[str, str], float] = {}
    for flow in solution.flows:
        start, end = places[flow.prefill_location], places[flow.decode_location]
        sent = flow.rate_req_per_s * float(
            problem.kv_bytes_per_request[columns[flow.prefill].kv_dtype][flow.class_index]
        )
        for link in _links_between(start, end):
            loads[link] = loads.get(link, 0.0) + sent
    share = problem.options.network_utilisation
    limits: dict[tuple[str, str], float | None] = {("spine", ""): problem.fleet.spine_bytes_per_s}
    for direction in ("out", "in"):
        limits |= {(f"NIC {direction}", name): place.nic_bytes_per_s for name, place in places.items()}
        limits |= {(f"rack uplink {direction}", rack.name): rack.uplink_bytes_per_s for rack in problem.fleet.racks}
        limits |= {(f"pod uplink {direction}", pod.name): pod.uplink_bytes_per_s for pod in problem.fleet.pods}
    for link, limit in limits.items():
        if limit is not None:
            check.at_most(f"{link[0]} {link[1]}: KV bytes per second", loads.get(link, 0.0), limit * share)


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


def _check_limits(
    check: Check,
    problem: ProgramInput,
    solution: ProgramSolution,
    columns: dict[str, Column],
    places: dict[str, Location],
) -> None:
    """Inventory, rack power, budget, power; and that the reported sums are the sums."""
    options = problem.options
    placed_gpus = [
        (places[name], gpus)
        for entry in solution.placed
        for name, gpus in gpus_at(columns[entry.column], entry.stages, entry.location, entry.instances).items()
    ]
    dollars = _dollars(problem, placed_gpus)
    watts = math.fsum(
        [
            *(entry.instances * columns[entry.column].watts for entry in solution.placed),
            *(gpus * location.host_watts_per_gpu for location, gpus in placed_gpus),
        ]
    )
    check.equal("dollars per hour", dollars, solution.usd_per_hour)
    check.equal("watts", watts, solution.watts)
    check.equal("GPUs", sum(gpus for _, gpus in placed_gpus), solution.num_gpus)
    for gpu, inventory in problem.fleet.num_gpus.items():
        used = sum(gpus for location, gpus in placed_gpus if location.gpu == gpu)
        check.at_most(f"{gpu}: GPUs of the inventory", used, inventory)
    gpu_watts: dict[str, float] = {}
    for entry in solution.placed:
        gpu_watts[entry.rack] = gpu_watts.get(entry.rack, 0.0) + entry.instances * columns[entry.column].watts
    if options.whole_classes:
        for b, name in enumerate(problem.class_names):
            serving = [entry for entry in solution.placed if entry.rate_req_per_s[b] > 0]
            decoding = {entry.column for entry in serving if entry.role == "decode"}
            others = {entry.column for entry in serving if entry.role != "decode"}
            check.holds(f"class {name} is not split", len(decoding) <= 1 and len(others) <= 1)
    if options.max_kinds is not None:
        chosen = {item.column for item in solution.placed if item.instances}
        kinds = Counter((columns[name].role, columns[name].gpu, columns[name].prompts_in_words) for name in chosen)
        for (role, gpu, prompts), number in sorted(kinds.items()):
            check.at_most(f"kinds of {role} on {gpu} {prompts}".rstrip(), number, options.max_kinds)
    for text in options.require:
        placed = [columns[entry.column] for entry in solution.placed]
        check.holds(f"required: {text}", any(parse_filter(text).matches(column) for column in placed))
    for rack in problem.fleet.racks:
        if rack.power_limit_watts is not None:
            hosts = sum(node.host_watts for node in rack.nodes)
            drawn = hosts + gpu_watts.get(rack.name, 0.0)
            if rack.name in gpu_watts:
                check.at_most(f"{rack.name}: watts", drawn, rack.power_limit_watts)
    for what, value, limit in (
        ("budget", dollars, options.budget_usd_per_hour),
        ("fleet's budget", dollars, problem.fleet.max_usd_per_hour),
        ("power", watts, options.max_power_watts),
    ):
        if limit is not None:
            check.at_most(what, value, limit)


def _dollars(problem: ProgramInput, rented: Iterable[tuple[Location, int]]) -> float:
    """Rent of (location, GPUs): each at its price, or where kinds of price are mixed, the cheapest kinds first."""
    total, by_type = 0.0, dict[str, int]()
    for location, gpus in rented:
        if problem.options.price_kinds and location.nodes[0].price_usd_per_gpu_hour is None:
            by_type[location.gpu] = by_type.get(location.gpu, 0) + gpus
        else:
            total += gpus * location.usd_per_gpu_hour
    for gpu, count in by_type.items():
        tiers = [t for t in problem.fleet.price_tiers if t.gpu == gpu and t.kind in problem.options.price_kinds]
        for tier in sorted(tiers, key=lambda tier: tier.usd_per_gpu_hour):
            part = count if tier.max_gpus is None else min(count, tier.max_gpus)
            total += part * tier.usd_per_gpu_hour
            count -= part
        if count:
            return math.inf  # more than all kinds of price together allow
    return total
