"""Why there is no plan, in the words of people who own fleets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from splitplan.catalogs.errors import OutOfTimeError, SolverError
from splitplan.planner.columns.column import Column
from splitplan.planner.program.build import Program, build_program
from splitplan.planner.program.linear import LinearModel
from splitplan.planner.program.objective import goodput_objective
from splitplan.planner.program.optimum import elastic, find_optimum
from splitplan.planner.program.pipelines import split_by_failures
from splitplan.planner.program.solver import Answer, smallest_conflict, solve_arrays
from splitplan.planner.program.types import Infeasible, ProgramInput, Reason

SMALLEST_GAIN = 1e-6
TEN_GBIT_IN_GB = 1.25
WAYS_OUT = 4
PLACES_NAMED = 6
SHARE_TIME_S = 20.0
"""For finding out how much of the load fits."""


def explain_infeasible(program: Program) -> Infeasible:
    """Reasons in order: classes nobody can serve, the share of the load that fits, and what stops the rest.

    The conflict is an infeasible subsystem of the relaxation; where only whole numbers block, it is empty, and an
    elastic re-solve (as much of the load as possible) says how far the fleet goes.
    """
    missing = _missing_roles(program)
    if missing:
        return Infeasible(tuple(missing), 0.0)
    loose = elastic(program).with_objective(goodput_objective(program), maximise=True)
    for variable in program.n.values():
        loose.high[variable] = math.inf  # said by gpus_fit already, which has a name
    relaxed = solve_arrays(loose.relaxed())
    share = largest_share(program.problem, program.columns)
    named = program.model.copy()
    named.high = list(loose.high)
    for sigma in program.all_sigmas:
        named.high[sigma] = 1.0
    conflict = smallest_conflict(named)
    reasons = [_load_reason(program, share, relaxed), *_ways_out(program, loose, relaxed)]
    if len(reasons) == 1:
        reasons += _conflict_reason(program, conflict)
    if share <= 0:
        first, *rest = reasons[1:]
        rate = float(program.normal.rate_req_per_s.sum())
        message = f"none of the load ({rate:.3g} req/s) fits this fleet{_gone(program)}: {first.message}"
        reasons = [Reason(message, first.next_step), *rest]
    return Infeasible(tuple(reasons), share, conflict)


def largest_share(problem: ProgramInput, columns: tuple[Column, ...]) -> float:
    """The share of the load that fits in whole instances, as far as SHARE_TIME_S allows; at most 1."""
    options = problem.options
    wanted = replace(
        options, objective="goodput", class_weights=None, max_rate_scale=1.0, tie_breaks=False, gap_percent=0.01,
        time_limit_s=min(options.time_limit_s, SHARE_TIME_S),
    )  # fmt: skip
    try:
        optimum = find_optimum(build_program(replace(problem, options=wanted, running=()), columns))
    except OutOfTimeError:
        raise
    except SolverError:  # nothing found in that time: nothing is promised
        return 0.0
    return min(1.0, optimum.value) if optimum else 0.0


def _conflict_reason(program: Program, conflict: tuple[str, ...]) -> list[Reason]:
    """Which limits cannot hold together, where no single one has a price: none of them is spare."""
    words = [words for name in conflict if (words := limit_words(program, name))]
    if words:
        return [Reason(f"these cannot hold together with the load: {', '.join(dict.fromkeys(words))}")]
    cheapest = min((usd for _, usd in rent_by_instance(program)), default=0.0)
    limit = program.problem.options.budget_usd_per_hour
    if limit is not None and cheapest > limit:
        message = f"the cheapest single instance costs {cheapest:.4g} $/h, the budget is {limit:.4g} $/h"
        return [Reason(message, "raise --budget")]
    return [Reason("parts of instances could serve more of it, whole ones cannot", "add GPUs, or allow more kinds")]


def rent_by_instance(program: Program) -> list[tuple[str, float]]:
    """(column, dollars per hour) of one instance of everything that could stand somewhere."""
    prices: dict[tuple[int, int], float] = {}
    for use in program.uses:
        usd = use.num_gpus * program.locations[use.place].usd_per_gpu_hour
        prices[use.index, use.variable] = prices.get((use.index, use.variable), 0.0) + usd
    return [(program.columns[index].name, usd) for (index, _), usd in prices.items()]


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
    percent = f"{100 * share:.0f}" if share >= 0.01 or share == 0 else f"{100 * share:.1g}"
    served = f"at most {percent} % of the load ({share * rate:.3g} of {rate:.3g} req/s) fits this fleet by capacity"
    served += ", before any simulation" if share > 0 else ""
    served += _gone(program)
    if relaxed.has_solution and relaxed.objective >= 1.0:
        served += "; with parts of instances all of it would, so only whole instances stand in the way"
    return Reason(served, f"ask for {rounded_down(share * rate)} req/s or less" if share > 0 else "")


def _gone(program: Program) -> str:
    survive = program.problem.options.survive
    return f" with any one {survive} gone" if survive else ""


def rounded_down(rate: float) -> str:
    """A rate in three digits, never above what it was."""
    unit = 10.0 ** (math.floor(math.log10(rate)) - 2)
    return f"{math.floor(rate / unit * (1 + 1e-9)) * unit:.3g}"


def _ways_out(program: Program, loose: LinearModel, relaxed: Answer) -> list[Reason]:
    """The limits that hold the load back, the strongest first, with what one more unit of each would bring."""
    if not relaxed.has_solution or relaxed.objective >= 1.0:
        return []
    gains: dict[tuple[Limit, str], float] = {}  # by limit and place: rate scale per step
    worth: dict[tuple[Limit, str], float] = {}
    rate = float(program.normal.rate_req_per_s.sum())
    for name, dual, limit in zip(loose.constraint_names, relaxed.duals, loose.rhs, strict=True):
        found = limit_of(program, name) if abs(dual) > SMALLEST_GAIN else None
        if found is not None and found[0].step:
            kind, place, steps = found
            gains[kind, place] = gains.get((kind, place), 0.0) + abs(dual) * steps
            # a limit of zero holds back all the same
            worth[kind, place] = worth.get((kind, place), 0.0) + abs(dual) * (limit if limit > 0 else 1.0)
    alike: dict[tuple[Limit, str], list[str]] = {}
    for kind, place in sorted(gains, key=lambda key: -worth[key]):
        alike.setdefault((kind, f"{gains[kind, place] * rate:.3g}"), []).append(place)
    total = {key: sum(worth[key[0], place] for place in places) for key, places in alike.items()}
    return [
        Reason(kind.sentence(places), f"{kind.step} would serve {more} req/s more")
        for (kind, more), places in sorted(alike.items(), key=lambda item: -total[item[0]])[:WAYS_OUT]
    ]


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit of the fleet or of the question as people say it: `text` has {} where its places go."""

    text: str
    step: str  # one step more of it

    def sentence(self, places: Sequence[str]) -> str:
        """The limit with the places where it holds."""
        named = [place for place in places if place]
        if len(named) > PLACES_NAMED:
            named = [*named[:PLACES_NAMED], f"{len(named) - PLACES_NAMED} more places"]
        return self.text.format(listed(named))


def listed(words: Sequence[str]) -> str:
    """ "a, b and c"."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else list(words))


def limit_of(program: Program, name: str) -> tuple[Limit, str, float] | None:
    """(limit, place, steps of its row's unit) of a row, or None where it limits nothing by itself."""
    kind, _, rest = name.partition("[")
    what = rest.rstrip("]")
    if kind == "gpus_fit":
        place, _, group = what.rpartition(", ")
        location = next(location for location in program.locations if location.name == place)
        size = int(group.rpartition(" ")[2])
        step = f"{max(8, size)} more {location.gpu} GPUs there"
        return Limit(f"every {location.gpu} GPU at {{}} is needed", step), place, 8 // size if size < 8 else 1
    if kind in ("nic_out", "nic_in", "nic_used_out", "nic_used_in", "spine") or "uplink" in kind:
        link = "the spine" if kind == "spine" else f"the {kind.replace('_used', '').replace('_', ' ')} of {{}}"
        share = program.problem.options.network_utilisation
        place = "" if kind == "spine" else what
        return Limit(f"KV transfer fills {link}", "10 Gbit/s more there"), place, TEN_GBIT_IN_GB * share
    if kind == "rack_power":
        return Limit("the power limit of rack {} binds", "1 kW more"), what, 1e3
    if kind == "power":
        return Limit("the power limit binds", "1 kW more"), "", 1e3
    if kind == "budget":
        return Limit("the budget binds", "1 $/h more"), "", 1.0
    return _wish_of(program, kind, what)


def _wish_of(program: Program, kind: str, what: str) -> tuple[Limit, str, float] | None:
    """A row that the question asked for."""
    options = program.problem.options
    if kind == "share_per_rack" and options.max_share_per_rack is not None:
        role, _, rack = what.partition(", ")
        percent = f"{100 * options.max_share_per_rack:.0f} %"
        text = f"no more than {percent} of {role} may be in {{}} (--max-rack-share)"
        return Limit(text, ""), rack, 1.0
    texts = {
        "required": f"one '{what}' is required (--require)",
        "kinds": f"no more than {options.max_kinds} of its shapes of {what} may be used (--kinds)",
        "whole_class": f"class {what} must stay whole (--whole-classes)",
        "survive": f"the load must be served without {what} (--survive)",
    }
    return (Limit(texts[kind], ""), "", 1.0) if kind in texts else None


def limit_words(program: Program, name: str) -> str:
    """A row of a conflict in words; "" for one that limits nothing by itself."""
    found = limit_of(program, name)
    return found[0].sentence([found[1]]) if found else ""
