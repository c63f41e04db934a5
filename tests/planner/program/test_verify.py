"""The independent check: an answer that breaks any one constraint, by hand, is caught, and says which."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from splitplan.planner.program.solve import solve_program
from splitplan.planner.program.types import (
    Flow,
    Hour,
    Placed,
    ProgramInput,
    ProgramSolution,
    Running,
    ServedState,
)
from splitplan.planner.program.verify import verify
from splitplan.planner.spec.fleet import Fleet, Pod, PriceTier
from tests.planner.program.fleets import GBIT, a_column, a_fleet, a_node, a_problem, a_rack, same_kv

Breaks = Callable[[ProgramInput, ProgramSolution], tuple[ProgramInput, ProgramSolution]]


def two_racks(**changes: Any) -> Fleet:
    """H100 in one pod, A100 in the other, everything between them limited."""
    racks = [
        a_rack("r0", [a_node("h0", rack="r0"), a_node("h1", rack="r0")], pod="p0", power_limit_watts=9000.0),
        a_rack("r1", [a_node("a0", "a100-sxm-80", rack="r1")], pod="p1"),
    ]
    pods = (Pod("p0", 300 * GBIT), Pod("p1", 300 * GBIT))
    return a_fleet(racks, pods=pods, spine_bytes_per_s=200 * GBIT, **changes)


COLUMNS = (a_column("prefill", work=[0.1]), a_column("decode", "a100-sxm-80", work=[0.2]))
"""Prefill in one rack, decode in the other: every request crosses every link."""


def solved(problem: ProgramInput) -> ProgramSolution:
    answer = solve_program(problem)
    assert isinstance(answer, ProgramSolution), answer
    assert verify(problem, answer).failures == []
    return answer


def failures(problem: ProgramInput, solution: ProgramSolution) -> str:
    return "\n".join(verify(problem, solution).failures)


def with_fleet(**changes: Any) -> Breaks:
    """A fleet with less of something."""
    return lambda problem, solution: (replace(problem, fleet=replace(problem.fleet, **changes)), solution)


def with_racks(rack_changes: dict[str, Any], node_changes: dict[str, Any] | None = None) -> Breaks:
    def change(problem: ProgramInput, solution: ProgramSolution) -> tuple[ProgramInput, ProgramSolution]:
        racks = tuple(
            replace(rack, nodes=tuple(replace(node, **(node_changes or {})) for node in rack.nodes), **rack_changes)
            for rack in problem.fleet.racks
        )
        return replace(problem, fleet=replace(problem.fleet, racks=racks)), solution

    return change


def with_options(**changes: Any) -> Breaks:
    return lambda problem, solution: (replace(problem, options=replace(problem.options, **changes)), solution)


def with_answer(**changes: Any) -> Breaks:
    return lambda problem, solution: (problem, replace(solution, **changes))


def with_placed(change: Callable[[Placed], Placed]) -> Breaks:
    def broken(problem: ProgramInput, solution: ProgramSolution) -> tuple[ProgramInput, ProgramSolution]:
        return problem, replace(solution, placed=tuple(change(item) for item in solution.placed))

    return broken


def with_flows(change: Callable[[Flow], Flow]) -> Breaks:
    def broken(problem: ProgramInput, solution: ProgramSolution) -> tuple[ProgramInput, ProgramSolution]:
        return problem, replace(solution, flows=tuple(change(flow) for flow in solution.flows))

    return broken


def slower(problem: ProgramInput, solution: ProgramSolution) -> tuple[ProgramInput, ProgramSolution]:
    columns = tuple(replace(c, work_s_per_request=c.work_s_per_request * 1.5) for c in problem.columns)
    return replace(problem, columns=columns), solution


def more_asked(problem: ProgramInput, solution: ProgramSolution) -> tuple[ProgramInput, ProgramSolution]:
    return replace(problem, rate_req_per_s=problem.rate_req_per_s * 1.01), solution


BROKEN: dict[str, tuple[Breaks, str]] = {
    "demand": (more_asked, "class class0: served by prefill and colocated"),
    "instance time": (slower, "instance time"),
    "NIC": (with_racks({}, {"nic_bytes_per_s": 1 * GBIT}), "NIC out h0"),
    "rack uplink": (with_racks({"uplink_bytes_per_s": 1 * GBIT}), "rack uplink in r1"),
    "pod uplink": (with_fleet(pods=(Pod("p0", GBIT), Pod("p1", GBIT))), "pod uplink out p0"),
    "spine": (with_fleet(spine_bytes_per_s=GBIT), "spine"),
    "rack power": (with_racks({"power_limit_watts": 2100.0}), "r0: watts"),
    "a column nobody knows": (with_placed(lambda item: replace(item, column="prefill h200")), "nobody knows"),
    "a place nobody knows": (with_placed(lambda item: replace(item, location="h9")), "nobody knows: ['h9']"),
    "GPU type": (
        with_placed(lambda item: replace(item, location="h0") if item.role == "decode" else item),
        "decode a100-sxm-80 tp1 at h0: GPU type",
    ),
    "whole instances": (with_placed(lambda item: replace(item, instances=0.5)), "whole instances"),
    "group size": (
        with_placed(lambda item: replace(item, instances=9) if item.role == "decode" else item),
        "a0: groups fit NVLink domains",
    ),
    "flow": (with_flows(lambda flow: replace(flow, rate_req_per_s=flow.rate_req_per_s / 2)), "KV flow of class class0"),
    "flow from nowhere": (with_flows(lambda flow: replace(flow, prefill_location="h1")), "starts and ends at an inst"),
    "flow's reach": (with_flows(lambda flow: replace(flow, reach="rack")), "reach"),
    "connector": (lambda p, s: (replace(p, pairs_allowed=lambda one, other: False), s), "connector"),
    "budget": (with_options(budget_usd_per_hour=1.0), "budget"),
    "fleet's budget": (with_fleet(max_usd_per_hour=1.0), "fleet's budget"),
    "power": (with_options(max_power_watts=100.0), "power"),
    "mode": (with_options(mode="colocated"), "allowed by mode"),
    "forbid": (with_options(forbid=("a100-sxm-80",)), "decode a100-sxm-80 tp1: allowed by mode"),
    "pin": (with_options(pin=("decode:tp=2",)), "allowed by mode"),
    "required": (with_options(require=("l40s",)), "required: l40s"),
    "kinds": (with_options(max_kinds=0), "kinds of prefill"),
    "share per rack": (with_options(max_share_per_rack=0.5), "r0: share of prefill"),
    "dollars": (with_answer(usd_per_hour=1.0), "dollars per hour"),
    "watts": (with_answer(watts=1.0), "watts"),
    "GPUs": (with_answer(num_gpus=1), "GPUs"),
    "moves": (with_answer(moves=3), "started or stopped"),
    "value": (with_answer(value=1.0), "value of the objective"),
    "bound": (with_answer(bound=1000.0), "no better than its bound"),
    "headroom": (with_answer(headroom=9.0), "instance time"),
}


@pytest.mark.parametrize("what", list(BROKEN))
def test_a_broken_constraint_is_caught(what: str) -> None:
    """One thing in the question or the answer is changed so that the answer no longer keeps it."""
    problem = replace(a_problem(two_racks(), COLUMNS, [10.0]), pairs_allowed=same_kv)
    breaks, said = BROKEN[what]
    assert said in failures(*breaks(problem, solved(problem)))


def test_gpus_in_use_are_caught() -> None:
    """An answer that needs GPUs somebody took in the meantime does not fit any more."""
    problem = a_problem(two_racks(), COLUMNS, [10.0])
    taken = with_racks({}, {"gpus_in_use": (0, 1, 2, 3, 4, 5, 6)})
    assert "groups fit NVLink domains" in failures(*taken(problem, solved(problem)))


def survivors() -> tuple[ProgramInput, ProgramSolution]:
    racks = [a_rack(f"r{i}", [a_node(f"n{i}", num_gpus=2, rack=f"r{i}")]) for i in range(4)]
    columns = [a_column("prefill", work=[0.2]), a_column("decode", work=[0.2])]
    problem = a_problem(a_fleet(racks), columns, [10.0], survive="rack")
    return problem, solved(problem)


def test_failures_are_checked_as_states_of_their_own() -> None:
    """The loss of each rack has its own rates and flows; alike racks share one; a missing one is named."""
    problem, solution = survivors()
    in_use = {placed.rack for placed in solution.placed}
    assert {name for state in solution.states for name in state.stands_for} == in_use
    assert len(solution.states) < len(in_use)
    missing = replace(solution, states=())
    for rack in in_use:
        assert f"the loss of {rack} is survived" in failures(problem, missing)


def broken_state(solution: ProgramSolution, **changes: Any) -> ProgramSolution:
    first, *rest = solution.states
    return replace(solution, states=(replace(first, **changes), *rest))


def test_a_broken_failure_state_is_caught() -> None:
    """Instances on what is gone, more of them than planned, too little served, or a domain that is not like it."""
    problem, solution = survivors()
    state: ServedState = solution.states[0]
    gone = next(placed for placed in solution.placed if placed.rack == state.gone)
    assert "not gone" in failures(problem, broken_state(solution, placed=(*state.placed, gone)))
    more = tuple(replace(placed, instances=placed.instances + 1) for placed in state.placed)
    assert ": planned" in failures(problem, broken_state(solution, placed=more))
    fewer = state.placed[1:]
    assert f"(without {state.gone})" in failures(problem, broken_state(solution, placed=fewer))
    assert "is one that was asked about" in failures(problem, broken_state(solution, gone="r9"))
    unlike = [rack.name for rack in problem.fleet.racks if rack.name not in state.stands_for]
    for other in unlike:
        lied = broken_state(solution, stands_for=(*state.stands_for, other))
        assert f"the loss of {other} is that of {state.gone} but for names" in failures(problem, lied)


def test_every_hour_is_checked() -> None:
    """An answer for the day that does not say who serves the night, or not all of it, is caught."""
    columns = [a_column("prefill", work=[0.1, 0.1]), a_column("decode", work=[0.1, 0.1])]
    day, night = Hour("day", np.array([10.0, 2.0])), Hour("night", np.array([1.0, 9.0]))
    fleet = a_fleet([a_rack("r0", [a_node("n0")])])
    problem = replace(a_problem(fleet, columns, [1.0, 1.0]), hours=(day, night))
    solution = solved(problem)
    assert [state.hour for state in solution.states] == ["night"]
    assert "hour night is served" in failures(problem, replace(solution, states=()))
    later = replace(problem, hours=(day, replace(night, rate_req_per_s=np.array([1.0, 9.5]))))
    assert "class class1: served by prefill and colocated (night)" in failures(later, solution)


def test_kinds_of_price_are_checked() -> None:
    """More spot GPUs than there are, none bought for some, or another price than the fleet's."""
    tiers = (
        PriceTier("h100-sxm", "spot", 2.0, "test", 2),
        PriceTier("h100-sxm", "on_demand", 4.0, "test", None),
    )
    fleet = a_fleet([a_rack("r0", [a_node("n0")])], price_tiers=tiers)
    columns = [a_column("colocated", work=[0.2])]
    problem = a_problem(fleet, columns, [20.0], price_kinds=("spot", "on_demand"))
    solution = solved(problem)
    spot, ordinary = sorted(solution.bought, key=lambda entry: entry.usd_per_gpu_hour)
    swapped = (replace(spot, num_gpus=4), replace(ordinary, num_gpus=0))
    assert "h100-sxm at the spot price: GPUs" in failures(problem, replace(solution, bought=swapped))
    assert "h100-sxm: GPUs bought" in failures(problem, replace(solution, bought=(spot,)))
    dearer = (replace(spot, usd_per_gpu_hour=3.0), ordinary)
    assert "at the spot price: on offer" in failures(problem, replace(solution, bought=dearer))


def test_goodput_is_checked() -> None:
    """A rate scale that is not what the rates say, and one above the most that was wanted."""
    columns = [a_column("colocated", work=[0.2])]
    fleet = a_fleet([a_rack("r0", [a_node("n0")])])
    problem = a_problem(fleet, columns, [10.0], objective="goodput")
    solution = solved(problem)
    assert "rate scale" in failures(problem, replace(solution, rate_scale=5.0))
    capped = replace(problem, options=replace(problem.options, max_rate_scale=2.0))
    assert "rate scale" in failures(capped, solution)


def test_a_split_class_is_caught() -> None:
    """Where classes must stay whole, two columns that prefill one class break it."""
    columns = [
        a_column("prefill", work=[0.1]),
        a_column("prefill", "a100-sxm-80", work=[0.15]),
        a_column("decode", work=[0.1]),
    ]
    problem = a_problem(two_racks(), columns, [40.0], budget_usd_per_hour=1000.0)
    both = replace(problem, options=replace(problem.options, require=("prefill=a100-sxm-80", "prefill=h100-sxm")))
    solution = solved(both)
    whole = replace(both, options=replace(both.options, whole_classes=True))
    served = [placed for placed in solution.placed if placed.role == "prefill" and placed.rate_req_per_s[0] > 0]
    assert ("is not split" in failures(whole, solution)) == (len({placed.column for placed in served}) > 1)
    assert len({placed.column for placed in served}) > 1


def test_moves_against_what_runs_are_counted() -> None:
    """One instance runs elsewhere than planned: its stop and the start of the planned one are two moves."""
    fleet = a_fleet([a_rack("r0", [a_node("n0"), a_node("n1")])])
    problem = a_problem(fleet, [a_column("colocated", work=[0.2])], [5.0], move_usd_per_hour=0.1)
    running = replace(problem, running=(Running("colocated h100-sxm tp1", "n1"),))
    solution = solved(running)
    assert (solution.moves, solution.placed[0].location) == (0, "n1")
    elsewhere = tuple(replace(item, location="n0") for item in solution.placed)
    assert "started or stopped" in failures(running, replace(solution, placed=elsewhere))
