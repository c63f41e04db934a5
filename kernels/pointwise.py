"""The memory-bound kernels between the products: norm with residual, SwiGLU, rotary embedding with the KV write."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from splitplan.kernels.e4m3 import float_to_e4m3


def rmsnorm_residual(
    rows: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    epsilon: float = 1e-6,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """residual += rows, then RMSNorm of it (Zhang & Sennrich 2019): x / √(mean x² + ε) · weight.

    rows and residual [tokens, hidden]; weight [hidden]; `residual` is changed in place. Returns [tokens, hidden].
    """
    tokens, hidden = rows.shape
    out = torch.empty_like(rows) if out is None else out
    block = triton.next_power_of_2(hidden)
    _rmsnorm_kernel[tokens,](
        rows,
        residual,
        weight,
        out,
        epsilon,
        HIDDEN=hidden,
        BLOCK=block,
        num_warps=min(max(block // 512, 1), 16),
    )
    return out


def swiglu(rows: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """silu(gate) · up (Shazeer 2020) of rows [tokens, 2 · inter], gate first. Returns [tokens, inter]."""
    tokens, both = rows.shape
    inter = both // 2
    out = rows.new_empty((tokens, inter)) if out is None else out
    block = min(triton.next_power_of_2(inter), 1024)
    _swiglu_kernel[tokens, triton.cdiv(inter, block)](rows, out, inter, BLOCK=block, num_warps=4)
    return out


def rotary_and_write(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cosine_sine: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    kv_scale: float = 1.0,
) -> None:
    """Rotates query and key by their positions (Su et al. 2021, halves as in GPT-NeoX) and writes key and value.

    query [tokens, heads, head_dim], in place; key and value [tokens, kv_heads, head_dim]; cosine_sine [positions,
    head_dim] float32, the cosines of a position's angles and then their sines; positions and slots [tokens] int32,
    where slot = page · page_tokens + row; caches [pages, page_tokens, kv_heads, head_dim], of value's dtype or uint8
    (e4m3 of value / kv_scale).
    """
    tokens, heads, head_dim = query.shape
    kv_heads = key.shape[1]
    _rotary_kernel[tokens, heads + kv_heads](
        query,
        key,
        value,
        cosine_sine,
        positions,
        slots,
        key_cache,
        value_cache,
        1.0 / kv_scale,
        HEADS=heads,
        KV_HEADS=kv_heads,
        HEAD_DIM=head_dim,
        BLOCK_H=triton.next_power_of_2(head_dim // 2),
        IS_E4M3=key_cache.dtype == torch.uint8,
        num_warps=1,
    )


@triton.jit
def _rmsnorm_kernel(rows_ptr, residual_ptr, weight_ptr, out_ptr, epsilon, HIDDEN: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * HIDDEN
    columns = tl.arange(0, BLOCK)
    inside = columns < HIDDEN
    values = tl.load(rows_ptr + row + columns, mask=inside, other=0.0).to(tl.float32)
    values += tl.load(residual_ptr + row + columns, mask=inside, other=0.0).to(tl.float32)
    stored = values.to(residual_ptr.dtype.element_ty)
    tl.store(residual_ptr + row + columns, stored, mask=inside)
    values = stored.to(tl.float32)  # the norm is of what the next layer will read
    scale = 1.0 / tl.sqrt(tl.sum(values * values, 0) / HIDDEN + epsilon)
    weight = tl.load(weight_ptr + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + row + columns, (values * scale * weight).to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _swiglu_kernel(rows_ptr, out_ptr, inter, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < inter
    gate = tl.load(rows_ptr + row * 2 * inter + columns, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(rows_ptr + row * 2 * inter + inter + columns, mask=inside, other=0.0).to(tl.float32)
    result = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out_ptr + row * inter + columns, result.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _rotary_kernel(
    query_ptr,
    key_ptr,
    value_ptr,
    cosine_sine_ptr,
    positions_ptr,
    slots_ptr,
    key_cache_ptr,
    value_cache_ptr,
    inverse_scale,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_H: tl.constexpr,
    IS_E4M3: tl.constexpr,
):
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    half: tl.constexpr = HEAD_DIM // 2
    columns = tl.arange(0, BLOCK_H)
    inside = columns < half
    turn_at = cosine_sine_ptr + tl.load(positions_ptr + token).to(tl.int64) * HEAD_DIM + columns
    cosine = tl.load(turn_at, mask=inside, other=0.0)
    sine = tl.load(turn_at + half, mask=inside, other=0.0)
    if head < HEADS:
        at = query_ptr + (token * HEADS + head) * HEAD_DIM + columns
        first = tl.load(at, mask=inside, other=0.0).to(tl.float32)
        second = tl.load(at + half, mask=inside, other=0.0).to(tl.float32)
        tl.store(at, (first * cosine - second * sine).to(query_ptr.dtype.element_ty), mask=inside)
        tl.store(at + half, (second * cosine + first * sine).to(query_ptr.dtype.element_ty), mask=inside)
    else:
        kv_head = head - HEADS
        source = (token * KV_HEADS + kv_head) * HEAD_DIM + columns
        slot = tl.load(slots_ptr + token).to(tl.int64)
        place = (slot * KV_HEADS + kv_head) * HEAD_DIM + columns  # pages lie one after another
        first = tl.load(key_ptr + source, mask=inside, other=0.0).to(tl.float32)
        second = tl.load(key_ptr + source + half, mask=inside, other=0.0).to(tl.float32)
        low = first * cosine - second * sine
        high = second * cosine + first * sine
        value_low = tl.load(value_ptr + source, mask=inside, other=0.0).to(tl.float32)
        value_high = tl.load(value_ptr + source + half, mask=inside, other=0.0).to(tl.float32)
        if IS_E4M3:
            tl.store(key_cache_ptr + place, float_to_e4m3(low * inverse_scale), mask=inside)
            tl.store(key_cache_ptr + place + half, float_to_e4m3(high * inverse_scale), mask=inside)
            tl.store(value_cache_ptr + place, float_to_e4m3(value_low * inverse_scale), mask=inside)
            tl.store(value_cache_ptr + place + half, float_to_e4m3(value_high * inverse_scale), mask=inside)
        else:
            dtype = key_cache_ptr.dtype.element_ty
            tl.store(key_cache_ptr + place, low.to(dtype), mask=inside)
            tl.store(key_cache_ptr + place + half, high.to(dtype), mask=inside)
            tl.store(value_cache_ptr + place, value_low.to(dtype), mask=inside)
            tl.store(value_cache_ptr + place + half, value_high.to(dtype), mask=inside)
