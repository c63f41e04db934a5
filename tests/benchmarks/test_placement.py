"""The baselines choose what their papers say, and our program never pays more on the same columns."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.placement.baselines import all_baselines, distserve_high, distserve_low, splitwise
from benchmarks.placement.goodput import all_goodputs
from splitplan.planner.program.solve import solve_program
from splitplan.planner.program.types import ProgramSolution
from tests.planner.program.fleets import a_column, a_problem, four_racks, many_columns, same_kv

H100 = "h100-sxm"


def test_distserve_high_takes_the_best_goodput_per_gpu_of_each_stage() -> None:
    """TP2 prefill serves more per GPU than TP4, TP1 decode more than TP2: 10 req/s need ⌈1.8⌉ and ⌈2.5⌉ of them."""
    columns = [
        a_column("prefill", H100, 2, [0.18]),
        a_column("prefill", H100, 4, [0.10]),
        a_column("decode", H100, 1, [0.25]),
        a_column("decode", H100, 2, [0.15]),
    ]
    choice = distserve_high(a_problem(four_racks(), columns, [10.0]), H100)
    assert choice is not None
    assert (choice.prefill.name, choice.num_prefill) == ("prefill h100-sxm tp2", 2)
    assert (choice.decode.name, choice.num_decode) == ("decode h100-sxm tp1", 3)
    assert choice.num_gpus == 7


def test_distserve_low_replicates_pairs_inside_nodes() -> None:
    """A pair serves what its slower half serves; a TP8 half leaves no room for the other in an eight-GPU node."""
    columns = [
        a_column("prefill", H100, 8, [0.01]),
        a_column("prefill", H100, 4, [0.10]),
        a_column("decode", H100, 4, [0.25]),
    ]
    choice = distserve_low(a_problem(four_racks(), columns, [10.0]), H100, 8)
    assert choice is not None
    assert (choice.prefill.tensor_parallel, choice.num_prefill, choice.num_decode) == (4, 3, 3)


def test_splitwise_buys_whole_machines_of_two_types() -> None:
    """Only TP8 instances count; H100 prompt with A100 token machines are cheapest here."""
    columns = [
        a_column("prefill", H100, 8, [0.1]),
        a_column("prefill", "a100-sxm-80", 8, [0.5]),
        a_column("decode", H100, 8, [0.1]),
        a_column("decode", "a100-sxm-80", 8, [0.12]),
        a_column("decode", "a100-sxm-80", 1, [0.12]),
    ]
    choice = splitwise(a_problem(four_racks(), columns, [8.0]), {H100: 8, "a100-sxm-80": 8})
    assert choice is not None
    assert (choice.prefill.gpu, choice.decode.gpu) == (H100, "a100-sxm-80")
    assert (choice.num_prefill, choice.num_decode) == (1, 1)


@pytest.mark.parametrize("seed", range(6))
def test_the_program_never_pays_more(seed: int) -> None:
    """On random columns and rates, no baseline that fits the fleet is cheaper than our disaggregated plan."""
    problem = replace(
        a_problem(four_racks(), many_columns(2, seed), [1.0 + seed, 2.0], mode="disagg"), pairs_allowed=same_kv
    )
    ours = solve_program(problem)
    assert isinstance(ours, ProgramSolution)
    baselines = [choice for choice in all_baselines(problem) if choice.fits]
    assert baselines
    assert all(ours.usd_per_hour <= choice.usd_per_hour + 1e-6 for choice in baselines)


@pytest.mark.parametrize("seed", range(3))
def test_the_program_never_serves_less(seed: int) -> None:
    """On the whole fleet no search serves more than our disaggregated plan, and colocated instances only add to it."""
    problem = replace(a_problem(four_racks(), many_columns(2, seed), [1.0 + seed, 2.0]), pairs_allowed=same_kv)
    *baselines, disaggregated, everything = all_goodputs(problem)
    assert baselines
    assert all(served.req_per_s <= disaggregated.req_per_s * (1 + 1e-6) for served in baselines)
    assert everything.req_per_s >= disaggregated.req_per_s * (1 - 1e-6)
