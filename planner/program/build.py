"""The program: which instances to run where, and who serves what.

Sets
    b ∈ B        request classes
    c ∈ C        columns: kinds of instance, C = prefill ∪ decode ∪ colocated
    ℓ ∈ L        locations: one host, or the identical hosts of one rack
    v            vertices of the link tree: locations, racks ρ, pods, the spine; P(v) is the parent of v
    k ∈ K        kinds of KV flow: a family of prefill columns that may feed a family of decode columns
    s ∈ S        services: every hour of the day
    d ∈ D        failure domains to survive: hosts, racks or power domains

Variables
    n[c,ℓ] ∈ ℤ₊          instances; of a pipeline that mixes GPU types, where its first stage stands
    y[c,p,ℓ] ∈ ℤ₊        stages of part p (one GPU type) of mixed pipelines at ℓ (only where its rack gives a choice)
    q[F,p] ∈ ℤ₊          domains with F free GPUs cut by pattern p (only where sizes do not divide each other)
    r[g,t] ≥ 0           GPUs of type g bought at price tier t (only where kinds of price are mixed)
    k[c,ℓ] ≤ n[c,ℓ]      running instances that stay (only where something runs)
    y[g] ∈ {0, 1}        a group of classes is served together, per stage (only with length buckets)
    x[b,c,ℓ] ≥ 0         requests/s of class b that column c serves at ℓ (per service)
    stay, up, down[b,k,v] ≥ 0   requests/s whose KV stays below v, leaves v upwards, comes from above (per service)
    σ                    rate scale: served ÷ asked (fixed at 1 unless it is what is asked for)

Constraints (in the order of `constraints.py`)
    demand[b]            Σ_{c ∈ prefill ∪ colocated, ℓ} x[b,c,ℓ] = σ · rate_b
    instance_time[c,ℓ]   Σ_b work[b,c] · x[b,c,ℓ] ≤ n[c,ℓ]             time, slots and KV tokens are inside work[b,c]
    gpus_fit[ℓ,g]        Σ_{c: size ≥ g} (size_c / g) · n[c,ℓ] ≤ groups of g free GPUs at ℓ, and y alike
    stages[c,p,ρ]        Σ_{ℓ ∈ ρ} y[c,p,ℓ] = stages_{c,p} · Σ_{ℓ ∈ ρ} n[c,ℓ]     stages stay inside one rack
    kv_leaves[b,f,ℓ]     Σ_{c ∈ f} x[b,c,ℓ] = Σ_{k from f} stay + up
    kv_arrives[b,f,ℓ]    Σ_{c ∈ f} x[b,c,ℓ] = Σ_{k to f} stay + down
    kv_up[b,k,v]         Σ_{u: P(u) = v} up[b,k,u] = stay[b,k,v] + up[b,k,v]       and kv_down alike
    nic, uplink, spine   Σ_{b,k} GB[b,k] · up[b,k,v] ≤ safe share of line rate     and down alike
    nic_used[ℓ]          the same within what the hosts in use can carry, where ℓ is several hosts (`nics.py`)
    rack_power[ρ]        Σ_{c, ℓ ∈ ρ} watts_c · n[c,ℓ] ≤ limit − hosts
    bought[g]            Σ_t r[g,t] = Σ_{c,ℓ of type g} gpus_c · n[c,ℓ],  r[g,t] ≤ cap
    whole_class[b]       Σ_c z[b,c] ≤ 1 per stage,  Σ_ℓ x[b,c,ℓ] ≤ 10 · rate_b · z[b,c]      only when asked
    group[c]             Σ_ℓ n[c,ℓ] ≤ room_c · y[g],  g the classes that c serves            only with length buckets
    one_group[b]         Σ_{g ∋ b} y[g] ≤ 1 per stage
    in_proportion        x[b,c,ℓ] / rate_b equal over b ∈ g
    survive[d]           nothing is short with n[c,ℓ] = 0 on all ℓ ∈ d: cuts in n alone, found as they are broken
                         (`failures.py`); where classes must stay whole, a service with d gone instead
    budget, power, share_per_rack, required, kinds

Objective
    cost     min Σ dollars_{c,ℓ} · n[c,ℓ] (or dollars_t · r[g,t]) + moves, then fewest GPUs (see `objective.py`),
    goodput  max σ, or Σ_b weight_b · served_b,
    power    min Σ watts_{c,ℓ} · n[c,ℓ];
    ties     most headroom (largest σ on the same money and GPUs), then fewest bytes across racks.

The grouped relaxation merges all hosts of a kind into one location and forgets racks and links. It has no symmetric
copies and solves in milliseconds; where its instance counts can be laid out in the real program, they are optimal there
too, and its bound is the proof.

Sizes that divide each other fill domains exactly whatever the order: each larger group uses a whole number of smaller
ones, so counting groups per size is enough. A pipeline whose stages do not fit one domain takes one group per stage.
A pipeline that mixes GPU types takes groups of each of its types in one rack; which of them make one instance is dealt
afterwards, so that no pairs of locations are needed. GPUs, dollars and watts are counted where the groups stand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from splitplan.planner.columns.column import Column
from splitplan.planner.program import constraints, groups, money, nics, pipelines
from splitplan.planner.program.linear import LinearModel
from splitplan.planner.program.reduce import Families, families
from splitplan.planner.program.topology import Granularity, Location, choose_granularity, fleet_locations
from splitplan.planner.program.types import FloatArray, ProgramInput
from splitplan.planner.spec.fleet import PriceTier

Vertex = tuple[str, str]  # ("location", name) | ("rack", name) | ("pod", name) | ("spine", "")
FlowKey = tuple[int, int, Vertex]
SPINE: Vertex = ("spine", "")


@dataclass(frozen=True, slots=True)
class Atoms:
    """What one instance takes at a location: `count` groups of `size` GPUs, each inside one NVLink domain."""

    size: int
    count: int


@dataclass(frozen=True, slots=True)
class Use:
    """GPUs at a location: `groups` groups of `size`, each inside one NVLink domain, for each unit of the variable."""

    variable: int
    index: int  # column
    part: int  # of the column
    place: int
    groups: int
    size: int

    @property
    def num_gpus(self) -> int:
        """GPUs for each unit of the variable."""
        return self.groups * self.size


@dataclass(slots=True)
class Service:
    """Rates and KV flows in one state of the fleet (all up, or one failure domain gone)."""

    hour: str  # "" where there is one load only
    gone: str  # the failure domain that is gone; "" with everything up
    rate_req_per_s: FloatArray  # [classes]
    sigmas: tuple[int, ...]  # rate scale of every class: one variable for all, or one each for weighted goodput
    alive: frozenset[int]  # location indices
    x: dict[tuple[int, int, int], int] = field(default_factory=dict)
    stay: dict[FlowKey, int] = field(default_factory=dict)
    up: dict[FlowKey, int] = field(default_factory=dict)
    down: dict[FlowKey, int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """What the names of its rows and variables end in."""
        return (f" at {self.hour}" if self.hour else "") + (f" without {self.gone}" if self.gone else "")


@dataclass(slots=True)
class Program:
    """The model under construction and the meaning of its variables."""

    problem: ProgramInput
    columns: tuple[Column, ...]
    granularity: Granularity
    locations: tuple[Location, ...]
    families: Families
    parents: dict[Vertex, Vertex]
    model: LinearModel
    n: dict[tuple[int, int], int]
    uses: list[Use]
    services: list[Service]
    bought: dict[PriceTier, int] = field(default_factory=dict)  # GPUs by price tier
    kept: dict[tuple[int, int], int] = field(default_factory=dict)  # running instances that stay
    open_ended: bool = False

    @property
    def normal(self) -> Service:
        """The service in the busiest hour with everything up."""
        return self.services[0]

    @property
    def sigma(self) -> int:
        """The rate scale of the normal service (of its first class, where classes are weighted)."""
        return self.normal.sigmas[0]

    @property
    def all_sigmas(self) -> tuple[int, ...]:
        """Every rate scale variable of every service, once."""
        return tuple(dict.fromkeys(sigma for service in self.services for sigma in service.sigmas))


def build_program(
    problem: ProgramInput,
    columns: tuple[Column, ...],
    granularity: Granularity | None = None,
    *,
    counts: Mapping[tuple[int, str], int] | None = None,
    free_racks: frozenset[str] = frozenset(),
    open_ended: bool = False,
    failures_inside: bool | None = None,
) -> Program:
    """All variables and constraints, with σ fixed at 1 and no objective yet.

    With granularity "fleet" the result is the grouped relaxation that ignores where hosts stand. `counts` fixes the
    instances of (column, location name), all others being absent except in `free_racks`. `open_ended` makes a part of a
    fleet: its KV may come from and go to places outside, and no class has to be served. `failures_inside` gives every
    failure to survive a service of its own (default: only where classes must stay whole); else the caller adds cuts.
    """
    granularity = granularity or program_granularity(problem, columns)
    locations = fleet_locations(problem.fleet, granularity)
    program = Program(
        problem,
        columns,
        granularity,
        locations,
        families(columns, problem.pairs_allowed),
        link_tree(locations),
        LinearModel(),
        {},
        [],
        [],
        open_ended=open_ended,
    )
    define_instances(program, counts, free_racks)
    inside = has_whole_classes(problem) if failures_inside is None else failures_inside
    for hour, gone, rate, alive in service_states(program, failures=inside):
        define_service(program, hour, gone, rate, alive)
    money.define_price_tiers(program)
    money.define_kept(program)
    constraints.define_gpus_fit(program)
    constraints.define_rack_power(program)
    constraints.define_totals(program)
    constraints.define_required(program)
    constraints.define_max_kinds(program)
    groups.define_groups(program)
    for service in program.services:
        if not open_ended:
            constraints.define_demand(program, service)
        constraints.define_whole_classes(program, service)
        groups.define_proportions(program, service)
        constraints.define_instance_time(program, service)
        constraints.define_kv_conservation(program, service)
        constraints.define_bandwidth(program, service)
        nics.define_nics_in_use(program, service)
        constraints.define_share_per_rack(program, service)
    return program


def has_whole_classes(problem: ProgramInput) -> bool:
    """Whether who serves a class is a whole decision of its own in every state: then failures cannot be cuts."""
    return problem.options.whole_classes or bool(problem.options.class_groups and problem.hours)


def program_granularity(problem: ProgramInput, columns: tuple[Column, ...]) -> Granularity:
    """Hosts one by one where that is affordable or needed; racks where a pipeline must span hosts."""
    options = problem.options
    if options.granularity:
        return options.granularity
    if options.survive == "node":
        return "node"
    widest: dict[str, int] = {}
    for location in fleet_locations(problem.fleet, "node"):
        widest[location.gpu] = max(widest.get(location.gpu, 0), *(domain.num_gpus for domain in location.domains))
    if any(column.num_gpus > widest.get(column.gpu, column.num_gpus) for column in columns):
        return "rack"
    return choose_granularity(problem.fleet)


def link_tree(locations: tuple[Location, ...]) -> dict[Vertex, Vertex]:
    """Parent of every vertex below the spine."""
    parents: dict[Vertex, Vertex] = {}
    for location in locations:
        rack: Vertex = ("rack", location.rack)
        parents["location", location.name] = rack
        parents[rack] = ("pod", location.pod) if location.pod else SPINE
        if location.pod:
            parents["pod", location.pod] = SPINE
    return parents


def atoms_at(column: Column, location: Location) -> Atoms | None:
    """How an instance sits at a location, or None if it cannot."""
    if column.gpu != location.gpu or column.gpu_link not in ("", location.gpu_link):
        return None
    if location.slots_of_size(column.num_gpus):
        return Atoms(column.num_gpus, 1)
    widest = max(domain.num_gpus for domain in location.domains)
    if column.num_gpus > widest and location.slots_of_size(column.tensor_parallel) >= column.pipeline_parallel:
        return Atoms(column.tensor_parallel, column.pipeline_parallel)
    return None


def define_instances(
    program: Program, counts: Mapping[tuple[int, str], int] | None, free_racks: frozenset[str]
) -> None:
    """n[c,ℓ] wherever an instance of the column can stand and some class can use it."""
    for index, column in enumerate(program.columns):
        if not np.any(np.isfinite(column.work_s_per_request)):
            continue
        if column.stages:
            pipelines.define_mixed(program, index, counts, free_racks)
            continue
        for place, location in enumerate(program.locations):
            fixed = counts is not None and location.rack not in free_racks
            if fixed and counts is not None and (index, location.name) not in counts:
                continue
            atoms = atoms_at(column, location)
            if atoms is None:
                continue
            low, most = 0, location.slots_of_size(atoms.size) // atoms.count
            if fixed and counts is not None:
                low = most = counts[index, location.name]
            name = f"instances[{column.name}, {location.name}]"
            program.n[index, place] = program.model.add_variable(name, low, most, integer=True)
            program.uses.append(Use(program.n[index, place], index, 0, place, atoms.count, atoms.size))


def failure_domains(problem: ProgramInput, locations: tuple[Location, ...]) -> dict[str, frozenset[int]]:
    """The locations (by index) that go together in each failure to survive, by name; {} where none is asked for."""
    naming: dict[str, Callable[[Location], str]] = {
        "node": lambda location: location.name,
        "rack": lambda location: location.rack,
        "power-domain": lambda location: location.nodes[0].failure_domain,
    }
    domains: dict[str, set[int]] = {}
    if problem.options.survive:
        for place, location in enumerate(locations):
            domains.setdefault(naming[problem.options.survive](location), set()).add(place)
    return {name: frozenset(places) for name, places in domains.items() if name}


def service_states(program: Program, *, failures: bool) -> list[tuple[str, str, FloatArray, frozenset[int]]]:
    """(hour, domain gone, rate, alive): every hour with everything up, the busiest first; then with domains gone."""
    everything = frozenset(range(len(program.locations)))
    hours = [(hour, "", rate, everything) for hour, rate in program.problem.rates]
    domains = failure_domains(program.problem, program.locations) if failures else {}
    gone = [(hour, name, rate, everything - places) for name, places in domains.items() for hour, _, rate, _ in hours]
    return [*hours, *gone]


def define_sigmas(program: Program, alive: frozenset[int]) -> tuple[int, ...]:
    """σ per class: all hours share theirs, and all failures share theirs."""
    for service in program.services:
        if (len(service.alive) == len(program.locations)) == (len(alive) == len(program.locations)):
            return service.sigmas
    suffix = "" if len(alive) == len(program.locations) else " in any failure"
    options = program.problem.options
    if options.class_weights is None or options.objective != "goodput":
        sigma = program.model.add_variable(f"rate_scale{suffix}", 1.0, 1.0)
        return (sigma,) * len(program.problem.class_names)
    return tuple(
        program.model.add_variable(f"rate_scale[{name}{suffix}]", 1.0, 1.0) for name in program.problem.class_names
    )


def define_service(program: Program, hour: str, gone: str, rate: FloatArray, alive: frozenset[int]) -> None:
    """x, stay, up and down of one state, and its σ."""
    model = program.model
    service = Service(hour, gone, rate, define_sigmas(program, alive), alive)
    name = service.name
    for index, place in program.n:
        column = program.columns[index]
        for b in np.flatnonzero(np.isfinite(column.work_s_per_request) & (rate > 0)):
            if place in alive and (column.role == "colocated" or connects(program, index)):
                label = f"rate[{program.problem.class_names[b]}, {column.name}, {program.locations[place].name}{name}]"
                service.x[int(b), index, place] = model.add_variable(label)
    define_flows(program, service)
    program.services.append(service)


def connects(program: Program, index: int) -> bool:
    """Whether a prefill or decode column has anyone to exchange KV with."""
    return any(index in kind.prefill or index in kind.decode for kind in program.families.kinds)


def define_flows(program: Program, service: Service) -> None:
    """stay, up and down, only where something can be sent and received and the flow's reach allows it."""
    ends: dict[tuple[int, int], set[int]] = {}
    for b, index, place in service.x:
        ends.setdefault((b, index), set()).add(place)
    for number, kind in enumerate(program.families.kinds):
        for b in range(len(program.problem.class_names)):
            sources = set().union(*(ends.get((b, index), ()) for index in kind.prefill))
            sinks = set().union(*(ends.get((b, index), ()) for index in kind.decode))
            if (sources and sinks) or (program.open_ended and (sources or sinks)):
                _define_flow(program, service, b, number, sources, sinks)


def _define_flow(program: Program, service: Service, b: int, number: int, sources: set[int], sinks: set[int]) -> None:
    kind, add = program.families.kinds[number], program.model.add_variable
    label = f"{program.problem.class_names[b]}, {kind.name}"
    above: list[tuple[Vertex, bool, bool]] = []
    for place in sorted(sources | sinks):
        location = program.locations[place]
        vertex: Vertex = ("location", location.name)
        if location.one_host and place in sources and place in sinks:
            service.stay[b, number, vertex] = add(f"kv_stays[{label}, {location.name}{service.name}]")
        if kind.reach != "node":
            above.append((vertex, place in sources, place in sinks))
    while above:
        parents: dict[Vertex, list[bool]] = {}
        for vertex, sends, receives in above:
            if vertex == SPINE or (kind.reach == "rack" and vertex[0] == "rack"):
                continue
            parent = program.parents[vertex]
            flags = parents.setdefault(parent, [False, False])
            flags[0], flags[1] = flags[0] or sends, flags[1] or receives
            if sends:
                service.up[b, number, vertex] = add(f"kv_up[{label}, {vertex[1]}{service.name}]")
            if receives:
                service.down[b, number, vertex] = add(f"kv_down[{label}, {vertex[1]}{service.name}]")
        for parent, (sends, receives) in parents.items():
            if sends and receives and not (program.open_ended and parent == SPINE):
                service.stay[b, number, parent] = add(f"kv_stays[{label}, {parent[1] or 'spine'}{service.name}]")
        above = [(parent, sends, receives) for parent, (sends, receives) in parents.items()]
