"""One program over all periods of a day: what runs in each, and what starts and stops between them.

Sets and variables beyond those of `program/build.py`, one copy of which stands for every period t (d_t hours long):

    κ                    engine commands; columns that differ only in how far their KV may travel share one
    N[κ,ℓ,t]             = Σ_{c ∈ κ} n[c,ℓ,t]
    up, down[κ,ℓ,t] ≥ 0  instances started, stopped where t begins

    moved                up[κ,ℓ,t] − down[κ,ℓ,t] = N[κ,ℓ,t] − N[κ,ℓ,t−1]           (t − 1 of the first is the last)
    side_by_side         Σ_κ gpus_κ · (N[κ,ℓ,t−1] + up[κ,ℓ,t]) ≤ free GPUs at ℓ   starts need not wait for stops

    min Σ_t d_t · dollars_t · n_t + Σ (move + reload · dollars_κ) · up + (move + drain · dollars_κ) · down

Locations are those of the grouped relaxation: all hosts of a kind together, without racks and links. Its optimum is a
lower bound on every schedule over these columns and levels; where the counts of each period can be laid out on the real
fleet with what runs kept in place, they are optimal there too. The rows `side_by_side` keep the load served while
instances change; they are left out only where there is no schedule with them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from splitplan.catalogs.errors import Problem, SolverError
from splitplan.planner.columns.column import Column
from splitplan.planner.program.build import Program, build_program
from splitplan.planner.program.linear import LinearModel, Terms
from splitplan.planner.program.money import rent_terms
from splitplan.planner.program.reduce import allowed_columns, reduce_columns
from splitplan.planner.program.solver import SolveLimits, solve
from splitplan.planner.program.types import ProgramInput
from splitplan.planner.review.replan import shape_of_column
from splitplan.planner.schedule.periods import Period

SECONDS_PER_HOUR = 3600.0
CENT_OF_A_CENT_USD = 1e-4
GPU_TIE_USD = 1e-6
"""Per GPU and hour: far below a cent a day, so that of equally cheap schedules the one with fewer GPUs is found."""


@dataclass(frozen=True, slots=True)
class Switching:
    """What it costs to start or stop an instance. Its GPUs are paid while they load and while they drain."""

    move_usd: float = 1.0
    reload_s: float = 300.0
    drain_s: float = 60.0

    def start_usd(self, usd_per_hour: float) -> float:
        """Dollars for starting an instance that costs so much an hour."""
        return self.move_usd + self.reload_s / SECONDS_PER_HOUR * usd_per_hour

    def stop_usd(self, usd_per_hour: float) -> float:
        """Dollars for stopping one."""
        return self.move_usd + self.drain_s / SECONDS_PER_HOUR * usd_per_hour


@dataclass(frozen=True, slots=True)
class DayAnswer:
    """The optimum over a day: values of each period's grouped program, dollars a round, and the bound."""

    programs: tuple[Program, ...]  # by period
    values: tuple[tuple[float, ...], ...]  # by period
    usd: float
    bound_usd: float
    proven: bool
    solver: str


def solve_day(
    problems: Sequence[ProgramInput], periods: Sequence[Period], switching: Switching, gap_percent: float = 0.0
) -> DayAnswer | None:
    """The cheapest schedule for these levels (problems by level), side by side if that can be; None if there is none.

    Raises SolverError when the time limit ended before any schedule was found.
    """
    day = _solve(problems, periods, switching, gap_percent, side_by_side=True)
    if day is not None or len(periods) == 1:
        return day
    return _solve(problems, periods, switching, gap_percent, side_by_side=False)


def _solve(
    problems: Sequence[ProgramInput],
    periods: Sequence[Period],
    switching: Switching,
    gap_percent: float,
    *,
    side_by_side: bool,
) -> DayAnswer | None:
    options = problems[0].options
    kept = {column.name for problem in problems for column in reduce_columns(problem)}
    grouped = [
        build_program(problem, tuple(c for c in _allowed(problem) if c.name in kept), "fleet") for problem in problems
    ]
    model, offsets = LinearModel(), []
    dollars: Terms = []
    ties: Terms = []
    for number, period in enumerate(periods):
        program = grouped[period.level]
        offsets.append(_append(model, program.model, f" in period {number}"))
        dollars += [(offsets[-1] + v, period.num_hours * price) for v, price in rent_terms(program)]
        ties += [
            (offsets[-1] + v, period.num_hours * GPU_TIE_USD * program.columns[index].num_gpus)
            for (index, _), v in program.n.items()
        ]
    if len(periods) > 1:
        programs_now = [grouped[period.level] for period in periods]
        dollars += _switching_terms(model, programs_now, offsets, switching, side_by_side=side_by_side)
    for variable, amount in (*dollars, *ties):
        model.objective[variable] = model.objective.get(variable, 0.0) + amount
    gap = max(1e-7, options.gap_percent / 100.0, gap_percent / 100.0)
    limits = SolveLimits(options.time_limit_s, gap, CENT_OF_A_CENT_USD)
    answer = solve(model, limits)
    if answer.status == "infeasible":
        return None
    if not answer.has_solution:
        message = f"no schedule found within {options.time_limit_s:g} s, and none excluded"
        raise SolverError(Problem(message, next_step="raise --time-limit, or plan with fewer --levels"))
    programs = tuple(grouped[period.level] for period in periods)
    values = tuple(
        tuple(answer.values[offset : offset + len(program.model.low)])
        for offset, program in zip(offsets, programs, strict=True)
    )
    usd = math.fsum(amount * answer.values[variable] for variable, amount in dollars)
    most_tie = GPU_TIE_USD * sum(period.num_hours for period in periods) * sum(problems[0].fleet.num_gpus.values())
    bound = min(usd, answer.bound - most_tie)
    return DayAnswer(programs, values, usd, bound, answer.status == "optimal", answer.solver)


def _allowed(problem: ProgramInput) -> tuple[Column, ...]:
    """What mode, pins and bans leave: a column that another one beats at this load may still be worth keeping."""
    return allowed_columns(problem.columns, problem.options)


def _append(model: LinearModel, part: LinearModel, suffix: str) -> int:
    """A copy of a model's variables and rows in another; returns where its variables begin."""
    offset = len(model.low)
    for name, low, high, integer in zip(part.variable_names, part.low, part.high, part.integer, strict=True):
        model.add_variable(name + suffix, low, high, integer=integer)
    for name, row, sense, rhs in zip(part.constraint_names, part.rows, part.senses, part.rhs, strict=True):
        model.add_constraint(name + suffix, [(offset + variable, amount) for variable, amount in row], sense, rhs)
    return offset


Command = tuple[object, ...]


def command_of(column: Column) -> Command:
    """What makes two instances the same engine command on the same kind of host."""
    return (*shape_of_column(column), column.gpu_link, tuple(column.stages))


def _switching_terms(
    model: LinearModel,
    programs: Sequence[Program],
    offsets: Sequence[int],
    switching: Switching,
    *,
    side_by_side: bool,
) -> Terms:
    """up and down of every engine command at every kind of host where a period begins, and what they cost."""
    terms: Terms = []
    running = [_instances(program, offset) for program, offset in zip(programs, offsets, strict=True)]
    for number in range(len(programs)):
        now, before = running[number], running[number - 1]
        held: dict[str, Terms] = {}
        for key in dict.fromkeys((*before, *now)):
            here, there = now.get(key), before.get(key)
            known = here or there
            assert known is not None, "a key comes from one of the two"
            _, column, price = known
            label = f"{column.name}, {key[1]}, period {number}"
            up, down = model.add_variable(f"up[{label}]"), model.add_variable(f"down[{label}]")
            row: Terms = [(up, 1.0), (down, -1.0)]
            row += [(variable, -1.0) for variable in (here[0] if here else ())]
            row += [(variable, 1.0) for variable in (there[0] if there else ())]
            model.add_constraint(f"moved[{label}]", row, "==", 0.0)
            terms += [(up, switching.start_usd(price)), (down, switching.stop_usd(price))]
            own = held.setdefault(key[1], [])
            own += [(variable, float(column.num_gpus)) for variable in (*(there[0] if there else ()), up)]
        free = {location.name: location.num_gpus for location in programs[number].locations}
        for place, used in held.items() if side_by_side else ():
            model.add_constraint(f"side_by_side[{place}, period {number}]", used, "<=", free[place])
    return terms


def _instances(program: Program, offset: int) -> dict[tuple[Command, str], tuple[list[int], Column, float]]:
    """By engine command and kind of host: its variables, a column of it, and an instance's dollars per hour."""
    found: dict[tuple[Command, str], tuple[list[int], Column, float]] = {}
    for (index, place), variable in program.n.items():
        column, location = program.columns[index], program.locations[place]
        key = (command_of(column), location.name)
        entry = found.setdefault(key, ([], column, column.num_gpus * location.usd_per_gpu_hour))
        entry[0].append(offset + variable)
    return found


def counts_of(program: Program, values: Sequence[float]) -> tuple[tuple[tuple[str, str], int], ...]:
    """Instances by (column, kind of host), zeros left out, sorted.

    Prefill kept warm in a period without any decode (or decode without prefill) serves nobody there and is left out:
    to stop it may cost a move more than the program counted, which the round over judged plans then weighs.
    """
    counts: dict[tuple[str, str], int] = {}
    roles = set()
    for (index, place), variable in program.n.items():
        count = round(values[variable])
        if count:
            counts[program.columns[index].name, program.locations[place].name] = count
            roles.add(program.columns[index].role)
    if len(roles & {"prefill", "decode"}) == 1:
        serving = {column.name for column in program.columns if column.role == "colocated"}
        counts = {key: count for key, count in counts.items() if key[0] in serving}
    return tuple(sorted(counts.items()))


def same_commands(level: tuple[Column, ...], busiest: tuple[Column, ...]) -> tuple[Column, ...]:
    """Columns of a level with the batch and chunk that the busiest level runs, so that an instance need not restart.

    A column whose batch differs takes the more careful of the two estimates; the simulation has the last word.
    """
    known = {column.name: column for column in busiest}
    changed = []
    for column in level:
        other = known.get(column.name)
        if other is not None and command_of(other) != command_of(column):
            work = column.work_s_per_request.copy()
            changed.append(replace(other, work_s_per_request=work.clip(min=other.work_s_per_request)))
        else:
            changed.append(column)
    return tuple(changed)
