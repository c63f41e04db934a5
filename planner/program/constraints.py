"""The constraints of the program, one function each. The letters are those of `build.py`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING

from splitplan.planner.program.linear import Terms
from splitplan.planner.program.money import rent_terms
from splitplan.planner.program.reduce import parse_filter
from splitplan.planner.spec.fleet import Rack

if TYPE_CHECKING:
    from splitplan.planner.program.build import FlowKey, Program, Service, Use, Vertex
    from splitplan.planner.program.topology import Location


def define_gpus_fit(program: Program) -> None:
    """Groups of GPUs inside NVLink domains: per size where sizes divide each other, else by cutting patterns."""
    here: dict[int, list[Use]] = {}
    for use in program.uses:
        here.setdefault(use.place, []).append(use)
    for place, groups in here.items():
        location, sizes = program.locations[place], sorted({use.size for use in groups})
        if not _is_chain(sizes):
            _define_patterns(program, location, sizes, groups)
            continue
        for size in sizes:
            terms = [(use.variable, float(use.groups * (use.size // size))) for use in groups if use.size >= size]
            name = f"gpus_fit[{location.name}, groups of {size}]"
            program.model.add_constraint(name, terms, "<=", location.slots_of_size(size))


def _is_chain(sizes: Sequence[int]) -> bool:
    return all(large % small == 0 for small, large in pairwise(sizes))


def _define_patterns(program: Program, location: Location, sizes: list[int], groups: list[Use]) -> None:
    model = program.model
    supply: dict[int, Terms] = {size: [] for size in sizes}
    for free, many in sorted(Counter(domain.num_gpus for domain in location.domains).items()):
        used: Terms = []
        for pattern in cutting_patterns(free, tuple(sizes)):
            text = "+".join(f"{times}x{size}" for size, times in zip(sizes, pattern, strict=True) if times)
            variable = model.add_variable(f"cut[{location.name}, {free} as {text}]", 0, many, integer=True)
            used.append((variable, 1.0))
            for size, times in zip(sizes, pattern, strict=True):
                supply[size].append((variable, -float(times)))
        model.add_constraint(f"gpus_fit[{location.name}, domains of {free}]", used, "<=", many)
    for size in sizes:
        terms = [(use.variable, float(use.groups)) for use in groups if use.size == size]
        model.add_constraint(f"gpus_fit[{location.name}, groups of {size}]", [*terms, *supply[size]], "<=", 0)


@lru_cache(maxsize=1024)
def cutting_patterns(free: int, sizes: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """All maximal ways to cut `free` GPUs into groups of the given sizes, as counts per size."""
    found: list[tuple[int, ...]] = []

    def fill(position: int, left: int, counts: tuple[int, ...]) -> None:
        if position < 0:
            if left < min(sizes):
                found.append(counts)
            return
        for times in range(left // sizes[position], -1, -1):
            fill(position - 1, left - times * sizes[position], (times, *counts))

    fill(len(sizes) - 1, free, ())
    return tuple(found)


def define_rack_power(program: Program) -> None:
    """GPUs at their planned load, plus every host of the rack, stay within the rack's limit."""
    drawn: dict[str, Terms] = {}
    for (index, place), variable in program.n.items():
        drawn.setdefault(program.locations[place].rack, []).append((variable, program.columns[index].watts))
    for rack in program.problem.fleet.racks:
        terms = drawn.get(rack.name)
        if terms and rack.power_limit_watts is not None:
            left = max(0.0, rack_gpu_watts(rack) - program.problem.held.in_rack(rack.name))
            program.model.add_constraint(f"rack_power[{rack.name}]", terms, "<=", left)


def rack_gpu_watts(rack: Rack) -> float:
    """What a rack's power limit leaves to its GPUs: hosts are on whether used or not."""
    assert rack.power_limit_watts is not None
    return max(0.0, rack.power_limit_watts - sum(node.host_watts for node in rack.nodes))


def watt_terms(program: Program) -> Terms:
    """Watts of all instances: their GPUs at the planned load and their share of the hosts."""
    terms: Terms = []
    for (index, place), variable in program.n.items():
        column = program.columns[index]
        hosts = 0.0 if column.stages else column.num_gpus * program.locations[place].host_watts_per_gpu
        terms.append((variable, column.watts + hosts))
    return terms + [
        (use.variable, use.num_gpus * program.locations[use.place].host_watts_per_gpu)
        for use in program.uses
        if program.columns[use.index].stages
    ]


def define_totals(program: Program) -> None:
    """Budget and power over the whole fleet."""
    options, model = program.problem.options, program.model
    limits = [
        limit for limit in (options.budget_usd_per_hour, program.problem.fleet.max_usd_per_hour) if limit is not None
    ]
    if limits:
        model.add_constraint("budget", rent_terms(program), "<=", min(limits))
    if options.max_power_watts is not None:
        model.add_constraint("power", watt_terms(program), "<=", options.max_power_watts)


def define_required(program: Program) -> None:
    """At least one instance of every kind that is required."""
    for text in program.problem.options.require:
        wanted = parse_filter(text)
        terms = [(v, 1.0) for (index, _), v in program.n.items() if wanted.matches(program.columns[index])]
        program.model.add_constraint(f"required[{text}]", terms, ">=", 1.0)


def define_max_kinds(program: Program) -> None:
    """At most `max_kinds` columns of one service, role and GPU type for the same prompts: u[c] = 1 where c runs."""
    most = program.problem.options.max_kinds
    if most is None:
        return
    used: dict[tuple[str, str, str, str], Terms] = {}
    slots_of = most_instances(program)
    for index, column in enumerate(program.columns):
        here = [place for (number, place) in program.n if number == index]
        if not here:
            continue
        switch = program.model.add_variable(f"used[{column.name}]", 0, 1, integer=True)
        terms = [(program.n[index, place], 1.0) for place in here]
        slots = slots_of[index]
        program.model.add_constraint(f"used[{column.name}]", [*terms, (switch, -float(slots))], "<=", 0.0)
        used.setdefault((column.service, column.role, column.gpu, column.prompts_in_words), []).append((switch, 1.0))
    for (service, role, gpu, prompts), switches in used.items():
        if len(switches) > most:
            name = f"kinds[{service and service + ': '}{role} on {gpu}{prompts and ', ' + prompts}]"
            program.model.add_constraint(name, switches, "<=", float(most))


def most_instances(program: Program) -> dict[int, float]:
    """The most instances of every column that there is room for."""
    most: dict[int, float] = {}
    for use in program.uses:
        if not program.columns[use.index].stages:
            room = program.locations[use.place].slots_of_size(use.size) // use.groups
            most[use.index] = most.get(use.index, 0) + room
    for (index, _), variable in program.n.items():
        if program.columns[index].stages:
            most[index] = most.get(index, 0) + program.model.high[variable]
    return most


def define_demand(program: Program, service: Service) -> None:
    """Every class is served at σ times its rate: by prefill (decode follows from the KV flow) or colocated columns."""
    for b, name in enumerate(program.problem.class_names):
        rate = float(service.rate_req_per_s[b])
        if rate <= 0:
            continue
        terms = [
            (variable, 1.0)
            for (cls, index, _), variable in service.x.items()
            if cls == b and program.columns[index].role != "decode"
        ]
        terms.append((service.sigmas[b], -rate))
        program.model.add_constraint(f"demand[{name}{service.name}]", terms, "==", 0.0)


def define_whole_classes(program: Program, service: Service) -> None:
    """z[b,c] ∈ {0, 1}: at most one column prefills (or serves colocated) a class, and at most one decodes it."""
    if not program.problem.options.whole_classes:
        return
    served: dict[tuple[int, int], Terms] = {}
    for (b, index, _), variable in service.x.items():
        served.setdefault((b, index), []).append((variable, 1.0))
    chosen: dict[tuple[int, bool], Terms] = {}
    for (b, index), terms in served.items():
        column, name = program.columns[index], program.problem.class_names[b]
        use = program.model.add_variable(f"serves[{name}, {column.name}{service.name}]", 0, 1, integer=True)
        most = WHOLE_CLASS_GROWTH * float(service.rate_req_per_s[b])
        program.model.add_constraint(f"serves[{name}, {column.name}{service.name}]", [*terms, (use, -most)], "<=", 0.0)
        chosen.setdefault((b, column.role == "decode"), []).append((use, 1.0))
    for (b, decode), terms in chosen.items():
        stage = "decode" if decode else "prefill"
        label = f"{program.problem.class_names[b]}, {stage}{service.name}"
        program.model.add_constraint(f"whole_class[{label}]", terms, "<=", 1.0)


def define_instance_time(program: Program, service: Service) -> None:
    """The load on the instances of a column at a location takes no more than their usable time."""
    terms: dict[tuple[int, int], Terms] = {}
    for (b, index, place), variable in service.x.items():
        work = float(program.columns[index].work_s_per_request[b])
        terms.setdefault((index, place), []).append((variable, work))
    for (index, place), row in terms.items():
        column, location = program.columns[index], program.locations[place]
        name = f"instance_time[{column.name}, {location.name}{service.name}]"
        program.model.add_constraint(name, [*row, (program.n[index, place], -1.0)], "<=", 0.0)


def define_kv_conservation(program: Program, service: Service) -> None:
    """What prefill sends is what decode receives, along the tree of links."""
    _define_ends(program, service, "kv_leaves", program.families.prefill, service.up, prefill=True)
    _define_ends(program, service, "kv_arrives", program.families.decode, service.down, prefill=False)
    children: dict[tuple[str, int, int, Vertex], Terms] = {}
    for direction, flows in (("up", service.up), ("down", service.down)):
        for (b, number, vertex), variable in flows.items():
            children.setdefault((direction, b, number, program.parents[vertex]), []).append((variable, 1.0))
    for (direction, b, number, vertex), row in children.items():
        if program.open_ended and vertex == ("spine", ""):
            continue
        further = service.up if direction == "up" else service.down
        beyond = [(flows[b, number, vertex], -1.0) for flows in (service.stay, further) if (b, number, vertex) in flows]
        label = f"{program.problem.class_names[b]}, {program.families.kinds[number].name}, {vertex[1] or 'spine'}"
        program.model.add_constraint(f"kv_{direction}[{label}{service.name}]", [*row, *beyond], "==", 0.0)


def _define_ends(
    program: Program,
    service: Service,
    name: str,
    groups: tuple[tuple[int, ...], ...],
    leaving: dict[FlowKey, int],
    *,
    prefill: bool,
) -> None:
    family_of = {index: family for family, members in enumerate(groups) for index in members}
    by_family: dict[int, dict[tuple[int, int], Terms]] = {}
    for (b, index, place), variable in service.x.items():
        if index in family_of:
            by_family.setdefault(family_of[index], {}).setdefault((b, place), []).append((variable, 1.0))
    for family, members in enumerate(groups):
        numbers = [
            number
            for number, kind in enumerate(program.families.kinds)
            if (kind.prefill if prefill else kind.decode) == members
        ]
        for (b, place), row in by_family.get(family, {}).items():
            location = program.locations[place]
            vertex = ("location", location.name)
            flows = [
                (table[b, number, vertex], -1.0)
                for number in numbers
                for table in (service.stay, leaving)
                if (b, number, vertex) in table
            ]
            label = f"{program.problem.class_names[b]}, family {family}, {location.name}{service.name}"
            program.model.add_constraint(f"{name}[{label}]", [*row, *flows], "==", 0.0)


def define_bandwidth(program: Program, service: Service) -> None:
    """KV bytes on NICs, rack and pod uplinks and the spine stay within the safe share of their line rate."""
    share = program.problem.options.network_utilisation
    for direction, flows in (("out", service.up), ("in", service.down)):
        loads: dict[Vertex, Terms] = {}
        for (b, number, vertex), variable in flows.items():
            loads.setdefault(vertex, []).append((variable, kv_gigabytes(program, b, number)))
        for vertex, limit in link_limits(program):
            if loads.get(vertex):
                name = f"{LINK_NAMES[vertex[0]]}_{direction}[{vertex[1]}{service.name}]"
                left = max(0.0, limit * share - program.problem.held.on_links(_link_names(program, vertex, direction)))
                program.model.add_constraint(name, loads[vertex], "<=", left / GIGABYTE)
    spine = program.problem.fleet.spine_bytes_per_s
    terms = [
        (variable, kv_gigabytes(program, b, number))
        for (b, number, vertex), variable in service.up.items()
        if vertex[0] == "rack"
    ]
    if spine is not None and terms:
        left = max(0.0, spine * share - program.problem.held.on_links(("spine",)))
        program.model.add_constraint(f"spine[{service.name.strip() or 'all'}]", terms, "<=", left / GIGABYTE)


GIGABYTE = 1e9
WHOLE_CLASS_GROWTH = 10.0
"""A class that must not be split may still grow by this factor when headroom is sought."""
LINK_NAMES = {"location": "nic", "rack": "rack_uplink", "pod": "pod_uplink"}


def kv_gigabytes(program: Program, b: int, number: int) -> float:
    """GB one request of a class sends in a kind of flow: bandwidth rows in GB/s keep near the scale of the others."""
    return float(program.problem.kv_bytes_per_request[program.families.kinds[number].kv_dtype][b]) / GIGABYTE


def _link_names(program: Program, vertex: Vertex, direction: str) -> tuple[str, ...]:
    """The links above a vertex by the names under which others' load on them is known: NICs node by node."""
    kind, name = LINK_NAMES[vertex[0]], vertex[1]
    if vertex[0] != "location" or not program.problem.held.link_bytes_per_s:
        return (f"{kind}_{direction}[{name}]",)
    location = next(location for location in program.locations if location.name == name)
    return tuple(f"{kind}_{direction}[{node.name}]" for node in location.nodes)


def link_limits(program: Program) -> Iterator[tuple[Vertex, float]]:
    """Every limited link above a vertex, with its line rate."""
    for location in program.locations:
        yield ("location", location.name), location.nic_bytes_per_s
    for rack in program.problem.fleet.racks:
        if rack.uplink_bytes_per_s is not None:
            yield ("rack", rack.name), rack.uplink_bytes_per_s
    for pod in program.problem.fleet.pods:
        if pod.uplink_bytes_per_s is not None:
            yield ("pod", pod.name), pod.uplink_bytes_per_s


def define_share_per_rack(program: Program, service: Service) -> None:
    """No rack serves more than a share of any role's requests."""
    share = program.problem.options.max_share_per_rack
    if share is None or len(service.alive) < len(program.locations):
        return
    for role in ("prefill", "decode", "colocated"):
        mine = {key: variable for key, variable in service.x.items() if program.columns[key[1]].role == role}
        for rack in dict.fromkeys(location.rack for location in program.locations):
            inside: Terms = [(v, 1.0) for (_, _, place), v in mine.items() if program.locations[place].rack == rack]
            if inside:
                terms = [*inside, *((variable, -share) for variable in mine.values())]
                program.model.add_constraint(f"share_per_rack[{role}, {rack}{service.name}]", terms, "<=", 0.0)
