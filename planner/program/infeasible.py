"""Why there is no plan, in the words of people who own fleets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from splitplan.planner.program.linear import LinearModel
from splitplan.planner.program.objective import goodput_objective
from splitplan.planner.program.optimum import elastic
from splitplan.planner.program.pipelines import split_by_failures
from splitplan.planner.program.solver import Answer, SolveLimits, smallest_conflict, solve, solve_arrays
from splitplan.planner.program.types import Infeasible, Reason

if TYPE_CHECKING:
    from splitplan.planner.program.build import Program

SMALLEST_GAIN = 1e-6
TEN_GBIT_IN_GB = 1.25
WAYS_OUT = 4


def explain_infeasible(program: Program) -> Infeasible:
    """Reasons in order: classes nobody can serve, the share of the load that fits, and what stops the rest.

    The conflict is an infeasible subsystem of the relaxation; where only whole numbers block, it is empty, and an
    elastic re-solve (as much of the load as possible) says how far the fleet goes.
    """
    missing = _missing_roles(program)
    if missing:
        return Infeasible(tuple(missing), 0.0)
    loose = elastic(program).with_objective(goodput_objective(program), maximise=True)
    relaxed = solve_arrays(loose.relaxed())
    whole = solve(loose, SolveLimits(program.problem.options.time_limit_s, 1e-4, 1e-6))
    share = max(0.0, whole.objective) if whole.has_solution else 0.0
    reasons = [_load_reason(program, share, relaxed), *_ways_out(program, loose, relaxed)]
    return Infeasible(tuple(reasons), share, smallest_conflict(program.model))


def _missing_roles(program: Program) -> list[Reason]:
    """Classes for which no instance that fits the fleet can do the work at all."""
    able: dict[str, set[int]] = {"prefill": set(), "decode": set(), "colocated": set()}
    for index, _ in program.n:
        column = program.columns[index]
        able[column.role] |= {int(b) for b in np.flatnonzero(np.isfinite(column.work_s_per_request))}
    reasons = []
    names = program.problem.class_names
    for b in range(len(names)):
        if program.normal.rate_req_per_s[b] <= 0 or b in able["colocated"]:
            continue
        name = f"class {names[b]}" if len(names) > 1 else "this workload"
        lacking = [role for role in ("prefill", "decode") if b not in able[role]]
        if len(lacking) == 2:
            message = f"no kind of instance that fits this fleet can serve {name} within the targets"
            reasons.append(Reason(message, "relax the targets, or add GPUs with more memory or speed"))
            if split_by_failures(program):
                message = (
                    f"pipelines over two GPU types could, but a {program.problem.options.survive} gone may split them"
                )
                reasons.append(Reason(message, "--survive rack, or no --survive"))
        elif lacking:
            message = f"no kind of instance that fits this fleet can {_verb(lacking[0])} {name} within the targets"
            target = "ttft" if lacking[0] == "prefill" else "tpot"
            reasons.append(Reason(message, f"relax `{target}`, or add faster GPUs for {lacking[0]}"))
        elif not any(key[0] == b for key in (*program.normal.stay, *program.normal.up)):
            message = f"no prefill instance may send its KV to any decode instance that serves {name}"
            reasons.append(Reason(message, "allow more KV dtypes or parallel sizes, or colocated serving"))
    return reasons


def _verb(role: str) -> str:
    return "prefill" if role == "prefill" else "decode"


def _load_reason(program: Program, share: float, relaxed: Answer) -> Reason:
    rate = float(program.normal.rate_req_per_s.sum())
    served = f"at most {100 * share:.0f} % of the load ({share * rate:.3g} of {rate:.3g} req/s) fits this fleet"
    if program.problem.options.survive:
        served += f" with any one {program.problem.options.survive} gone"
    if relaxed.has_solution and relaxed.objective >= 1.0:
        served += "; with parts of instances all of it would, so only whole instances stand in the way"
    return Reason(served, f"plan for {share * rate:.3g} req/s" if share > 0 else "")


def _ways_out(program: Program, loose: LinearModel, relaxed: Answer) -> list[Reason]:
    """The limits that hold the load back, the strongest first, with what one more unit of each would bring."""
    if not relaxed.has_solution or relaxed.objective >= 1.0:
        return []
    gains: list[tuple[float, str, Reason]] = []
    rate = float(program.normal.rate_req_per_s.sum())
    for name, dual, limit in zip(loose.constraint_names, relaxed.duals, loose.rhs, strict=True):
        worth = abs(dual) * (limit if limit > 0 else 1.0)  # a limit of zero holds back all the same
        reason = limit_in_words(program, name, abs(dual), rate)
        if worth > SMALLEST_GAIN and reason is not None:
            gains.append((-worth, name, reason))
    return [reason for _, _, reason in sorted(gains, key=lambda gain: gain[:2])[:WAYS_OUT]]


def limit_in_words(program: Program, name: str, gain: float, rate: float) -> Reason | None:
    """A binding limit as people say it, or None where it is none of the fleet; `gain` is rate scale per unit of it."""
    kind, _, rest = name.partition("[")
    what = rest.rstrip("]")
    if kind == "gpus_fit":
        place, _, group = what.partition(", ")
        location = next(location for location in program.locations if location.name == place)
        size = int(group.rpartition(" ")[2])
        more = gain * rate * (8 // size if size < 8 else 1)
        return Reason(
            f"every {location.gpu} GPU at {place} is needed",
            f"{max(8, size)} more {location.gpu} GPUs there would serve {more:.3g} req/s more",
        )
    unit = {"rack_power": (1e3, "kW"), "power": (1e3, "kW"), "budget": (1.0, "$/h")}.get(kind)
    if unit:
        label = {"rack_power": f"the power limit of rack {what} binds", "power": "the power limit binds"}
        step, symbol = unit
        return Reason(
            label.get(kind, "the budget binds"), f"1 {symbol} more would serve {gain * step * rate:.3g} req/s more"
        )
    if kind.startswith(("nic_", "rack_uplink", "pod_uplink", "spine")):
        link = "the spine" if kind == "spine" else f"{kind.replace('_', ' ')} of {what}"
        share = program.problem.options.network_utilisation
        more = gain * rate * TEN_GBIT_IN_GB * share
        return Reason(f"KV transfer fills {link}", f"10 Gbit/s more would serve {more:.3g} req/s more")
    return None
