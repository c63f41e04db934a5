"""From fractions of patterns to instances on real racks.

Whole parts of the master's λ are racks with a pattern. What is left over, less than one rack per class and pattern, is
planned directly: the program of `build.py` on the real fleet, with the whole racks fixed and a few racks free. If that
finds nothing in its share of the time, the master is solved in whole numbers instead, its patterns are put on racks,
and the flow program of the real fleet says what they serve; what is missing is asked for on top.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from splitplan.planner.columns.column import Column
from splitplan.planner.program.build import Program, build_program
from splitplan.planner.program.master import Master, build_master
from splitplan.planner.program.objective import cost_objective, power_objective
from splitplan.planner.program.solver import SolveLimits, solve_arrays
from splitplan.planner.program.topology import fleet_locations
from splitplan.planner.program.types import ProgramInput

LEFTOVER_GAP, LEFTOVER_NODES, LEFTOVER_TIME_S = 2e-3, 50, 30.0
"""Counts of nodes end these searches long before the time does, so that the answer does not vary."""
MASTER_GAP, MASTER_NODES, MASTER_TIME_S = 4e-3, 300, 12.0
SPARE_RACKS = 1
REPAIRS = 3
Counts = dict[tuple[int, str], int]


def whole_racks(master: Master, columns: tuple[Column, ...], deadline: float) -> tuple[Counts | None, float]:
    """Instances per (column, location name) and what they cost; (None, 0) when neither way finds a plan."""
    rows = build_master(master, 1.0)
    answer = solve_arrays(rows.model)
    if any(answer.values[short] > 1e-6 for short in rows.short.values()):
        return None, 0.0
    shares = {key: answer.values[use] for key, use in rows.uses.items()}
    counts, free = _whole_parts(master, shares)
    found = _plan_leftovers(master.problem, columns, counts, free, deadline)
    return found if found[0] is not None else _whole_master(master, columns, deadline)


def _whole_parts(master: Master, shares: Mapping[tuple[int, int], float]) -> tuple[Counts, frozenset[str]]:
    """Racks with whole patterns, and the racks left free: as many as the fractions need, and one more per class."""
    whole = {key: int(share + 1e-9) for key, share in shares.items()}
    counts, used = _on_racks(master, whole)
    free: list[str] = []
    for number, rack_class in enumerate(master.racks.classes):
        part = sum(share - whole[key] for key, share in shares.items() if key[0] == number)
        if part > 1e-6:
            left = [rack for rack in rack_class.racks if rack not in used]
            free += left[: int(part + 1 - 1e-9) + SPARE_RACKS]
    return counts, frozenset(free)


def _plan_leftovers(
    problem: ProgramInput, columns: tuple[Column, ...], counts: Counts, free: frozenset[str], deadline: float
) -> tuple[Counts | None, float]:
    program = build_program(problem, columns, "rack", counts=counts, free_racks=free)
    make = power_objective if problem.options.objective == "power" else cost_objective
    amounts = make(program, tie_break=False).amounts
    left = max(1.0, min(LEFTOVER_TIME_S, deadline - time.monotonic()))
    limits = SolveLimits(left, LEFTOVER_GAP, 1e-6, LEFTOVER_NODES)
    answer = solve_arrays(program.model.with_objective(amounts), limits)
    if not answer.has_solution:
        return None, 0.0
    planned = {
        (index, program.locations[place].name): round(answer.values[variable])
        for (index, place), variable in program.n.items()
        if round(answer.values[variable])
    }
    return planned, sum(amount * round(answer.values[variable]) for variable, amount in amounts.items())


def _whole_master(master: Master, columns: tuple[Column, ...], deadline: float) -> tuple[Counts | None, float]:
    """The master in whole numbers, asked for a little more load until the real links carry all of it."""
    inflate = 1.0
    for _ in range(REPAIRS):
        rows = build_master(master, inflate, integer=True)
        left = max(1.0, min(MASTER_TIME_S, deadline - time.monotonic()))
        answer = solve_arrays(rows.model, SolveLimits(left, MASTER_GAP, 1e-6, MASTER_NODES))
        if not answer.has_solution or any(answer.values[short] > 1e-6 for short in rows.short.values()):
            break
        uses = {key: round(answer.values[use]) for key, use in rows.uses.items()}
        counts, _ = _on_racks(master, uses)
        served = served_share(master.problem, columns, counts)
        if served >= 1.0 - 1e-9:
            return counts, sum(master.patterns[p].amount * many for (_, p), many in uses.items())
        if served <= 0.0 or time.monotonic() > deadline:
            break
        inflate *= (1.0 + 1e-4) / served
    return None, 0.0


def _on_racks(master: Master, uses: Mapping[tuple[int, int], int]) -> tuple[Counts, set[str]]:
    """Give every pattern its racks; those of a class are dealt out pod by pod, so that each pod gets a share."""
    fleet = master.problem.fleet
    pod_of = {rack.name: rack.pod for rack in fleet.racks}
    names: dict[str, list[str]] = {}
    for location in fleet_locations(fleet, "rack"):
        names.setdefault(location.rack, []).append(location.name)
    counts: Counts = {}
    used: set[str] = set()
    for number, rack_class in enumerate(master.racks.classes):
        dealt = _dealt(rack_class.racks, pod_of)
        for p, pattern in enumerate(master.patterns):
            for _ in range(uses.get((number, p), 0)):
                rack = dealt.pop(0)
                used.add(rack)
                for column, place, count in pattern.counts:
                    counts[column, names[rack][place]] = count
    return counts, used


def _dealt(racks: tuple[str, ...], pod_of: Mapping[str, str]) -> list[str]:
    """Racks in the order first of every pod, second of every pod, …"""
    rank: dict[str, int] = {}
    order = []
    for rack in racks:
        rank[pod_of[rack]] = rank.get(pod_of[rack], -1) + 1
        order.append((rank[pod_of[rack]], rack))
    return [rack for _, rack in sorted(order, key=lambda entry: entry[0])]


def fixed_program(problem: ProgramInput, columns: tuple[Column, ...], counts: Counts) -> Program:
    """The program on real racks with these instances and no others."""
    return build_program(problem, columns, "rack", counts=counts)


def served_share(problem: ProgramInput, columns: tuple[Column, ...], counts: Counts) -> float:
    """The flow check: what share of the load these instances serve over the links there are (at most 1)."""
    program = fixed_program(problem, columns, counts)
    model = program.model.relaxed()
    model.low[program.sigma], model.high[program.sigma] = 0.0, 1.0
    answer = solve_arrays(model.with_objective({program.sigma: 1.0}, maximise=True))
    return answer.objective if answer.has_solution else 0.0
