"""Several services in one program: the optimum of brute force, and parts that stand on their own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from splitplan.planner.columns.column import Column
from splitplan.planner.judge.corrections import Corrections
from splitplan.planner.place.assign import joined, seats_of
from splitplan.planner.program.solve import solve_program
from splitplan.planner.program.types import Infeasible, ProgramInput, ProgramOptions, ProgramSolution
from splitplan.planner.program.verify import verify
from splitplan.planner.services.problem import Member, cut, joint_problem, only
from splitplan.planner.services.trial import held_of
from splitplan.planner.services.ways import best_order, best_rack_split, by_racks, one_after_the_other
from splitplan.planner.spec.held import Held, fleet_left, held_as_text, held_from_text, together
from splitplan.planner.study import Study
from tests.planner.program.brute_force import BruteForce, allowed_by_dtype
from tests.planner.program.fleets import a_column, a_fleet, a_node, a_problem, a_rack
from tests.planner.program.test_brute_force import column_sets, fleets

MAX_FILLINGS = 2500


def a_member(name: str, problem: ProgramInput) -> Member:
    """A service whose study is only its program."""
    nothing: Any = None
    return Member(name, Study(nothing, nothing, nothing, problem), problem.columns)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[list[Member], ProgramOptions]:
    """Two services on one small fleet: own columns, rates and KV sizes; now and then a budget or the least power."""
    fleet = draw(fleets())
    members = []
    for name in ("a", "b"):
        num_classes = draw(st.sampled_from([1, 1, 2]))
        columns = draw(column_sets(num_classes, tuple(fleet.num_gpus)))
        rate = [draw(st.sampled_from([0.5, 1.0, 2.0])) for _ in range(num_classes)]
        kv = [draw(st.sampled_from([0.1, 0.4])) for _ in range(num_classes)]
        problem = replace(a_problem(fleet, columns, rate, kv_gb=kv), pairs_allowed=allowed_by_dtype)
        members.append(a_member(name, problem))
    budget = draw(st.sampled_from([None, None, 20.0]))
    objective = draw(st.sampled_from(["cost", "cost", "power"]))
    return members, ProgramOptions(objective=objective, budget_usd_per_hour=budget, granularity="node")


def union(members: list[Member], options: ProgramOptions) -> ProgramInput:
    """The two services as one problem, put together here and by hand for the slow answer."""
    first, second = (member.study.problem for member in members)
    sizes = len(first.class_names), len(second.class_names)
    gap = [np.full(size, np.inf) for size in sizes]
    columns: list[Column] = []
    for column in first.columns:
        work = np.concatenate([column.work_s_per_request, gap[1]])
        columns.append(replace(column, name=f"first {column.name}", work_s_per_request=work))
    for column in second.columns:
        work = np.concatenate([gap[0], column.work_s_per_request])
        columns.append(replace(column, name=f"second {column.name}", work_s_per_request=work))
    kv = {
        dtype: np.concatenate([first.kv_bytes_per_request[dtype], second.kv_bytes_per_request[dtype]])
        for dtype in ("bf16", "fp8")
    }

    def allowed(prefill: Column, decode: Column) -> bool:
        return prefill.name.split()[0] == decode.name.split()[0] and allowed_by_dtype(prefill, decode)

    return ProgramInput(
        first.fleet,
        tuple(columns),
        tuple(f"class{b}" for b in range(sum(sizes))),
        np.concatenate([first.rate_req_per_s, second.rate_req_per_s]),
        kv,
        pairs_allowed=allowed,
        options=options,
    )


def limited(case: tuple[list[Member], ProgramOptions]) -> bool:
    count, oracle = 1, BruteForce(union(*case))
    for node in case[0][0].study.problem.fleet.nodes:
        count *= sum(1 for _ in oracle._node_fillings(node))
    return count <= MAX_FILLINGS


@settings(
    max_examples=60,
    phases=[Phase.generate],  # an instance is small as it is
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
@given(case=pairs().filter(limited))
def test_two_services_get_the_optimum_of_brute_force(case: tuple[list[Member], ProgramOptions]) -> None:
    """Same value and GPUs as every filling of every node; each part holds on what the other leaves, and no better one
    does; nobody who plans one after the other gets below."""
    members, options = case
    problem = joint_problem(members, options, {})
    answer = solve_program(problem)
    expected = BruteForce(union(members, options)).least(options.objective)
    if expected is None:
        assert isinstance(answer, Infeasible)
        return
    assert isinstance(answer, ProgramSolution), answer.reasons
    assert (answer.value, answer.num_gpus) == (pytest.approx(expected[0], abs=1e-5), expected[1])
    _parts_hold(members, problem, answer)
    for order in best_order(problem)[:1]:
        after = one_after_the_other(order)(problem)  # may fail where ties left other GPUs than they did at first
        assert isinstance(after, Infeasible) or after.value >= answer.value - 1e-6


def _parts_hold(members: list[Member], problem: ProgramInput, answer: ProgramSolution) -> None:
    seats = seats_of(problem, answer)
    parts = [cut(member, problem, answer) for member in members]
    assert sum(part.usd_per_hour for part in parts) == pytest.approx(answer.usd_per_hour)
    assert sum(part.num_gpus for part in parts) == answer.num_gpus
    held = []
    for member, part in zip(members, parts, strict=True):
        own = only(problem, [member.name])
        mine = [seat for seat in seats if seat.column.service == member.name]
        whole = [item for item in answer.placed if item.column.startswith(member.prefix)]
        flows = [flow for flow in answer.flows if flow.prefill.startswith(member.prefix)]
        held.append(held_of(own, part, joined(own, replace(answer, placed=tuple(whole), flows=tuple(flows)), mine)))
    for member, part, others in zip(members, parts, reversed(held), strict=True):
        own = member.study.problem
        options = replace(own.options, granularity="node", objective=answer.objective)
        left = replace(own, fleet=fleet_left(own.fleet, others), held=others, options=options)
        assert verify(left, part).failures == []
        again = solve_program(left)
        assert isinstance(again, ProgramSolution)
        assert again.value == pytest.approx(part.value, abs=1e-5)


def two_types() -> tuple[list[Member], ProgramOptions]:
    """Two A100 and four H100: both models like the A100 for its price, the small one can do with less of it."""
    fleet = a_fleet(
        [a_rack("r0", [a_node("h", "h100-sxm", 4)]), a_rack("r1", [a_node("a", "a100-sxm-80", 2, rack="r1")])]
    )
    small = [a_column("colocated", "h100-sxm", work=[0.5]), a_column("colocated", "a100-sxm-80", work=[0.9])]
    large = [a_column("colocated", "h100-sxm", 2, work=[0.9]), a_column("colocated", "a100-sxm-80", 2, work=[0.95])]
    members = [a_member("small", a_problem(fleet, small, [1.0])), a_member("large", a_problem(fleet, large, [1.0]))]
    return members, ProgramOptions(granularity="node")


def test_planning_together_beats_one_after_the_other_and_whole_racks() -> None:
    """The small model would take an A100 (2.21 < 4.76); then the large one must pay two H100 instead of two A100."""
    members, options = two_types()
    problem = joint_problem(members, options, {})
    answer = solve_program(problem)
    assert isinstance(answer, ProgramSolution)
    assert answer.usd_per_hour == pytest.approx(4.76 + 2 * 2.21)
    listed = one_after_the_other(["small", "large"])(problem)
    assert isinstance(listed, ProgramSolution)
    assert listed.usd_per_hour == pytest.approx(2.21 + 2 * 4.76)
    assert best_order(problem)[0] == ("large", "small")
    owners = best_rack_split(problem)
    assert owners == {"r0": "small", "r1": "large"}
    racks = by_racks(owners)(problem)
    assert isinstance(racks, ProgramSolution)
    assert racks.usd_per_hour == pytest.approx(answer.usd_per_hour)


def test_corrections_are_each_service_s_own() -> None:
    """A correction of a column of one service leaves a column of the same name of the other alone."""
    members, options = two_types()
    name = members[0].columns[0].name
    problem = joint_problem(members, options, {"small": Corrections({name: 2.0})})
    work = {column.name: float(np.min(column.work_s_per_request)) for column in problem.columns}
    assert work[f"small/{name}"] == pytest.approx(1.0)
    assert work["large/colocated h100-sxm tp2"] == pytest.approx(0.9)


def test_kinds_are_counted_for_each_service() -> None:
    """With one shape per role and type, two services may still run two shapes on one type."""
    fleet = a_fleet([a_rack("r0", [a_node("h", "h100-sxm", 4)])])
    members = [
        a_member("one", a_problem(fleet, [a_column("colocated", tp=1, work=[0.5])], [1.0])),
        a_member("two", a_problem(fleet, [a_column("colocated", tp=2, work=[0.5])], [1.0])),
    ]
    answer = solve_program(joint_problem(members, ProgramOptions(max_kinds=1, granularity="node"), {}))
    assert isinstance(answer, ProgramSolution)
    assert answer.num_gpus == 3


def test_links_are_shared() -> None:
    """One service fills the only uplink; two of them do not fit, and neither alone says so."""
    racks = [
        a_rack("r0", [a_node("h", "h100-sxm", 4)], uplink_bytes_per_s=1e9),
        a_rack("r1", [a_node("a", "a100-sxm-80", 4, rack="r1")], uplink_bytes_per_s=1e9),
    ]
    fleet = a_fleet(racks)
    columns = [a_column("prefill", "h100-sxm", work=[0.5]), a_column("decode", "a100-sxm-80", work=[0.5])]
    members = [a_member(name, a_problem(fleet, columns, [1.0])) for name in ("one", "two")]
    options = ProgramOptions(granularity="node")
    assert isinstance(solve_program(joint_problem(members[:1], options, {})), ProgramSolution)
    answer = solve_program(joint_problem(members, options, {}))
    assert isinstance(answer, Infeasible)
    assert answer.max_rate_scale == pytest.approx(0.6 / 0.8, rel=1e-4)


def test_what_others_hold_survives_as_text_and_leaves_the_rest() -> None:
    """GPUs, power, links and money come back as they were; a fleet without them has that much less."""
    held = Held((("h", 0), ("h", 2)), (("r0", 1000.0),), (("nic_out[h]", 2e9), ("spine", 1e9)), 9.5)
    assert held_from_text(held_as_text(held)) == held
    fleet = a_fleet([a_rack("r0", [a_node("h", "h100-sxm", 4, gpus_in_use=(3,))])], max_usd_per_hour=20.0)
    left = fleet_left(fleet, held)
    assert left.nodes[0].gpus_in_use == (0, 2, 3)
    assert left.max_usd_per_hour == pytest.approx(10.5)
    both = together([held, held])
    assert (both.in_rack("r0"), both.on_links(["spine"])) == (2000.0, 2e9)
