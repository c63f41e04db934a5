"""What fits: against the start-up logs of vLLM 0.19 on H100 and against memory limits that people reported."""

from __future__ import annotations

import csv
import statistics
from collections.abc import Mapping
from typing import Any

import pytest

from splitplan.catalogs.engines import find_engine
from splitplan.catalogs.gpus import find_gpu
from splitplan.catalogs.models import find_model
from splitplan.planner.latency.memory import (
    GIB,
    InstanceMemory,
    capacity_at_context,
    instance_memory,
    kv_bytes_per_gpu,
    kv_layer_slots,
)
from splitplan.planner.latency.weights import weight_bytes_per_gpu
from tests.conftest import SHARED, needs_shared

LOGGED = [
    # model, TP, PP, weights, KV dtype | weights GiB, KV GiB, KV tokens: vLLM 0.19 on H100 80 GB at a fraction of 0.95,
    # logged by llm-d-planner (accuracy/results/v0.19.0, commit 30ec05f)
    ("meta-llama/Llama-3.1-8B-Instruct", 1, 1, "bf16", "bf16", 14.99, 58.11, 476016),
    ("meta-llama/Llama-3.1-8B-Instruct", 1, 1, "bf16", "fp8", 14.99, 58.11, 952032),
    ("meta-llama/Llama-3.1-8B-Instruct", 1, 1, "fp8", "bf16", 8.49, 64.61, 529248),
    ("meta-llama/Llama-3.1-8B-Instruct", 1, 2, "bf16", "bf16", 7.51, 66.54, 1075312),
    ("meta-llama/Llama-3.1-8B-Instruct", 4, 1, "bf16", "bf16", 3.77, 67.44, 2209792),
    ("RedHatAI/Llama-3.3-70B-Instruct-fp8-dynamic", 2, 1, "fp8", "bf16", 33.88, 37.28, 244304),
    ("mistralai/Mixtral-8x7B-Instruct-v0.1", 2, 1, "bf16", "bf16", 43.51, 28.44, 465936),
    ("deepseek-ai/DeepSeek-V2-Lite-Chat", 1, 1, "bf16", "bf16", 29.43, 43.61, 1505552),
    ("openai/gpt-oss-20b", 1, 1, "mxfp4", "bf16", 13.64, 58.47, 1277184),
    ("google/gemma-3-4b-it", 1, 1, "bf16", "bf16", 8.58, 62.51, 468144),
    ("Qwen/Qwen3-30B-A3B", 1, 1, "bf16", "bf16", 56.88, 15.41, 168288),
]


def memory(model: str, gpu: str = "h100", **changes: Any) -> InstanceMemory:
    settings: dict[str, Any] = {
        "tp": 1,
        "pp": 1,
        "ep": 1,
        "weight_dtype": "bf16",
        "kv_dtype": "bf16",
        "max_num_seqs": 1024,
        "max_num_batched_tokens": 8192,
        "memory_fraction": 0.95,
        "max_model_len": 8192,
    }
    return instance_memory(find_model(model), find_gpu(gpu), find_engine("vllm"), **{**settings, **changes})


@pytest.mark.parametrize(
    ("model", "tp", "pp", "weight_dtype", "kv_dtype", "weights_gib", "kv_gib", "kv_tokens"),
    LOGGED,
    ids=[f"{row[0].split('/')[1]} tp{row[1]} pp{row[2]} {row[3]}+{row[4]}" for row in LOGGED],
)
def test_weights_and_kv_are_what_the_engine_logged(
    model: str, tp: int, pp: int, weight_dtype: str, kv_dtype: str, weights_gib: float, kv_gib: float, kv_tokens: int
) -> None:
    """KV tokens within 2 %, bytes within 1.5 %; weights within 7 % (a vision tower's buffers are the worst)."""
    found = memory(model, tp=tp, pp=pp, weight_dtype=weight_dtype, kv_dtype=kv_dtype)
    assert found.kv_capacity_tokens == pytest.approx(kv_tokens, rel=0.02)
    assert found.kv_bytes / GIB == pytest.approx(kv_gib, rel=0.015)
    assert found.weights_bytes / GIB == pytest.approx(weights_gib, rel=0.07)


def logged_settings(row: Mapping[str, str]) -> dict[str, Any]:
    single = row["dtype"] == "torch.float32"
    weights = {"None": "fp32" if single else "bf16", "gptq_marlin": "int4", "mxfp4": "mxfp4"}
    kv_dtype = "fp8" if row["kv_cache_dtype"] == "fp8" else ("fp32" if single else "bf16")
    return {
        "tp": int(row["tp"]),
        "pp": int(row["pp"]),
        "weight_dtype": weights.get(row["quantization"], "fp8"),
        "kv_dtype": kv_dtype,
        "memory_fraction": float(row["gpu_memory_utilization"]),
        "max_model_len": int(row["max_model_len"]),
    }


@needs_shared
def test_all_55_logged_runs_hold() -> None:
    """KV tokens within 3 % at the median and 8 % at the worst, or 0.5 GiB where KV is under 5 GiB."""
    with open(SHARED / "data" / "measured" / "memory.csv") as handle:
        rows = list(csv.DictReader(handle))
    errors = []
    for row in rows:
        found = memory(row["model"], **logged_settings(row))
        error = abs(found.kv_capacity_tokens / int(row["kv_cache_tokens"]) - 1)
        errors.append(error)
        logged_gib = float(row["kv_cache_memory_gib"])
        small = logged_gib < 5 and abs(found.kv_bytes / GIB - logged_gib) <= 0.5
        assert error <= 0.08 or small, row["model"]
    assert len(rows) == 55
    assert statistics.median(errors) <= 0.03


def test_kv_per_token_is_128_kib_for_8b_and_320_kib_for_70b() -> None:
    assert find_model("llama-3.1-8b").kv_bytes_per_token("bf16") == 128 * 1024
    assert find_model("llama-3.1-70b").kv_bytes_per_token("bf16") == 320 * 1024
    assert kv_bytes_per_gpu(find_model("llama-3.1-70b"), "bf16", 1000, tp=4, pp=1) == 80 * 1024 * 1000


def test_72b_in_bf16_on_two_a100_has_no_room_for_kv_at_0_9_and_20k_tokens_at_0_95() -> None:
    """Reported: 67.8 of 71.3 GiB a card are weights, then activations and buffers leave no KV."""
    tight = memory("qwen2.5-72b", "a100", tp=2, memory_fraction=0.9)
    assert tight.weights_bytes / GIB == pytest.approx(67.8, abs=0.2)
    assert tight.budget_bytes / GIB == pytest.approx(71.3, abs=0.2)
    assert tight.weights_bytes < tight.budget_bytes
    assert tight.kv_capacity_tokens == 0
    assert not tight.fits
    assert 15_000 < memory("qwen2.5-72b", "a100", tp=2, memory_fraction=0.95).kv_capacity_tokens < 25_000
    assert memory("qwen2.5-72b", "a100", tp=2, memory_fraction=0.9, weight_dtype="fp8").kv_capacity_tokens > 150_000
    assert memory("qwen2.5-72b", "a100", tp=4, memory_fraction=0.9).kv_capacity_tokens > 300_000


def test_405b_in_bf16_fits_no_single_h100_and_deepseek_no_two_h200() -> None:
    """The reason is memory: 671 GB of FP8 against 282 GB."""
    assert memory("llama-3.1-405b").kv_bytes < 0
    deepseek = memory("deepseek-v3", "h200", tp=2, weight_dtype="fp8")
    assert deepseek.weights_bytes * 2 > 600e9 > 2 * deepseek.total_bytes
    assert not deepseek.fits


def test_sequences_of_4096_tokens_depend_on_both_dtypes() -> None:
    """70B on 4 H100: about 112 with BF16 weights and KV, about 330 with FP8 for both."""

    def sequences(dtype: str) -> float:
        return memory("llama-3.1-70b", tp=4, weight_dtype=dtype, kv_dtype=dtype).kv_capacity_tokens / 4096

    assert sequences("bf16") == pytest.approx(112, rel=0.1)
    assert sequences("fp8") == pytest.approx(330, rel=0.1)


def test_kv_memory_caps_the_batch_not_the_slots() -> None:
    """Reported: Qwen2.5-7B on an A10G has 77,088 KV tokens; 72 sequences of 1,070 run, not 256."""
    reported_tokens, per_request = 77_088, 1_070
    assert reported_tokens // per_request == 72 < 256
    found = memory("qwen2.5-7b", "a10g", max_num_seqs=256, max_num_batched_tokens=2048, memory_fraction=0.9)
    assert found.kv_capacity_tokens == pytest.approx(reported_tokens, rel=0.25)  # fraction and version not reported
    assert found.kv_capacity_tokens // per_request < 256


def test_reported_maximum_concurrency_is_of_full_length_requests() -> None:
    """4.61 at 8,192 tokens means about 37.8 k KV tokens: 4.6 full-length requests, or about 47 of 800 tokens."""
    kv_tokens = 4.61 * 8192
    assert kv_tokens == pytest.approx(37_800, rel=0.01)
    assert kv_tokens / 800 == pytest.approx(47, abs=0.5)
    found = memory("gemma-3-27b")  # logged: 36,560 tokens, concurrency 4.46
    assert found.kv_capacity_tokens / 8192 == pytest.approx(4.46, rel=0.05)


def test_half_the_layers_of_gpt_oss_keep_a_window_of_128_tokens() -> None:
    """One sequence of 65,536 tokens in FP8 takes 1.13 GiB, not 2.26."""
    model = find_model("gpt-oss-120b")
    assert kv_bytes_per_gpu(model, "fp8", 65536, tp=1, pp=1) / GIB == pytest.approx(1.13, abs=0.01)
    assert kv_bytes_per_gpu(model, "fp8", 65536, tp=1, pp=1, windows=False) / GIB == pytest.approx(2.25, abs=0.02)
    found = memory("gpt-oss-120b", weight_dtype="mxfp4", kv_dtype="fp8")
    at_length = capacity_at_context(found, model, "fp8", 65536, tp=1, pp=1)
    assert at_length == pytest.approx(2 * found.kv_capacity_tokens, rel=0.1)


def test_one_131k_sequence_of_a_70b_takes_40_gib_in_bf16_and_20_in_fp8() -> None:
    """A prefill worker that promises this length must hold it, or refuse the length at planning time."""
    model = find_model("llama-3.1-70b")
    assert kv_bytes_per_gpu(model, "bf16", 131072, tp=1, pp=1) / GIB == pytest.approx(40)
    assert kv_bytes_per_gpu(model, "fp8", 131072, tp=1, pp=1) / GIB == pytest.approx(20)
    assert not memory("llama-3.1-70b", weight_dtype="fp8", max_model_len=131072).fits
    assert memory("llama-3.1-70b", weight_dtype="fp8", tp=2, max_model_len=65536).fits


def test_the_budget_is_a_share_of_total_memory() -> None:
    """A planned batch may use the engine's fraction, never all memory: 0.9 and 0.95 differ by 5 % of the card."""
    low, high = memory("llama-3.1-8b", memory_fraction=0.9), memory("llama-3.1-8b", memory_fraction=0.95)
    assert high.kv_bytes - low.kv_bytes == pytest.approx(0.05 * high.total_bytes)
    assert high.total_bytes / GIB == pytest.approx(79.19, abs=0.01)


def test_kimi_in_nvfp4_on_eight_b200_admits_far_fewer_than_384_long_requests_a_worker() -> None:
    """Reported: 29 sequences of 8,192 + 1,024 tokens were admitted per worker where 384 had been planned."""
    found = memory(
        "kimi-k2.5", "b200", tp=8, weight_dtype="nvfp4", kv_dtype="bf16", memory_fraction=0.9, max_model_len=9216
    )
    assert found.kv_capacity_tokens / 9216 < 384


def test_hybrid_allocators_pad_layer_groups() -> None:
    """gemma-3-4b: 29 sliding and 5 full layers take 35 slots; 24 layers of gpt-oss-20b stay 24."""
    assert sum(kv_layer_slots(find_model("gemma-3-4b"))) == 35
    assert sum(kv_layer_slots(find_model("gpt-oss-20b"))) == 24
    assert kv_layer_slots(find_model("llama-3.1-8b")) == (32,)


def test_weights_divide_over_ranks_and_stages_but_kv_heads_are_never_cut() -> None:
    model = find_model("llama-3.1-70b")

    def weights(**changes: int) -> float:
        return weight_bytes_per_gpu(model, **{"tp": 1, "pp": 1, "ep": 1, **changes}, weight_dtype="bf16")

    assert weights() == pytest.approx(model.weight_bytes("bf16"))
    assert weights(tp=8) == pytest.approx(weights() / 8, rel=1e-3)  # norms are on every rank
    kv_projection = 80 * 2 * 8192 * 8 * 128 * 2
    assert weights(tp=16) == pytest.approx(weights() / 16 + kv_projection / 16, rel=1e-3)
    vocabulary = 128256 * 8192 * 2
    assert weights(pp=2) == pytest.approx((weights() - 2 * vocabulary) / 2 + vocabulary, rel=1e-3)


def test_experts_divide_over_expert_ranks() -> None:
    model = find_model("deepseek-v3")
    whole = weight_bytes_per_gpu(model, tp=1, pp=1, ep=1, weight_dtype="fp8")
    spread = weight_bytes_per_gpu(model, tp=1, pp=1, ep=8, weight_dtype="fp8")
    experts = 58 * 256 * 3 * 7168 * 2048
    assert whole - spread == pytest.approx(experts * 7 / 8, rel=1e-3)


def test_more_slots_and_chunk_budget_cost_activation_memory() -> None:
    small = memory("llama-3.1-8b", max_num_seqs=128, max_num_batched_tokens=2048)
    large = memory("llama-3.1-8b", max_num_seqs=1024, max_num_batched_tokens=16384)
    assert small.activation_bytes < large.activation_bytes
    assert large.activation_bytes - small.activation_bytes == pytest.approx(14 * 128256 * 896 + 2 * 2 * 4096 * 14336)
