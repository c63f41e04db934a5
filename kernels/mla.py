"""Decode attention of multi-head latent attention, in the latent space (DeepSeek-V2, arXiv 2405.04434, section 2.1.2).

All query heads read one cached row per token: the latent, which is both key and value, and the rotary key. The
up-projections are absorbed into the query and the output by the caller.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from splitplan.kernels.chips import chip_of
from splitplan.kernels.configs import MLA_DECODE, Config
from splitplan.kernels.decode import LOG2_E, choose_splits, join_splits


def mla_decode(
    query: torch.Tensor,
    cache: torch.Tensor,
    block_table: torch.Tensor,
    context_lengths: torch.Tensor,
    max_context: int,
    *,
    latent_dim: int,
    scale_dim: int,
    out: torch.Tensor | None = None,
    config: Config | None = None,
    num_splits: int = 0,
) -> torch.Tensor:
    """Attention of the last token of each sequence over its latents.

    query [batch, heads, latent_dim + rope_dim] with the key up-projection absorbed; cache [pages, page_tokens,
    latent_dim + rope_dim]; block_table [batch, max pages] int32; context_lengths [batch] int32. Scores are scaled by
    1/√scale_dim, the width of an unabsorbed head. Returns [batch, heads, latent_dim].
    """
    batch, heads, width = query.shape
    chip = chip_of(query)
    config = config or MLA_DECODE[chip.name]
    head_blocks = triton.cdiv(heads, config.block_m)
    splits = num_splits or choose_splits(batch * head_blocks, max_context, chip.sm_count)
    out = query.new_empty((batch, heads, latent_dim)) if out is None else out
    partial = torch.empty((splits, batch, heads, latent_dim), dtype=torch.float32, device=query.device)
    log_sums = torch.empty((splits, batch, heads), dtype=torch.float32, device=query.device)
    _mla_decode_kernel[batch, head_blocks, splits](
        query,
        cache,
        block_table,
        context_lengths,
        out,
        partial,
        log_sums,
        heads,
        query.stride(0),
        query.stride(1),
        cache.stride(0),
        cache.stride(1),
        block_table.stride(0),
        LOG2_E / math.sqrt(scale_dim),
        LATENT=latent_dim,
        BLOCK_L=triton.next_power_of_2(latent_dim),
        ROPE=width - latent_dim,
        BLOCK_R=max(triton.next_power_of_2(width - latent_dim), 16),
        BLOCK_H=config.block_m,
        BLOCK_N=config.block_n,
        PAGE_TOKENS=cache.shape[1],
        SPLITS=splits,
        PRECISION="ieee" if query.dtype == torch.float32 else "tf32",
        num_warps=config.num_warps,
        num_stages=config.num_stages,
    )
    if splits > 1:
        join_splits(partial, log_sums, out)
    return out


@triton.jit
def _mla_decode_kernel(
    query_ptr,
    cache_ptr,
    table_ptr,
    lengths_ptr,
    out_ptr,
    partial_ptr,
    log_sum_ptr,
    all_heads,
    query_row_stride,
    query_head_stride,
    cache_page_stride,
    cache_row_stride,
    table_stride,
    scale,
    LATENT: tl.constexpr,
    BLOCK_L: tl.constexpr,
    ROPE: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PAGE_TOKENS: tl.constexpr,
    SPLITS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    sequence, split = tl.program_id(0), tl.program_id(2)
    context = tl.load(lengths_ptr + sequence)
    per_split = tl.cdiv(tl.cdiv(context, SPLITS), BLOCK_N) * BLOCK_N
    low = split * per_split
    high = tl.minimum(low + per_split, context)
    heads = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    heads_ok = heads < all_heads
    latent_columns, rope_columns = tl.arange(0, BLOCK_L), tl.arange(0, BLOCK_R)
    latent_ok, rope_ok = latent_columns < LATENT, rope_columns < ROPE
    query_at = query_ptr + sequence.to(tl.int64) * query_row_stride + heads[:, None] * query_head_stride
    query_latent = tl.load(query_at + latent_columns[None, :], mask=heads_ok[:, None] & latent_ok[None, :], other=0.0)
    query_rope = tl.load(
        query_at + LATENT + rope_columns[None, :], mask=heads_ok[:, None] & rope_ok[None, :], other=0.0
    )
    accumulated = tl.zeros([BLOCK_H, BLOCK_L], dtype=tl.float32)
    row_sum = tl.zeros([BLOCK_H], dtype=tl.float32)
    row_max = tl.full([BLOCK_H], -1.0e30, dtype=tl.float32)
    for start in range(low, high, BLOCK_N):
        places = start + tl.arange(0, BLOCK_N)
        inside = places < high
        pages = tl.load(table_ptr + sequence * table_stride + places // PAGE_TOKENS, mask=inside, other=0).to(tl.int64)
        rows = pages * cache_page_stride + places % PAGE_TOKENS * cache_row_stride
        latent = tl.load(
            cache_ptr + rows[:, None] + latent_columns[None, :], mask=inside[:, None] & latent_ok[None, :], other=0.0
        )
        rope = tl.load(
            cache_ptr + rows[None, :] + LATENT + rope_columns[:, None],
            mask=inside[None, :] & rope_ok[:, None],
            other=0.0,
        )
        scores = tl.dot(query_latent, tl.trans(latent), input_precision=PRECISION)
        scores = tl.dot(query_rope, rope, scores, input_precision=PRECISION) * scale
        scores = tl.where(inside[None, :], scores, -1.0e30)
        new_max = tl.maximum(row_max, tl.max(scores, 1))
        weights = tl.where(inside[None, :], tl.exp2(scores - new_max[:, None]), 0.0)
        shrink = tl.exp2(row_max - new_max)
        row_sum = row_sum * shrink + tl.sum(weights, 1)
        accumulated = accumulated * shrink[:, None]
        accumulated = tl.dot(weights.to(latent.dtype), latent, accumulated, input_precision=PRECISION)
        row_max = new_max
    result = accumulated / tl.maximum(row_sum, 1.0e-30)[:, None]
    batch = tl.num_programs(0)
    keep = heads_ok[:, None] & latent_ok[None, :]
    if SPLITS == 1:
        at = (sequence * all_heads + heads).to(tl.int64)[:, None] * LATENT + latent_columns[None, :]
        tl.store(out_ptr + at, result.to(out_ptr.dtype.element_ty), mask=keep)
    else:
        place = ((split * batch + sequence) * all_heads + heads).to(tl.int64)
        tl.store(partial_ptr + place[:, None] * LATENT + latent_columns[None, :], result, mask=keep)
        log_sum = tl.where(row_sum > 0, row_max + tl.log2(tl.maximum(row_sum, 1.0e-30)), -1.0e30)
        tl.store(log_sum_ptr + place, log_sum, mask=heads_ok)
