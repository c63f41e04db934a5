"""Models and op times small enough to check by hand, for the tests of this folder."""

from __future__ import annotations

from typing import Any

import numpy as np

from splitplan.catalogs.links import Link
from splitplan.catalogs.models import AttentionGroup, Mla, Model, Moe
from splitplan.profiler.profile import Basis, Timed

NVLINK = Link("nvlink", (), "nvlink", 450e9, 0.8, 2e-6, 0.0, "test", "2026", "assumed")


def dense_model(
    layers: int = 32,
    hidden: int = 4096,
    inter: int = 14336,
    heads: int = 32,
    kv_heads: int = 8,
    vocab: int = 128256,
    *,
    head_dim: int = 128,
    groups: tuple[AttentionGroup, ...] | None = None,
    moe: Moe | None = None,
    mla: Mla | None = None,
    tied: bool = False,
) -> Model:
    """Llama-3.1-8B unless told otherwise; parameters are counted from the dimensions."""
    attention = groups or (AttentionGroup(layers, "full", heads, kv_heads, head_dim),)
    per_layer = 2 * hidden * heads * head_dim + 2 * hidden * kv_heads * head_dim
    mlp = layers * 3 * hidden * inter if moe is None else 0
    experts = layers * moe.num_experts * 3 * hidden * moe.moe_intermediate_size if moe else 0
    total = layers * per_layer + mlp + experts + (1 if tied else 2) * vocab * hidden
    return Model(
        name="test",
        aliases=(),
        num_layers=layers,
        hidden_size=hidden,
        intermediate_size=inter,
        num_heads=heads,
        vocab_size=vocab,
        tied_embeddings=tied,
        max_position_embeddings=131072,
        gated_mlp=True,
        attention_bias=False,
        weight_dtype="bf16",
        attention=attention,
        mla=mla,
        moe=moe,
        total_parameters=total,
        active_parameters=total,
        source="test",
        confidence="solid",
    )


LLAMA_8B = dense_model()
LLAMA_70B = dense_model(layers=80, hidden=8192, inter=28672, heads=64)


class LinearOps:
    """Op times in closed form: 1 PFLOP/s or 3 TB/s of weights; attention by FLOPs or bytes; links by bytes."""

    flops_per_s = 1e15
    bytes_per_s = 3e12

    def __init__(self) -> None:
        self.num_queries = 0

    def _timed(self, seconds: Any) -> Timed:
        self.num_queries += 1
        values = np.asarray(seconds, dtype=np.float64)
        return Timed(values, np.full(values.shape, Basis.ASSUMED, dtype=np.uint8))

    def gemm(self, m: Any, n: Any, k: Any, dtype: str) -> Timed:
        return self._timed(np.maximum(2.0 * m * n * k / self.flops_per_s, 2.0 * n * k / self.bytes_per_s))

    def prefill_attention(self, new: Any, past: Any, *, heads: int, kv_heads: int, head_dim: int, **_: Any) -> Timed:
        return self._timed(4.0 * new * (past + new / 2) * heads * head_dim / self.flops_per_s)

    def decode_attention(
        self, batch: Any, context: Any, *, kv_heads: int, head_dim: int, window: int | None = None, **_: Any
    ) -> Timed:
        seen = np.minimum(context, window) if window else context
        return self._timed(4.0 * batch * seen * kv_heads * head_dim / self.bytes_per_s)

    def mla_prefill(
        self, new: Any, past: Any, *, heads: int, hidden: int, mla: Any, dtype: str, kv_dtype: str
    ) -> Timed:
        return self._timed(new * (past + new) * heads * 1e-15)

    def mla_decode(
        self, batch: Any, context: Any, *, heads: int, hidden: int, mla: Any, dtype: str, kv_dtype: str
    ) -> Timed:
        return self._timed(batch * context * 576 * 2 / self.bytes_per_s)

    def moe(self, tokens: Any, *, hidden: int, inter: int, topk: int, tp: int, ep: int, **_: Any) -> Timed:
        return self._timed(6.0 * tokens * topk * hidden * inter / tp / ep / self.flops_per_s)

    def all_reduce(self, num_bytes: Any, ranks: int, link: Link, *, how: str = "graph") -> Timed:
        return self._timed(link.latency_s + 2.0 * num_bytes * (ranks - 1) / ranks / link.achievable_bytes_per_s)

    def all_gather(self, num_bytes: Any, ranks: int, link: Link) -> Timed:
        return self._timed(num_bytes / link.achievable_bytes_per_s)

    def all_to_all(self, num_bytes: Any, ranks: int, link: Link) -> Timed:
        return self._timed(num_bytes / link.achievable_bytes_per_s)

    def send(self, num_bytes: Any, ranks: int, link: Link) -> Timed:
        return self._timed(link.latency_s + np.asarray(num_bytes) / link.achievable_bytes_per_s)

    def elementwise(self, num_bytes: Any) -> Timed:
        return self._timed(np.asarray(num_bytes) / self.bytes_per_s)
