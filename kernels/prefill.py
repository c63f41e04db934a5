"""Causal grouped-query attention of new tokens over their past and themselves: a prefill, or one chunk of it.

Online softmax over key blocks (Dao 2023, FlashAttention-2, algorithm 1), in base two. Blocks that the diagonal does not
cross are not masked; blocks that a sliding window has left behind are not read.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from splitplan.kernels.chips import chip_of
from splitplan.kernels.configs import Config, head_block, prefill_config

LOG2_E = 1.0 / math.log(2.0)


def prefill_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cumulative_new: torch.Tensor,
    cumulative_total: torch.Tensor,
    max_new: int,
    *,
    window: int = 0,
    out: torch.Tensor | None = None,
    config: Config | None = None,
) -> torch.Tensor:
    """Attention of every sequence's new tokens; scores are scaled by 1/√head_dim.

    query [sum of new, heads, head_dim]; key and value [sum of past + new, kv_heads, head_dim];
    cumulative_new and cumulative_total [sequences + 1] int32, rows before each sequence; `max_new` the longest.
    `window` > 0: a token sees only the last `window` tokens, itself included. Returns the shape of query.
    """
    heads, head_dim = query.shape[1], query.shape[2]
    config = config or prefill_config(chip_of(query), head_dim)
    out = torch.empty_like(query) if out is None else out
    sequences = cumulative_new.shape[0] - 1
    grid = (triton.cdiv(max_new, config.block_m), heads, sequences)
    _prefill_kernel[grid](
        query,
        key,
        value,
        out,
        cumulative_new,
        cumulative_total,
        query.stride(0),
        query.stride(1),
        key.stride(0),
        key.stride(1),
        value.stride(0),
        value.stride(1),
        out.stride(0),
        out.stride(1),
        LOG2_E / math.sqrt(head_dim),
        GROUP=heads // key.shape[1],
        HEAD_DIM=head_dim,
        BLOCK_D=head_block(head_dim),
        BLOCK_M=config.block_m,
        BLOCK_N=config.block_n,
        WINDOW=window,
        PRECISION="ieee" if query.dtype == torch.float32 else "tf32",
        num_warps=config.num_warps,
        num_stages=config.num_stages,
    )
    return out


@triton.jit
def _attend_blocks(
    accumulated,
    row_sum,
    row_max,
    query,
    key_at,
    value_at,
    key_stride,
    value_stride,
    low,
    high,
    total,
    rows,
    scale,
    columns_ok,
    BLOCK_N: tl.constexpr,
    WINDOW: tl.constexpr,
    MASKED: tl.constexpr,
    WHOLE_D: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Key blocks [low, high) into the running softmax; `rows` are the query rows' places among the keys."""
    for start in range(low, high, BLOCK_N):
        places = start + tl.arange(0, BLOCK_N)
        inside = places < total
        if MASKED:
            key = tl.load(key_at + places[None, :] * key_stride, mask=inside[None, :] & columns_ok[:, None], other=0.0)
        elif WHOLE_D:
            key = tl.load(key_at + places[None, :] * key_stride)
        else:
            key = tl.load(key_at + places[None, :] * key_stride, mask=columns_ok[:, None], other=0.0)
        scores = tl.dot(query, key, input_precision=PRECISION) * scale
        if MASKED:
            seen = (places[None, :] <= rows[:, None]) & inside[None, :]
            if WINDOW > 0:
                seen = seen & (places[None, :] > rows[:, None] - WINDOW)
            scores = tl.where(seen, scores, -1.0e30)
        new_max = tl.maximum(row_max, tl.max(scores, 1))
        weights = tl.exp2(scores - new_max[:, None])
        if MASKED:
            weights = tl.where(seen, weights, 0.0)
        shrink = tl.exp2(row_max - new_max)
        row_sum = row_sum * shrink + tl.sum(weights, 1)
        if MASKED:
            keep = inside[:, None] & columns_ok[None, :]
            value = tl.load(value_at + places[:, None] * value_stride, mask=keep, other=0.0)
        elif WHOLE_D:
            value = tl.load(value_at + places[:, None] * value_stride)
        else:
            value = tl.load(value_at + places[:, None] * value_stride, mask=columns_ok[None, :], other=0.0)
        accumulated = accumulated * shrink[:, None]
        accumulated = tl.dot(weights.to(value.dtype), value, accumulated, input_precision=PRECISION)
        row_max = new_max
    return accumulated, row_sum, row_max


@triton.jit
def _prefill_kernel(
    query_ptr,
    key_ptr,
    value_ptr,
    out_ptr,
    cumulative_new_ptr,
    cumulative_total_ptr,
    query_row_stride,
    query_head_stride,
    key_row_stride,
    key_head_stride,
    value_row_stride,
    value_head_stride,
    out_row_stride,
    out_head_stride,
    scale,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    WINDOW: tl.constexpr,
    PRECISION: tl.constexpr,
):
    head, sequence = tl.program_id(1), tl.program_id(2)
    first_row = tl.load(cumulative_new_ptr + sequence)
    new = tl.load(cumulative_new_ptr + sequence + 1) - first_row
    first_key = tl.load(cumulative_total_ptr + sequence)
    total = tl.load(cumulative_total_ptr + sequence + 1) - first_key
    block = tl.cdiv(new, BLOCK_M) - 1 - tl.program_id(0)  # the last rows have the most keys: they go first
    if block < 0:
        return
    past = total - new
    in_block = block * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.arange(0, BLOCK_D)
    columns_ok = columns < HEAD_DIM
    rows_ok = in_block < new
    query_at = query_ptr + (first_row + in_block)[:, None].to(tl.int64) * query_row_stride
    query = tl.load(
        query_at + head * query_head_stride + columns[None, :], mask=rows_ok[:, None] & columns_ok[None, :], other=0.0
    )
    kv_head = head // GROUP
    key_at = key_ptr + first_key.to(tl.int64) * key_row_stride + kv_head * key_head_stride + columns[:, None]
    value_at = value_ptr + first_key.to(tl.int64) * value_row_stride + kv_head * value_head_stride + columns[None, :]
    rows = past + in_block

    accumulated = tl.zeros([BLOCK_M, BLOCK_D], dtype=tl.float32)
    row_sum = tl.zeros([BLOCK_M], dtype=tl.float32)
    row_max = tl.full([BLOCK_M], -1.0e30, dtype=tl.float32)
    first_place = past + block * BLOCK_M
    end = tl.minimum(first_place + BLOCK_M, total)
    whole = first_place // BLOCK_N * BLOCK_N  # every row of the tile sees all keys before this one
    if WINDOW > 0:
        low = tl.maximum(first_place - WINDOW + 1, 0) // BLOCK_N * BLOCK_N
        accumulated, row_sum, row_max = _attend_blocks(
            accumulated, row_sum, row_max, query, key_at, value_at, key_row_stride, value_row_stride, low, end, total,
            rows, scale, columns_ok, BLOCK_N, WINDOW, True, HEAD_DIM == BLOCK_D, PRECISION,
        )  # fmt: skip
    else:
        accumulated, row_sum, row_max = _attend_blocks(
            accumulated, row_sum, row_max, query, key_at, value_at, key_row_stride, value_row_stride, 0, whole, total,
            rows, scale, columns_ok, BLOCK_N, WINDOW, False, HEAD_DIM == BLOCK_D, PRECISION,
        )  # fmt: skip
        accumulated, row_sum, row_max = _attend_blocks(
            accumulated, row_sum, row_max, query, key_at, value_at, key_row_stride, value_row_stride, whole, end, total,
            rows, scale, columns_ok, BLOCK_N, WINDOW, True, HEAD_DIM == BLOCK_D, PRECISION,
        )  # fmt: skip
    result = accumulated / tl.maximum(row_sum, 1.0e-30)[:, None]  # rows past the end may have seen nothing
    out_at = out_ptr + (first_row + in_block)[:, None].to(tl.int64) * out_row_stride + head * out_head_stride
    tl.store(
        out_at + columns[None, :], result.to(out_ptr.dtype.element_ty), mask=rows_ok[:, None] & columns_ok[None, :]
    )
