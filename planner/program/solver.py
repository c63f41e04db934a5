"""The one place that talks to a solver: PuLP with HiGHS (or CBC where installed), and HiGHS arrays for hot loops.

PuLP 3 and 4 differ (how a solve reports, how expressions are built, the sign of duals, CBC inside or not); callers see
only `Answer`. With a time limit PuLP 3 calls every incumbent optimal, so status, bound and gap are read from HiGHS
itself. Threads and seed are fixed: the same model gives the same answer, unless the time limit cuts in.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import highspy
import numpy as np
import pulp
from numpy.typing import NDArray

from splitplan.catalogs.errors import Problem, SolverError
from splitplan.planner.patience import Progress, listener, seconds_left
from splitplan.planner.program.linear import LinearModel, Sense

RANDOM_SEED = 0
THREADS = 1
ALLOW_RESTART = False  # restarts of the root node cost half the time on programs as small as most of ours
IIS_FROM_LP_WITH_ROWS_FIRST = 2
LONG_SOLVE_S = 2.0
"""A solve that takes longer tells how far it is, once in TELL_EVERY_S seconds."""
TELL_EVERY_S = 1.0
INFINITE = 1e30
Status = Literal["optimal", "feasible", "infeasible", "unbounded", "none"]


@dataclass(frozen=True, slots=True)
class SolveLimits:
    """When to stop. `max_nodes` is a deterministic limit, `time_s` is not."""

    time_s: float = 60.0
    relative_gap: float = 0.0
    absolute_gap: float = 1e-6
    max_nodes: int | None = None
    unit: float | None = None  # of the objective in dollars, watts or rate scale, for those who listen; None: untold

    @property
    def patient_s(self) -> float:
        """Seconds this solve may take, with what is left of the caller's patience. Raises OutOfTimeError at its end."""
        return min(self.time_s, seconds_left())


@dataclass(frozen=True, slots=True)
class Answer:
    """What a solver said. `values` has one entry per variable ([] without a solution); duals and slack per row (LP)."""

    status: Status
    objective: float
    bound: float
    values: list[float]
    duals: list[float]
    solver: str

    @property
    def has_solution(self) -> bool:
        """Whether `values` can be used."""
        return self.status in ("optimal", "feasible")


@cache
def solver_label() -> str:
    """The default solver's name and version, as printed in the proof."""
    return f"HiGHS {highspy.Highs().version()}"


def solve(model: LinearModel, limits: SolveLimits | None = None, *, solver: str = "highs") -> Answer:
    """Solve through PuLP, with HiGHS or, when asked for and installed, CBC ("cbc")."""
    limits = limits or SolveLimits()
    problem, variables = _pulp_problem(model)
    if solver == "cbc":
        return _solve_with_cbc(problem, variables, model, limits)
    options: dict[str, Any] = {"random_seed": RANDOM_SEED, "mip_allow_restart": ALLOW_RESTART}
    if limits.max_nodes is not None:
        options["mip_max_nodes"] = limits.max_nodes
    watch = Watch(limits.unit)
    highs_solver = pulp.HiGHS(
        msg=False,
        gapRel=limits.relative_gap,
        gapAbs=limits.absolute_gap,
        threads=THREADS,
        timeLimit=limits.patient_s,
        callbackTuple=(watch.hear, None),
        callbacksToActivate=[highspy.cb.HighsCallbackType.kCallbackMipInterrupt],
        **options,
    )
    watch.run(lambda: _run(problem, highs_solver))
    return _in_time(_answer(problem.solverModel, model, _values(variables, model)))


def solve_arrays(
    model: LinearModel, limits: SolveLimits | None = None, *, start: Sequence[float] | None = None
) -> Answer:
    """Solve with HiGHS directly: without the modelling layer, with duals of an LP, from a start point."""
    limits = limits or SolveLimits()
    highs = _highs(limits)
    highs.passModel(_highs_lp(model))
    watch = Watch(limits.unit)
    if model.has_integers:
        highs.setCallback(watch.hear, None)
        highs.startCallback(highspy.cb.HighsCallbackType.kCallbackMipInterrupt)
    if start is not None:
        point = highspy.HighsSolution()
        point.col_value = list(start)
        highs.setSolution(point)
    watch.run(highs.run)
    solution = highs.getSolution()
    duals = [] if model.has_integers else [float(dual) for dual in solution.row_dual]
    return _in_time(_answer(highs, model, [float(value) for value in solution.col_value], duals))


def _in_time(answer: Answer) -> Answer:
    """The answer; without one because the caller's time is over: OutOfTimeError."""
    if answer.status == "none":
        seconds_left()
    return answer


class Watch:
    """Tells whoever listens how far a solve is, and ends it when the user interrupts: HiGHS does not look by itself."""

    def __init__(self, unit: float | None) -> None:
        self._report, self._unit = None if unit is None else listener(), unit or 1.0
        self._start_s, self._told_s = time.monotonic(), 0.0
        self._interrupted = False

    def run(self, solve: Callable[[], object]) -> None:
        """Solve; an interrupt on the way stops the solver and is raised afterwards."""
        if threading.current_thread() is not threading.main_thread():
            solve()
            return
        before = signal.getsignal(signal.SIGINT)
        if before is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._interrupt)
        try:
            solve()
        finally:
            if before is signal.default_int_handler:
                signal.signal(signal.SIGINT, before)
        if self._interrupted:
            raise KeyboardInterrupt

    def _interrupt(self, _number: int, _frame: object) -> None:
        self._interrupted = True

    def hear(self, _kind: object, _message: str, out: Any, answer: Any, _data: object) -> None:
        """What HiGHS calls now and then."""
        if self._interrupted:
            answer.user_interrupt = True
        elapsed_s = time.monotonic() - self._start_s
        if self._report is not None and elapsed_s >= LONG_SOLVE_S and elapsed_s - self._told_s >= TELL_EVERY_S:
            self._told_s = elapsed_s
            self._report(
                Progress("", self._told(out.mip_primal_bound), self._told(out.mip_dual_bound), round(elapsed_s, 1))
            )

    def _told(self, value: float) -> float | None:
        """A figure of HiGHS in people's units; PuLP turns the sign of what is to be made large, ours are positive."""
        return None if abs(value) >= INFINITE else abs(value) * self._unit


def smallest_conflict(model: LinearModel) -> tuple[str, ...]:
    """Names of constraints that together cannot hold, none of them spare, in the relaxation; () if it is feasible.

    HiGHS's own answer may have spare rows: each in turn (and at first many at once) is left out to see whether the
    others conflict without it.
    """
    relaxed = model.relaxed()
    everything = list(range(len(model.rows)))
    if not _conflicts(relaxed, everything):
        return ()
    highs = _highs(SolveLimits())
    highs.passModel(_highs_lp(relaxed))
    highs.run()
    highs.setOptionValue("iis_strategy", IIS_FROM_LP_WITH_ROWS_FIRST)
    _, conflict = highs.getIis()
    rows = sorted({int(row) for row in conflict.row_index_ or ()})
    if not rows or not _conflicts(relaxed, rows):
        rows = everything
    size = max(1, len(rows) // 4)
    while True:
        position = 0
        while position < len(rows):
            fewer = rows[:position] + rows[position + size :]
            if fewer and _conflicts(relaxed, fewer):
                rows = fewer
            else:
                position += size
        if size == 1:
            return tuple(model.constraint_names[row] for row in rows)
        size = max(1, min(size, len(rows)) // 4)


def _conflicts(model: LinearModel, rows: Sequence[int]) -> bool:
    """Whether these rows alone cannot hold together."""
    some = model.with_objective({})
    some.constraint_names = [model.constraint_names[row] for row in rows]
    some.rows, some.senses = [model.rows[row] for row in rows], [model.senses[row] for row in rows]
    some.rhs = [model.rhs[row] for row in rows]
    highs = _highs(SolveLimits())
    highs.passModel(_highs_lp(some))
    highs.run()
    return bool(highs.getModelStatus() == highspy.HighsModelStatus.kInfeasible)


def _run(problem: Any, solver: Any) -> None:
    try:
        problem.solve(solver)
    except pulp.PulpError as error:
        raise SolverError(f"the solver stopped: {error}") from None


def _pulp_problem(model: LinearModel) -> tuple[Any, list[Any]]:
    problem = pulp.LpProblem("splitplan", pulp.LpMaximize if model.maximise else pulp.LpMinimize)
    variables = [
        problem.add_variable(
            f"v{index:06d}",
            lowBound=None if low == -math.inf else low,
            upBound=None if high == math.inf else high,
            cat="Integer" if integer else "Continuous",
        )
        for index, (low, high, integer) in enumerate(zip(model.low, model.high, model.integer, strict=True))
    ]
    problem += pulp.lpSum([coefficient * variables[index] for index, coefficient in model.objective.items()])
    for number, (row, sense, rhs) in enumerate(zip(model.rows, model.senses, model.rhs, strict=True)):
        problem += (_compare(pulp.lpSum([value * variables[index] for index, value in row]), sense, rhs), f"c{number}")
    return problem, variables


def _compare(expression: Any, sense: Sense, rhs: float) -> Any:
    if sense == "<=":
        return expression <= rhs
    return expression >= rhs if sense == ">=" else expression == rhs


def _values(variables: list[Any], model: LinearModel) -> list[float]:
    """Values in the model's order; a variable that no row and no objective mentions stays at its lower bound."""
    return [
        low if variable.varValue is None else float(variable.varValue)
        for variable, low in zip(variables, model.low, strict=True)
    ]


def _solve_with_cbc(problem: Any, variables: list[Any], model: LinearModel, limits: SolveLimits) -> Answer:
    """CBC reports no bound; an answer it calls optimal is its own bound, any other has none."""
    solver = pulp.COIN_CMD(msg=False, timeLimit=limits.time_s, gapRel=limits.relative_gap, threads=THREADS)
    if not solver.available():
        raise SolverError(Problem("CBC is not installed", next_step="pip install 'pulp[cbc]', or leave --solver out"))
    stats = problem.solve(solver)
    proven = getattr(problem, "sol_status", None) == 1 or getattr(stats, "status", None) == "Optimal"
    has_solution = getattr(stats, "has_solution", getattr(problem, "sol_status", 0) in (1, 2))
    if not has_solution:
        return Answer("none", math.nan, math.nan, [], [], "CBC")
    values = _values(variables, model)
    objective = _objective(model, values)
    return Answer("optimal" if proven else "feasible", objective, objective if proven else math.nan, values, [], "CBC")


def _highs(limits: SolveLimits) -> Any:
    highs = highspy.Highs()
    highs.setOptionValue("output_flag", False)
    highs.setOptionValue("threads", THREADS)
    highs.setOptionValue("random_seed", RANDOM_SEED)
    highs.setOptionValue("mip_allow_restart", ALLOW_RESTART)
    highs.setOptionValue("time_limit", float(limits.patient_s))
    highs.setOptionValue("mip_rel_gap", limits.relative_gap)
    highs.setOptionValue("mip_abs_gap", limits.absolute_gap)
    if limits.max_nodes is not None:
        highs.setOptionValue("mip_max_nodes", limits.max_nodes)
    return highs


def _highs_lp(model: LinearModel) -> Any:
    """The model as HighsLp, rows in compressed form."""
    lp = highspy.HighsLp()
    num_variables, num_rows = len(model.low), len(model.rows)
    cost = np.zeros(num_variables)
    for index, coefficient in model.objective.items():
        cost[index] = coefficient
    lp.num_col_, lp.num_row_ = num_variables, num_rows
    lp.col_cost_, lp.col_lower_, lp.col_upper_ = cost, np.array(model.low), np.array(model.high)
    rhs = np.array(model.rhs)
    senses = np.array(model.senses)
    lp.row_lower_ = np.where(senses == "<=", -np.inf, rhs)
    lp.row_upper_ = np.where(senses == ">=", np.inf, rhs)
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_ = np.cumsum([0] + [len(row) for row in model.rows], dtype=np.int32)
    lp.a_matrix_.index_ = np.array([index for row in model.rows for index, _ in row], dtype=np.int32)
    lp.a_matrix_.value_ = np.array([value for row in model.rows for _, value in row])
    if model.has_integers:
        kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
        lp.integrality_ = [kinds[flag] for flag in model.integer]
    lp.sense_ = highspy.ObjSense.kMaximize if model.maximise else highspy.ObjSense.kMinimize
    return lp


def _objective(model: LinearModel, values: Sequence[float]) -> float:
    return sum(coefficient * values[index] for index, coefficient in model.objective.items())


def _answer(highs: Any, model: LinearModel, values: list[float], duals: list[float] | None = None) -> Answer:
    """Status, bound and duals as HiGHS has them, in the model's own sense."""
    label, info, kinds = solver_label(), highs.getInfo(), highspy.HighsModelStatus
    model_status = highs.getModelStatus()
    if model_status in (kinds.kInfeasible, kinds.kUnboundedOrInfeasible):
        return Answer("infeasible", math.nan, math.nan, [], [], label)
    if model_status == kinds.kUnbounded:
        return Answer("unbounded", math.nan, math.nan, [], [], label)
    feasible = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
    if not (feasible or model_status in (kinds.kOptimal, kinds.kModelEmpty)):
        return Answer("none", math.nan, math.nan, [], [], label)
    optimal = model_status in (kinds.kOptimal, kinds.kModelEmpty)
    objective = _objective(model, values)
    bound = objective
    if model.has_integers:
        flipped = model.maximise and highs.getObjectiveSense()[1] == highspy.ObjSense.kMinimize
        bound = -info.mip_dual_bound if flipped else info.mip_dual_bound
    return Answer("optimal" if optimal else "feasible", objective, bound, values, duals or [], label)


class RepeatedSolve:
    """One model kept inside HiGHS and solved again and again with other objectives (column generation's pricing)."""

    def __init__(self, model: LinearModel, limits: SolveLimits) -> None:
        self._model = model
        self._highs = _highs(limits)
        self._highs.passModel(_highs_lp(model))
        self._indices = np.arange(len(model.low), dtype=np.int32)

    def solve(self, objective: NDArray[np.float64], *, maximise: bool) -> Answer:
        """Optimise the given coefficients, one per variable."""
        sense = highspy.ObjSense.kMaximize if maximise else highspy.ObjSense.kMinimize
        self._highs.changeObjectiveSense(sense)
        self._highs.changeColsCost(len(self._indices), self._indices, objective)
        self._highs.run()
        values = [float(value) for value in self._highs.getSolution().col_value]
        self._model.objective = {int(v): float(objective[v]) for v in np.flatnonzero(objective)}
        self._model.maximise = maximise
        return _answer(self._highs, self._model, values)


@dataclass(frozen=True, slots=True)
class Sensitive:
    """A linear program's optimum, and how it changes per unit of each variable's bound (its reduced cost)."""

    objective: float
    values: list[float]
    slopes: list[float]


class RepeatedBounds:
    """One linear program kept inside HiGHS and solved again and again with some variables fixed elsewhere."""

    def __init__(self, model: LinearModel, variables: Sequence[int]) -> None:
        self._highs = _highs(SolveLimits())
        self._highs.passModel(_highs_lp(model.relaxed()))
        self._indices = np.array(variables, dtype=np.int32)

    def solve(self, fixed: NDArray[np.float64]) -> Sensitive:
        """The optimum with the variables at `fixed`, in their order. Raises SolverError where there is none."""
        self._highs.changeColsBounds(len(self._indices), self._indices, fixed, fixed)
        self._highs.run()
        if self._highs.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            raise SolverError("the solver gave no answer to a linear program that has one")
        solution = self._highs.getSolution()
        return Sensitive(
            float(self._highs.getInfo().objective_function_value), list(solution.col_value), list(solution.col_dual)
        )
