"""The plan of points: each shape once, the ends of every line first, budgets that shed the finest refinements."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import ArrayLike

from splitplan.catalogs.engines import find_engine
from splitplan.catalogs.errors import InputError
from splitplan.catalogs.gpus import find_gpu
from splitplan.catalogs.links import find_link
from splitplan.catalogs.models import find_model
from splitplan.planner.latency.build import step_model
from splitplan.profiler.families import FAMILIES
from splitplan.profiler.points import Request, make_plan, make_point, point_cost_s, refinement_levels
from splitplan.profiler.profile import Timed
from splitplan.profiler.query import OpTimes
from splitplan.profiler.rates import Rates, rates_of, work
from splitplan.profiler.shapes import GemmShape, gemm_shapes

H100 = rates_of(find_gpu("h100"))
LLAMA = find_model("llama-3.1-8b")


def request(*models: str, tp: tuple[int, ...] = (1,)) -> Request:
    return Request(tuple(find_model(name) for name in models), tp)


def test_linear_layers_of_llama_are_its_published_shapes() -> None:
    """Llama-3.1-8B: 4096 wide, 32 + 2·8 heads of 128, MLP 14336, vocabulary 128256 (its config.json)."""
    assert set(gemm_shapes(LLAMA, 1)) == {
        GemmShape(6144, 4096),
        GemmShape(4096, 4096),
        GemmShape(28672, 4096),
        GemmShape(4096, 14336),
        GemmShape(128256, 4096, per_sequence=True, always_16_bit=True),
    }
    assert GemmShape(3072, 4096) in gemm_shapes(LLAMA, 2)
    assert GemmShape(4096, 7168) in gemm_shapes(LLAMA, 2)


def test_kv_heads_are_replicated_beyond_their_number() -> None:
    """70B over 16 ranks: 4 query heads and one whole KV head each, (4 + 2)·128 columns."""
    assert GemmShape(768, 8192) in gemm_shapes(find_model("llama-3.1-70b"), 16)


@pytest.mark.parametrize(
    ("model", "tp"), [("llama-3.1-8b", 2), ("qwen3-0.6b", 1), ("mixtral-8x7b", 4), ("gemma-3-4b", 1)]
)
def test_every_product_of_the_step_model_is_one_that_the_plan_measures(model: str, tp: int) -> None:
    """What a step asks of the tables is what a profile of the model holds: no shape is left to interpolation."""
    asked: set[tuple[int, int]] = set()

    class Recorder(OpTimes):
        def gemm(self, m: ArrayLike, n: ArrayLike, k: ArrayLike, dtype: str = "bf16") -> Timed:
            asked.add((int(np.asarray(n)), int(np.asarray(k))))
            return super().gemm(m, n, k, dtype)

    gpu, known = find_gpu("h100"), find_model(model)
    step_model(
        known,
        Recorder(None, gpu),
        find_engine("vllm"),
        find_link("nvlink4"),
        tp=tp,
        pp=1,
        ep=1,
        weight_dtype="bf16",
        kv_dtype="bf16",
        max_num_seqs=64,
        max_num_batched_tokens=2048,
    )
    assert asked == {(shape.n, shape.k) for shape in gemm_shapes(known, tp)}


def test_models_that_share_shapes_share_points() -> None:
    once = make_plan(request("llama-3.1-8b"), H100)
    twice = make_plan(replace(request("llama-3.1-8b"), models=(LLAMA, LLAMA)), H100)
    assert {p.key for p in once.points} == {p.key for p in twice.points}
    keys = Counter(p.key for p in make_plan(request("llama-3.1-8b", "llama-3.1-70b", tp=(1, 2)), H100).points)
    assert max(keys.values()) == 1


def test_points_have_the_columns_of_their_tables() -> None:
    for point in make_plan(request("mixtral-8x7b", "deepseek-v3", tp=(8,)), H100).points:
        assert tuple(name for name, _ in point.shape) == FAMILIES[point.family]


def test_bisection_takes_the_ends_first_then_the_middle() -> None:
    assert refinement_levels(5) == [0, 2, 1, 2, 0]
    assert refinement_levels(2) == [0, 0]
    assert refinement_levels(1) == [0]


def test_a_budget_is_kept_by_the_estimate_and_sheds_the_finest_first() -> None:
    """Where every point costs the same, what is kept of each line is its coarsest grid, and no line is given up."""
    flat = Rates({"bf16": 1e30}, 1e30, launch_s=0.05)
    whole = make_plan(request("llama-3.1-8b"), flat)
    short = make_plan(request("llama-3.1-8b"), flat, budget_s=30)
    assert short.estimate_s <= 30 < whole.estimate_s
    assert {p.key for p in short.points} | {p.key for p in short.shed} == {p.key for p in whole.points}
    lines_kept = {(p.family, p["n"], p["k"]) for p in short.points}
    assert lines_kept == {(p.family, p["n"], p["k"]) for p in whole.points}
    level = {p.key: p.level for p in whole.points}
    assert min(level[p.key] for p in short.shed) >= max(level[p.key] for p in short.points)


def test_no_single_point_eats_the_budget() -> None:
    slow = replace(H100, flops_per_s={"bf16": 4e11})  # a CPU's rate: the largest product takes seconds
    plan = make_plan(request("llama-3.1-8b"), slow, budget_s=60)
    assert max(point_cost_s(p, plan.effort) for p in plan.points) < 0.1 * 60


def test_a_budget_too_small_for_anything_is_refused() -> None:
    with pytest.raises(InputError, match="budget"):
        make_plan(request("llama-3.1-8b"), H100, budget_s=0.5)


def test_tensor_parallel_that_divides_no_head_count_is_refused() -> None:
    with pytest.raises(InputError, match="does not divide"):
        make_plan(request("llama-3.1-8b", tp=(3,)), H100)


def test_work_of_a_prefill_is_that_of_its_causal_half() -> None:
    """4·d FLOP per query-key pair and head: 2 for the scores, 2 for the values; a window cuts the pairs."""
    shape = {"kv_dtype": "bf16", "head_dim": 128, "heads": 32, "kv_heads": 8, "batch": 1, "past": 0, "new": 1000}
    full = make_point("prefill_attention", {**shape, "window": 0})
    assert work(full)[0] == pytest.approx(4 * 128 * 32 * 1000 * 1001 / 2)
    windowed = make_point("prefill_attention", {**shape, "window": 100})
    assert work(windowed)[0] == pytest.approx(4 * 128 * 32 * 1000 * 100)


def test_collectives_are_planned_only_between_gpus_that_the_host_has() -> None:
    def ranks(host_gpus: int) -> set[int]:
        plan = make_plan(replace(request("llama-3.1-8b", tp=(1, 2, 4)), host_gpus=host_gpus), H100)
        return {p["ranks"] for p in plan.points if p.family == "all_reduce"}

    assert ranks(1) == set()
    assert ranks(2) == {2}
    assert ranks(8) == {2, 4}


def test_the_same_request_gives_the_same_plan() -> None:
    first, second = (make_plan(request("llama-3.1-8b"), H100, budget_s=20) for _ in range(2))
    assert first.plan_hash == second.plan_hash
