"""The operation families of a Profile: which columns name a shape, in which order rows are kept.

Sizes are per rank unless said otherwise; `num_bytes` of a collective is the whole tensor: what an all-reduce reduces,
what an all-gather ends with, what a reduce-scatter or all-to-all starts with on one rank.
"""

from __future__ import annotations

from collections.abc import Mapping

FAMILIES: Mapping[str, tuple[str, ...]] = {
    # C[m, n] = A[m, k] · B[k, n]; dtype is the weights' ("fp8" per tensor or channel, "fp8_block" in 128×128 blocks)
    "gemm": ("dtype", "n", "k", "m"),
    # causal attention of `new` tokens over `past` + new, for `batch` sequences; window 0 is full attention
    "prefill_attention": ("kv_dtype", "head_dim", "window", "heads", "kv_heads", "batch", "past", "new"),
    # one token of each of `batch` sequences over `context` tokens, itself included
    "decode_attention": ("kv_dtype", "head_dim", "window", "heads", "kv_heads", "batch", "context"),
    # the attention block of DeepSeek's MLA with its projections: dtype is the projections' weights'
    "mla_prefill": ("dtype", "kv_dtype", "heads", "batch", "past", "new"),
    "mla_decode": ("dtype", "kv_dtype", "heads", "batch", "context"),
    # the two batched products that absorb MLA's up-projections at decode; stage is "pre" or "post"
    "mla_bmm": ("dtype", "stage", "heads", "m"),
    # routed experts of one layer on one rank: `tokens` enter the layer over the whole expert-parallel group
    "moe": ("dtype", "distribution", "hidden", "inter", "topk", "num_experts", "tp", "ep", "tokens"),
    # how: "graph" (replayed, as in decode), "eager" (launched, as in prefill), "nccl"; host: "" or a class of PCIe host
    "all_reduce": ("link", "host", "how", "ranks", "num_bytes"),
    "all_gather": ("link", "host", "how", "ranks", "num_bytes"),
    "reduce_scatter": ("link", "host", "how", "ranks", "num_bytes"),
    "all_to_all": ("link", "host", "how", "ranks", "num_bytes"),
    "send": ("link", "host", "how", "ranks", "num_bytes"),
    # fp8 activations of an fp8 GEMM: stage is "scale" (finding it) or "cast" (applying it)
    "quantize": ("stage", "k", "m"),
    # norms, activations, rotary: memory-bound; num_bytes read and written
    "elementwise": ("kind", "num_bytes"),
}

TEXT_COLUMNS = frozenset({"dtype", "kv_dtype", "stage", "distribution", "link", "host", "how", "kind"})
"""Columns that hold words; every other one holds whole numbers."""
