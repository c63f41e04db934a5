"""Solve the program: the optimum, its tie-breaks, the answer in people's terms, re-checked in plain Python."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from splitplan.catalogs.errors import InputError, Problem, SolverError
from splitplan.planner.columns.column import Column
from splitplan.planner.program.build import Program, Service, build_program
from splitplan.planner.program.constraints import watt_terms
from splitplan.planner.program.infeasible import explain_infeasible
from splitplan.planner.program.large import can_use_patterns, solve_large
from splitplan.planner.program.linear import LinearModel, Terms
from splitplan.planner.program.money import purchase, rent_terms, running_instances
from splitplan.planner.program.nics import idle_nics, overloaded_nics, with_fair_nics
from splitplan.planner.program.objective import goodput_objective, gpu_terms
from splitplan.planner.program.optimum import (
    Optimum,
    find_optimum,
    grown,
    integers,
    lay_out,
    least_travel,
    optimum_by_groups,
)
from splitplan.planner.program.pairing import SMALLEST_RATE, pair_flows
from splitplan.planner.program.pipelines import stage_places
from splitplan.planner.program.reduce import reduce_columns, unmatched_pins
from splitplan.planner.program.rounding import fixed_program
from splitplan.planner.program.solver import solve_arrays, solver_label
from splitplan.planner.program.types import (
    Binding,
    Bought,
    Infeasible,
    Placed,
    ProgramInput,
    ProgramSolution,
    ServedState,
)
from splitplan.planner.program.verify import verify

PATTERN_RACKS = 32
"""Fleets with more racks are planned by rack patterns, where the grouped relaxation cannot be laid out."""
GROUPED_RACKS = 200
"""Beyond this many racks the grouped relaxation is not tried first: laying it out takes longer than patterns."""
SMALLEST_DUAL = 1e-9
BOOKKEEPING = (
    *("demand", "kv_", "kept", "bought", "laid_out", "stages", "as_good", "one_rate_scale"),
    *("group[", "one_group", "in_proportion", "survive_total"),
)
"""Rows that only say what is what; they limit nothing by themselves."""


def solve_program(problem: ProgramInput) -> ProgramSolution | Infeasible:
    """The best plan for the objective, proven as far as `gap_percent` and `time_limit_s` allow, or why there is none.

    Within `patience` its listener hears of incumbent and bound. Raises InputError for rates or sizes that
    make no sense and SolverError when time ran out before any plan was found.
    """
    check_input(problem)
    answer = _solve(problem)
    if isinstance(answer, Infeasible) or not overloaded_nics(problem, answer):
        return answer
    fair = _solve(with_fair_nics(problem))  # dearer, if anything: the first answer's bound holds for both
    if isinstance(fair, Infeasible):
        texts = overloaded_nics(problem, answer)
        return replace(answer, notes=(*answer.notes, f"more KV than planned on {len(texts)} links: {texts[0]}"))
    proven = abs(fair.value - answer.bound) <= 1e-6 * max(abs(answer.bound), 1e-12)
    gap = 100.0 * abs(fair.value - answer.bound) / max(abs(fair.value), 1e-12)
    return replace(fair, bound=answer.bound, gap_percent=gap, status="optimal" if proven else "feasible")


def _solve(problem: ProgramInput) -> ProgramSolution | Infeasible:
    columns = reduce_columns(problem)
    num_racks = len(problem.fleet.racks)
    patterns = num_racks > PATTERN_RACKS and can_use_patterns(problem)
    if patterns and num_racks <= GROUPED_RACKS:
        program = build_program(problem, columns)
        laid_out = optimum_by_groups(program)
        if laid_out is not None:
            return _solution(program, laid_out, least_travel(program, laid_out))
    if patterns:
        solution = _solve_large(problem, columns)
        if solution is not None:
            return solution
    program = build_program(problem, columns)
    optimum = find_optimum(program)
    if optimum is None:
        explained = build_program(problem, columns, failures_inside=True) if problem.options.survive else program
        return explain_infeasible(explained)
    return _solution(program, optimum, least_travel(program, optimum))


def _solve_large(problem: ProgramInput, columns: tuple[Column, ...]) -> ProgramSolution | None:
    """Rack patterns, then rates and flows on the real racks; None sends the caller to the direct program."""
    answer = solve_large(problem, columns)
    if answer is None:
        return None
    program = fixed_program(problem, columns, answer.counts)
    choices = any(use.variable not in program.n.values() for use in program.uses)  # stages that may stand here or there
    start = solve_arrays(program.model if choices else program.model.relaxed())
    if not start.has_solution:
        return None
    proven = answer.value <= answer.bound * (1.0 + 1e-9)
    optimum = Optimum(start.values, program.model, proven, answer.value, min(answer.value, answer.bound), start.solver)
    return _solution(program, optimum, least_travel(program, optimum))


def check_input(problem: ProgramInput) -> None:
    """Raise InputError for anything that would make the program meaningless."""
    problems = []
    num_classes = len(problem.class_names)
    for name, rate in problem.rates:
        if rate.shape != (num_classes,) or not np.all(np.isfinite(rate)) or np.any(rate < 0) or rate.sum() <= 0:
            message = f"the request rates{name and ' of ' + name} add up to nothing"
            problems.append(Problem(message, key="rate", expected="finite req/s above zero"))
    for column in problem.columns:
        work = column.work_s_per_request
        if work.shape != (num_classes,) or np.any(np.isnan(work)) or np.any(work <= 0):
            problems.append(Problem(f"column {column.name} has work that is not a positive time per class"))
    dtypes = dict.fromkeys(column.kv_dtype for column in problem.columns if column.role == "prefill")
    unknown = [dtype for dtype in dtypes if dtype not in problem.kv_bytes_per_request]
    problems += [Problem(f"no KV bytes per request for KV dtype {dtype}") for dtype in unknown]
    if len({column.name for column in problem.columns}) < len(problem.columns):
        problems.append(Problem("two columns have one name"))
    problems += unmatched_pins(problem.columns, problem.options)
    if problems:
        raise InputError(problems[:20])


def _solution(program: Program, optimum: Optimum, values: list[float]) -> ProgramSolution:
    """Numbers in people's terms, then the independent check."""
    options, sigmas = program.problem.options, [values[sigma] for sigma in program.normal.sigmas]
    goodput = options.objective == "goodput"
    scale = 1.0 if goodput else sigmas[0]
    placed = _placed(program, values, scale)
    rates = program.normal.rate_req_per_s
    served = float(np.dot(rates, sigmas)) / float(rates.sum())
    fixed = integers(program, values)
    exact = [fixed.get(variable, value) for variable, value in enumerate(values)]
    bought = purchase(program, exact)
    for tier, variable in program.bought.items():
        exact[variable] = float(bought[tier])
    gap = abs(optimum.bound - optimum.value) / max(abs(optimum.value), 1e-12)
    solution = ProgramSolution(
        status="optimal" if optimum.proven else "feasible",
        objective=options.objective,
        value=optimum.value,
        bound=optimum.bound,
        gap_percent=100.0 * gap,
        placed=placed,
        flows=pair_flows(program, values, scale),
        states=_states(program, optimum, values),
        rate_scale=served if goodput else 1.0,
        class_scale=tuple(sigmas) if goodput else (1.0,) * len(sigmas),
        headroom=1.0 if goodput else sigmas[0],
        usd_per_hour=round(_total(rent_terms(program), exact), 9),
        num_gpus=round(_total(gpu_terms(program), exact)),
        watts=_total(watt_terms(program), exact),
        bought=tuple(
            Bought(tier.gpu, tier.kind, count, tier.usd_per_gpu_hour) for tier, count in bought.items() if count
        ),
        moves=_moves(program, exact),
        binding=_binding(program, optimum.model, values),
        constraints_checked=0,
        solver=optimum.solver,
        granularity=program.granularity,
        columns_used=len(program.columns),
    )
    check = verify(program.problem, solution)
    if check.failures:
        raise SolverError([Problem(f"the solver's answer breaks a constraint: {text}") for text in check.failures[:5]])
    return replace(solution, constraints_checked=check.num_checked)


def _states(program: Program, optimum: Optimum, values: list[float]) -> tuple[ServedState, ...]:
    """Who serves what at the other hours, and in every failure to survive."""
    goodput, states = program.problem.options.objective == "goodput", []
    for service in program.services[1:]:
        scale = 1.0 if goodput or service.gone else values[service.sigmas[0]]
        left = _placed(program, values, scale, service)
        flows = pair_flows(program, values, scale, service)
        states.append(ServedState(service.hour, service.gone, (service.gone,) if service.gone else (), left, flows))
    failures = optimum.failures.certificates(values) if optimum.failures else ()
    return (*states, *failures)


def solution_of_counts(
    problem: ProgramInput,
    columns: tuple[Column, ...],
    counts: Mapping[tuple[str, str], int],
    kind_of: Mapping[str, str],
) -> ProgramSolution | None:
    """So many instances by (column, kind of host), laid out on the real fleet; None where they do not fit or serve.

    `kind_of` tells the kind of host of every node. What runs already (`problem.running`) is kept as far as the counts
    allow, or else everything is laid out anew.
    """
    for entries in dict.fromkeys((problem.running, ())):
        asked = replace(problem, running=entries)
        whole = build_program(asked, columns, "fleet")
        amounts = [0.0] * len(whole.model.low)
        amounts[whole.sigma] = 1.0
        for (index, place), variable in whole.n.items():
            kind = kind_of[whole.locations[place].nodes[0].name]
            amounts[variable] = float(counts.get((columns[index].name, kind), 0))
        if round(sum(amounts[variable] for variable in whole.n.values())) != sum(counts.values()):
            return None
        for key, variable in whole.kept.items():
            amounts[variable] = min(amounts[whole.n[key]], whole.model.high[variable])
        rent = _total(rent_terms(whole), amounts)
        program = build_program(asked, columns)
        optimum = lay_out(program, whole, Optimum(amounts, whole.model, True, rent, rent, solver_label()))
        if optimum is not None:
            return _solution(program, optimum, least_travel(program, optimum))
    return None


def growth_limits(problem: ProgramInput, solution: ProgramSolution) -> tuple[float, tuple[Binding, ...]]:
    """How far the load could grow on the instances of a solution (1: not at all), and what would hold it back."""
    columns = tuple(column for column in problem.columns if column.name in {item.column for item in solution.placed})
    index_of = {column.name: index for index, column in enumerate(columns)}
    counts = {(index_of[item.column], item.location): item.instances for item in solution.placed}
    plain = replace(problem, options=replace(problem.options, max_kinds=None, require=()))
    program = build_program(plain, columns, solution.granularity, counts=counts)
    most = grown(program, program.model).with_objective(goodput_objective(program), maximise=True)
    answer = solve_arrays(most)
    return (answer.objective, _binding(program, program.model, answer.values)) if answer.has_solution else (1.0, ())


def _total(terms: Terms, values: list[float]) -> float:
    return math.fsum(amount * values[variable] for variable, amount in terms)


def _moves(program: Program, values: list[float]) -> int:
    """Instances started or stopped against what runs."""
    if not program.problem.running:
        return 0
    limits = {key: program.model.high[variable] for key, variable in program.kept.items()}
    stay = sum(round(min(values[program.n[key]], limit)) for key, limit in limits.items())
    planned = sum(round(values[variable]) for variable in program.n.values())
    return planned + running_instances(program) - 2 * stay


def _placed(program: Program, values: list[float], scale: float, service: Service | None = None) -> tuple[Placed, ...]:
    """Every column with instances at a location, in the order of locations, roles and columns."""
    service = service or program.normal
    rates: dict[tuple[int, int], list[float]] = {}
    for (b, index, place), variable in service.x.items():
        row = rates.setdefault((index, place), [0.0] * len(program.problem.class_names))
        row[b] = max(0.0, values[variable] / scale)
    placed, stages = [], stage_places(program, values)
    for (index, place), variable in sorted(program.n.items(), key=lambda item: (item[0][1], item[0][0])):
        count = round(values[variable])
        if count == 0 or place not in service.alive:
            continue
        column, location = program.columns[index], program.locations[place]
        none = [0.0] * len(program.problem.class_names)
        row = [rate if rate > SMALLEST_RATE else 0.0 for rate in rates.get((index, place), none)]
        work = math.fsum(rate * column.work_s_per_request[b] for b, rate in enumerate(row) if rate > 0)
        placed.append(
            Placed(
                column.name,
                column.role,
                location.name,
                location.rack,
                count,
                tuple(row),
                float(work) / count,
                stages.get((index, place), ()),
            )
        )
    return tuple(placed)


def _binding(program: Program, model: LinearModel, values: list[float]) -> tuple[Binding, ...]:
    """Constraints that keep these instances from serving more, with the dual of the rate scale."""
    fixed = integers(program, values)
    most = grown(program, model.with_fixed(fixed)).with_objective(goodput_objective(program), maximise=True)
    answer = solve_arrays(most)
    if not answer.has_solution:
        return ()
    idle = {
        f"instance_time[{program.columns[i].name}, {program.locations[p].name}]"
        for (i, p), v in program.n.items()
        if not fixed[v]
    } | idle_nics(program, fixed)
    pairs = zip(most.constraint_names, answer.duals, strict=True)
    found = [
        Binding(name, abs(dual))
        for name, dual in pairs
        if abs(dual) > SMALLEST_DUAL and name not in idle and not name.startswith(BOOKKEEPING)
    ]
    return tuple(sorted(found, key=lambda entry: (-entry.dual, entry.constraint)))
