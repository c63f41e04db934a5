"""Grouped matrix product for mixture-of-experts layers: every token's row times the weights of its chosen experts.

Rows are sorted by expert, each expert's rows padded to whole tiles, so that a tile belongs to one expert (the layout
that serving engines use).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from splitplan.kernels.chips import chip_of
from splitplan.kernels.configs import Config, grouped_gemm_config


@dataclass(frozen=True, slots=True)
class Routing:
    """Rows in expert order: `rows` [tiles · tile_rows] int32 indexes token · topk + choice, or is past them (padding);
    `experts` [tiles] int32 is the expert of each tile, -1 where a tile is all padding."""

    rows: torch.Tensor
    experts: torch.Tensor
    tile_rows: int
    topk: int


def route(chosen: torch.Tensor, num_experts: int, tile_rows: int) -> Routing:
    """Sorts chosen experts [tokens, topk] (int64) into tiles; as many tiles as the worst case needs."""
    pairs = chosen.numel()
    flat = chosen.flatten()
    order = torch.argsort(flat, stable=True)
    counts = torch.bincount(flat, minlength=num_experts)
    padded = (counts + tile_rows - 1) // tile_rows * tile_rows
    ends = torch.cumsum(padded, 0)
    starts = ends - padded
    within = torch.arange(pairs, device=flat.device) - (torch.cumsum(counts, 0) - counts)[flat[order]]
    tiles = -(-pairs // tile_rows) + min(num_experts, pairs)
    rows = torch.full((tiles * tile_rows,), pairs, dtype=torch.int32, device=flat.device)
    rows[starts[flat[order]] + within] = order.to(torch.int32)
    first_rows = torch.arange(tiles, device=flat.device) * tile_rows
    experts = torch.searchsorted(ends, first_rows, right=True)
    experts = torch.where(first_rows < ends[-1], experts, -1).to(torch.int32)
    return Routing(rows, experts, tile_rows, chosen.shape[1])


def grouped_gemm(
    rows: torch.Tensor,
    weights: torch.Tensor,
    routing: Routing,
    *,
    per_choice: bool = False,
    scale: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    config: Config | None = None,
) -> torch.Tensor:
    """rows · weightsᵀ of each chosen expert.

    rows [tokens, k], or [tokens · topk, k] with `per_choice`; weights [experts, n, k]; `scale` [tokens · topk]
    float32, multiplied in (routing weights). Returns [tokens · topk, n].
    """
    experts, columns, width = weights.shape
    pairs = rows.shape[0] * (1 if per_choice else routing.topk)
    config = config or grouped_gemm_config(chip_of(rows), pairs / experts)
    if config.block_m != routing.tile_rows:
        raise ValueError(f"routing has tiles of {routing.tile_rows} rows, the configuration of {config.block_m}")
    out = rows.new_empty((pairs, columns)) if out is None else out
    tiles = routing.experts.shape[0]
    _grouped_gemm_kernel[tiles * triton.cdiv(columns, config.block_n),](
        rows,
        weights,
        out,
        scale if scale is not None else rows,
        routing.rows,
        routing.experts,
        pairs,
        columns,
        rows.stride(0),
        weights.stride(0),
        weights.stride(1),
        out.stride(0),
        WIDTH=width,
        TOPK=1 if per_choice else routing.topk,
        BLOCK_M=config.block_m,
        BLOCK_N=config.block_n,
        BLOCK_K=config.block_k,
        HAS_SCALE=scale is not None,
        PRECISION="ieee" if rows.dtype == torch.float32 else "tf32",
        num_warps=config.num_warps,
        num_stages=config.num_stages,
    )
    return out


@triton.jit
def _grouped_gemm_kernel(
    rows_ptr,
    weights_ptr,
    out_ptr,
    scale_ptr,
    order_ptr,
    experts_ptr,
    pairs,
    columns,
    row_stride,
    expert_stride,
    weight_stride,
    out_stride,
    WIDTH: tl.constexpr,
    TOPK: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    HAS_SCALE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    column_blocks = tl.cdiv(columns, BLOCK_N)
    tile = tl.program_id(0) // column_blocks  # neighbours share the expert's rows; its weights stay in L2
    column_block = tl.program_id(0) % column_blocks
    expert = tl.load(experts_ptr + tile)
    if expert < 0:
        return
    order = tl.load(order_ptr + tile * BLOCK_M + tl.arange(0, BLOCK_M))
    rows_ok = order < pairs
    out_columns = column_block * BLOCK_N + tl.arange(0, BLOCK_N)
    columns_ok = out_columns < columns
    depth = tl.arange(0, BLOCK_K)
    rows_at = rows_ptr + (order // TOPK).to(tl.int64)[:, None] * row_stride + depth[None, :]
    weights_at = weights_ptr + expert.to(tl.int64) * expert_stride
    weights_at += out_columns.to(tl.int64)[None, :] * weight_stride + depth[:, None]
    accumulated = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
    for start in range(0, WIDTH, BLOCK_K):
        depth_ok = depth < WIDTH - start
        left = tl.load(rows_at + start, mask=rows_ok[:, None] & depth_ok[None, :], other=0.0)
        right = tl.load(weights_at + start, mask=columns_ok[None, :] & depth_ok[:, None], other=0.0)
        accumulated = tl.dot(left, right, accumulated, input_precision=PRECISION)
    if HAS_SCALE:
        accumulated = accumulated * tl.load(scale_ptr + order, mask=rows_ok, other=0.0)[:, None]
    out_at = out_ptr + order.to(tl.int64)[:, None] * out_stride + out_columns[None, :]
    tl.store(out_at, accumulated.to(out_ptr.dtype.element_ty), mask=rows_ok[:, None] & columns_ok[None, :])
