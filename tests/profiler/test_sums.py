"""Sums of operations for real models, beside published orientation figures."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

from splitplan.catalogs.gpus import find_gpu
from splitplan.catalogs.links import find_link
from splitplan.profiler.profile import Basis
from splitplan.profiler.query import OpTimes
from splitplan.profiler.store import find_profile


class Llama(NamedTuple):
    hidden: int
    inter: int
    heads: int
    kv_heads: int
    layers: int
    vocabulary: int


LLAMA_8B = Llama(4096, 14336, 32, 8, 32, 128256)
LLAMA_70B = Llama(8192, 28672, 64, 8, 80, 128256)
HEAD_DIM = 128


def ops(gpu: str) -> OpTimes:
    return OpTimes(find_profile(find_gpu(gpu).name, "vllm"), find_gpu(gpu))


def step_ms(gpu: str, link: str, model: Llama, tp: int, tokens: int, attention_s: float, heads_out: int) -> float:
    """Every operation of one step in sequence: products, attention, all-reduces, norms, activations, LM head."""
    op, heads, kv_heads = ops(gpu), model.heads // tp, model.kv_heads // tp
    layer_s = attention_s + sum(
        float(timed.seconds)
        for timed in (
            op.gemm(tokens, (heads + 2 * kv_heads) * HEAD_DIM, model.hidden),
            op.gemm(tokens, model.hidden, heads * HEAD_DIM),
            op.gemm(tokens, 2 * model.inter // tp, model.hidden),
            op.gemm(tokens, model.hidden, model.inter // tp),
            op.all_reduce(2 * tokens * model.hidden, tp, find_link(link)),
            op.all_reduce(2 * tokens * model.hidden, tp, find_link(link)),
            op.elementwise(2 * tokens * (8 * model.hidden + 3 * model.inter // tp)),
        )
    )
    head_s = float(op.gemm(heads_out, model.vocabulary // tp, model.hidden).seconds)
    return 1e3 * (model.layers * layer_s + head_s)


@pytest.mark.parametrize(
    ("gpu", "link", "model", "tp", "prefill_ms", "decode_ms"),
    [
        ("a100", "nvlink3", LLAMA_70B, 4, 666, 38.6),
        ("h100", "nvlink4", LLAMA_70B, 4, 264, 20.2),
        ("h200", "nvlink4", LLAMA_70B, 4, 267, 15.7),
        ("a100", "nvlink3", LLAMA_8B, 1, 259, 25.1),
        ("h100", "nvlink4", LLAMA_8B, 1, 90, 12.4),
        ("l40s", "pcie4-x16", LLAMA_8B, 1, 311, 48.9),
    ],
)
def test_operation_sums_are_within_a_tenth_of_another_tools(
    gpu: str, link: str, model: Llama, tp: int, prefill_ms: float, decode_ms: float
) -> None:
    """Prefill of 4,096 tokens, decode at batch 32 and context 4,096, bf16; the other tool reads the same tables.

    What differs: its interpolation between grid points, and its figures for norms and activations.
    """
    heads, kv_heads = model.heads // tp, model.kv_heads // tp
    shape = {"heads": heads, "kv_heads": kv_heads, "head_dim": HEAD_DIM}
    prefill_s = float(ops(gpu).prefill_attention(4096, 0, **shape).seconds)
    decode_s = float(ops(gpu).decode_attention(32, 4096, **shape).seconds)
    assert step_ms(gpu, link, model, tp, 4096, prefill_s, 1) == pytest.approx(prefill_ms, rel=0.1)
    assert step_ms(gpu, link, model, tp, 32, decode_s, 32) == pytest.approx(decode_ms, rel=0.1)


def test_experts_of_an_fp8_checkpoint_are_read_where_they_were_measured() -> None:
    """DeepSeek-V3's experts were measured with block scales only: plain fp8 must not be scaled from another model's."""
    ops = OpTimes(find_profile("h200-sxm", "vllm"), find_gpu("h200"))
    shape = {"hidden": 7168, "inter": 2048, "topk": 8, "num_experts": 256, "tp": 8, "ep": 1}
    plain = ops.moe([32.0, 256.0], dtype="fp8", **shape)
    block = ops.moe([32.0, 256.0], dtype="fp8_block", **shape)
    np.testing.assert_array_equal(plain.seconds, block.seconds)
    assert set(block.basis) == {Basis.MEASURED}
