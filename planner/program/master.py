"""The master problem over rack patterns, as a model. Its notation stands in `large.py`."""

from __future__ import annotations

from dataclasses import dataclass, field

from splitplan.planner.program.constraints import GIGABYTE
from splitplan.planner.program.linear import LinearModel, Terms
from splitplan.planner.program.patterns import Channel, Pattern, RackClasses
from splitplan.planner.program.types import ProgramInput


@dataclass(slots=True)
class Master:
    """The master problem and its patterns."""

    problem: ProgramInput
    racks: RackClasses
    channels: tuple[Channel, ...]
    gigabytes: dict[Channel, float]
    short_price: float
    patterns: list[Pattern] = field(default_factory=list)
    known: set[tuple[object, ...]] = field(default_factory=set)

    def add(self, pattern: Pattern) -> bool:
        """Keep a pattern unless it is there already."""
        key = (pattern.shape, pattern.counts, pattern.served, pattern.up, pattern.down)
        if key in self.known or not pattern.counts:
            return False
        self.known.add(key)
        self.patterns.append(pattern)
        return True


@dataclass(slots=True)
class MasterRows:
    """The master as a model, and where its rows and variables are."""

    model: LinearModel
    demand: dict[int, int]
    sent: dict[tuple[int, Channel], int]
    taken: dict[tuple[int, Channel], int]
    racks: list[int]
    spine: int | None
    budget: int | None
    uses: dict[tuple[int, int], int]  # (class, pattern) -> λ
    short: dict[int, int]


def build_master(master: Master, inflate: float, *, integer: bool = False) -> MasterRows:
    """The master over the patterns known so far, for `inflate` times the load."""
    problem, racks, model = master.problem, master.racks, LinearModel()
    rows = MasterRows(model, {}, {}, {}, [], None, None, {}, {})
    demand: dict[int, Terms] = {b: [] for b, rate in enumerate(problem.rate_req_per_s) if rate > 0}
    sent: dict[tuple[int, Channel], Terms] = {}
    taken: dict[tuple[int, Channel], Terms] = {}
    spine: Terms = []
    for number, rack_class in enumerate(racks.classes):
        standing: Terms = []
        for p, pattern in enumerate(master.patterns):
            if pattern.shape != rack_class.shape:
                continue
            use = model.add_variable(f"racks[{number}, {p}]", 0.0, len(rack_class.racks), integer=integer)
            rows.uses[number, p] = use
            standing.append((use, 1.0))
            model.objective[use] = pattern.amount
            for b, rate in enumerate(pattern.served):
                if rate and b in demand:
                    demand[b].append((use, rate))
            for channel, rate in pattern.up:
                sent.setdefault((rack_class.group, channel), []).append((use, rate))
                spine.append((use, rate * master.gigabytes[channel]))
            for channel, rate in pattern.down:
                taken.setdefault((rack_class.group, channel), []).append((use, rate))
        rows.racks.append(model.add_constraint(f"racks[{number}]", standing, "<=", len(rack_class.racks)))
    _add_network(master, rows, demand, sent, taken)
    for b, terms in demand.items():
        rows.short[b] = model.add_variable(f"short[{b}]")
        model.objective[rows.short[b]] = master.short_price
        rate = inflate * float(problem.rate_req_per_s[b])
        rows.demand[b] = model.add_constraint(f"demand[{b}]", [*terms, (rows.short[b], 1.0)], ">=", rate)
    share = problem.options.network_utilisation
    if problem.fleet.spine_bytes_per_s is not None and spine:
        limit = problem.fleet.spine_bytes_per_s * share / GIGABYTE
        rows.spine = model.add_constraint("spine", spine, "<=", limit)
    budget = _budget(problem)
    if budget is not None:
        dollars = [(use, master.patterns[p].dollars) for (_, p), use in rows.uses.items()]
        rows.budget = model.add_constraint("budget", dollars, "<=", budget)
    return rows


def _add_network(
    master: Master,
    rows: MasterRows,
    demand: dict[int, Terms],
    sent: dict[tuple[int, Channel], Terms],
    taken: dict[tuple[int, Channel], Terms],
) -> None:
    """inside, out and in of every pod group, and their uplinks."""
    racks, model = master.racks, rows.model
    share = master.problem.options.network_utilisation
    out_load: list[Terms] = [[] for _ in racks.group_pods]
    in_load: list[Terms] = [[] for _ in racks.group_pods]
    for channel in master.channels:
        b, across = channel[0], []
        for group in range(len(racks.group_pods)):
            inside, out, into = (model.add_variable(f"{word}[{group}, {channel}]") for word in ("inside", "out", "in"))
            demand.setdefault(b, []).extend([(inside, 1.0), (into, 1.0)])
            up = [*sent.get((group, channel), []), (inside, -1.0), (out, -1.0)]
            down = [*taken.get((group, channel), []), (inside, -1.0), (into, -1.0)]
            rows.sent[group, channel] = model.add_constraint(f"sent[{group}, {channel}]", up, ">=", 0.0)
            rows.taken[group, channel] = model.add_constraint(f"taken[{group}, {channel}]", down, ">=", 0.0)
            across += [(out, 1.0), (into, -1.0)]
            out_load[group].append((out, master.gigabytes[channel]))
            in_load[group].append((into, master.gigabytes[channel]))
        model.add_constraint(f"across[{channel}]", across, ">=", 0.0)
    for group, limit in enumerate(racks.group_bytes_per_s):
        if limit is not None and racks.group_pods[group]:
            total = racks.group_pods[group] * limit * share / GIGABYTE
            model.add_constraint(f"pod_out[{group}]", out_load[group], "<=", total)
            model.add_constraint(f"pod_in[{group}]", in_load[group], "<=", total)


def _budget(problem: ProgramInput) -> float | None:
    limits = [x for x in (problem.options.budget_usd_per_hour, problem.fleet.max_usd_per_hour) if x is not None]
    return min(limits) if limits else None
