"""Large fleets: column generation over rack patterns (Dantzig–Wolfe), with a proven bound in every round.

    λ[C,P] ∈ ℤ₊             racks of class C with pattern P
    inside, out, in[g,b,k]  KV between racks of the pods of group g, leaving these pods, entering them (req/s)
    short[b]                requests/s not served, at a price no plan would pay

    min Σ amount_P · λ[C,P]
    demand[b]     Σ served_P,b · λ + Σ_{g,k} (inside + in) + short ≥ rate_b             price π_b
    sent[g,b,k]   Σ_{C in g} up_P · λ ≥ inside + out                                    price μ_up
    taken[g,b,k]  Σ_{C in g} down_P · λ ≥ inside + in                                   price μ_down
    across[b,k]   Σ_g out ≥ Σ_g in
    racks[C]      Σ_P λ[C,P] ≤ number of racks
    pod_out/in[g] Σ GB · out ≤ pods · safe share of their uplink;  spine[·] Σ GB · up_P · λ ≤ safe share
    budget        Σ dollars · λ ≤ budget

Patterns are found where they are missing (`patterns.py`). At any prices, Σ price · rhs + Σ_C racks_C · (least reduced
amount of C) is a lower bound on every plan (Lagrange). `rounding.py` makes whole racks of the λ.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import numpy as np

from splitplan.planner.columns.column import Column
from splitplan.planner.patience import Progress, listener, seconds_left
from splitplan.planner.program.constraints import GIGABYTE
from splitplan.planner.program.master import Master, MasterRows, build_master
from splitplan.planner.program.patterns import Pricing, RackClasses, channels, rack_classes
from splitplan.planner.program.reduce import families
from splitplan.planner.program.rounding import whole_racks
from splitplan.planner.program.solver import Answer, solve_arrays
from splitplan.planner.program.types import FloatArray, ProgramInput

CLOSE_ENOUGH = 2e-3
"""Rounds end when the master's value is this close to the bound; integer rounding costs about as much."""
MOST_ROUNDS = 200
SMOOTHING = 0.5
SHORT_PRICE_FACTOR = 20.0


@dataclass(slots=True)
class LargeAnswer:
    """Instances per (column, location name), what they cost and what any plan must cost at least."""

    counts: dict[tuple[int, str], int]
    value: float
    bound: float
    rounds: int
    patterns: int


def can_use_patterns(problem: ProgramInput) -> bool:
    """Whether the question has the form that rack patterns answer."""
    options = problem.options
    return not (
        options.objective == "goodput"
        or options.survive
        or options.max_share_per_rack is not None
        or options.price_kinds
        or options.whole_classes
        or options.class_groups
        or options.require
        or options.max_power_watts is not None
        or problem.hours
        or problem.running
        or problem.held.limits
    )


def solve_large(problem: ProgramInput, columns: tuple[Column, ...]) -> LargeAnswer | None:
    """Plan a large fleet; None when the load cannot be served or time ran out before any plan was found."""
    start = time.monotonic()
    deadline = start + min(problem.options.time_limit_s, seconds_left())
    racks = rack_classes(problem.fleet)
    pricings = [Pricing(problem, columns, shape, rack) for shape, rack in enumerate(racks.shapes)]
    master = _new_master(problem, columns, racks, pricings)
    rounds, bound = _generate(master, pricings, deadline, start)
    counts, value = whole_racks(master, columns, deadline)
    if counts is None:
        return None
    tell = listener()
    if tell:
        tell(Progress("whole racks", value, bound, time.monotonic() - start))
    return LargeAnswer(counts, value, bound, rounds, len(master.patterns))


def _new_master(
    problem: ProgramInput, columns: tuple[Column, ...], racks: RackClasses, pricings: list[Pricing]
) -> Master:
    kinds = families(columns, problem.pairs_allowed).kinds
    found = dict.fromkeys(channel for pricing in pricings for channel in channels(pricing.program))
    gigabytes = {
        (b, kind): float(problem.kv_bytes_per_request[kinds[kind].kv_dtype][b]) / GIGABYTE for b, kind in found
    }
    dearest = max((max(pricing.amounts.values()) for pricing in pricings if pricing.amounts), default=1.0)
    quickest = min(float(np.min(column.work_s_per_request)) for column in columns)
    slowest = max(float(np.max(c.work_s_per_request[np.isfinite(c.work_s_per_request)], initial=0.0)) for c in columns)
    price = SHORT_PRICE_FACTOR * dearest * max(slowest, quickest)
    return Master(problem, racks, tuple(found), gigabytes, price)


def _generate(
    master: Master,
    pricings: list[Pricing],
    deadline: float,
    start: float,
) -> tuple[int, float]:
    """Rounds of pricing until the master is close to its bound. Returns (rounds, best bound).

    Prices are smoothed towards those of the best bound so far (Wentges), which spares most of the detours that early
    prices make; any mixture of valid prices is valid, so each round's bound counts.
    """
    bound, center, tell = 0.0, None, listener()
    for number in range(MOST_ROUNDS):
        rows = build_master(master, 1.0)
        answer = solve_arrays(rows.model)
        true = _prices(master, rows, answer)
        used = true if center is None else center.mixed(true, SMOOTHING)
        least, added = _price_all(master, pricings, used)
        if not added and used is not true:
            used = true
            least, added = _price_all(master, pricings, used)
        here = used.constant + sum(len(c.racks) * least[n] for n, c in enumerate(master.racks.classes))
        if here > bound or center is None:
            bound, center = max(bound, here), used
        if tell:
            tell(Progress(f"round {number + 1}", answer.objective, bound, time.monotonic() - start))
        close = answer.objective - bound <= CLOSE_ENOUGH * abs(answer.objective)
        if not added or close or time.monotonic() > deadline:
            return number + 1, bound
    return MOST_ROUNDS, bound


@dataclass(frozen=True, slots=True)
class _Prices:
    """What the master pays: per req/s served inside a rack, sent up or taken in, by pod group; and Σ price · rhs."""

    served: FloatArray  # [classes]
    up: FloatArray  # [groups, channels]
    down: FloatArray  # [groups, channels]
    dollars: float  # of one more dollar of budget (≤ 0)
    constant: float

    def mixed(self, other: _Prices, share: float) -> _Prices:
        """share · self + (1 − share) · other."""
        rest = 1.0 - share
        return _Prices(
            share * self.served + rest * other.served,
            share * self.up + rest * other.up,
            share * self.down + rest * other.down,
            share * self.dollars + rest * other.dollars,
            share * self.constant + rest * other.constant,
        )


def _prices(master: Master, rows: MasterRows, answer: Answer) -> _Prices:
    """Duals of the master as prices; the spine's price is part of what sending up brings."""
    duals, num_groups = answer.duals, len(master.racks.group_pods)
    served = np.zeros(len(master.problem.class_names))
    for b, row in rows.demand.items():
        served[b] = duals[row]
    up = np.zeros((num_groups, len(master.channels)))
    down = np.zeros_like(up)
    spine = duals[rows.spine] if rows.spine is not None else 0.0
    for number, channel in enumerate(master.channels):
        for group in range(num_groups):
            up[group, number] = duals[rows.sent[group, channel]] + spine * master.gigabytes[channel]
            down[group, number] = duals[rows.taken[group, channel]]
    dollars = duals[rows.budget] if rows.budget is not None else 0.0
    rack_rows = set(rows.racks)
    constant = math.fsum(
        dual * rhs for row, (dual, rhs) in enumerate(zip(duals, rows.model.rhs, strict=True)) if row not in rack_rows
    )
    return _Prices(served, up, down, dollars, constant)


def _price_all(master: Master, pricings: list[Pricing], prices: _Prices) -> tuple[list[float], int]:
    """The least reduced amount of every class (never above 0: a rack may stay empty), and how many new patterns."""
    least, added = [], 0
    seen: dict[tuple[object, ...], float] = {}
    for rack_class in master.racks.classes:
        up = dict(zip(master.channels, prices.up[rack_class.group].tolist(), strict=True))
        down = dict(zip(master.channels, prices.down[rack_class.group].tolist(), strict=True))
        key = (rack_class.shape, *(float(f"{price:.8g}") for price in (*up.values(), *down.values())))
        if key not in seen:
            pattern, bound = pricings[rack_class.shape].best(prices.served, up, down, -prices.dollars)
            seen[key] = min(0.0, bound)
            added += master.add(pattern)
        least.append(seen[key])
    return least, added
