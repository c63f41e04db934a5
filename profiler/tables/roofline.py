"""Time from datasheet facts: stands in where nothing was measured, and is what measurements are corrections to.

    t = launch + (memory^p + compute^p)^(1/p)
    memory = bytes / (bandwidth · fraction),   compute = FLOP / (rate · fraction)

p = 3 rounds the corner where both count. The fractions are medians over the shipped tables (vLLM; H100, H200, A100,
L40S), of the datasheet's dense rate and bandwidth, at shapes that are clearly bound by one of the two; `python -m
benchmarks.interpolation --fractions` prints them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from splitplan.catalogs.gpus import Gpu
from splitplan.catalogs.links import Link
from splitplan.catalogs.models import BYTES_PER_ELEMENT, Mla

FloatArray = NDArray[np.float64]

GEMM_COMPUTE_FRACTION = 0.78  # bf16, m ≥ 4096, n and k ≥ 2048: H100 0.79, H200 0.77, A100 0.86, L40S 0.61
FP8_COMPUTE_FRACTION = 0.50  # fp8, same shapes: H100 0.48, H200 0.54, L40S 0.46
GEMM_BANDWIDTH_FRACTION = 0.80  # bf16, m ≤ 16, weights over 100 MB: H100 0.86, H200 0.81, A100 0.71, L40S 0.81
WEIGHT_ONLY_BANDWIDTH_FRACTION = 0.65  # int4, m ≤ 16, weights over 50 MB as int4: 0.58–0.66 (A100 under TensorRT-LLM)
WEIGHT_ONLY_SLOWDOWN = 1.1  # int4 against bf16 where both are bound by compute, m > 512: 1.05–1.1 (same table)
WEIGHT_ONLY_LAUNCH_S = (
    6e-6  # the smallest int4 product takes 8–9 µs there, its bf16 one 2.5; nearer to the latter assumed
)
PREFILL_COMPUTE_FRACTION = 0.55  # head_dim 128, 4,096 tokens up: H100 0.59, H200 0.58, A100 0.55, L40S 0.49
DECODE_BANDWIDTH_FRACTION = 0.80  # bf16, 10⁶ cached tokens up: H100 0.87, H200 0.82, A100 0.74, L40S 0.81
MOE_COMPUTE_FRACTION = 0.41  # bf16, 8,192 tokens up: H100 0.41, H200 0.48, A100 0.29, L40S 0.41
ELEMENTWISE_BANDWIDTH_FRACTION = 0.84  # fp8 cast of 100 MB up: H100 0.88, H200 0.84, L40S 0.76
GEMM_LAUNCH_S = 2.4e-6  # the smallest GEMM in a replayed graph: 2.4 µs on H100, H200 and A100, 1.6 µs on L40S
ATTENTION_LAUNCH_S = 10e-6  # the smallest attention call: 10 µs on H100, H200 and A100, 6–7 µs on L40S
ELEMENTWISE_LAUNCH_S = 1.8e-6  # the smallest cast: 1.9 µs on H100, 1.7 on H200, 1.4 on L40S
MOE_LAUNCH_S = 23e-6  # routed experts on one token: 23–24 µs, L40S 19
CORNER = 3.0

# Rates of a dtype the catalog does not list are taken from one it does.
_RATE_OF = {
    "fp8_block": "fp8",
    "int4": "bf16",  # weight-only: dequantised to bf16 before the product
    "int8_wo": "bf16",
    "mxfp4": "bf16",
    "nvfp4": "bf16",
    "fp16": "bf16",
}


def element_bytes(dtype: str) -> float:
    """Bytes one stored element takes, scales included; "fp8_block" has one fp32 scale per 128×128 block."""
    return BYTES_PER_ELEMENT.get("fp8" if dtype == "fp8_block" else "int8" if dtype == "int8_wo" else dtype, 2.0)


@dataclass(frozen=True, slots=True)
class Roofline:
    """The roofline of one GPU. Every method takes arrays that broadcast and returns seconds."""

    gpu: Gpu

    def rate(self, dtype: str) -> float:
        """Dense FLOP/s for weights of `dtype`; a chip without fp8 tensor cores computes in bf16."""
        rates = self.gpu.flops_per_s
        for name in (dtype, _RATE_OF.get(dtype, "bf16"), "bf16", "fp16", "fp32"):
            if rates.get(name, 0.0) > 0:
                return rates[name]
        return max(rates.values())

    def is_weight_only(self, dtype: str) -> bool:
        """Whether weights of `dtype` are turned into bf16 before the product: int4, and fp8 on chips without it."""
        return element_bytes(dtype) < 2.0 and self.rate(dtype) <= self.rate("bf16")

    def gemm_parts(self, m: ArrayLike, n: ArrayLike, k: ArrayLike, dtype: str) -> tuple[FloatArray, FloatArray]:
        """(memory, compute) seconds of a GEMM without its launch. Activations are bf16, or fp8 beside fp8 weights."""
        m, n, k = (np.asarray(size, dtype=np.float64) for size in (m, n, k))
        weight_only = self.is_weight_only(dtype)
        activation_bytes = 2.0 if weight_only else min(2.0, max(1.0, element_bytes(dtype)))
        moved_bytes = n * k * element_bytes(dtype) + m * k * activation_bytes + 2.0 * m * n
        bandwidth_fraction = WEIGHT_ONLY_BANDWIDTH_FRACTION if weight_only else GEMM_BANDWIDTH_FRACTION
        compute_fraction = FP8_COMPUTE_FRACTION if self.rate(dtype) > self.rate("bf16") else GEMM_COMPUTE_FRACTION
        compute_s = 2.0 * m * n * k / (self.rate(dtype) * compute_fraction)
        memory_s = moved_bytes / (self.gpu.memory_bandwidth_bytes_per_s * bandwidth_fraction)
        return memory_s, compute_s * (WEIGHT_ONLY_SLOWDOWN if weight_only else 1.0)

    def gemm_launch_s(self, dtype: str) -> float:
        """What the smallest product takes."""
        return WEIGHT_ONLY_LAUNCH_S if self.is_weight_only(dtype) else GEMM_LAUNCH_S

    def gemm(self, m: ArrayLike, n: ArrayLike, k: ArrayLike, dtype: str) -> FloatArray:
        """C[m, n] = A[m, k] · B[k, n]."""
        return self.gemm_launch_s(dtype) + corner(*self.gemm_parts(m, n, k, dtype))

    def prefill_attention(
        self, new: ArrayLike, past: ArrayLike, batch: ArrayLike, heads: int, kv_heads: int, head_dim: int,
        window: int, kv_dtype: str,
    ) -> FloatArray:  # fmt: skip
        """Causal attention: 4 · heads · head_dim FLOP for each (query, key) pair that is not masked."""
        new, past, batch = (np.asarray(size, dtype=np.float64) for size in (new, past, batch))
        flop = 4.0 * heads * head_dim * batch * attended_pairs(new, past, window)
        keys = new + past if window <= 0 else np.minimum(new + past, new + window)
        kv_bytes = 2.0 * batch * keys * kv_heads * head_dim * element_bytes(kv_dtype)
        moved_bytes = kv_bytes + 4.0 * batch * new * heads * head_dim
        memory_s = moved_bytes / (self.gpu.memory_bandwidth_bytes_per_s * DECODE_BANDWIDTH_FRACTION)
        return ATTENTION_LAUNCH_S + corner(memory_s, flop / (self.rate("bf16") * PREFILL_COMPUTE_FRACTION))

    def decode_attention(
        self, batch: ArrayLike, context: ArrayLike, heads: int, kv_heads: int, head_dim: int, window: int, kv_dtype: str
    ) -> FloatArray:
        """Reads every cached key and value inside the window once."""
        batch, context = (np.asarray(size, dtype=np.float64) for size in (batch, context))
        seen = context if window <= 0 else np.minimum(context, window)
        kv_bytes = 2.0 * batch * seen * kv_heads * head_dim * element_bytes(kv_dtype)
        moved_bytes = kv_bytes + 4.0 * batch * heads * head_dim
        memory_s = moved_bytes / (self.gpu.memory_bandwidth_bytes_per_s * DECODE_BANDWIDTH_FRACTION)
        flop = 4.0 * heads * head_dim * batch * seen
        compute_s = flop / (self.rate("bf16") * PREFILL_COMPUTE_FRACTION)
        return ATTENTION_LAUNCH_S + corner(memory_s, compute_s)

    def mla_block(
        self, tokens: ArrayLike, pairs: ArrayLike, cached: ArrayLike, heads: int, hidden: int, mla: Mla, dtype: str,
        kv_dtype: str, *, absorbed: bool,
    ) -> FloatArray:  # fmt: skip
        """DeepSeek's attention block with its projections, for `tokens` new tokens that attend to `pairs` keys.

        Absorbed (decode): queries are taken into the latent space, so that every pair costs kv_lora_rank + rope
        for the score and kv_lora_rank for the value, and the cache of `cached` tokens is read once.
        """
        tokens, pairs, cached = (np.asarray(size, dtype=np.float64) for size in (tokens, pairs, cached))
        key_dim = mla.qk_nope_head_dim + mla.qk_rope_head_dim
        latent = mla.kv_lora_rank + mla.qk_rope_head_dim
        q_in = mla.q_lora_rank or hidden
        shared = hidden * latent + (hidden * q_in if mla.q_lora_rank else 0)
        per_head = q_in * key_dim + mla.kv_lora_rank * (mla.qk_nope_head_dim + mla.v_head_dim) + mla.v_head_dim * hidden
        weights = shared + heads * per_head
        pair_flop = 2.0 * (latent + mla.kv_lora_rank) if absorbed else 2.0 * (key_dim + mla.v_head_dim)
        bandwidth = self.gpu.memory_bandwidth_bytes_per_s
        weights_s = weights * element_bytes(dtype) / (bandwidth * GEMM_BANDWIDTH_FRACTION)
        cache_s = cached * latent * element_bytes(kv_dtype) / (bandwidth * DECODE_BANDWIDTH_FRACTION)
        project_s = 2.0 * tokens * weights / (self.rate(dtype) * GEMM_COMPUTE_FRACTION)
        attend_s = pairs * heads * pair_flop / (self.rate("bf16") * PREFILL_COMPUTE_FRACTION)
        launches_s = 5 * GEMM_LAUNCH_S + ATTENTION_LAUNCH_S
        return launches_s + corner(weights_s, project_s) + corner(cache_s, attend_s)

    def moe(
        self, tokens: ArrayLike, hidden: int, inter: int, topk: int, num_experts: int, tp: int, ep: int, dtype: str
    ) -> FloatArray:
        """Routed experts on one rank: the weights of those hit are read once, three products per token and expert."""
        tokens = np.asarray(tokens, dtype=np.float64)
        local = max(1.0, num_experts / ep)
        hit = local * -np.expm1(tokens * np.log1p(-min(topk / num_experts, 1.0 - 1e-12)))
        per_expert = 3.0 * hidden * inter / tp
        rows = tokens * topk / ep
        memory_s = (hit * per_expert * element_bytes(dtype) + 4.0 * rows * hidden) / (
            self.gpu.memory_bandwidth_bytes_per_s * GEMM_BANDWIDTH_FRACTION
        )
        compute_s = 2.0 * rows * per_expert / (self.rate(dtype) * MOE_COMPUTE_FRACTION)
        return np.asarray(MOE_LAUNCH_S + corner(memory_s, compute_s))

    def elementwise(self, num_bytes: ArrayLike) -> FloatArray:
        """Reads and writes `num_bytes` in all."""
        moved = np.asarray(num_bytes, dtype=np.float64)
        bandwidth = self.gpu.memory_bandwidth_bytes_per_s * ELEMENTWISE_BANDWIDTH_FRACTION
        return np.asarray(ELEMENTWISE_LAUNCH_S + moved / bandwidth)


def corner(memory_s: ArrayLike, compute_s: ArrayLike) -> FloatArray:
    """The rounded maximum of the two."""
    memory, compute = np.asarray(memory_s, dtype=np.float64), np.asarray(compute_s, dtype=np.float64)
    return np.asarray((memory**CORNER + compute**CORNER) ** (1.0 / CORNER))


def attended_pairs(new: ArrayLike, past: ArrayLike, window: int) -> FloatArray:
    """Unmasked (query, key) pairs of `new` tokens after `past` ones; a window counts the query itself."""
    new, past = np.asarray(new, dtype=np.float64), np.asarray(past, dtype=np.float64)
    full = new * past + new * (new + 1.0) / 2.0
    if window <= 0:
        return np.asarray(full)
    growing = np.clip(window - past, 0.0, new)  # queries that see less than a whole window
    return np.asarray(growing * past + growing * (growing + 1.0) / 2.0 + (new - growing) * window)


def ring_all_reduce(num_bytes: ArrayLike, ranks: ArrayLike, link: Link) -> FloatArray:
    """The better of ring, 2(r−1)/r · bytes at 2(r−1) hops, and tree, 2 · bytes at 2·log₂ r hops."""
    size, r = np.asarray(num_bytes, dtype=np.float64), np.asarray(ranks, dtype=np.float64)
    bandwidth = link.achievable_bytes_per_s
    ring = 2.0 * (r - 1.0) * (link.latency_s + size / r / bandwidth)
    tree = 2.0 * np.ceil(np.log2(np.maximum(r, 1.0))) * link.latency_s + 2.0 * size / bandwidth
    return np.where(r <= 1, 0.0, np.minimum(ring, np.where(r > 2, tree, ring)))


def ring_pass(num_bytes: ArrayLike, ranks: ArrayLike, link: Link) -> FloatArray:
    """All-gather, reduce-scatter and all-to-all of `num_bytes`: (r−1)/r of it leaves each rank, in r−1 steps."""
    size, r = np.asarray(num_bytes, dtype=np.float64), np.asarray(ranks, dtype=np.float64)
    steps = np.maximum(r - 1.0, 0.0)
    return np.asarray(steps * (link.latency_s + size / np.maximum(r, 1.0) / link.achievable_bytes_per_s))
