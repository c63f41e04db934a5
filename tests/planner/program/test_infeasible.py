"""No plan: reasons of which none is spare, the true cause by name, and ways out that work when they are taken."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from splitplan.planner.program.build import build_program
from splitplan.planner.program.infeasible import rounded_down
from splitplan.planner.program.linear import LinearModel
from splitplan.planner.program.reduce import reduce_columns
from splitplan.planner.program.solve import solve_program
from splitplan.planner.program.solver import smallest_conflict, solve_arrays
from splitplan.planner.program.types import Infeasible, ProgramInput, ProgramSolution
from splitplan.planner.program.ways_out import ways_out
from tests.planner.program.fleets import a_column, a_fleet, a_node, a_problem, a_rack, four_racks

COLOCATED = (a_column("colocated", work=[0.2]), a_column("colocated", "a100-sxm-80", work=[0.4]))
SPLIT = (a_column("prefill", work=[0.1]), a_column("decode", "a100-sxm-80", work=[0.2]))


def refused(problem: ProgramInput) -> Infeasible:
    answer = solve_program(problem)
    assert isinstance(answer, Infeasible), answer
    return answer


def solved(problem: ProgramInput) -> ProgramSolution:
    answer = solve_program(problem)
    assert isinstance(answer, ProgramSolution), answer
    return answer


def ways(problem: ProgramInput) -> str:
    return "\n".join(f"{reason.message}; {reason.next_step}" for reason in ways_out(problem))


def feasible_without(model: LinearModel, names: set[str], spared: str) -> bool:
    """Whether the rows of a conflict can hold once one of them is left out."""
    some = model.relaxed().with_objective({})
    kept = [row for row, name in enumerate(model.constraint_names) if name in names and name != spared]
    some.constraint_names = [model.constraint_names[row] for row in kept]
    some.rows, some.senses = [model.rows[row] for row in kept], [model.senses[row] for row in kept]
    some.rhs = [model.rhs[row] for row in kept]
    return solve_arrays(some).has_solution


@pytest.mark.parametrize(
    "problem",
    [
        a_problem(four_racks(), COLOCATED, [200.0]),
        a_problem(four_racks(), COLOCATED, [30.0], budget_usd_per_hour=5.0),
        a_problem(four_racks(spine_bytes_per_s=1e8), SPLIT, [30.0]),
        a_problem(four_racks(), COLOCATED, [30.0], max_power_watts=900.0, budget_usd_per_hour=50.0),
    ],
)
def test_a_conflict_has_no_spare_constraint(problem: ProgramInput) -> None:
    """All of its rows cannot hold together; leave any one out and the others can."""
    model = build_program(problem, reduce_columns(problem)).model
    conflict = smallest_conflict(model)
    assert not feasible_without(model, set(conflict), "")
    assert len(conflict) > 1
    for name in conflict:
        assert feasible_without(model, set(conflict), name), name


def test_nodes_that_are_alike_share_one_line() -> None:
    """Both H100 nodes are full, for the same gain: one sentence."""
    answer = refused(a_problem(four_racks(), COLOCATED, [200.0]))
    lines = [reason.message for reason in answer.reasons]
    assert "every h100-sxm GPU at h1 and h2 is needed" in lines
    assert sum("h100" in line for line in lines) == 1


def test_the_share_that_fits_is_said_to_be_capacity() -> None:
    """The rate to ask for is rounded down, so that it does fit, and nobody says it was simulated."""
    problem = a_problem(four_racks(), COLOCATED, [200.0])
    first = refused(problem).reasons[0]
    assert "by capacity, before any simulation" in first.message
    rate = re.search(r"ask for ([\d.]+) req/s or less", first.next_step)
    assert rate is not None
    solved(replace(problem, rate_req_per_s=problem.rate_req_per_s * float(rate[1]) / 200.0))
    assert [rounded_down(x) for x in (58.57, 2.319, 0.012345, 1234.0, 10.0)] == [
        "58.5",
        "2.31",
        "0.0123",
        "1.23e+03",
        "10",
    ]


@pytest.mark.parametrize(
    ("problem", "cause"),
    [
        (a_problem(four_racks(), COLOCATED, [100.0], forbid=("h100-sxm",)), "--forbid h100-sxm stands in the way"),
        (a_problem(four_racks(), COLOCATED, [100.0], pin=("a100-sxm-80",)), "--pin a100-sxm-80 stands in the way"),
        (a_problem(four_racks(), COLOCATED, [10.0], mode="disagg"), "--mode disagg stands in the way"),
        (a_problem(four_racks(), COLOCATED, [10.0], budget_usd_per_hour=3.0), "the budget of 3 $/h is too small"),
        (a_problem(four_racks(), COLOCATED, [10.0], max_power_watts=600.0), "the power limit of 600 W is too small"),
        (a_problem(four_racks(spine_bytes_per_s=1e8), SPLIT, [30.0]), "KV transfer over the network stands in the way"),
        (a_problem(four_racks(), COLOCATED, [110.0], survive="rack"), "surviving the loss of any rack"),
    ],
)
def test_the_true_cause_is_named(problem: ProgramInput, cause: str) -> None:
    """What alone keeps the load from being served is named, and nothing else is."""
    refused(problem)
    assert cause in ways(problem)
    assert ways(problem).count("stands in the way") + ways(problem).count("too small") <= 1


def test_causes_that_only_count_together_are_named_together() -> None:
    """Without H100 there is too little, and the budget is for less than a third of it: neither alone would do."""
    problem = a_problem(four_racks(), COLOCATED, [100.0], forbid=("h100-sxm",), budget_usd_per_hour=30.0)
    assert "--forbid h100-sxm and the budget of 30 $/h together stand in the way" in ways(problem)


def test_gpus_in_use_and_rack_power_are_named() -> None:
    """Six of eight GPUs taken, or a rack limit that holds three of them."""
    taken = a_fleet([a_rack("r0", [a_node("n0", gpus_in_use=(0, 1, 2, 3, 4, 5))])])
    assert "6 GPUs in use already stand in the way" in ways(a_problem(taken, COLOCATED[:1], [20.0]))
    dark = a_fleet([a_rack("r0", [a_node("n0")], power_limit_watts=2600.0)])
    assert "rack power stands in the way" in ways(a_problem(dark, COLOCATED[:1], [20.0]))


def test_the_budget_that_is_told_would_do() -> None:
    """The figure is the optimum without a budget: with it there is a plan, with a cent less there is none."""
    problem = a_problem(four_racks(), COLOCATED, [30.0], budget_usd_per_hour=3.0)
    told = re.search(r"--budget ([\d.]+) would do", ways(problem))
    assert told is not None
    solved(replace(problem, options=replace(problem.options, budget_usd_per_hour=float(told[1]))))
    refused(replace(problem, options=replace(problem.options, budget_usd_per_hour=float(told[1]) - 0.02)))


def test_the_fewest_nodes_are_told_cheapest_first() -> None:
    """The fleet serves 120 of 200 req/s; the rest takes 16 H100 (76.16 $/h) or 32 A100 (70.72 $/h)."""
    lines = [reason.message for reason in ways_out(a_problem(four_racks(), COLOCATED, [200.0]))]
    assert [line[:31] for line in lines] == ["with 4 more a100-sxm-80 nodes o", "with 2 more h100-sxm nodes of 8"]
    prices = [float(found[1]) for line in lines if (found := re.search(r"up to ([\d.]+) \$/h", line))]
    assert prices == sorted(prices)


@pytest.mark.parametrize(
    "problem",
    [
        a_problem(four_racks(), COLOCATED, [10.0], budget_usd_per_hour=0.5),
        a_problem(
            a_fleet([a_rack("r0", [a_node("n0", num_gpus=1), a_node("n1", num_gpus=1)])]),
            [a_column("colocated", tp=2)],
            [1.0],
        ),
        a_problem(four_racks(), [a_column("colocated", work=[0.2])], [10.0], max_power_watts=1.0),
    ],
)
def test_nothing_at_all_has_a_reason_too(problem: ProgramInput) -> None:
    """At most 0 %: the budget below the cheapest instance, no room for any, no power for one."""
    answer = refused(problem)
    assert answer.max_rate_scale == 0.0
    first = answer.reasons[0].message
    assert first.startswith(
        ("none of the load (10 req/s) fits this fleet: ", "no kind of instance that fits this fleet")
    )
