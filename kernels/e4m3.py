"""e4m3 (OCP 8-bit floating point, E4M3) by integer arithmetic on uint8, for chips with and without fp8.

Exact: the same codes as round-to-nearest-even with saturation at ±448. Triton's own float-to-fp8 cast does not exist on
sm_80 and rounds otherwise in the interpreter.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

E4M3_MAX = 448.0


@triton.jit
def e4m3_to_half(codes):
    """uint8 codes to float16, exactly. The seven bits become a half's exponent and mantissa, 2^8 makes up the bias.

    The NaN codes 0x7f and 0xff, which quantising never writes, come out as ±480.
    """
    wide = codes.to(tl.int16)
    bits = ((wide & 0x80) << 8) | ((wide & 0x7F) << 7)
    return bits.to(tl.float16, bitcast=True) * 256.0


@triton.jit
def float_to_e4m3(values):
    """float32 to uint8 codes, round to nearest even, saturating at ±448."""
    bits = values.to(tl.int32, bitcast=True)
    sign = (bits >> 24) & 0x80
    size = tl.minimum(tl.abs(values), 448.0)
    size_bits = size.to(tl.int32, bitcast=True)
    # normal: keep three of 23 mantissa bits, ties to even, and move the exponent's bias from 127 to 7
    normal = ((size_bits + 0x7FFFF + ((size_bits >> 20) & 1)) >> 20) - ((127 - 7) << 3)
    # subnormal: adding 2^14 leaves an ulp of 2^-9, the step of e4m3's subnormals, so the hardware's sum rounds
    shifted = (size + 16384.0).to(tl.int32, bitcast=True)
    subnormal = shifted - 0x46800000
    code = tl.where(size < 0.015625, subnormal, normal)
    return (sign | code).to(tl.uint8)


def quantize_kv(values: torch.Tensor, scale: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """KV to e4m3 codes of values / scale.

    values [tokens, kv_heads, head_dim]; scale [kv_heads] float32; returns uint8 of the same shape.
    """
    out = torch.empty(values.shape, dtype=torch.uint8, device=values.device) if out is None else out
    tokens, heads, head_dim = values.shape
    _quantize_kernel[tokens, heads](
        values, scale, out, HEADS=heads, HEAD_DIM=head_dim, BLOCK_D=triton.next_power_of_2(head_dim), num_warps=1
    )
    return out


def dequantize_kv(codes: torch.Tensor, scale: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """The other way: codes × scale into `out`, whose dtype it keeps."""
    tokens, heads, head_dim = codes.shape
    _dequantize_kernel[tokens, heads](
        codes, scale, out, HEADS=heads, HEAD_DIM=head_dim, BLOCK_D=triton.next_power_of_2(head_dim), num_warps=1
    )
    return out


@triton.jit
def _quantize_kernel(
    values_ptr, scale_ptr, out_ptr, HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr
):
    head = tl.program_id(1)
    row = (tl.program_id(0).to(tl.int64) * HEADS + head) * HEAD_DIM
    columns = tl.arange(0, BLOCK_D)
    inside = columns < HEAD_DIM
    values = tl.load(values_ptr + row + columns, mask=inside, other=0.0).to(tl.float32)
    codes = float_to_e4m3(values / tl.load(scale_ptr + head))
    tl.store(out_ptr + row + columns, codes, mask=inside)


@triton.jit
def _dequantize_kernel(
    codes_ptr, scale_ptr, out_ptr, HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr
):
    head = tl.program_id(1)
    row = (tl.program_id(0).to(tl.int64) * HEADS + head) * HEAD_DIM
    columns = tl.arange(0, BLOCK_D)
    inside = columns < HEAD_DIM
    codes = tl.load(codes_ptr + row + columns, mask=inside, other=0)
    values = e4m3_to_half(codes).to(tl.float32) * tl.load(scale_ptr + head)
    tl.store(out_ptr + row + columns, values.to(out_ptr.dtype.element_ty), mask=inside)
