"""The same operations in float64, as plainly as they can be written, and how far a kernel may be from them.

A bound is made of the output's own rounding (one unit roundoff u of its dtype), the rounding of what goes into a
product in that dtype (attention weights, normalised values), and float32 accumulation.
"""

from __future__ import annotations

import math

import torch

UNIT_ROUNDOFF = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}


def attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, past: int, window: int = 0, scale_dim: int = 0
) -> torch.Tensor:
    """One sequence: query [new, heads, d], key [past + new, kv_heads, d], value [past + new, kv_heads, w], causal."""
    new, heads, head_dim = query.shape
    group = heads // key.shape[1]
    keys = key.double().repeat_interleave(group, 1)
    values = value.double().repeat_interleave(group, 1)
    scores = torch.einsum("mhd,nhd->hmn", query.double(), keys) / math.sqrt(scale_dim or head_dim)
    row = torch.arange(past, past + new)[:, None]
    column = torch.arange(past + new)[None, :]
    seen = (column <= row) & ((column > row - window) if window else torch.ones_like(column, dtype=torch.bool))
    weights = torch.softmax(scores.masked_fill(~seen, -math.inf), -1)
    return torch.einsum("hmn,nhw->mhw", weights, values)


def attention_bound(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> float:
    """Weights and output are rounded once (3u·max|v| in all); a score off by δ moves a weight by the factor 1 + δ.

    δ: float32 accumulation of head_dim products, whose absolute sum is taken at its largest, growing as √head_dim;
    twice, for numerator and denominator. Accumulating over the keys in float32 grows as the root of their number.
    """
    unit, single = UNIT_ROUNDOFF[query.dtype], UNIT_ROUNDOFF[torch.float32]
    group = query.shape[1] // key.shape[1]
    keys = key.double().abs().repeat_interleave(group, 1)
    sums = torch.einsum("mhd,nhd->hmn", query.double().abs(), keys)
    score_error = 2 * single * float(sums.max())  # / √head_dim · √head_dim
    return float(value.abs().max()) * (3 * unit + score_error + 2 * math.sqrt(key.shape[0]) * single)


def paged(cache: torch.Tensor, table: torch.Tensor, length: int) -> torch.Tensor:
    """The first `length` rows of one sequence, out of its pages: [length, ...]."""
    return cache[table.long()].flatten(0, 1)[:length]


def rmsnorm_residual(
    rows: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, epsilon: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor]:
    """(norm, residual); the sum is rounded to the residual's dtype before it is normalised, as it is stored."""
    added = (rows.float() + residual.float()).to(residual.dtype)
    wide = added.double()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon)
    return wide * scale * weight.double(), added


def swiglu(rows: torch.Tensor) -> torch.Tensor:
    """silu(gate) · up of [tokens, 2 · inter]."""
    gate, up = rows.double().chunk(2, -1)
    return gate * torch.sigmoid(gate) * up


def pointwise_bound(expected: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """One rounding of the output, and eight of float32 on the way (sum, root, quotient, exponential, products)."""
    return expected.abs() * (UNIT_ROUNDOFF[dtype] + 8 * UNIT_ROUNDOFF[torch.float32]) + 1e-7


def rotary(rows: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """rows [tokens, heads, d] turned by angles [tokens, d / 2]."""
    first, second = rows.double().chunk(2, -1)
    cosine, sine = angles.double().cos()[:, None], angles.double().sin()[:, None]
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], -1)


def grouped_gemm(rows: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """[tokens · topk, n]: row of each (token, choice) times its expert's weights [experts, n, k]."""
    per_choice = rows.double().repeat_interleave(chosen.shape[1], 0) if len(rows) == len(chosen) else rows.double()
    return torch.einsum("pk,pnk->pn", per_choice, weights.double()[chosen.flatten()])


def product_bound(rows: torch.Tensor, weights: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """One rounding of the output and float32 accumulation over k: γ_k ≈ k·2^-24 of the largest |a|·|b| sum."""
    width = rows.shape[-1]
    largest = float(rows.abs().max() * weights.abs().max()) * width
    return expected.abs() * UNIT_ROUNDOFF[rows.dtype] + largest * math.sqrt(width) * UNIT_ROUNDOFF[torch.float32] * 2


def e4m3_values() -> torch.Tensor:
    """The value of each of the 256 codes, in float64, from the format's definition; NaN for 0x7f and 0xff."""
    values = []
    for code in range(256):
        exponent, mantissa = code >> 3 & 0xF, code & 0x7
        size = mantissa / 8 * 2.0**-6 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7)
        size = math.nan if code & 0x7F == 0x7F else size
        values.append(-size if code & 0x80 else size)
    return torch.tensor(values, dtype=torch.float64)
