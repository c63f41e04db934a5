"""Step tables from op times, checked against sums done by hand."""

from __future__ import annotations

import numpy as np
import pytest

from splitplan.catalogs.engines import Engine
from splitplan.catalogs.models import AttentionGroup, Mla, Moe
from splitplan.planner.latency.build import step_model
from splitplan.planner.latency.evaluate import bilinear, step_seconds
from splitplan.planner.latency.overhead import EngineOverhead
from splitplan.planner.latency.step import StepModel
from tests.planner.latency.shapes import LLAMA_8B, LLAMA_70B, NVLINK, LinearOps, dense_model

ENGINE = Engine("vllm", "0.24.0", "vllm-v1", 16, 0.9, 256, 8192, ("bf16",), ("bf16",), ("nixl",), True, "test", "2026")


def build(
    model=LLAMA_8B, ops=None, *, tp=1, pp=1, ep=1, overhead=None, seqs=256, tokens=8192, dtype="bf16"
) -> StepModel:
    return step_model(
        model,
        ops or LinearOps(),
        ENGINE,
        NVLINK,
        tp=tp,
        pp=pp,
        ep=ep,
        weight_dtype=dtype,
        kv_dtype="bf16",
        max_num_seqs=seqs,
        max_num_batched_tokens=tokens,
        overhead=overhead or EngineOverhead(),
    )


def test_a_70b_prefill_of_2000_tokens_is_286_ms_of_flops_on_one_card_and_71_ms_on_four() -> None:
    """2 · 70.6e9 · 2,000 = 2.8e14 FLOP at 989 TFLOP/s; here at 1 PFLOP/s, GEMMs without embedding, plus attention."""

    class PureFlops(LinearOps):
        bytes_per_s = 1e30

    one = float(step_seconds(build(LLAMA_70B, PureFlops()), prefill_new=2048))
    gemm_flops = 2 * (LLAMA_70B.total_parameters - 2 * 128256 * 8192) * 2048 + 2 * 128256 * 8192
    attention_flops = 4 * 2048 * 1024 * 64 * 128 * 80
    assert one == pytest.approx((gemm_flops + attention_flops) / 1e15, rel=1e-6)
    assert 2 * LLAMA_70B.total_parameters * 2000 == pytest.approx(2.8e14, rel=0.01)
    peak_s = 2 * LLAMA_70B.total_parameters * 2000 / 989e12
    assert peak_s == pytest.approx(0.286, rel=0.01)
    assert peak_s / 4 == pytest.approx(0.071, rel=0.01)
    four = float(step_seconds(build(LLAMA_70B, PureFlops(), tp=4), prefill_new=2048))
    communication = 161 * float(LinearOps().all_reduce(2048 * 8192 * 2.0, 4, NVLINK).seconds)
    gather = float(LinearOps().all_gather(128256 * 2.0, 4, NVLINK).seconds)
    assert four == pytest.approx(one / 4 + communication + gather, rel=1e-6)


def test_a_prefix_hit_removes_exactly_that_work() -> None:
    """Prefill of 2,048 tokens = its first 512 + the other 1,536 on top of them, without engine overhead."""
    model = build()
    whole = step_seconds(model, prefill_new=2048)
    hit = step_seconds(model, prefill_new=1536, prefill_past=512)
    first = step_seconds(model, prefill_new=512)
    sampled = float(model.sequence_s[1])
    assert float(whole) == pytest.approx(float(hit + first) - sampled, rel=0.01)


def test_decode_reads_the_weights_once_and_each_context() -> None:
    model = build()
    weights = 2.0 * (LLAMA_8B.total_parameters - 128256 * 4096)
    cache = 64 * 2000 * 131072.0
    assert float(step_seconds(model, decode_batch=64, decode_context=2000)) == pytest.approx(
        (weights + cache) / 3e12, rel=0.03
    )


def test_tables_are_dense_padded_to_graph_sizes_and_cut_to_the_limits() -> None:
    model = build(seqs=100, tokens=3000)
    assert model.token_s.shape == (3001,)
    assert model.sequence_s.shape == (101,)
    assert model.token_s[0] == model.sequence_s[0] == 0
    assert model.token_s[9] == model.token_s[16] < model.token_s[2000]
    assert np.all(np.diff(model.token_s) >= 0)
    assert np.all(model.prefill_attention_s[0] == 0)
    assert np.all(model.decode_attention_s[0] == 0)


def test_two_engine_settings_share_one_sampling() -> None:
    ops = LinearOps()
    build(ops=ops)
    queries = ops.num_queries
    build(ops=ops, seqs=64, tokens=2048)
    assert ops.num_queries == queries


def test_other_op_times_are_never_served_from_the_cache() -> None:
    class Slow(LinearOps):
        flops_per_s = 1e13

    assert build(ops=Slow()).token_s[8192] > 50 * build(ops=LinearOps()).token_s[8192]


def test_pipeline_stages_split_layers_and_add_hand_offs() -> None:
    one, two = build(LLAMA_70B), build(LLAMA_70B, pp=2)
    assert two.num_stages == 2
    assert two.handoff_s > 0
    assert two.token_s[2048] == pytest.approx(one.token_s[2048] / 2, rel=0.01)
    whole, split = (float(step_seconds(model, prefill_new=2048)) for model in (one, two))
    assert split > whole


def test_more_ranks_than_kv_heads_replicate_them() -> None:
    """4 KV heads over 8 ranks: decode attention reads as much per rank as over 4."""
    model = dense_model(kv_heads=4)
    four, eight = build(model, tp=4), build(model, tp=8)
    assert np.allclose(four.decode_attention_s, eight.decode_attention_s)


def test_windows_stop_growing() -> None:
    groups = (AttentionGroup(16, "full", 32, 8, 128), AttentionGroup(16, "sliding", 32, 8, 128, window_tokens=128))
    hybrid, full = build(dense_model(groups=groups)), build()
    at_long = bilinear(hybrid.decode_batch_knots, hybrid.decode_context_knots, hybrid.decode_attention_s, 16.0, 65536.0)
    full_at_long = bilinear(full.decode_batch_knots, full.decode_context_knots, full.decode_attention_s, 16.0, 65536.0)
    assert float(at_long) == pytest.approx(float(full_at_long) * (65536 + 128) / (2 * 65536), rel=1e-6)


def test_experts_replace_the_dense_mlp() -> None:
    moe = Moe(8, 2, 0, 14336, 32, 0)
    model = build(dense_model(moe=moe))
    dense = build()
    assert model.token_s[8192] > dense.token_s[8192] * 1.3  # two experts a token
    assert model.token_s[8192] < dense.token_s[8192] * 2.2


def test_mla_projections_are_in_the_module_only() -> None:
    """Token tables of an MLA model hold no attention GEMM: the profile's module covers them."""
    mla = dense_model(groups=(AttentionGroup(32, "mla", 32, 1, 576),), mla=Mla(None, 512, 64, 128, 128))
    assert build(mla).token_s[4096] < build().token_s[4096]
    assert build(mla).decode_attention_s[-1, -1] > 0


def test_overheads_land_where_their_names_say() -> None:
    """Launches show only above device time; gaps always show, by step and by sequence."""
    plain = build()
    device = float(step_seconds(plain, decode_batch=8, decode_context=100))
    kernels = 32 * 12 + 12
    hidden = build(overhead=EngineOverhead(launch_s=device / kernels / 2))
    eager = build(overhead=EngineOverhead(launch_s=1e-3))
    gap = build(overhead=EngineOverhead(gap_s=0.003, sequence_gap_s=1e-4))
    assert float(step_seconds(hidden, decode_batch=8, decode_context=100)) == pytest.approx(device)
    assert float(step_seconds(eager, decode_batch=8, decode_context=100)) == pytest.approx(kernels * 1e-3)
    assert float(step_seconds(gap, decode_batch=8, decode_context=100)) == pytest.approx(device + 0.003 + 8e-4)


def test_sustained_clocks_slow_prompts_not_small_batches() -> None:
    cool, hot = build(), build(overhead=EngineOverhead(compute_scale=1.2))
    assert hot.token_s[128] == cool.token_s[128]
    assert hot.token_s[512] == pytest.approx(1.2 * cool.token_s[512])
    assert hot.token_s[8000] == pytest.approx(1.2 * cool.token_s[8000])
    assert np.allclose(hot.prefill_attention_s, 1.2 * cool.prefill_attention_s)
    assert np.array_equal(hot.decode_attention_s, cool.decode_attention_s)


def test_an_empty_step_takes_no_time_and_arrays_broadcast() -> None:
    model = build(overhead=EngineOverhead(gap_s=1.0))
    times = step_seconds(model, decode_batch=np.array([0, 1, 8]), decode_context=1000.0)
    assert times.shape == (3,)
    assert times[0] == 0
    assert times[2] > times[1] > 1.0


def test_mixed_steps_cost_their_parts_once() -> None:
    """A step of decodes and a chunk reads the weights once: cheaper than two steps, dearer than either."""
    model = build()
    decode = float(step_seconds(model, decode_batch=64, decode_context=1000))
    prefill = float(step_seconds(model, prefill_new=960))
    mixed = float(step_seconds(model, decode_batch=64, decode_context=1000, prefill_new=960))
    assert max(decode, prefill) < mixed < decode + prefill


def test_basis_shares_add_up() -> None:
    assert build().basis_shares == (0.0, 0.0, 0.0, 1.0)
