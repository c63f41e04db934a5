"""What must match across a KV connector: each rule has a pair that breaks it alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from splitplan.catalogs.engines import EngineSide, connector_problems, find_engine, load_engines
from splitplan.catalogs.models import find_model, load_models

SIDE = EngineSide("m", "h100-sxm", 2, 1, "bf16", "bf16", 16, "", "0.32.0")


def problems(
    engine: str, connector: str, model: str, prefill: dict[str, Any] | None = None, decode: dict[str, Any] | None = None
) -> list[str]:
    sides = replace(SIDE, **(prefill or {})), replace(SIDE, **(decode or {}))
    return connector_problems(find_engine(engine), connector, find_model(model), *sides)


@pytest.mark.parametrize(
    ("engine", "connector", "model", "prefill", "decode"),
    [
        ("vllm", "nixl", "llama-3.1-70b", {}, {}),
        ("vllm", "NixlConnector", "llama-3.1-70b", {"gpu": "h100"}, {"gpu": "a100", "tensor_parallel": 4}),
        ("vllm", "nixl", "llama-3.1-8b", {"gpu": "l40s", "tensor_parallel": 1}, {"tensor_parallel": 2}),
        ("vllm", "nixl", "llama-3.1-70b", {"tensor_parallel": 8}, {"tensor_parallel": 4}),  # 8 heads, none replicated
        ("vllm", "nixl", "llama-3.1-70b", {"tensor_parallel": 8}, {"tensor_parallel": 16}),  # decode may replicate
        ("vllm", "nixl", "deepseek-v3", {"tensor_parallel": 16}, {"tensor_parallel": 8}),  # MLA: every rank has it all
        ("vllm", "mooncake", "llama-3.1-70b", {"pipeline_parallel": 2}, {}),
        ("vllm", "nixl-push", "llama-3.1-70b", {"pipeline_parallel": 2}, {"tensor_parallel": 4}),
        ("vllm", "NixlPushConnector", "llama-3.1-70b", {"pipeline_parallel": 2}, {}),
        ("vllm", "nixl", "gpt-oss-120b", {}, {}),
        ("sglang", "mooncake", "llama-3.1-70b", {"tensor_parallel": 4}, {"tensor_parallel": 8}),
        ("sglang", "nixl", "llama-3.1-70b", {"pipeline_parallel": 2}, {"pipeline_parallel": 2}),
        ("sglang", "nixl", "llama-3.1-70b", {"gpu": "b200"}, {"gpu": "h100"}),
        ("trtllm", "ucx", "llama-3.1-70b", {"tensor_parallel": 4}, {"tensor_parallel": 8}),
        ("dynamo-vllm", "nixl", "llama-3.1-70b", {"gpu": "h100"}, {"gpu": "a100", "tensor_parallel": 4}),
    ],
)
def test_pairs_that_work_are_let_through(
    engine: str, connector: str, model: str, prefill: dict[str, Any], decode: dict[str, Any]
) -> None:
    assert problems(engine, connector, model, prefill, decode) == []


PIN = {"attention_backend": "FLASH_ATTN"}


@pytest.mark.parametrize(
    ("engine", "connector", "model", "prefill", "decode", "message"),
    [
        ("vllm", "ucx", "llama-3.1-8b", {}, {}, "has no KV connector 'ucx': use nixl, mooncake"),
        ("vllm", "nixl", "llama-3.1-8b", {}, {"engine_version": "0.31.0"}, "pin one image"),
        ("vllm", "nixl", "llama-3.1-8b", {"model": "/models/m"}, {}, "give both the same string"),
        ("vllm", "nixl", "llama-3.1-8b", {}, {"weight_dtype": "fp16"}, "use one checkpoint"),
        ("vllm", "nixl", "llama-3.1-8b", PIN, {**PIN, "kv_dtype": "fp8"}, "set one KV dtype"),
        ("vllm", "nixl", "llama-3.1-8b", {"block_tokens": 64}, {"block_tokens": 128}, "answers with wrong tokens"),
        ("vllm", "nixl", "llama-3.1-8b", {}, {"gpu": "b200"}, "FLASH_ATTN on h100-sxm and FLASHINFER on b200"),
        (
            "vllm",
            "nixl",
            "llama-3.1-8b",
            {"kv_dtype": "fp8"},
            {"kv_dtype": "fp8", "gpu": "l40s"},
            "--attention-backend",
        ),
        ("vllm", "nixl", "gpt-oss-20b", {}, {"gpu": "a100"}, "FLASH_ATTN on h100-sxm and TRITON_ATTN on a100"),
        ("vllm", "nixl", "llama-3.1-8b", {}, {"hybrid_kv_cache": False}, "hybrid KV cache manager"),
        ("vllm", "nixl", "llama-3.1-8b", {}, {"speculative": "eagle"}, "speculative decoding"),
        ("vllm", "nixl", "llama-3.1-70b", {"tensor_parallel": 16}, {"tensor_parallel": 8}, "replicates 8 KV heads"),
        ("vllm", "nixl", "qwen2.5-7b", {"tensor_parallel": 14}, {"tensor_parallel": 7}, "replicates 4 KV heads"),
        ("vllm", "nixl", "llama-3.1-70b", {"tensor_parallel": 2}, {"tensor_parallel": 3}, "do not divide each other"),
        (
            "vllm",
            "nixl",
            "gpt-oss-120b",
            {"tensor_parallel": 1},
            {"tensor_parallel": 2},
            "sliding-window and full layers",
        ),
        ("vllm", "nixl", "nemotron-3-super-120b-a12b", {"tensor_parallel": 1}, {}, "has state layers"),
        ("vllm", "nixl", "llama-3.1-8b", {"pipeline_parallel": 2}, {}, "2 pipeline stages cannot hand KV over"),
        ("vllm", "nixl", "llama-3.1-8b", {}, {"pipeline_parallel": 2}, "use PP 1 for decode"),
        ("vllm", "nixl-push", "llama-3.1-8b", {}, {"pipeline_parallel": 2}, "use PP 1 for decode"),
        ("vllm", "nixl-push", "nemotron-3-super-120b-a12b", {"pipeline_parallel": 2}, {}, "state layers"),
        ("vllm", "mooncake", "llama-3.1-8b", {"tensor_parallel": 1}, {"tensor_parallel": 2}, "wants the same TP"),
        ("sglang", "nixl", "llama-3.1-8b", {"block_tokens": 64}, {"block_tokens": 1}, "KV pages hold 64"),
        ("sglang", "mooncake", "llama-3.1-8b", {}, {"kv_dtype": "fp8"}, "set one KV dtype"),
        ("sglang", "mooncake", "llama-3.1-8b", {}, {"context_parallel": 2}, "context parallelism 2"),
        (
            "sglang",
            "nixl",
            "llama-3.1-8b",
            {"pipeline_parallel": 2},
            {"pipeline_parallel": 4},
            "equal to prefill's, or 1",
        ),
        ("sglang", "nixl", "gemma-3-27b", {"tensor_parallel": 2}, {"tensor_parallel": 4}, "the same TP on both sides"),
        ("trtllm", "nixl", "llama-3.1-8b", {}, {"kv_dtype": "fp8"}, "set one KV dtype"),
    ],
)
def test_pairs_that_fail_or_lie_are_refused_once(
    engine: str, connector: str, model: str, prefill: dict[str, Any], decode: dict[str, Any], message: str
) -> None:
    found = problems(engine, connector, model, prefill, decode)
    assert len(found) == 1
    assert message in found[0]


@pytest.mark.parametrize(
    ("engine", "connector", "dense_allowed"),
    [("vllm", "nixl", True), ("vllm", "mooncake", False), ("sglang", "nixl", True)],
)
def test_one_prefill_rank_and_two_decode_ranks(engine: str, connector: str, dense_allowed: bool) -> None:
    """The report's case: what each connector does with TP 1 → TP 2, for a plain model and for one with windows."""
    ranks = {"tensor_parallel": 1}, {"tensor_parallel": 2}
    assert (problems(engine, connector, "llama-3.1-8b", *ranks) == []) == dense_allowed
    assert problems(engine, connector, "gemma-3-27b", *ranks) != []


@pytest.mark.parametrize("engine", sorted(load_engines()))
@pytest.mark.parametrize("model", sorted(load_models()))
def test_a_side_always_fits_its_own_like(engine: str, model: str) -> None:
    """Whatever the engine, model, GPU and TP: two equal sides without pipeline or context parallelism pass."""
    for connector in find_engine(engine).connectors:
        for gpu in ("h100-sxm", "a100-sxm-80", "b200", "mi300x"):
            for tp in (1, 2, 8, 16):
                sides = {"gpu": gpu, "tensor_parallel": tp, "block_tokens": 64}
                assert problems(engine, connector, model, sides, sides) == []


def test_several_mismatches_are_all_told() -> None:
    found = problems("vllm", "nixl", "llama-3.1-8b", {"block_tokens": 64}, {"kv_dtype": "fp8", "pipeline_parallel": 2})
    assert len(found) == 3


def test_mla_blocks_are_compared_as_the_engine_will_set_them() -> None:
    """16 and 64 are the same on Hopper, where vLLM raises both to 64."""
    assert problems("vllm", "nixl", "deepseek-v3", {"block_tokens": 16}, {"block_tokens": 64}) == []
