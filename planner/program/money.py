"""What a plan costs per hour: GPUs at their price, mixed kinds of price up to their caps, and moves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from splitplan.catalogs.errors import InputError, Problem
from splitplan.planner.program.linear import Terms
from splitplan.planner.spec.fleet import PriceTier

if TYPE_CHECKING:
    from splitplan.planner.program.build import Program


def define_price_tiers(program: Program) -> None:
    """r[g,t]: GPUs of a type bought at each of the wanted kinds of price; hosts with a price of their own keep it."""
    kinds = program.problem.options.price_kinds
    if not kinds:
        return
    used: dict[str, Terms] = {}
    for use in program.uses:
        location = program.locations[use.place]
        if location.nodes[0].price_usd_per_gpu_hour is None:
            used.setdefault(location.gpu, []).append((use.variable, float(use.num_gpus)))
    for gpu, terms in used.items():
        tiers = [tier for tier in program.problem.fleet.price_tiers if tier.gpu == gpu and tier.kind in kinds]
        if not tiers:
            known = ", ".join(tier.kind for tier in program.problem.fleet.price_tiers if tier.gpu == gpu)
            raise InputError(Problem(f"no {' or '.join(kinds)} price of {gpu} is known", expected=known or "a price"))
        bought = []
        for tier in tiers:
            most = float("inf") if tier.max_gpus is None else float(tier.max_gpus)
            program.bought[tier] = program.model.add_variable(f"bought[{gpu}, {tier.kind}]", 0.0, most)
            bought.append((program.bought[tier], -1.0))
        program.model.add_constraint(f"bought[{gpu}]", [*terms, *bought], "==", 0.0)


def define_kept(program: Program) -> None:
    """k[c,ℓ]: running instances that stay where they are."""
    place_of = {node.name: place for place, location in enumerate(program.locations) for node in location.nodes}
    names = {column.name: index for index, column in enumerate(program.columns)}
    running: dict[tuple[int, int], int] = {}
    for entry in program.problem.running:
        key = (names.get(entry.column, -1), place_of.get(entry.node, -1))
        if key in program.n:
            running[key] = running.get(key, 0) + entry.instances
    for key, count in running.items():
        label = f"{program.columns[key[0]].name}, {program.locations[key[1]].name}"
        program.kept[key] = program.model.add_variable(f"kept[{label}]", 0.0, float(count))
        terms = [(program.kept[key], 1.0), (program.n[key], -1.0)]
        program.model.add_constraint(f"kept[{label}]", terms, "<=", 0.0)


def rent_terms(program: Program) -> Terms:
    """Dollars per hour of all GPUs."""
    terms: Terms = []
    for use in program.uses:
        location = program.locations[use.place]
        if not program.bought or location.nodes[0].price_usd_per_gpu_hour is not None:
            terms.append((use.variable, use.num_gpus * location.usd_per_gpu_hour))
    return terms + [(variable, tier.usd_per_gpu_hour) for tier, variable in program.bought.items()]


def purchase(program: Program, values: list[float]) -> dict[PriceTier, int]:
    """GPUs by price tier for given instances: of every type the cheapest kinds first."""
    needed: dict[str, int] = {}
    for use in program.uses:
        location = program.locations[use.place]
        if location.nodes[0].price_usd_per_gpu_hour is None:
            gpus = use.num_gpus * round(values[use.variable])
            needed[location.gpu] = needed.get(location.gpu, 0) + gpus
    bought: dict[PriceTier, int] = {}
    for tier in sorted(program.bought, key=lambda tier: (tier.gpu, tier.usd_per_gpu_hour)):
        left = needed[tier.gpu]
        bought[tier] = left if tier.max_gpus is None else min(left, tier.max_gpus)
        needed[tier.gpu] -= bought[tier]
    return bought


def money_terms(program: Program) -> Terms:
    """Rent, plus the price of every instance started or stopped against what runs, up to a constant.

    Started: n − k each; stopped: running − k each. So n costs one move more, and every kept instance two less.
    """
    price = program.problem.options.move_usd_per_hour
    terms = rent_terms(program)
    if price and program.problem.running:
        terms += [(variable, price) for variable in program.n.values()]
        terms += [(variable, -2.0 * price) for variable in program.kept.values()]
    return terms


def running_instances(program: Program) -> int:
    """Everything that runs now, whether it could stay or not."""
    return sum(entry.instances for entry in program.problem.running)
