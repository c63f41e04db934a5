"""Grouped-query attention of one new token per sequence over a paged KV cache, split over the context.

Each program takes one sequence, one KV head with its group of query heads, and one stretch of the context; a second
kernel joins the stretches by their log-sum-exp (Dao et al. 2023, Flash-Decoding). With one stretch it is not launched.
The cache may be e4m3 in uint8: it is converted by integer arithmetic, so that chips without fp8 have it too.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from splitplan.kernels.chips import chip_of
from splitplan.kernels.configs import Config, decode_config, head_block
from splitplan.kernels.e4m3 import e4m3_to_half

LOG2_E = 1.0 / math.log(2.0)
MIN_TOKENS_PER_SPLIT = 256


def decode_attention(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_table: torch.Tensor,
    context_lengths: torch.Tensor,
    max_context: int,
    *,
    window: int = 0,
    kv_scale: float = 1.0,
    out: torch.Tensor | None = None,
    config: Config | None = None,
    num_splits: int = 0,
) -> torch.Tensor:
    """Attention of the last token of each sequence over its context, itself included.

    query [batch, heads, head_dim]; caches [pages, page_tokens, kv_heads, head_dim] (uint8: e4m3 × `kv_scale`);
    block_table [batch, max pages] int32; context_lengths [batch] int32, at most `max_context`.
    `num_splits` 0: as many as fill the chip. Returns [batch, heads, head_dim].
    """
    batch, heads, head_dim = query.shape
    kv_heads = key_cache.shape[2]
    chip = chip_of(query)
    config = config or decode_config(chip, head_dim)
    splits = num_splits or choose_splits(batch * kv_heads, min(max_context, window or max_context), chip.sm_count)
    out = torch.empty_like(query) if out is None else out
    partial = torch.empty((splits, batch, heads, head_dim), dtype=torch.float32, device=query.device)
    log_sums = torch.empty((splits, batch, heads), dtype=torch.float32, device=query.device)
    _decode_kernel[batch, kv_heads, splits](
        query,
        key_cache,
        value_cache,
        block_table,
        context_lengths,
        out,
        partial,
        log_sums,
        query.stride(0),
        key_cache.stride(0),
        key_cache.stride(1),
        key_cache.stride(2),
        value_cache.stride(0),
        value_cache.stride(1),
        value_cache.stride(2),
        block_table.stride(0),
        LOG2_E / math.sqrt(head_dim) * kv_scale,
        kv_scale,
        GROUP=heads // kv_heads,
        BLOCK_G=max(config.block_m, triton.next_power_of_2(heads // kv_heads)),
        HEAD_DIM=head_dim,
        BLOCK_D=head_block(head_dim),
        BLOCK_N=config.block_n,
        PAGE_TOKENS=key_cache.shape[1],
        WINDOW=window,
        SPLITS=splits,
        IS_E4M3=key_cache.dtype == torch.uint8,
        PRECISION="ieee" if query.dtype == torch.float32 else "tf32",
        num_warps=config.num_warps,
        num_stages=config.num_stages,
    )
    if splits > 1:
        join_splits(partial, log_sums, out)
    return out


def choose_splits(independent: int, context: int, sm_count: int) -> int:
    """Stretches of the context per (sequence, KV head): a power of two that about fills two programs per SM."""
    wanted = max(2 * sm_count // max(independent, 1), 1)
    at_most = max(context // MIN_TOKENS_PER_SPLIT, 1)
    splits = 1
    while splits * 2 <= min(wanted, at_most, 128):
        splits *= 2
    return splits


def join_splits(partial: torch.Tensor, log_sums: torch.Tensor, out: torch.Tensor) -> None:
    """Weighs [splits, batch, heads, width] parts by exp2 of their log-sums [splits, batch, heads] into `out`."""
    splits, batch, heads, width = partial.shape
    _join_kernel[batch * heads,](
        partial,
        log_sums,
        out,
        batch * heads,
        WIDTH=width,
        BLOCK_W=triton.next_power_of_2(width),
        SPLITS=splits,
        num_warps=4,
    )


@triton.jit
def _decode_kernel(
    query_ptr,
    key_ptr,
    value_ptr,
    table_ptr,
    lengths_ptr,
    out_ptr,
    partial_ptr,
    log_sum_ptr,
    query_row_stride,
    key_page_stride,
    key_row_stride,
    key_head_stride,
    value_page_stride,
    value_row_stride,
    value_head_stride,
    table_stride,
    scale,
    value_scale,
    GROUP: tl.constexpr,
    BLOCK_G: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PAGE_TOKENS: tl.constexpr,
    WINDOW: tl.constexpr,
    SPLITS: tl.constexpr,
    IS_E4M3: tl.constexpr,
    PRECISION: tl.constexpr,
):
    sequence, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    context = tl.load(lengths_ptr + sequence)
    first = 0
    if WINDOW > 0:
        first = tl.maximum(context - WINDOW, 0)
    per_split = tl.cdiv(tl.cdiv(context - first, SPLITS), BLOCK_N) * BLOCK_N
    low = first + split * per_split
    high = tl.minimum(low + per_split, context)
    members = tl.arange(0, BLOCK_G)
    columns = tl.arange(0, BLOCK_D)
    columns_ok = columns < HEAD_DIM
    members_ok = members < GROUP
    heads = kv_head * GROUP + members
    query = tl.load(
        query_ptr + sequence.to(tl.int64) * query_row_stride + heads[:, None] * HEAD_DIM + columns[None, :],
        mask=members_ok[:, None] & columns_ok[None, :],
        other=0.0,
    )
    accumulated = tl.zeros([BLOCK_G, BLOCK_D], dtype=tl.float32)
    row_sum = tl.zeros([BLOCK_G], dtype=tl.float32)
    row_max = tl.full([BLOCK_G], -1.0e30, dtype=tl.float32)
    for start in range(low, high, BLOCK_N):
        places = start + tl.arange(0, BLOCK_N)
        inside = places < high
        pages = tl.load(table_ptr + sequence * table_stride + places // PAGE_TOKENS, mask=inside, other=0).to(tl.int64)
        rows = places % PAGE_TOKENS
        key_rows = pages * key_page_stride + rows * key_row_stride + kv_head * key_head_stride
        key = tl.load(
            key_ptr + key_rows[None, :] + columns[:, None], mask=inside[None, :] & columns_ok[:, None], other=0
        )
        value_rows = pages * value_page_stride + rows * value_row_stride + kv_head * value_head_stride
        value = tl.load(
            value_ptr + value_rows[:, None] + columns[None, :], mask=inside[:, None] & columns_ok[None, :], other=0
        )
        if IS_E4M3:
            key = e4m3_to_half(key).to(query.dtype)
            value = e4m3_to_half(value).to(query.dtype)
        scores = tl.dot(query, key, input_precision=PRECISION) * scale
        scores = tl.where(inside[None, :], scores, -1.0e30)
        new_max = tl.maximum(row_max, tl.max(scores, 1))
        weights = tl.where(inside[None, :], tl.exp2(scores - new_max[:, None]), 0.0)
        shrink = tl.exp2(row_max - new_max)
        row_sum = row_sum * shrink + tl.sum(weights, 1)
        accumulated = accumulated * shrink[:, None]
        accumulated = tl.dot(weights.to(value.dtype), value, accumulated, input_precision=PRECISION)
        row_max = new_max
    result = accumulated / tl.maximum(row_sum, 1.0e-30)[:, None] * value_scale
    batch = tl.num_programs(0)
    all_heads = tl.num_programs(1) * GROUP
    keep = members_ok[:, None] & columns_ok[None, :]
    if SPLITS == 1:
        at = (sequence * all_heads + heads).to(tl.int64)[:, None] * HEAD_DIM + columns[None, :]
        tl.store(out_ptr + at, result.to(out_ptr.dtype.element_ty), mask=keep)
    else:
        place = ((split * batch + sequence) * all_heads + heads).to(tl.int64)
        tl.store(partial_ptr + place[:, None] * HEAD_DIM + columns[None, :], result, mask=keep)
        log_sum = tl.where(row_sum > 0, row_max + tl.log2(tl.maximum(row_sum, 1.0e-30)), -1.0e30)
        tl.store(log_sum_ptr + place, log_sum, mask=members_ok)


@triton.jit
def _join_kernel(
    partial_ptr, log_sum_ptr, out_ptr, rows, WIDTH: tl.constexpr, BLOCK_W: tl.constexpr, SPLITS: tl.constexpr
):
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK_W)
    accumulated = tl.zeros([BLOCK_W], dtype=tl.float32)
    largest = -1.0e30
    total = 0.0
    for split in range(SPLITS):
        place = split * rows + row
        log_sum = tl.load(log_sum_ptr + place)
        part = tl.load(partial_ptr + place.to(tl.int64) * WIDTH + columns, mask=columns < WIDTH, other=0.0)
        new_largest = tl.maximum(largest, log_sum)
        weight = tl.exp2(log_sum - new_largest)
        shrink = tl.exp2(largest - new_largest)
        accumulated = accumulated * shrink + part * weight
        total = total * shrink + weight
        largest = new_largest
    out_at = out_ptr + row.to(tl.int64) * WIDTH + columns
    tl.store(out_at, (accumulated / total).to(out_ptr.dtype.element_ty), mask=columns < WIDTH)
