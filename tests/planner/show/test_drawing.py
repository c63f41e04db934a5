"""The picture of a plan in the terminal."""

from __future__ import annotations

import io

from rich.console import Console

from splitplan.planner.place.assign import assign
from splitplan.planner.plan import Inputs, Plan, Pool, Proof
from splitplan.planner.program.solve import solve_program
from splitplan.planner.program.types import ProgramInput, ProgramSolution
from splitplan.planner.show.drawing import draw_racks, index_ranges
from splitplan.planner.spec.fleet import Fleet
from tests.planner.program.fleets import a_column, a_fleet, a_node, a_problem, a_rack


def a_plan(problem: ProgramInput) -> Plan:
    """A plan document of a solved problem, with made-up inputs."""
    solution = solve_program(problem)
    assert isinstance(solution, ProgramSolution)
    columns = {column.name: column for column in problem.columns}
    pools = tuple(
        Pool(
            name=name,
            role=columns[name].role,
            gpu=columns[name].gpu,
            tensor_parallel=columns[name].tensor_parallel,
            weight_dtype="bf16",
            kv_dtype="bf16",
            block_tokens=16,
            max_num_seqs=64,
            max_num_batched_tokens=2048,
            max_model_len=8192,
            memory_fraction=0.9,
            kv_capacity_tokens=1000,
            usd_per_gpu_hour=1.0,
            instances=instances,
        )
        for name, instances in assign(problem, solution).instances.items()
    )
    inputs = Inputs(
        model="m",
        fleet="test",
        fleet_hash="",
        workload="w",
        workload_hash="",
        rate_req_per_s=1.0,
        slo="",
        model_hash="",
        profile_hashes={},
    )
    proof = Proof(status="optimal", objective="cost", value=1, bound=1, gap_percent=0, solver="", constraints_checked=1)
    return Plan(
        inputs=inputs,
        engine="vllm",
        engine_version="1",
        pools=pools,
        num_gpus=solution.num_gpus,
        usd_per_hour=solution.usd_per_hour,
        watts=0.0,
        proof=proof,
    )


def drawn(plan: Plan, fleet: Fleet | None = None) -> str:
    console = Console(file=io.StringIO(), width=100)
    console.print(draw_racks(plan, fleet))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_racks_nodes_and_gpus_are_drawn() -> None:
    """Every instance appears under its node with its GPU range; idle and foreign GPUs are counted."""
    fleet = a_fleet([a_rack("r0", [a_node("n0", gpus_in_use=(7,)), a_node("n1")])])
    problem = a_problem(fleet, [a_column("prefill", tp=4, work=[0.1]), a_column("decode", tp=2, work=[0.1])])
    text = drawn(a_plan(problem), fleet)
    assert "rack r0" in text
    assert "n0  8 x h100-sxm  (1 idle, 1 not ours)" in text
    assert "prefill-0  TP4  GPU 0-3  100 % of prefill" in text
    assert "decode-0  TP2  GPU 4-5  100 % of decode" in text
    assert "n1  8 x h100-sxm  (8 idle)" in text
    assert "prefill-0  TP4  GPU 0-3" in drawn(a_plan(problem))


def test_index_ranges() -> None:
    """Runs are joined, single indices stand alone."""
    assert index_ranges([6, 0, 1, 2, 3]) == "0-3,6"
    assert index_ranges([5]) == "5"
