"""Finding the optimum: the grouped relaxation first, the full program where that cannot be laid out; then the ties."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from splitplan.catalogs.errors import Problem, SolverError
from splitplan.planner.program.build import Program, build_program, has_whole_classes
from splitplan.planner.program.failures import Failures
from splitplan.planner.program.linear import LinearModel, Terms
from splitplan.planner.program.objective import (
    cost_objective,
    goodput_objective,
    power_objective,
    travel_objective,
)
from splitplan.planner.program.solver import Answer, SolveLimits, solve, solve_arrays

TIE_NODES = 200
"""Branch-and-bound nodes spent on a tie-break: a count, not a time, so that the answer does not vary."""
RELAXED_ROUNDS = 40
"""Of cuts for failures on the relaxation, before whole instances are asked for."""
LAYOUT_NODES = 100
LAYOUT_GAP = 0.02
SPREAD_WEIGHT, ORDER_WEIGHT = 1e-3, 1e-5
"""Far below what a GB/s of KV counts in `travel_objective`: they only decide between places that are equally near."""
MOST_HEADROOM = 1e4
LESS_THAN_ONE_UNIT = 0.999
TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True)
class Optimum:
    """Values of the program's variables with ties broken, and the objective's value and bound in its own unit."""

    values: list[float]
    model: LinearModel  # with the tie-breaks' constraints
    proven: bool
    value: float
    bound: float
    solver: str
    failures: Failures | None = None  # the failures it survives, where that was asked


def find_optimum(program: Program) -> Optimum | None:
    """The best plan of the program with the most headroom, or None if there is none."""
    options = program.problem.options
    search = most_goodput if options.objective == "goodput" else least
    if options.survive and not has_whole_classes(program.problem):
        return _surviving(program, search)
    hard = options.survive or options.max_share_per_rack is not None or options.whole_classes
    if hard or len(program.locations) == 1:
        return search(program)
    return optimum_by_groups(program) or search(program)


def _surviving(program: Program, search: Callable[..., Optimum | None]) -> Optimum | None:
    """The optimum that survives every failure: cuts for the relaxation, then for the optimum, then for its ties."""
    failures = Failures(program)
    for _ in range(RELAXED_ROUNDS):
        answer = solve_arrays(_objective_of(program).relaxed())
        if not answer.has_solution or not failures.cut_off(answer.values):
            break
    ties = False
    while True:
        optimum = search(program, ties=ties)
        if optimum is None:
            return None
        if failures.cut_off(optimum.values):
            continue
        if ties or not program.problem.options.tie_breaks:
            return replace(optimum, failures=failures)
        ties = True


def _objective_of(program: Program) -> LinearModel:
    """The program with its objective, ties left out."""
    if program.problem.options.objective == "goodput":
        return elastic(program).with_objective(goodput_objective(program), maximise=True)
    make = cost_objective if program.problem.options.objective == "cost" else power_objective
    return program.model.with_objective(make(program, tie_break=False).coefficients)


def optimum_by_groups(program: Program) -> Optimum | None:
    """The optimum of the grouped relaxation on real locations; None where it cannot be laid out, or there is none."""
    grouped = build_program(program.problem, program.columns, "fleet")
    target = (most_goodput if program.problem.options.objective == "goodput" else least)(grouped)
    return None if target is None else lay_out(program, grouped, target)


def lay_out(program: Program, grouped: Program, target: Optimum) -> Optimum | None:
    """The grouped optimum on real locations: the same instances, somewhere; None if they do not fit or cannot talk."""
    model = grown(program, program.model)
    for counted, whole in ((program.n, grouped.n), (program.kept, grouped.kept)):
        if not _same_totals(program, grouped, model, counted, whole, target.values):
            return None
    if not _same_stages(program, grouped, model, target.values):
        return None
    values = _place(program, model, sum(v * target.values[i] for i, v in goodput_objective(grouped).items()))
    return None if values is None else replace(target, values=values, model=model)


def _same_totals(
    program: Program,
    grouped: Program,
    model: LinearModel,
    counted: dict[tuple[int, int], int],
    whole: dict[tuple[int, int], int],
    values: list[float],
) -> bool:
    """Ask for the same number of each column on each kind of host; False if some have nowhere to go."""
    group_of = {node.name: place for place, location in enumerate(grouped.locations) for node in location.nodes}
    members: dict[tuple[int, int], list[int]] = {}
    for (index, place), variable in counted.items():
        members.setdefault((index, group_of[program.locations[place].nodes[0].name]), []).append(variable)
    wanted = {key: round(values[variable]) for key, variable in whole.items()}
    for key, variables in members.items():
        name = f"laid_out[{program.columns[key[0]].name}, {grouped.locations[key[1]].name}]"
        model.add_constraint(name, [(variable, 1.0) for variable in variables], "==", wanted.get(key, 0))
        if not wanted.get(key):
            for variable in variables:
                model.high[variable] = 0.0
    return all(key in members for key, count in wanted.items() if count)


def _same_stages(program: Program, grouped: Program, model: LinearModel, values: list[float]) -> bool:
    """Ask for as many stages of mixed pipelines on each kind of host; False if some have nowhere to go."""
    group_of = {node.name: place for place, location in enumerate(grouped.locations) for node in location.nodes}
    wanted: dict[tuple[int, int, int], int] = {}
    for use in grouped.uses:
        if grouped.columns[use.index].stages:
            key = (use.index, use.part, use.place)
            wanted[key] = wanted.get(key, 0) + use.groups * round(values[use.variable])
    members: dict[tuple[int, int, int], Terms] = {}
    for use in program.uses:
        if program.columns[use.index].stages:
            key = (use.index, use.part, group_of[program.locations[use.place].nodes[0].name])
            members.setdefault(key, []).append((use.variable, float(use.groups)))
    for (index, part, place), terms in members.items():
        name = f"laid_out[{program.columns[index].name}, stages {part}, {grouped.locations[place].name}]"
        model.add_constraint(name, terms, "==", wanted.get((index, part, place), 0))
    return all(key in members for key, count in wanted.items() if count)


def _place(program: Program, model: LinearModel, goal: float) -> list[float] | None:
    """Where to stand: all the headroom and the fewest bytes across racks, or else as much headroom as fits."""
    options, terms = program.problem.options, goodput_objective(program)
    limits = SolveLimits(options.time_limit_s, LAYOUT_GAP, TOLERANCE, LAYOUT_NODES)
    near = model.with_objective(travel_objective(program))
    _prefer_spread(program, near)
    near.add_constraint("all_headroom", list(terms.items()), ">=", goal * (1.0 - TOLERANCE))
    for sigma in program.normal.sigmas:
        near.high[sigma] = min(near.high[sigma], max(1.0, goal)) if options.class_weights is None else near.high[sigma]
    answer = solve_arrays(near, limits)
    if answer.has_solution or options.objective == "goodput":
        return answer.values if answer.has_solution else None
    answer = solve_arrays(model.with_objective(terms, maximise=True), limits)
    return answer.values if answer.has_solution else None


def _prefer_spread(program: Program, model: LinearModel) -> None:
    """Among places as near as any: few instances of a column at one place, and the places that come first."""
    for index in dict.fromkeys(index for index, _ in program.n):
        places = {place: v for (column, place), v in program.n.items() if column == index and model.high[v] > 0}
        if not places:
            continue
        most = model.add_variable(f"most_at_one_place[{program.columns[index].name}]")
        model.objective[most] = SPREAD_WEIGHT
        for place, variable in places.items():
            model.add_constraint("most_at_one_place", [(variable, 1.0), (most, -1.0)], "<=", 0.0)
            model.objective[variable] = ORDER_WEIGHT * program.columns[index].num_gpus * place / len(program.locations)


def least(program: Program, *, ties: bool | None = None) -> Optimum | None:
    """Least cost or power, then fewest GPUs, then most headroom (unless `ties`, or else the options, say not to)."""
    options = program.problem.options
    ties = options.tie_breaks if ties is None else ties
    make = cost_objective if options.objective == "cost" else power_objective
    scaled = make(program, tie_break=options.tie_breaks)
    model = program.model.with_objective(scaled.coefficients)
    gap, unit = options.gap_percent / 100.0, scaled.unit / scaled.weight
    answer = _solve_or_say(model, SolveLimits(options.time_limit_s, gap, LESS_THAN_ONE_UNIT, unit=unit))
    if answer is None:
        return None
    fixed = integers(program, answer.values)
    amount = sum(value * fixed.get(v, answer.values[v]) for v, value in scaled.coefficients.items())
    value = round(sum(value * fixed.get(v, answer.values[v]) for v, value in scaled.amounts.items()), 9)
    bound = value if answer.bound > amount - 1.0 + TOLERANCE else min(value, scaled.value_bound(answer.bound))
    model.add_constraint("as_good", list(scaled.coefficients.items()), "<=", amount + 0.5)
    values = _most_headroom(program, model, answer.values) if ties else answer.values
    return Optimum(values, model, answer.status == "optimal", value, bound, answer.solver)


def _most_headroom(program: Program, model: LinearModel, start: list[float]) -> list[float]:
    """Among plans as good as the optimum and no larger, one with the most headroom."""
    roomy = grown(program, model).with_objective({program.sigma: 1.0}, maximise=True)
    limits = SolveLimits(program.problem.options.time_limit_s, 1e-4, TOLERANCE, TIE_NODES)
    answer = solve_arrays(roomy, limits, start=start)
    return answer.values if answer.has_solution else start


def most_goodput(program: Program, *, ties: bool | None = None) -> Optimum | None:
    """The largest rate scale (or weighted served rate), then least cost and fewest GPUs (as in `least`)."""
    options, terms = program.problem.options, goodput_objective(program)
    model = elastic(program)
    model.objective, model.maximise = terms, True
    answer = _solve_or_say(
        model, SolveLimits(options.time_limit_s, max(1e-7, options.gap_percent / 100.0), 1e-9, unit=1.0)
    )
    if answer is None or answer.objective <= TOLERANCE:
        return None
    value, bound = answer.objective, max(answer.objective, answer.bound)
    model.add_constraint("as_good", list(terms.items()), ">=", value * (1.0 - 1e-7))
    ties = options.tie_breaks if ties is None else ties
    values = _cheapest(program, model, answer.values) if ties else answer.values
    return Optimum(values, model, answer.status == "optimal", value, bound, answer.solver)


def elastic(program: Program) -> LinearModel:
    """A copy in which every rate scale is free, and failures carry what the normal service carries."""
    model, options = program.model.copy(), program.problem.options
    most = options.max_rate_scale or (MOST_HEADROOM if options.class_weights is None else 1.0)
    for sigma in program.all_sigmas:
        model.low[sigma], model.high[sigma] = 0.0, most
    for service in program.services:
        if service.sigmas != program.normal.sigmas:
            for sigma, normal in set(zip(service.sigmas, program.normal.sigmas, strict=True)):
                model.add_constraint("one_rate_scale", [(sigma, 1.0), (normal, -1.0)], "==", 0.0)
            break
    return model


def _cheapest(program: Program, model: LinearModel, start: list[float]) -> list[float]:
    """Among plans with the same goodput, a cheapest one with the fewest GPUs."""
    cheap = model.with_objective(cost_objective(program, tie_break=True).coefficients)
    limits = SolveLimits(program.problem.options.time_limit_s, 0.0, LESS_THAN_ONE_UNIT, TIE_NODES)
    answer = solve_arrays(cheap, limits, start=start)
    return answer.values if answer.has_solution else start


def least_travel(program: Program, optimum: Optimum) -> list[float]:
    """With the instances fixed: the most headroom again as a linear program, then the fewest bytes across racks."""
    terms = goodput_objective(program)
    most = grown(program, optimum.model.with_fixed(integers(program, optimum.values)))
    best = solve_arrays(most.with_objective(terms, maximise=True))
    if not best.has_solution:  # rounding the integers cost more than a tolerance: keep the solver's own point
        return optimum.values
    most.add_constraint("as_much", list(terms.items()), ">=", best.objective * (1.0 - 1e-9))
    near = solve_arrays(most.with_objective(travel_objective(program)))
    return near.values if near.has_solution else best.values


def grown(program: Program, model: LinearModel) -> LinearModel:
    """A copy in which the normal service may serve more than was asked; failures still have to carry what was asked."""
    copy, options = model.copy(), program.problem.options
    if options.objective == "goodput":
        free = elastic(program)
        for sigma in program.all_sigmas:
            copy.low[sigma], copy.high[sigma] = free.low[sigma], free.high[sigma]
        return copy
    for sigma in program.normal.sigmas:
        copy.low[sigma], copy.high[sigma] = 1.0, MOST_HEADROOM
    return copy


def integers(program: Program, values: list[float]) -> dict[int, float]:
    """The rounded value of every integer variable."""
    return {v: float(round(values[v])) for v, whole in enumerate(program.model.integer) if whole}


def _solve_or_say(model: LinearModel, limits: SolveLimits) -> Answer | None:
    answer = solve(model, limits)
    if answer.status == "infeasible":
        return None
    if not answer.has_solution:
        message = f"no plan found within {limits.time_s:g} s, and none excluded"
        raise SolverError(Problem(message, next_step="raise the time limit, or ask for a smaller fleet"))
    return answer
