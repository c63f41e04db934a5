"""Kinds of price, running instances, hours of the day, and weighted classes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from splitplan.catalogs.errors import InputError
from splitplan.planner.program.solve import solve_program
from splitplan.planner.program.types import Hour, Infeasible, ProgramInput, ProgramSolution, Running
from splitplan.planner.spec.fleet import PriceTier
from tests.planner.program.fleets import a_column, a_fleet, a_node, a_problem, a_rack, four_racks


def solved(problem: ProgramInput) -> ProgramSolution:
    answer = solve_program(problem)
    assert isinstance(answer, ProgramSolution), answer
    return answer


def tier(gpu: str, kind: str, price: float, most: int | None = None) -> PriceTier:
    return PriceTier(gpu, kind, price, "test", most)


def test_reserved_gpus_first_then_on_demand() -> None:
    """Five H100 are needed; three reserved at 3 $ are taken before two on demand at 5 $."""
    fleet = four_racks(price_tiers=(tier("h100-sxm", "on_demand", 5.0), tier("h100-sxm", "reserved", 3.0, 3)))
    problem = a_problem(fleet, [a_column("colocated", work=[0.5])], price_kinds=("reserved", "on_demand"))
    solution = solved(problem)
    assert [(b.kind, b.num_gpus) for b in solution.bought] == [("reserved", 3), ("on_demand", 2)]
    assert solution.usd_per_hour == pytest.approx(19.0)
    assert solution.value == pytest.approx(19.0)


def test_caps_of_all_kinds_bound_the_plan() -> None:
    """Two spot GPUs are all there is to be had at the allowed kinds of price."""
    fleet = four_racks(price_tiers=(tier("h100-sxm", "spot", 1.0, 2),))
    problem = a_problem(fleet, [a_column("colocated", work=[0.5])], price_kinds=("spot",))
    answer = solve_program(problem)
    assert isinstance(answer, Infeasible)
    assert answer.max_rate_scale == pytest.approx(0.4)
    with pytest.raises(InputError, match="no reserved price of h100-sxm"):
        solve_program(replace(problem, options=replace(problem.options, price_kinds=("reserved",))))


def test_a_cap_on_cheap_gpus_can_change_the_type() -> None:
    """A100 wins while its spot price lasts, beyond two of them the L40S is cheaper than A100 on demand."""
    fleet = four_racks(
        price_tiers=(
            tier("a100-sxm-80", "spot", 0.5, 2),
            tier("a100-sxm-80", "on_demand", 2.2),
            tier("l40s", "on_demand", 1.0),
        )
    )
    columns = [a_column("colocated", "a100-sxm-80", work=[0.2]), a_column("colocated", "l40s", work=[0.3])]
    solution = solved(a_problem(fleet, columns, [16.0], price_kinds=("spot", "on_demand")))
    assert {placed.column.split()[1] for placed in solution.placed} == {"a100-sxm-80", "l40s"}
    assert solution.usd_per_hour == pytest.approx(2 * 0.5 + 2 * 1.0)


def test_what_runs_stays_unless_moving_pays() -> None:
    """Two A100 run. L40S would save 0.19 $/h; with moves at 1 $/h each nothing moves, at 1 cent everything does."""
    columns = [a_column("colocated", "a100-sxm-80", work=[0.4]), a_column("colocated", "l40s", work=[0.45])]
    fleet = four_racks(usd_per_gpu_hour={"h100-sxm": 5.0, "a100-sxm-80": 1.105, "l40s": 1.01})
    problem = a_problem(fleet, columns, [4.0], move_usd_per_hour=1.0)
    problem = replace(problem, running=(Running("colocated a100-sxm-80 tp1", "a2", 2),))
    stay = solved(problem)
    assert [(p.column, p.location, p.instances) for p in stay.placed] == [("colocated a100-sxm-80 tp1", "a2", 2)]
    assert stay.moves == 0
    cheap = solved(replace(problem, options=replace(problem.options, move_usd_per_hour=0.01)))
    assert {p.column for p in cheap.placed} == {"colocated l40s tp1"}
    assert cheap.moves == 4


def test_growth_keeps_what_runs_where_it_runs() -> None:
    """Twice the load adds instances; the running ones keep their nodes."""
    columns = [a_column("prefill", "l40s", work=[0.4]), a_column("decode", "a100-sxm-80", work=[0.4])]
    running = (Running("prefill l40s tp1", "l4", 2), Running("decode a100-sxm-80 tp1", "a2", 2))
    problem = replace(a_problem(four_racks(), columns, [10.0], move_usd_per_hour=0.1), running=running)
    solution = solved(problem)
    at = {(p.column, p.location): p.instances for p in solution.placed}
    assert at["prefill l40s tp1", "l4"] >= 2
    assert at["decode a100-sxm-80 tp1", "a2"] >= 2
    assert solution.moves == 4


def test_one_plan_for_several_hours() -> None:
    """Prompt-heavy by day, output-heavy by night: the plan carries both, which needs more than either alone."""
    columns = [
        a_column("prefill", work=[0.3, 0.1]),
        a_column("decode", work=[0.1, 0.3]),
    ]
    day, night = np.array([10.0, 0.0]), np.array([0.0, 9.0])
    problem = a_problem(four_racks(), columns, [1.0, 1.0])
    both = solved(replace(problem, hours=(Hour("night", night), Hour("day", day))))
    alone = [solved(replace(problem, rate_req_per_s=rate)) for rate in (day, night)]
    count = {role: sum(p.instances for p in both.placed if p.role == role) for role in ("prefill", "decode")}
    assert count == {"prefill": 3, "decode": 3}
    assert both.num_gpus > max(one.num_gpus for one in alone)
    assert sum(sum(p.rate_req_per_s) for p in both.placed if p.role == "prefill") == pytest.approx(10.0)  # the busiest


def test_weighted_classes_serve_the_dear_one_first() -> None:
    """One GPU, two classes of 5 req/s that take 0.2 s each: the one worth three times as much is served in full."""
    fleet = a_fleet([a_rack("r0", [a_node("n0", num_gpus=1)])])
    problem = a_problem(fleet, [a_column("colocated", work=[0.2, 0.2])], [5.0, 5.0], objective="goodput")
    weighted = replace(problem, options=replace(problem.options, class_weights=(1.0, 3.0)))
    assert solved(weighted).class_scale == pytest.approx((0.0, 1.0), abs=1e-6)
    assert solved(weighted).value == pytest.approx(15.0)
    assert solved(problem).class_scale == pytest.approx((0.5, 0.5))


def test_pod_uplinks_bind_like_rack_uplinks() -> None:
    """Prefill in one pod, decode in another behind 10 Gbit/s: 1.9 req/s of 0.4 GB get through at most."""
    from splitplan.planner.spec.fleet import Pod

    racks = [
        a_rack("r0", [a_node("h0", rack="r0")], pod="p0"),
        a_rack("r1", [a_node("a1", "a100-sxm-80", rack="r1")], pod="p1"),
    ]
    fleet = a_fleet(racks, pods=(Pod("p0", 1.25e9), Pod("p1", None)))
    columns = [a_column("prefill", work=[0.1]), a_column("decode", "a100-sxm-80", work=[0.1])]
    assert solved(a_problem(fleet, columns, [1.8])).num_gpus == 2
    answer = solve_program(a_problem(fleet, columns, [3.0]))
    assert isinstance(answer, Infeasible)
    assert answer.max_rate_scale == pytest.approx(1.25 * 0.6 / 0.4 / 3.0, rel=1e-4)
    assert any("pod uplink" in reason.message for reason in answer.reasons)
