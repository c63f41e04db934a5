"""What one instance can run: each rule has a case that breaks it alone, and the common cases pass."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from splitplan.catalogs.engines import (
    EngineSide,
    common_attention_backend,
    default_attention_backend,
    effective_block_tokens,
    find_engine,
    instance_problems,
    needs_weight_only_kernels,
)
from splitplan.catalogs.gpus import find_gpu
from splitplan.catalogs.models import find_model

BASE = EngineSide("m", "h100-sxm", 1, 1, "bf16", "bf16", 16, "", "0.32.0")


def problems(engine: str, model: str, gpu: str, **fields: Any) -> list[str]:
    side = replace(BASE, gpu=gpu, **fields)
    return instance_problems(find_engine(engine), find_model(model), find_gpu(gpu), side)


@pytest.mark.parametrize(
    ("engine", "model", "gpu", "fields"),
    [
        ("vllm", "llama-3.1-8b", "h100", {}),
        ("vllm", "llama-3.1-70b", "a100", {"tensor_parallel": 4}),
        ("vllm", "llama-3.1-70b", "a100", {"tensor_parallel": 4, "weight_dtype": "fp8"}),  # Marlin, weight-only
        ("vllm", "llama-3.1-70b", "l40s", {"tensor_parallel": 8, "weight_dtype": "fp8", "kv_dtype": "fp8"}),
        ("vllm", "llama-3.1-8b", "cpu", {}),
        ("vllm", "llama-3.1-8b", "a100", {"kv_dtype": "fp8"}),  # widened by FlashInfer as it is read
        ("vllm", "llama-3.1-8b", "mi300x", {"weight_dtype": "fp8", "kv_dtype": "fp8"}),
        ("vllm", "gpt-oss-120b", "a100", {"tensor_parallel": 4, "weight_dtype": "mxfp4"}),
        ("vllm", "llama-3.1-70b", "h100", {"tensor_parallel": 16}),  # 8 KV heads replicated over 16 ranks
        ("sglang", "deepseek-v3", "h200", {"tensor_parallel": 8, "weight_dtype": "fp8", "block_tokens": 64}),
        ("vllm", "deepseek-v3", "h200", {"tensor_parallel": 8, "weight_dtype": "fp8", "expert_parallel": 8}),
        ("trtllm", "llama-3.1-70b", "b200", {"weight_dtype": "nvfp4", "kv_dtype": "fp8", "block_tokens": 32}),
        ("dynamo-vllm", "qwen3-32b", "l40s", {"tensor_parallel": 4, "pipeline_parallel": 2}),
    ],
)
def test_what_engines_run_is_let_through(engine: str, model: str, gpu: str, fields: dict[str, Any]) -> None:
    assert problems(engine, model, gpu, **fields) == []


@pytest.mark.parametrize(
    ("engine", "model", "gpu", "fields", "message"),
    [
        ("vllm", "llama-3.1-8b", "h100", {"tensor_parallel": 0}, "tensor parallel size 0 must be at least 1"),
        ("trtllm", "llama-3.1-8b", "mi300x", {}, "runs on NVIDIA GPUs only"),
        ("sglang", "llama-3.1-8b", "cpu", {}, "no CPU build"),
        ("vllm", "llama-3.1-8b", "v100", {"weight_dtype": "fp16", "kv_dtype": "fp16"}, "needs compute capability 7.5"),
        ("sglang", "llama-3.1-8b", "h100", {"weight_dtype": "fp32"}, "has no fp32 weights"),
        (
            "trtllm",
            "llama-3.1-8b",
            "a100",
            {"weight_dtype": "fp8"},
            "fp8 weights need compute capability 8.9 in trtllm",
        ),
        ("sglang", "gpt-oss-20b", "a100", {"weight_dtype": "mxfp4"}, "mxfp4 weights need compute capability 9.0"),
        ("sglang", "llama-3.1-8b", "h100", {"weight_dtype": "nvfp4"}, "nvfp4 weights need compute capability 10.0"),
        ("vllm", "llama-3.1-8b", "mi300x", {"weight_dtype": "nvfp4"}, "do not run on mi300x"),
        ("vllm", "llama-3.1-8b", "cpu", {"weight_dtype": "fp8"}, "do not run on a CPU"),
        ("sglang", "llama-3.1-8b", "a100", {"kv_dtype": "fp8"}, "fp8 KV cache needs compute capability 8.9"),
        ("vllm", "gpt-oss-20b", "a100", {"kv_dtype": "fp8"}, "fp8 KV cache needs compute capability 8.9"),  # Triton
        ("vllm", "llama-3.1-8b", "a10", {"kv_dtype": "fp8"}, "reported to fail on compute capability 8.6"),
        (
            "vllm",
            "deepseek-v2-lite",
            "l40s",
            {"kv_dtype": "fp8"},
            "fp8 cache of MLA latents needs compute capability 9.0",
        ),
        ("vllm", "llama-3.1-8b", "h100", {"kv_dtype": "int8"}, "has no int8 KV cache"),
        ("vllm", "llama-3.1-8b", "v100", {}, "needs compute capability 7.5"),
        ("vllm", "llama-3.1-8b", "h100", {"weight_dtype": "mxfp4"}, "cover experts only"),
        ("vllm", "deepseek-v3.2", "a100", {"tensor_parallel": 8, "weight_dtype": "fp8"}, "sparse MLA kernels need"),
        ("vllm", "qwen2.5-7b", "h100", {"tensor_parallel": 8}, "28 attention heads do not divide by TP 8"),
        ("vllm", "phi-4", "h100", {"tensor_parallel": 4}, "10 KV heads neither divide by TP 4"),
        ("vllm", "internlm-20b", "h100", {"tensor_parallel": 40}, "feed-forward width 13824 does not divide by TP 40"),
        ("vllm", "glm-4.5-air", "h100", {"tensor_parallel": 96}, "expert width 1408 does not divide by TP 96"),
        ("vllm", "qwen3-30b-a3b", "h100", {"tensor_parallel": 4, "weight_dtype": "fp8"}, "cuts experts to 192 columns"),
        ("vllm", "llama-3.1-8b", "h100", {"expert_parallel": 2}, "has no experts to spread over EP 2"),
        ("vllm", "mixtral-8x7b", "h100", {"expert_parallel": 3}, "8 experts do not divide by EP 3"),
        ("vllm", "llama-3.1-8b", "h100", {"pipeline_parallel": 33}, "32 layers cannot fill 33 pipeline stages"),
        ("vllm", "llama-3.1-8b", "h100", {"block_tokens": 24}, "multiple of 16 tokens, not 24"),
        ("vllm", "deepseek-v3", "h100", {"attention_backend": "FLASH_ATTN"}, "does not serve MLA attention"),
        (
            "vllm",
            "gpt-oss-20b",
            "a100",
            {"attention_backend": "FLASH_ATTN", "weight_dtype": "mxfp4"},
            "use TRITON_ATTN",
        ),
        ("vllm", "llama-3.1-8b", "l40s", {"attention_backend": "FLASH_ATTN", "kv_dtype": "fp8"}, "use FLASHINFER"),
    ],
)
def test_what_engines_cannot_run_is_refused_once(
    engine: str, model: str, gpu: str, fields: dict[str, Any], message: str
) -> None:
    """One broken rule gives one sentence."""
    found = problems(engine, model, gpu, **fields)
    assert len(found) == 1
    assert message in found[0]


def test_expert_parallelism_lifts_the_scale_block_rule() -> None:
    assert problems("vllm", "qwen3-30b-a3b", "h100", tensor_parallel=4, expert_parallel=4, weight_dtype="fp8") == []


@pytest.mark.parametrize(
    ("model", "gpu", "kv_dtype", "backend"),
    [
        ("llama-3.1-8b", "a100", "bf16", "FLASH_ATTN"),
        ("llama-3.1-8b", "l40s", "bf16", "FLASH_ATTN"),
        ("llama-3.1-8b", "h100", "bf16", "FLASH_ATTN"),
        ("llama-3.1-8b", "h20", "fp8", "FLASH_ATTN"),
        ("llama-3.1-8b", "l40s", "fp8", "FLASHINFER"),
        ("llama-3.1-8b", "b200", "bf16", "FLASHINFER"),
        ("gpt-oss-20b", "l40s", "bf16", "TRITON_ATTN"),
        ("gpt-oss-20b", "h100", "bf16", "FLASH_ATTN"),
        ("deepseek-v3", "h200", "bf16", "FLASH_ATTN_MLA"),
        ("deepseek-v3", "b200", "bf16", "FLASHINFER_MLA"),
        ("deepseek-v2-lite", "a100", "bf16", "TRITON_MLA"),
        ("deepseek-v3.2", "h200", "bf16", "FLASHMLA_SPARSE"),
    ],
)
def test_default_attention_backend_of_vllm(model: str, gpu: str, kv_dtype: str, backend: str) -> None:
    assert default_attention_backend(find_engine("vllm"), find_gpu(gpu), find_model(model), kv_dtype) == backend


def test_a_backend_to_pin_runs_on_all_gpus_named() -> None:
    """What is offered for a mixed pair breaks no instance rule on either GPU."""
    engine = find_engine("vllm")
    for model in ("llama-3.1-8b", "gpt-oss-20b", "deepseek-v2-lite"):
        for kv_dtype in ("bf16", "fp8"):
            for pair in (("h100", "a100"), ("h100", "l40s"), ("h100", "b200")):
                gpus = [find_gpu(name) for name in pair]
                backend = common_attention_backend(engine, gpus, find_model(model), kv_dtype)
                if backend is None:
                    continue
                for name in pair:
                    side = {"attention_backend": backend, "kv_dtype": kv_dtype}
                    found = [text for text in problems("vllm", model, name, **side) if backend in text]
                    assert found == []
    plain = find_model("llama-3.1-8b")
    assert common_attention_backend(engine, [find_gpu("h100"), find_gpu("b200")], plain) == "FLASH_ATTN"


def test_vllm_raises_blocks_for_its_mla_kernels() -> None:
    assert effective_block_tokens(find_engine("vllm"), "FLASH_ATTN_MLA", 16) == 64
    assert effective_block_tokens(find_engine("vllm"), "FLASH_ATTN_MLA", 128) == 128
    assert effective_block_tokens(find_engine("vllm"), "FLASH_ATTN", 16) == 16
    assert effective_block_tokens(find_engine("sglang"), "fa3", 1) == 1


def test_quantised_weights_save_no_arithmetic_where_the_gpu_lacks_the_dtype() -> None:
    """fp8 on A100 runs through Marlin: bf16 arithmetic on weights that are read as fp8."""
    assert needs_weight_only_kernels(find_gpu("a100"), "fp8")
    assert not needs_weight_only_kernels(find_gpu("l40s"), "fp8")
    assert needs_weight_only_kernels(find_gpu("h100"), "mxfp4")
    assert needs_weight_only_kernels(find_gpu("b200"), "int4")
    assert not needs_weight_only_kernels(find_gpu("a100"), "bf16")
