"""The program end to end on small fleets."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from splitplan.catalogs.errors import InputError, UsageError
from splitplan.planner.program.solve import solve_program
from splitplan.planner.program.types import Infeasible, ProgramInput, ProgramSolution
from tests.planner.program.fleets import (
    GBIT,
    a_column,
    a_fleet,
    a_mixed_column,
    a_node,
    a_problem,
    a_rack,
    four_racks,
    many_columns,
    same_kv,
)


def solved(problem: ProgramInput) -> ProgramSolution:
    answer = solve_program(problem)
    assert isinstance(answer, ProgramSolution), answer
    return answer


def refused(problem: ProgramInput) -> Infeasible:
    answer = solve_program(problem)
    assert isinstance(answer, Infeasible), answer
    return answer


def instances(solution: ProgramSolution, role: str) -> int:
    return sum(placed.instances for placed in solution.placed if placed.role == role)


def test_cheapest_split_of_a_mixed_fleet() -> None:
    """L40S cost 1.01 $/h, H100 4.76, A100 2.21: the program picks each stage's cheapest type."""
    columns = [
        a_column("prefill", "h100-sxm", 1, [0.25]),
        a_column("prefill", "l40s", 1, [0.5]),
        a_column("decode", "a100-sxm-80", 1, [0.4]),
        a_column("decode", "l40s", 2, [2.0]),
    ]
    solution = solved(a_problem(four_racks(), columns, [5.0]))
    counts = Counter[str]()
    for placed in solution.placed:
        counts[placed.column] += placed.instances
    assert counts == {"prefill l40s tp1": 3, "decode a100-sxm-80 tp1": 2}
    assert solution.status == "optimal"
    assert solution.value == solution.bound == pytest.approx(3 * 1.01 + 2 * 2.21)
    assert solution.gap_percent == 0.0


def test_colocated_wins_when_splitting_does_not_pay() -> None:
    """One GPU doing both at 0.9 of its time beats two GPUs that are each half idle."""
    columns = [a_column("prefill", work=[0.1]), a_column("decode", work=[0.1]), a_column("colocated", work=[0.18])]
    solution = solved(a_problem(four_racks(), columns, [5.0]))
    assert (instances(solution, "colocated"), solution.num_gpus) == (1, 1)
    split = solved(a_problem(four_racks(), columns, [5.0], mode="disagg"))
    assert (instances(split, "prefill"), instances(split, "decode")) == (1, 1)


def test_all_three_roles_can_serve_one_class_together() -> None:
    """With two H100 and a little more load than a split of one each carries, nothing is left idle or overcommitted."""
    fleet = a_fleet([a_rack("r0", [a_node("n0", num_gpus=3)])])
    columns = [a_column("prefill", work=[0.2]), a_column("decode", work=[0.2]), a_column("colocated", work=[0.45])]
    solution = solved(a_problem(fleet, columns, [7.0]))
    assert {placed.role for placed in solution.placed} == {"prefill", "decode", "colocated"}


def test_never_more_than_the_inventory() -> None:
    """Four L40S can prefill 8 req/s and no more: the answer is the share that fits, not GPUs that do not exist."""
    fleet = a_fleet([a_rack("r0", [a_node("n0", "l40s", 8)])])
    columns = [a_column("prefill", "l40s", 1, [0.5]), a_column("decode", "l40s", 1, [0.5])]
    assert solved(a_problem(fleet, columns, [8.0])).num_gpus == 8
    answer = refused(a_problem(fleet, columns, [16.0]))
    assert answer.max_rate_scale == pytest.approx(0.5)
    assert "at most 50 % of the load (8 of 16 req/s)" in answer.reasons[0].message
    assert "every l40s GPU" in answer.reasons[1].message


def test_gpus_in_use_are_not_used() -> None:
    """A node with six of eight GPUs taken has room for one TP2 instance."""
    fleet = a_fleet([a_rack("r0", [a_node("n0", gpus_in_use=(0, 1, 2, 3, 4, 6))])])
    assert solved(a_problem(fleet, [a_column("colocated", tp=2, work=[0.2])], [4.0])).num_gpus == 2
    assert refused(a_problem(fleet, [a_column("colocated", tp=2, work=[0.2])], [6.0])).max_rate_scale < 1


def test_groups_do_not_straddle_nodes() -> None:
    """Two nodes with six free GPUs hold two TP4 instances, although twelve GPUs are free."""
    nodes = [a_node(f"n{i}", gpus_in_use=(0, 1)) for i in range(2)]
    fleet = a_fleet([a_rack("r0", nodes)])
    column = a_column("colocated", tp=4, work=[0.2])
    assert solved(a_problem(fleet, [column], [10.0])).num_gpus == 8
    assert refused(a_problem(fleet, [column], [10.1])).max_rate_scale < 1


def test_sizes_that_do_not_divide_each_other_are_cut_exactly() -> None:
    """An 8-GPU node holds TP3 + TP5 or two TP3, never three TP3 (though 9 > 8 by little) nor two TP5."""
    fleet = a_fleet([a_rack("r0", [a_node("n0")])])
    columns = [
        a_column("prefill", tp=3, work=[0.1]),
        a_column("decode", tp=5, work=[0.1]),
    ]
    assert solved(a_problem(fleet, columns, [10.0])).num_gpus == 8
    assert refused(a_problem(fleet, columns, [10.5])).max_rate_scale == pytest.approx(10 / 10.5)


def test_pipeline_stages_span_nodes_of_one_rack() -> None:
    """TP8 PP2 takes two whole nodes of one rack; two nodes in two racks hold none."""
    column = a_column("colocated", tp=8, pipeline_parallel=2, work=[0.2])
    together = a_fleet([a_rack("r0", [a_node("n0"), a_node("n1")])])
    assert solved(a_problem(together, [column], [5.0])).num_gpus == 16
    apart = a_fleet([a_rack("r0", [a_node("n0")]), a_rack("r1", [a_node("n1", rack="r1")])])
    assert refused(a_problem(apart, [column], [5.0])).max_rate_scale == 0.0


def test_thin_uplinks_keep_kv_inside_racks() -> None:
    """Cheap decode stands behind 10 Gbit/s: at 0.4 GB a request 1.9 req/s get there, the rest stays near."""
    near = [a_node("h0", rack="r0"), a_node("a0", "a100-sxm-80", rack="r0", price_usd_per_gpu_hour=4.0)]
    far = [a_node("a1", "a100-sxm-80", rack="r1", price_usd_per_gpu_hour=1.0)]
    columns = [a_column("prefill", work=[0.1]), a_column("decode", "a100-sxm-80", work=[0.5])]
    for gbit, far_share in ((10, 10 * GBIT * 0.6 / 0.4e9), (400, 8.0)):
        racks = [a_rack("r0", near, uplink_bytes_per_s=gbit * GBIT), a_rack("r1", far, uplink_bytes_per_s=None)]
        solution = solved(a_problem(a_fleet(racks), columns, [8.0]))
        crossing = sum(flow.rate_req_per_s for flow in solution.flows if flow.reach == "fleet")
        assert crossing <= far_share + 1e-6
        assert (crossing < 2.0) == (gbit == 10)


def test_one_node_without_a_nic_can_still_split() -> None:
    """KV that stays inside a node needs no NIC; KV between two such nodes does."""
    columns = [a_column("prefill", work=[0.1]), a_column("decode", work=[0.1])]
    one = a_fleet([a_rack("r0", [a_node("n0", nic_bytes_per_s=0.0)])])
    assert solved(a_problem(one, columns, [10.0])).num_gpus == 2
    halves = [a_node(f"n{i}", num_gpus=1, nic_bytes_per_s=0.0) for i in range(2)]
    assert refused(a_problem(a_fleet([a_rack("r0", halves)]), columns, [1.0])).max_rate_scale == 0.0


def test_reach_keeps_near_columns_near() -> None:
    """The same prefill column is faster when its KV may only travel inside the rack; it is used only there."""
    racks = [
        a_rack("r0", [a_node("n0", num_gpus=2, rack="r0")]),
        a_rack("r1", [a_node("n1", "a100-sxm-80", 2, rack="r1")]),
    ]
    near = a_column("prefill", work=[0.1], name="near", transfer_reach="rack")
    far = a_column("prefill", work=[0.2], name="far")
    decode = a_column("decode", "a100-sxm-80", work=[0.1])
    solution = solved(a_problem(a_fleet(racks), [near, far, decode], [10.0]))
    assert [placed.column for placed in solution.placed if placed.role == "prefill"] == ["far"]
    beside = replace(decode, name="beside", gpu="h100-sxm")
    solution = solved(a_problem(a_fleet(racks), [near, far, beside], [10.0]))
    assert {placed.column for placed in solution.placed} == {"near", "beside"}


def test_connector_rules_decide_who_feeds_whom() -> None:
    """FP8 decode is twice as fast, but only an FP8 prefill may feed it."""
    columns = [
        a_column("prefill", work=[0.1], name="p16"),
        a_column("decode", work=[0.2], name="d16"),
        a_column("decode", work=[0.1], name="d8", kv_dtype="fp8"),
    ]
    problem = replace(a_problem(four_racks(), columns, [10.0]), pairs_allowed=same_kv)
    assert {placed.column for placed in solved(problem).placed} == {"p16", "d16"}
    none = replace(problem, columns=(columns[0], columns[2]))
    assert "may send its KV" in refused(none).reasons[0].message


def test_rack_power_counts_hosts_and_gpus() -> None:
    """1 kW of host and 500 W a GPU: 2.6 kW hold three GPUs of the node's eight."""
    column = a_column("colocated", work=[0.2])
    fleet = a_fleet([a_rack("r0", [a_node("n0")], power_limit_watts=2600.0)])
    assert solved(a_problem(fleet, [column], [15.0])).num_gpus == 3
    answer = refused(a_problem(fleet, [column], [18.0]))
    assert any("power limit of rack r0" in reason.message for reason in answer.reasons)


def test_budget_and_power_are_hard() -> None:
    """A budget or a power limit below what the load needs leaves no plan and names itself."""
    columns = [a_column("colocated", work=[0.2])]
    assert solved(a_problem(four_racks(), columns, [10.0], budget_usd_per_hour=9.6)).usd_per_hour == pytest.approx(9.52)
    answer = refused(a_problem(four_racks(), columns, [10.0], budget_usd_per_hour=9.0))
    assert any("budget" in reason.message for reason in answer.reasons)
    nothing = refused(a_problem(four_racks(), columns, [10.0], budget_usd_per_hour=0.0))
    assert any("budget" in reason.message for reason in nothing.reasons)
    answer = refused(a_problem(four_racks(), columns, [10.0], max_power_watts=1000.0))
    assert any("power limit binds" in reason.message for reason in answer.reasons)


def test_goodput_uses_everything_and_then_the_least() -> None:
    """Eight GPUs serve 40 req/s colocated, four times what was asked; with a cap of two times, four GPUs are enough."""
    fleet = a_fleet([a_rack("r0", [a_node("n0")])])
    problem = a_problem(fleet, [a_column("colocated", work=[0.2])], [10.0], objective="goodput")
    assert solved(problem).rate_scale == pytest.approx(4.0)
    capped = replace(problem, options=replace(problem.options, max_rate_scale=2.0))
    assert (solved(capped).num_gpus, solved(capped).rate_scale) == (4, pytest.approx(2.0))


def test_least_power_may_cost_more() -> None:
    """An H100 at 700 W for 5 req/s beats two A100 at 400 W each, though they are cheaper."""
    columns = [
        a_column("colocated", "h100-sxm", work=[0.2], watts=700.0),
        a_column("colocated", "a100-sxm-80", work=[0.4], watts=400.0),
    ]
    assert {p.column for p in solved(a_problem(four_racks(), columns, [5.0], objective="power")).placed} == {
        "colocated h100-sxm tp1"
    }
    assert {p.column for p in solved(a_problem(four_racks(), columns, [5.0])).placed} == {"colocated a100-sxm-80 tp1"}


def test_classes_go_to_the_columns_that_suit_them() -> None:
    """Long prompts that do not fit the L40S (infinite work) go to the H100, short ones to the L40S."""
    columns = [
        a_column("colocated", "h100-sxm", work=[0.2, 0.2]),
        a_column("colocated", "l40s", work=[0.25, np.inf]),
    ]
    solution = solved(a_problem(four_racks(), columns, [4.0, 4.0]))
    by_column = {placed.column: placed.rate_req_per_s for placed in solution.placed}
    assert by_column["colocated l40s tp1"][1] == 0.0
    assert by_column["colocated l40s tp1"][0] > 3.5
    assert by_column["colocated h100-sxm tp1"][1] == pytest.approx(4.0)


def test_survives_the_loss_of_any_rack() -> None:
    """The load of two instances needs three when any one of three racks may go."""
    racks = [a_rack(f"r{i}", [a_node(f"n{i}", rack=f"r{i}")]) for i in range(3)]
    column = a_column("colocated", work=[0.2])
    assert solved(a_problem(a_fleet(racks), [column], [10.0])).num_gpus == 2
    solution = solved(a_problem(a_fleet(racks), [column], [10.0], survive="rack"))
    assert solution.num_gpus == 3
    assert len({placed.rack for placed in solution.placed}) == 3
    answer = refused(a_problem(a_fleet(racks[:1]), [column], [10.0], survive="rack"))
    assert "with any one rack gone" in answer.reasons[0].message


def test_share_per_rack_spreads_each_role() -> None:
    """No rack serves more than half of prefill, or of decode."""
    racks = [a_rack(f"r{i}", [a_node(f"n{i}", rack=f"r{i}")]) for i in range(3)]
    columns = [a_column("prefill", work=[0.1]), a_column("decode", work=[0.1])]
    solution = solved(a_problem(a_fleet(racks), columns, [10.0], max_share_per_rack=0.5))
    for role in ("prefill", "decode"):
        rates = [sum(p.rate_req_per_s) for p in solution.placed if p.role == role]
        assert len(rates) >= 2
        assert max(rates) <= 5.0 + 1e-6


def test_pin_and_forbid() -> None:
    """Filters speak of one role or of all, and a filter nobody can read is a usage error."""
    columns = many_columns(1)
    pinned = solved(a_problem(four_racks(), columns, [3.0], mode="disagg", pin=("decode=h100-sxm",)))
    assert {c.gpu for c in columns for p in pinned.placed if c.name == p.column and c.role == "decode"} == {"h100-sxm"}
    banned = solved(a_problem(four_racks(), columns, [3.0], forbid=("l40s", "tp=1")))
    used = [c for c in columns for p in banned.placed if c.name == p.column]
    assert used
    assert all(c.gpu != "l40s" and c.tensor_parallel > 1 for c in used)
    with pytest.raises(InputError, match="matches 'decode=h200'"):
        solve_program(a_problem(four_racks(), columns, [3.0], pin=("decode=h200",)))
    with pytest.raises(UsageError, match="column filter 'decode:tq=2'"):
        solve_program(a_problem(four_racks(), columns, [3.0], pin=("decode:tq=2",)))


def test_same_answer_every_time() -> None:
    """Two solves of one problem give equal solutions, down to the last flow."""
    problem = replace(a_problem(four_racks(), many_columns(3), [3.0] * 3), pairs_allowed=same_kv)
    assert solve_program(problem) == solve_program(problem)


def test_nonsense_is_refused_before_any_solver_runs() -> None:
    """Rates of zero, work of zero and unknown KV dtypes are input errors, all in one go."""
    bad = a_problem(four_racks(), [a_column("prefill", work=[0.0], kv_dtype="int3")], [0.0])
    with pytest.raises(InputError) as error:
        solve_program(bad)
    assert len(error.value.problems) == 3


def test_nobody_can_serve_a_class() -> None:
    """A class that only decode can take has no prefill: said by name, with the target to relax."""
    columns = [a_column("prefill", work=[0.1, np.inf]), a_column("decode", work=[0.1, 0.1])]
    answer = refused(a_problem(four_racks(), columns, [1.0, 1.0]))
    assert "can prefill class class1" in answer.reasons[0].message
    assert "`ttft`" in answer.reasons[0].next_step


def test_one_kind_per_role_and_gpu_type_costs_what_it_must() -> None:
    """With one kind allowed the optimum is the best of the optima over each single choice of kinds."""
    columns = [
        a_column("colocated", "h100-sxm", 1, [1.0]),
        a_column("colocated", "h100-sxm", 2, [0.4]),
        a_column("colocated", "l40s", 1, [3.0]),
        a_column("colocated", "l40s", 4, [0.55]),
    ]
    free = a_problem(four_racks(), columns, [3.3])
    one = replace(free, options=replace(free.options, max_kinds=1))
    choices = [replace(free, columns=tuple(pair)) for pair in ([a, b] for a in columns[:2] for b in columns[2:])]
    best = min(solved(choice).value for choice in choices)
    assert solved(one).value == pytest.approx(best)
    assert solved(free).value <= best
    used = {placed.column for placed in solved(one).placed if placed.instances}
    assert sum("h100" in name for name in used) <= 1
    assert sum("l40s" in name for name in used) <= 1


def test_mixed_pipelines_that_a_failure_may_split_are_named_among_the_reasons() -> None:
    """With --survive node only other kinds of instance count, and where there are none the answer says so."""
    racks = [
        a_rack(f"r{r}", [a_node(f"h{r}", rack=f"r{r}"), a_node(f"a{r}", "a100-sxm-80", rack=f"r{r}")]) for r in range(2)
    ]
    columns = [a_mixed_column("colocated", ("a100-sxm-80", "h100-sxm"), 8, [0.1])]
    answer = refused(a_problem(a_fleet(racks), columns, [5.0], survive="node"))
    assert any("may split them" in reason.message for reason in answer.reasons)
    assert isinstance(solve_program(a_problem(a_fleet(racks), columns, [5.0], survive="rack")), ProgramSolution)
