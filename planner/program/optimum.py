"""Finding the optimum: the grouped relaxation first, the full program where that cannot be laid out; then the ties."""

from __future__ import annotations

from dataclasses import dataclass, replace

from splitplan.catalogs.errors import Problem, SolverError
from splitplan.planner.program.build import Program, build_program
from splitplan.planner.program.linear import LinearModel
from splitplan.planner.program.objective import cost_objective, power_objective, travel_objective
from splitplan.planner.program.solver import Answer, SolveLimits, solve, solve_arrays

TIE_NODES = 200
"""Branch-and-bound nodes spent on a tie-break: a count, not a time, so that the answer does not vary."""
LAYOUT_NODES = 500
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


def find_optimum(program: Program) -> Optimum | None:
    """The best plan of the program with the most headroom, or None if there is none."""
    options = program.problem.options
    search = most_goodput if options.objective == "goodput" else least
    if options.survive or options.max_share_per_rack is not None or len(program.locations) == 1:
        return search(program)
    grouped = build_program(program.problem, program.columns, "fleet")
    target = search(grouped)
    if target is None:
        return None
    return lay_out(program, grouped, target) or search(program)


def lay_out(program: Program, grouped: Program, target: Optimum) -> Optimum | None:
    """The grouped optimum on real locations: the same instances, somewhere; None if they do not fit or cannot talk."""
    group_of = {node.name: place for place, location in enumerate(grouped.locations) for node in location.nodes}
    members: dict[tuple[int, int], list[int]] = {}
    for (index, place), variable in program.n.items():
        key = (index, group_of[program.locations[place].nodes[0].name])
        members.setdefault(key, []).append(variable)
    wanted = {key: round(target.values[variable]) for key, variable in grouped.n.items()}
    if any(count and key not in members for key, count in wanted.items()):
        return None
    model = grown(program, program.model)
    for key, variables in members.items():
        count = wanted.get(key, 0)
        if count:
            name = f"laid_out[{program.columns[key[0]].name}, {grouped.locations[key[1]].name}]"
            model.add_constraint(name, [(variable, 1.0) for variable in variables], "==", count)
        else:
            for variable in variables:
                model.high[variable] = 0.0
    values = _place(program, model, target.values[grouped.normal.sigma])
    return None if values is None else replace(target, values=values, model=model)


def _place(program: Program, model: LinearModel, headroom: float) -> list[float] | None:
    """Where to stand: all the headroom and the fewest bytes across racks, or else as much headroom as fits."""
    sigma, options = program.normal.sigma, program.problem.options
    limits = SolveLimits(options.time_limit_s, 1e-3, TOLERANCE, LAYOUT_NODES)
    near = model.with_objective(travel_objective(program))
    near.low[sigma] = near.high[sigma] = headroom * (1.0 - TOLERANCE)
    answer = solve_arrays(near, limits)
    if answer.has_solution or options.objective == "goodput":
        return answer.values if answer.has_solution else None
    roomy = model.with_objective({sigma: 1.0}, maximise=True)
    roomy.high[sigma] = headroom
    answer = solve_arrays(roomy, limits)
    return answer.values if answer.has_solution else None


def least(program: Program) -> Optimum | None:
    """Least cost or power, then fewest GPUs, then most headroom."""
    options = program.problem.options
    make = cost_objective if options.objective == "cost" else power_objective
    scaled = make(program, tie_break=options.tie_breaks)
    model = program.model.with_objective(scaled.coefficients)
    answer = _solve_or_say(model, SolveLimits(options.time_limit_s, options.gap_percent / 100.0, LESS_THAN_ONE_UNIT))
    if answer is None:
        return None
    amount = _whole(program, scaled.coefficients, answer.values)
    value = scaled.value(amount, _gpus(program, answer.values))
    bound = value if answer.bound > amount - 1.0 + TOLERANCE else min(value, scaled.value_bound(answer.bound))
    model.add_constraint("as_good", list(scaled.coefficients.items()), "<=", amount + 0.5)
    values = _most_headroom(program, model, answer.values) if options.tie_breaks else answer.values
    return Optimum(values, model, answer.status == "optimal", value, bound, answer.solver)


def _whole(program: Program, coefficients: dict[int, float], values: list[float]) -> float:
    return float(round(sum(coefficients[variable] * round(values[variable]) for variable in program.n.values())))


def _gpus(program: Program, values: list[float]) -> int:
    return sum(program.columns[index].num_gpus * round(values[variable]) for (index, _), variable in program.n.items())


def _most_headroom(program: Program, model: LinearModel, start: list[float]) -> list[float]:
    """Among plans as good as the optimum and no larger, one with the most headroom."""
    roomy = grown(program, model).with_objective({program.normal.sigma: 1.0}, maximise=True)
    limits = SolveLimits(program.problem.options.time_limit_s, 1e-4, TOLERANCE, TIE_NODES)
    answer = solve_arrays(roomy, limits, start=start)
    return answer.values if answer.has_solution else start


def most_goodput(program: Program) -> Optimum | None:
    """The largest rate scale, then least cost and fewest GPUs."""
    options, sigma = program.problem.options, program.normal.sigma
    model = program.model.copy()
    for each in {service.sigma for service in program.services}:
        model.low[each], model.high[each] = 0.0, options.max_rate_scale or MOST_HEADROOM
    for each in {service.sigma for service in program.services} - {sigma}:
        model.add_constraint("one_rate_scale", [(each, 1.0), (sigma, -1.0)], "==", 0.0)
    model.objective, model.maximise = {sigma: 1.0}, True
    answer = _solve_or_say(model, SolveLimits(options.time_limit_s, options.gap_percent / 100.0, 1e-9))
    if answer is None or answer.objective <= TOLERANCE:
        return None
    value, bound = answer.objective, max(answer.objective, answer.bound)
    model.low[sigma] = value * (1.0 - 1e-7)
    values = _cheapest(program, model, answer.values) if options.tie_breaks else answer.values
    return Optimum(values, model, answer.status == "optimal", value, bound, answer.solver)


def _cheapest(program: Program, model: LinearModel, start: list[float]) -> list[float]:
    """Among plans with the same goodput, a cheapest one with the fewest GPUs."""
    cheap = model.with_objective(cost_objective(program, tie_break=True).coefficients)
    limits = SolveLimits(program.problem.options.time_limit_s, 0.0, LESS_THAN_ONE_UNIT, TIE_NODES)
    answer = solve_arrays(cheap, limits, start=start)
    return answer.values if answer.has_solution else start


def least_travel(program: Program, optimum: Optimum) -> list[float]:
    """With the instances fixed: the most headroom again as a linear program, then the fewest bytes across racks."""
    sigma, values = program.normal.sigma, optimum.values
    most = grown(program, optimum.model.with_fixed(integers(program, values)))
    most = most.with_objective({sigma: 1.0}, maximise=True)
    best = solve_arrays(most)
    if not best.has_solution:  # rounding the integers cost more than a tolerance: keep the solver's own point
        return values
    most.low[sigma] = best.values[sigma] * (1.0 - 1e-9)
    near = solve_arrays(most.with_objective(travel_objective(program)))
    return near.values if near.has_solution else best.values


def grown(program: Program, model: LinearModel) -> LinearModel:
    """A copy in which the normal service may serve more than was asked; failures still have to carry what was asked."""
    copy, sigma, options = model.copy(), program.normal.sigma, program.problem.options
    if options.objective != "goodput":
        copy.low[sigma], copy.high[sigma] = 1.0, MOST_HEADROOM
    elif copy.high[sigma] == 1.0:
        copy.low[sigma], copy.high[sigma] = 0.0, options.max_rate_scale or MOST_HEADROOM
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
