"""Solve the program: the optimum, its tie-breaks, the answer in people's terms, re-checked in plain Python."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from splitplan.catalogs.errors import InputError, Problem, SolverError
from splitplan.planner.program.build import Program, build_program
from splitplan.planner.program.constraints import instance_usd_per_hour, instance_watts
from splitplan.planner.program.infeasible import explain_infeasible
from splitplan.planner.program.linear import LinearModel
from splitplan.planner.program.objective import gpu_terms
from splitplan.planner.program.optimum import Optimum, find_optimum, grown, integers, least_travel
from splitplan.planner.program.pairing import SMALLEST_RATE, pair_flows
from splitplan.planner.program.reduce import reduce_columns
from splitplan.planner.program.solver import solve_arrays
from splitplan.planner.program.types import Binding, Infeasible, Placed, ProgramInput, ProgramSolution
from splitplan.planner.program.verify import verify

SMALLEST_DUAL = 1e-9
BOOKKEEPING = ("demand", "kv_", "one_rate_scale")
"""Rows that only say what is what; they limit nothing by themselves."""


def solve_program(problem: ProgramInput) -> ProgramSolution | Infeasible:
    """The best plan for the objective, proven as far as `gap_percent` and `time_limit_s` allow, or why there is none.

    Raises InputError for rates or sizes that make no sense and SolverError when time ran out before any plan was found.
    """
    check_input(problem)
    columns = reduce_columns(problem)
    program = build_program(problem, columns)
    optimum = find_optimum(program)
    if optimum is None:
        return explain_infeasible(program)
    return _solution(program, optimum, least_travel(program, optimum))


def check_input(problem: ProgramInput) -> None:
    """Raise InputError for anything that would make the program meaningless."""
    problems = []
    num_classes = len(problem.class_names)
    rate = problem.rate_req_per_s
    if rate.shape != (num_classes,) or not np.all(np.isfinite(rate)) or np.any(rate < 0) or rate.sum() <= 0:
        problems.append(Problem("the request rates add up to nothing", key="rate", expected="finite req/s above zero"))
    for column in problem.columns:
        work = column.work_s_per_request
        if work.shape != (num_classes,) or np.any(np.isnan(work)) or np.any(work <= 0):
            problems.append(Problem(f"column {column.name} has work that is not a positive time per class"))
    dtypes = dict.fromkeys(column.kv_dtype for column in problem.columns if column.role == "prefill")
    unknown = [dtype for dtype in dtypes if dtype not in problem.kv_bytes_per_request]
    problems += [Problem(f"no KV bytes per request for KV dtype {dtype}") for dtype in unknown]
    if len({column.name for column in problem.columns}) < len(problem.columns):
        problems.append(Problem("two columns have one name"))
    if problems:
        raise InputError(problems[:20])


def _solution(program: Program, optimum: Optimum, values: list[float]) -> ProgramSolution:
    """Numbers in people's terms, then the independent check."""
    options, sigma = program.problem.options, values[program.normal.sigma]
    goodput = options.objective == "goodput"
    scale = 1.0 if goodput else sigma
    placed = _placed(program, values, scale)
    gap = abs(optimum.bound - optimum.value) / max(abs(optimum.value), 1e-12)
    solution = ProgramSolution(
        status="optimal" if optimum.proven else "feasible",
        objective=options.objective,
        value=optimum.value,
        bound=optimum.bound,
        gap_percent=100.0 * gap,
        placed=placed,
        flows=pair_flows(program, values, scale),
        rate_scale=sigma if goodput else 1.0,
        headroom=1.0 if goodput else sigma,
        usd_per_hour=_sum(program, values, instance_usd_per_hour),
        num_gpus=round(sum(gpus * round(values[variable]) for variable, gpus in gpu_terms(program))),
        watts=_sum(program, values, instance_watts),
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


def _sum(program: Program, values: list[float], amount: Callable[[Program, int, int], float]) -> float:
    return math.fsum(amount(program, *key) * round(values[variable]) for key, variable in program.n.items())


def _placed(program: Program, values: list[float], scale: float) -> tuple[Placed, ...]:
    """Every column with instances at a location, in the order of locations, roles and columns."""
    rates: dict[tuple[int, int], list[float]] = {}
    for (b, index, place), variable in program.normal.x.items():
        row = rates.setdefault((index, place), [0.0] * len(program.problem.class_names))
        row[b] = max(0.0, values[variable] / scale)
    placed = []
    for (index, place), variable in sorted(program.n.items(), key=lambda item: (item[0][1], item[0][0])):
        count = round(values[variable])
        if count == 0:
            continue
        column, location = program.columns[index], program.locations[place]
        row = [rate if rate > SMALLEST_RATE else 0.0 for rate in rates.get((index, place), [])]
        work = math.fsum(rate * column.work_s_per_request[b] for b, rate in enumerate(row) if rate > 0)
        placed.append(
            Placed(column.name, column.role, location.name, location.rack, count, tuple(row), float(work) / count)
        )
    return tuple(placed)


def _binding(program: Program, model: LinearModel, values: list[float]) -> tuple[Binding, ...]:
    """Constraints that keep these instances from serving more, with the dual of the rate scale."""
    fixed = integers(program, values)
    most = grown(program, model.with_fixed(fixed)).with_objective({program.normal.sigma: 1.0}, maximise=True)
    answer = solve_arrays(most)
    if not answer.has_solution:
        return ()
    idle = {
        f"instance_time[{program.columns[i].name}, {program.locations[p].name}]"
        for (i, p), v in program.n.items()
        if not fixed[v]
    }
    pairs = zip(most.constraint_names, answer.duals, strict=True)
    found = [
        Binding(name, abs(dual))
        for name, dual in pairs
        if abs(dual) > SMALLEST_DUAL and name not in idle and not name.startswith(BOOKKEEPING)
    ]
    return tuple(sorted(found, key=lambda entry: (-entry.dual, entry.constraint)))
