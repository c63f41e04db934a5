"""Money, power, inventory, what was forbidden or required, and whether the reported sums are the sums."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

from splitplan.planner.program.check import Check, Facts
from splitplan.planner.program.pipelines import gpus_at
from splitplan.planner.program.reduce import allowed_columns, parse_filter
from splitplan.planner.program.topology import Location
from splitplan.planner.program.types import ProgramInput, ProgramSolution


def check_limits(check: Check, facts: Facts, solution: ProgramSolution) -> None:
    """Everything about a solution that is not who serves what."""
    _check_sums(check, facts, solution)
    _check_kinds(check, facts, solution)
    _check_rack_power(check, facts, solution)
    _check_prices(check, facts, solution)
    _check_objective(check, facts, solution)
    options, fleet = facts.problem.options, facts.problem.fleet
    for what, value, limit in (
        ("budget", solution.usd_per_hour, options.budget_usd_per_hour),
        ("fleet's budget", solution.usd_per_hour, fleet.max_usd_per_hour),
        ("power", solution.watts, options.max_power_watts),
    ):
        if limit is not None:
            check.at_most(what, value, limit)


def _check_sums(check: Check, facts: Facts, solution: ProgramSolution) -> None:
    """GPUs, dollars, watts and moves as reported; never more GPUs than the inventory."""
    placed_gpus = _gpus_by_place(facts, solution)
    check.equal("dollars per hour", _dollars(facts.problem, placed_gpus), solution.usd_per_hour)
    watts = math.fsum(
        [
            *(entry.instances * facts.columns[entry.column].watts for entry in solution.placed),
            *(gpus * location.host_watts_per_gpu for location, gpus in placed_gpus),
        ]
    )
    check.equal("watts", watts, solution.watts)
    check.equal("GPUs", sum(gpus for _, gpus in placed_gpus), solution.num_gpus)
    for gpu, inventory in facts.problem.fleet.num_gpus.items():
        used = sum(gpus for location, gpus in placed_gpus if location.gpu == gpu)
        check.at_most(f"{gpu}: GPUs of the inventory", used, inventory)
    check.equal("instances started or stopped", _moves(facts, solution), solution.moves)


def _gpus_by_place(facts: Facts, solution: ProgramSolution) -> list[tuple[Location, int]]:
    return [
        (facts.places[name], gpus)
        for entry in solution.placed
        for name, gpus in gpus_at(facts.columns[entry.column], entry.stages, entry.location, entry.instances).items()
    ]


def _moves(facts: Facts, solution: ProgramSolution) -> int:
    """Planned instances that do not run, and running ones that are not planned."""
    place_of = {node.name: name for name, place in facts.places.items() for node in place.nodes}
    running = Counter[tuple[str, str]]()
    for entry in facts.problem.running:
        running[entry.column, place_of.get(entry.node, "")] += entry.instances
    if not running:
        return 0
    planned = Counter({(entry.column, entry.location): entry.instances for entry in solution.placed})
    return (planned - running).total() + (running - planned).total()


def _check_kinds(check: Check, facts: Facts, solution: ProgramSolution) -> None:
    """Mode, GPU type, pins and bans; at most so many kinds; required kinds."""
    options, chosen = facts.problem.options, sorted({item.column for item in solution.placed if item.instances})
    allowed = {column.name for column in allowed_columns(facts.problem.columns, options)}
    for name in chosen:
        check.holds(f"{name}: allowed by mode, pin and forbid", name in allowed)
    if options.max_kinds is not None:
        columns = [facts.columns[name] for name in chosen]
        kinds = Counter((column.service, column.role, column.gpu, column.prompts_in_words) for column in columns)
        for (_, role, gpu, prompts), number in kinds.items():
            check.at_most(f"kinds of {role} on {gpu} {prompts}".rstrip(), number, options.max_kinds)
    for text in options.require:
        check.holds(f"required: {text}", any(parse_filter(text).matches(facts.columns[name]) for name in chosen))


def _check_rack_power(check: Check, facts: Facts, solution: ProgramSolution) -> None:
    gpu_watts: dict[str, float] = {}
    for entry in solution.placed:
        watts = entry.instances * facts.columns[entry.column].watts
        gpu_watts[entry.rack] = gpu_watts.get(entry.rack, 0.0) + watts
    for rack in facts.problem.fleet.racks:
        if rack.power_limit_watts is not None and rack.name in gpu_watts:
            others = facts.problem.held.in_rack(rack.name)
            drawn = sum(node.host_watts for node in rack.nodes) + gpu_watts[rack.name] + others
            check.at_most(f"{rack.name}: watts", drawn, rack.power_limit_watts)


def _check_prices(check: Check, facts: Facts, solution: ProgramSolution) -> None:
    """GPUs bought at each kind of price: within its cap, and together those that are used."""
    options, fleet = facts.problem.options, facts.problem.fleet
    if not options.price_kinds:
        return
    used = Counter[str]()
    for place, gpus in _gpus_by_place(facts, solution):
        if place.nodes[0].price_usd_per_gpu_hour is None:
            used[place.gpu] += gpus
    tiers = {(tier.gpu, tier.kind): tier for tier in fleet.price_tiers if tier.kind in options.price_kinds}
    bought = Counter[str]()
    for purchase in solution.bought:
        what, tier = f"{purchase.gpu} at the {purchase.kind} price", tiers.get((purchase.gpu, purchase.kind))
        check.holds(f"{what}: on offer", tier is not None and tier.usd_per_gpu_hour == purchase.usd_per_gpu_hour)
        if tier is not None and tier.max_gpus is not None:
            check.at_most(f"{what}: GPUs", purchase.num_gpus, tier.max_gpus)
        bought[purchase.gpu] += purchase.num_gpus
    for gpu in sorted({*used, *bought}):
        check.equal(f"{gpu}: GPUs bought", bought[gpu], used[gpu])


def _check_objective(check: Check, facts: Facts, solution: ProgramSolution) -> None:
    """The value is what it says it is, and no better than its bound."""
    problem, options = facts.problem, facts.problem.options
    rates = problem.rates[0][1]
    value = solution.watts
    if solution.objective == "cost":
        running = sum(entry.instances for entry in problem.running)
        value = solution.usd_per_hour + options.move_usd_per_hour * (solution.moves - running)
    if solution.objective == "goodput":
        value = solution.class_scale[0]
        if options.class_weights is not None:
            scaled = zip(options.class_weights, rates, solution.class_scale, strict=True)
            value = math.fsum(weight * float(rate) * scale for weight, rate, scale in scaled)
        served = math.fsum(float(rate) * scale for rate, scale in zip(rates, solution.class_scale, strict=True))
        check.equal("rate scale", served / float(rates.sum()), solution.rate_scale)
        if options.max_rate_scale is not None:
            check.at_most("rate scale", max(solution.class_scale), options.max_rate_scale)
    check.equal(f"value of the objective ({solution.objective})", value, solution.value)
    better = max if solution.objective == "goodput" else min
    check.equal("no better than its bound", better(solution.value, solution.bound), solution.bound)
    check.holds("headroom is no shortage", solution.headroom >= 1.0 - 1e-6)


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
