"""Assignment of solutions to named nodes and GPU indices."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from splitplan.planner.place.assign import Assignment, assign
from splitplan.planner.place.routes import overloaded_links
from splitplan.planner.program.solve import solve_program
from splitplan.planner.program.topology import free_indices, rack_hosts
from splitplan.planner.program.types import ProgramInput, ProgramSolution, Running
from tests.planner.program.fleets import (
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


def assigned(problem: ProgramInput) -> tuple[ProgramSolution, Assignment]:
    solution = solve_program(problem)
    assert isinstance(solution, ProgramSolution), solution
    return solution, assign(problem, solution)


def check_assignment(problem: ProgramInput, solution: ProgramSolution, result: Assignment) -> None:
    """Every promise of an assignment, checked from the fleet itself."""
    nodes = {node.name: node for node in problem.fleet.nodes}
    domain_of = {
        slot: number
        for number, domain in enumerate(
            domain for rack in problem.fleet.racks for _, domains in rack_hosts(rack) for domain in domains
        )
        for slot in domain.slots
    }
    used = Counter((slot.node, slot.index) for group in result.instances.values() for i in group for slot in i.gpus)
    assert max(used.values()) == 1
    assert all(index in free_indices(nodes[node]) for node, index in used)
    for seat in result.seats:
        assert len(seat.stages) in (1, seat.column.pipeline_parallel)
        for stage in seat.stages:
            assert len({domain_of[slot] for slot in stage}) == 1
            assert {nodes[node].gpu for node, _ in stage} <= set(seat.column.gpu_types)
        assert len(seat.slots) == seat.column.num_gpus
        for slots, planned in zip(seat.stages, seat.column.stages, strict=False):
            assert {nodes[node].gpu for node, _ in slots} == {planned.gpu}
        assert {nodes[node].rack for node in seat.nodes} == {seat.location.rack}
    for placed in solution.placed:
        mine = [s for s in result.seats if (s.column.name, s.location.name) == (placed.column, placed.location)]
        assert len(mine) == placed.instances
    for role in ("prefill", "decode"):
        shares = Counter[str]()
        for route in result.routes:
            shares[getattr(route, role)] += route.share
        for group in result.instances.values():
            for instance in group:
                if instance.name.startswith(role) and result.routes:
                    assert shares[instance.name] == pytest.approx(instance.share, abs=1e-6)
    if solution.granularity == "node":
        assert overloaded_links(problem, result.link_loads) == []


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 10_000), rate=st.floats(1.0, 30.0), granularity=st.sampled_from(["node", "rack"]))
def test_every_promise_of_an_assignment_holds(seed: int, rate: float, granularity: str) -> None:
    """No GPU twice, none that is taken, tensor ranks in one domain, stages in one rack, routes as planned."""
    columns = [
        column
        for column in many_columns(2, seed)
        if column.tensor_parallel > 1 or (seed % 2 and column.role != "colocated")
    ]
    problem = replace(
        a_problem(
            four_racks(), columns, [rate / 2] * 2, granularity=granularity, objective="goodput", max_rate_scale=1.0
        ),
        pairs_allowed=same_kv,
    )
    solution, result = assigned(problem)
    check_assignment(problem, solution, result)
    assert assign(problem, solution) == result


def test_odd_sizes_and_broken_nodes_are_packed() -> None:
    """TP3 and TP5 share one node; a node with five free GPUs takes the other TP5."""
    nodes = [a_node("n0"), a_node("n1", gpus_in_use=(1, 3, 5))]
    columns = [a_column("prefill", tp=3, work=[0.1]), a_column("decode", tp=5, work=[0.2])]
    problem = a_problem(a_fleet([a_rack("r0", nodes)]), columns, [10.0], granularity="rack")
    solution, result = assigned(problem)
    assert solution.num_gpus == 13
    check_assignment(problem, solution, result)


def test_pipeline_stages_are_listed_in_order_over_nodes() -> None:
    """TP8 PP2 lists eight GPUs of one node, then eight of the next one in the rack."""
    column = a_column("colocated", tp=8, pipeline_parallel=2, work=[0.2])
    problem = a_problem(a_fleet([a_rack("r0", [a_node("n0"), a_node("n1")])]), [column], [5.0])
    solution, result = assigned(problem)
    (instance,) = result.instances[column.name]
    assert [slot.node for slot in instance.gpus] == ["n0"] * 8 + ["n1"] * 8
    assert instance.share == 1.0
    check_assignment(problem, solution, result)


def test_two_prefill_workers_take_two_pci_roots() -> None:
    """On a node with two roots of four GPUs, two TP2 prefill instances do not share a root."""
    node = a_node("n0", "l40s", pci_roots=((0, 1, 2, 3), (4, 5, 6, 7)))
    problem = a_problem(a_fleet([a_rack("r0", [node])]), [a_column("colocated", "l40s", 2, [0.2])], [10.0])
    _, result = assigned(problem)
    (first, second) = result.instances["colocated l40s tp2"]
    assert {slot.index // 4 for slot in first.gpus} != {slot.index // 4 for slot in second.gpus}


def test_prefill_stands_beside_the_decode_it_feeds() -> None:
    """Two alike nodes in one rack: each gets one prefill and one decode, and all KV stays in the node."""
    nodes = [a_node(f"n{i}", num_gpus=4) for i in range(2)]
    columns = [a_column("prefill", tp=2, work=[0.2]), a_column("decode", tp=2, work=[0.2])]
    for granularity in ("node", "rack"):
        problem = a_problem(a_fleet([a_rack("r0", nodes)]), columns, [10.0], granularity=granularity)
        _, result = assigned(problem)
        assert [route.path for route in result.routes] == ["same-node", "same-node"], granularity


def test_nvl72_workers_pair_up_inside_racks() -> None:
    """10 prefill and 10 decode workers of 36 GPUs over ten racks of 72: one of each per rack, KV never leaves it."""
    racks = []
    for r in range(10):
        nodes = [a_node(f"r{r}n{i:02d}", "gb200", 4, rack=f"r{r}", nvlink_domain_gpus=72) for i in range(18)]
        racks.append(a_rack(f"r{r}", nodes))
    columns = [a_column("prefill", "gb200", 36, [0.1]), a_column("decode", "gb200", 36, [0.1])]
    problem = a_problem(a_fleet(racks), columns, [100.0])
    solution, result = assigned(problem)
    assert Counter((placed.rack, placed.role) for placed in solution.placed) == {
        (f"r{r}", role): 1 for r in range(10) for role in ("prefill", "decode")
    }
    assert {route.path for route in result.routes} == {"same-node"}
    assert len(result.routes) == 10
    check_assignment(problem, solution, result)


def test_names_and_shares_follow_the_roles() -> None:
    """Names count up per role over all pools; shares of a role add up to one."""
    columns = [
        a_column("prefill", "l40s", work=[0.5]),
        a_column("decode", "a100-sxm-80", work=[0.4]),
        a_column("colocated", "h100-sxm", work=[10.0]),
    ]
    _, result = assigned(a_problem(four_racks(), columns, [5.0]))
    names = [instance.name for group in result.instances.values() for instance in group]
    assert sorted(names) == ["decode-0", "decode-1", "prefill-0", "prefill-1", "prefill-2"]
    assert sum(i.share for i in result.instances["decode a100-sxm-80 tp1"]) == pytest.approx(1.0)
    assert sum(route.share for route in result.routes) == pytest.approx(1.0)


def test_running_instances_keep_their_gpus() -> None:
    """Two TP2 instances run on GPUs 1, 2 and 5, 6; the third is placed around them, and a foreign shape is ignored."""
    column = a_column("colocated", tp=2, work=[0.5])
    slots = [(("n0", 1), ("n0", 2)), (("n0", 5), ("n0", 6)), (("n0", 0),)]
    running = tuple(Running(column.name, "n0", 1, slot) for slot in slots)
    problem = replace(a_problem(a_fleet([a_rack("r0", [a_node("n0")])]), [column], [6.0]), running=running)
    solution, result = assigned(problem)
    gpus = [tuple((slot.node, slot.index) for slot in i.gpus) for i in result.instances[column.name]]
    assert gpus[:2] == slots[:2]
    assert len(gpus) == 3
    check_assignment(problem, solution, result)


def test_everything_is_placed_anew_when_what_runs_is_in_the_way() -> None:
    """A TP1 instance sits in the middle of four GPUs of which a TP4 needs all: it moves."""
    small, large = a_column("prefill", tp=1, work=[0.1]), a_column("decode", tp=4, work=[0.1])
    nodes = [a_node("n0", num_gpus=8, nvlink_domain_gpus=4, gpus_in_use=(4, 5, 6))]
    running = (Running(small.name, "n0", 1, (("n0", 1),)),)
    problem = replace(a_problem(a_fleet([a_rack("r0", nodes)]), [small, large], [10.0]), running=running)
    solution, result = assigned(problem)
    assert [slot.index for slot in result.instances[small.name][0].gpus] == [7]
    check_assignment(problem, solution, result)


def mixed_problem(**changes: object) -> ProgramInput:
    """Two racks of an H100 and two A100 nodes; only a pipeline over TP4 of H100 and twice TP4 of A100 serves."""
    racks = [
        a_rack(r, [a_node(f"{r}h", rack=r), a_node(f"{r}a", A100, 4, rack=r), a_node(f"{r}b", A100, 4, rack=r)])
        for r in ("r0", "r1")
    ]
    column = a_mixed_column("colocated", ("h100-sxm", A100, A100), 4, [0.1])
    return replace(a_problem(a_fleet(racks), [column], [15.0]), **changes)  # type: ignore[arg-type]


A100 = "a100-sxm-80"


@pytest.mark.parametrize("granularity", ["node", "rack"])
def test_stages_of_a_mixed_pipeline_stand_on_their_own_type_in_one_rack(granularity: str) -> None:
    """Two instances, one in each rack: an H100 stage and one A100 stage on each of two nodes, in this order."""
    problem = mixed_problem()
    problem = replace(problem, options=replace(problem.options, granularity=granularity))  # type: ignore[arg-type]
    solution, result = assigned(problem)
    check_assignment(problem, solution, result)
    assert [seat.nodes for seat in result.seats] == [("r0h", "r0a", "r0b"), ("r1h", "r1a", "r1b")]
    assert solution.num_gpus == 24
    assert solution.usd_per_hour == pytest.approx(8 * 4.76 + 16 * 2.21)


def test_a_running_mixed_pipeline_keeps_its_gpus() -> None:
    """What runs on the second half of the H100 node stays there when it is planned again."""
    slots = tuple((node, i) for node, first in (("r1h", 4), ("r1b", 0), ("r1a", 0)) for i in range(first, first + 4))
    running = (Running("colocated h100-sxm+a100-sxm-80 tp4 pp3", "r1h", 1, slots),)
    problem = mixed_problem(running=running)
    problem = replace(problem, options=replace(problem.options, move_usd_per_hour=1.0))
    solution, result = assigned(problem)
    check_assignment(problem, solution, result)
    assert slots in [seat.slots for seat in result.seats]
    assert solution.moves == 1
