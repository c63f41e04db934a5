"""Ways to split a fleet among services: all in one program, one service after the other, or by whole racks.

The last two are what people do by hand. Each is carried out at its best, by the same program over the same columns, and
its answer is checked as an answer to the joint program, which it is: so the joint optimum can only be cheaper.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from splitplan.catalogs.errors import SolverError
from splitplan.planner.place.assign import assign
from splitplan.planner.program.pipelines import gpus_at
from splitplan.planner.program.solve import solve_program
from splitplan.planner.program.topology import Location, fleet_locations
from splitplan.planner.program.types import Bought, Infeasible, Placed, ProgramInput, ProgramSolution, Reason
from splitplan.planner.program.verify import verify
from splitplan.planner.services.problem import only, totals
from splitplan.planner.services.trial import held_of
from splitplan.planner.spec.fleet import Rack
from splitplan.planner.spec.held import Held, fleet_left, together

Answer = ProgramSolution | Infeasible
Way = Callable[[ProgramInput], Answer]
MOST_ORDERS = 24
MOST_RACK_SPLITS = 4096
MOST_RACK_SETS = 48


def one_after_the_other(order: Sequence[str]) -> Way:
    """Each service takes its own best plan from what those before it left."""

    def way(problem: ProgramInput) -> Answer:
        return _in_turn(problem, [(name, Held()) for name in order])

    return way


def by_racks(owners: Mapping[str, str]) -> Way:
    """Each rack belongs to one service (`owners` by rack name), which plans on its own racks only."""

    def way(problem: ProgramInput) -> Answer:
        names = list(dict.fromkeys(column.service for column in problem.columns))
        return _in_turn(problem, [(name, _foreign(problem, name, owners)) for name in names])

    return way


def best_order(problem: ProgramInput) -> tuple[tuple[str, ...], ...]:
    """All orders of the services that lead to a plan, the cheapest first; () where there are too many to try."""
    names = list(dict.fromkeys(column.service for column in problem.columns))
    orders = list(itertools.permutations(names))
    if len(orders) > MOST_ORDERS:
        return ()
    found = []
    for number, order in enumerate(orders):
        answer = one_after_the_other(order)(_quick(problem))
        if isinstance(answer, ProgramSolution):
            found.append((round(answer.value, 6), number, order))
    return tuple(order for _, _, order in sorted(found))


def best_rack_split(problem: ProgramInput) -> Mapping[str, str] | None:
    """The cheapest way to give every rack to one service; None where there is none, or too many to try.

    Racks that are alike are interchangeable, so only their numbers are tried; each service is solved once for every
    set of racks. Shared links are left to the check of the whole.
    """
    names = list(dict.fromkeys(column.service for column in problem.columns))
    kinds: dict[object, list[str]] = {}
    for rack in problem.fleet.racks:
        kinds.setdefault(_alike(rack), []).append(rack.name)
    groups = list(kinds.values())
    splits = [list(_splits(len(racks), len(names))) for racks in groups]
    sets = 1
    ways = 1
    for racks, of_group in zip(groups, splits, strict=True):
        sets, ways = sets * (len(racks) + 1), ways * len(of_group)
    if sets > MOST_RACK_SETS or ways > MOST_RACK_SPLITS or len(names) < 2:
        return None
    quick, known = _quick(problem), dict[tuple[str, tuple[int, ...]], float]()
    best: tuple[float, tuple[tuple[int, ...], ...]] | None = None
    for choice in itertools.product(*splits):
        cost = 0.0
        for number, name in enumerate(names):
            have = tuple(split[number] for split in choice)
            if (name, have) not in known:
                known[name, have] = _cost_on(quick, name, groups, have)
            cost += known[name, have]
        if cost < float("inf") and (best is None or cost < best[0] - 1e-9):
            best = (cost, choice)
    return None if best is None else _owners(names, groups, best[1])


def _quick(problem: ProgramInput) -> ProgramInput:
    return replace(problem, options=replace(problem.options, tie_breaks=False))


def _alike(rack: Rack) -> object:
    nodes = tuple(replace(node, name="", rack="", labels={}, failure_domain="") for node in rack.nodes)
    return str((nodes, rack.power_limit_watts, rack.uplink_bytes_per_s, rack.pod))


def _splits(many: int, parts: int) -> list[tuple[int, ...]]:
    """All ways to deal out `many` equal things to `parts`."""
    if parts == 1:
        return [(many,)]
    return [(first, *rest) for first in range(many + 1) for rest in _splits(many - first, parts - 1)]


def _cost_on(problem: ProgramInput, name: str, groups: Sequence[Sequence[str]], have: Sequence[int]) -> float:
    owners = {rack: name for racks, count in zip(groups, have, strict=True) for rack in racks[:count]}
    answer = _alone(problem, name, _foreign(problem, name, owners))
    return answer.value if isinstance(answer, ProgramSolution) else float("inf")


def _owners(names: Sequence[str], groups: Sequence[Sequence[str]], choice: Sequence[Sequence[int]]) -> dict[str, str]:
    owners: dict[str, str] = {}
    for racks, split in zip(groups, choice, strict=True):
        left = list(racks)
        for name, count in zip(names, split, strict=True):
            for _ in range(count):
                owners[left.pop(0)] = name
    return owners


def _foreign(problem: ProgramInput, name: str, owners: Mapping[str, str]) -> Held:
    """Every GPU in racks that are not a service's own."""
    others = [rack for rack in problem.fleet.racks if owners.get(rack.name) != name]
    return Held(gpus=tuple((node.name, index) for rack in others for node in rack.nodes for index in node.free_gpus))


def _in_turn(problem: ProgramInput, turns: Sequence[tuple[str, Held]]) -> Answer:
    """Services in this order, each on what is left besides what is barred for it."""
    taken: list[Held] = []
    parts: list[ProgramSolution] = []
    for name, barred in turns:
        answer = _alone(problem, name, together([*taken, barred]))
        if isinstance(answer, Infeasible):
            reasons = tuple(Reason(f"{name}: {reason.message}", reason.next_step) for reason in answer.reasons)
            return replace(answer, reasons=reasons)
        part = only(problem, [name])
        parts.append(_at_home(problem, answer))
        taken.append(held_of(part, parts[-1], assign(_leaving(part, together(taken)), parts[-1])))
    return _merged(problem, parts)


@dataclass(frozen=True, slots=True)
class _Places:
    """Locations of the whole fleet by the nodes they hold."""

    of_node: Mapping[str, Location]

    @staticmethod
    def of(problem: ProgramInput) -> _Places:
        places = fleet_locations(problem.fleet, problem.options.granularity)
        return _Places({node.name: place for place in places for node in place.nodes})


def _alone(problem: ProgramInput, name: str, held: Held) -> Answer:
    """The best plan of one service while others hold their parts; in the locations of the fleet that is left."""
    mine = _leaving(only(problem, [name]), held)
    able = {gpu for column in mine.columns for gpu in column.gpu_types}
    if not any(count for gpu, count in mine.fleet.num_gpus.items() if gpu in able):
        return Infeasible((Reason("no GPU that it can run on is left"),), 0.0)
    answer = solve_program(mine)
    if isinstance(answer, Infeasible):
        return answer
    names = {place.name: place.nodes[0].name for place in fleet_locations(mine.fleet, problem.options.granularity)}
    placed = tuple(
        replace(
            item,
            location=names[item.location],
            stages=tuple(replace(stage, location=names[stage.location]) for stage in item.stages),
        )
        for item in answer.placed
    )
    flows = tuple(
        replace(flow, prefill_location=names[flow.prefill_location], decode_location=names[flow.decode_location])
        for flow in answer.flows
    )
    return replace(answer, placed=placed, flows=flows)


def _leaving(problem: ProgramInput, held: Held) -> ProgramInput:
    """The problem on what others leave."""
    options = problem.options
    budget = options.budget_usd_per_hour
    left = None if budget is None else max(0.0, budget - held.usd_per_hour)
    return replace(
        problem,
        fleet=fleet_left(problem.fleet, held),
        held=together([problem.held, replace(held, gpus=())]),
        options=replace(options, budget_usd_per_hour=left),
    )


def _at_home(problem: ProgramInput, answer: ProgramSolution) -> ProgramSolution:
    """Nodes that stand for locations become the locations of the whole fleet; the same one twice is one."""
    places = _Places.of(problem).of_node
    merged: dict[tuple[str, str], Placed] = {}
    for entry in answer.placed:
        home = tuple(replace(stage, location=places[stage.location].name) for stage in entry.stages)
        item, name = replace(entry, stages=home), places[entry.location].name
        there = merged.get((item.column, name))
        if there is None:
            merged[item.column, name] = replace(item, location=name)
            continue
        count = there.instances + item.instances
        used = (there.utilisation * there.instances + item.utilisation * item.instances) / count
        rates = tuple(one + two for one, two in zip(there.rate_req_per_s, item.rate_req_per_s, strict=True))
        stages = (*there.stages, *item.stages)
        merged[item.column, name] = replace(
            there, instances=count, rate_req_per_s=rates, utilisation=used, stages=stages
        )
    flows = tuple(
        replace(
            flow,
            prefill_location=places[flow.prefill_location].name,
            decode_location=places[flow.decode_location].name,
        )
        for flow in answer.flows
    )
    return replace(answer, placed=tuple(merged.values()), flows=flows)


def _merged(problem: ProgramInput, parts: Sequence[ProgramSolution]) -> ProgramSolution:
    """The parts as one answer to the joint program, checked as such. Raises SolverError where it is none."""
    placed = tuple(item for part in parts for item in part.placed)
    dollars, gpus, watts = totals(problem, placed)
    power = problem.options.objective == "power"
    value = watts if power else dollars
    whole = replace(
        parts[0],
        value=value,
        bound=value,
        gap_percent=0.0,
        placed=placed,
        flows=tuple(flow for part in parts for flow in part.flows),
        class_scale=(1.0,) * len(problem.class_names),
        headroom=min(part.headroom for part in parts),
        usd_per_hour=round(dollars, 9),
        num_gpus=gpus,
        watts=watts,
        bought=_bought(problem, placed),
        binding=tuple(dict.fromkeys(entry for part in parts for entry in part.binding)),
        granularity=problem.options.granularity or parts[0].granularity,
        columns_used=sum(part.columns_used for part in parts),
    )
    check = verify(problem, whole)
    if check.failures:
        raise SolverError(f"services planned one by one do not fit together: {check.failures[0]}")
    return replace(whole, constraints_checked=check.num_checked)


def _bought(problem: ProgramInput, placed: Sequence[Placed]) -> tuple[Bought, ...]:
    """GPUs by kind of price where kinds are capped or mixed: of every type the cheapest kinds first."""
    if not problem.options.price_kinds:
        return ()
    columns = {column.name: column for column in problem.columns}
    places = {place.name: place for place in fleet_locations(problem.fleet, problem.options.granularity)}
    needed: dict[str, int] = {}
    for item in placed:
        for name, gpus in gpus_at(columns[item.column], item.stages, item.location, item.instances).items():
            if places[name].nodes[0].price_usd_per_gpu_hour is None:
                needed[places[name].gpu] = needed.get(places[name].gpu, 0) + gpus
    tiers = [tier for tier in problem.fleet.price_tiers if tier.kind in problem.options.price_kinds]
    bought = []
    for tier in sorted(tiers, key=lambda tier: (tier.gpu, tier.usd_per_gpu_hour)):
        left = needed.get(tier.gpu, 0)
        count = left if tier.max_gpus is None else min(left, tier.max_gpus)
        needed[tier.gpu] = left - count
        if count:
            bought.append(Bought(tier.gpu, tier.kind, count, tier.usd_per_gpu_hour))
    return tuple(bought)
