"""Norm, activation, rotary embedding and the KV write against float64, on odd sizes."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="needs torch (extra gpu)")
pytest.importorskip("triton", reason="needs triton (extra gpu)")

from splitplan.kernels import reference  # noqa: E402
from splitplan.kernels.e4m3 import quantize_kv  # noqa: E402
from splitplan.kernels.pointwise import rmsnorm_residual, rotary_and_write, swiglu  # noqa: E402

DTYPES = [torch.float32, torch.float16]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("tokens", "hidden"), [(3, 100), (1, 64), (5, 129)])
def test_rmsnorm_with_residual(tokens: int, hidden: int, dtype: torch.dtype) -> None:
    rows, residual = (torch.randn(tokens, hidden).to(dtype) for _ in range(2))
    weight = torch.randn(hidden).to(dtype)
    expected, added = reference.rmsnorm_residual(rows, residual, weight)
    out = rmsnorm_residual(rows, residual, weight)
    assert torch.equal(residual, added)
    assert bool(((out.double() - expected).abs() <= reference.pointwise_bound(expected, dtype)).all())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("inter", [100, 64, 1500])
def test_swiglu(inter: int, dtype: torch.dtype) -> None:
    rows = (4 * torch.randn(3, 2 * inter)).to(dtype)
    expected = reference.swiglu(rows)
    assert bool(((swiglu(rows).double() - expected).abs() <= reference.pointwise_bound(expected, dtype)).all())


@pytest.mark.parametrize("dtype", DTYPES)
def test_rotary_turns_query_and_key_and_writes_the_cache(dtype: torch.dtype) -> None:
    tokens, heads, kv_heads, head_dim, page = 5, 4, 2, 24, 4
    query, key, value = (torch.randn(tokens, count, head_dim).to(dtype) for count in (heads, kv_heads, kv_heads))
    angles = torch.rand(50, head_dim // 2) * 6
    positions = torch.tensor([7, 0, 49, 3, 12], dtype=torch.int32)
    slots = torch.tensor([9, 2, 5, 11, 0], dtype=torch.int32)
    caches = [torch.full((3, page, kv_heads, head_dim), float("nan"), dtype=dtype) for _ in range(2)]
    turned = [reference.rotary(rows, angles[positions.long()]) for rows in (query, key)]
    rotary_and_write(query, key, value, torch.cat([angles.cos(), angles.sin()], 1), positions, slots, *caches)
    written = caches[0].flatten(0, 1)[slots.long()]
    for mine, expected in ((query, turned[0]), (written, turned[1])):
        bound = 3 * reference.UNIT_ROUNDOFF[dtype] * expected.abs().max() + 1e-6
        assert (mine.double() - expected).abs().max() <= bound
    assert torch.equal(caches[1].flatten(0, 1)[slots.long()], value)
    untouched = sorted(set(range(12)) - set(slots.tolist()))
    assert bool(caches[0].flatten(0, 1)[untouched].isnan().all())


def test_rotary_writes_an_e4m3_cache_as_the_quantiser_would() -> None:
    tokens, kv_heads, head_dim = 3, 2, 16
    query, key, value = (torch.randn(tokens, kv_heads, head_dim) for _ in range(3))
    caches = [torch.zeros(2, 4, kv_heads, head_dim, dtype=torch.uint8) for _ in range(2)]
    slots = torch.tensor([6, 1, 3], dtype=torch.int32)
    positions = torch.zeros(tokens, dtype=torch.int32)
    unturned = torch.cat([torch.ones(1, head_dim // 2), torch.zeros(1, head_dim // 2)], 1)
    rotary_and_write(query, key, value, unturned, positions, slots, *caches, kv_scale=0.25)
    for cache, rows in zip(caches, (key, value), strict=True):
        expected = quantize_kv(rows, torch.full((kv_heads,), 0.25))
        assert torch.equal(cache.flatten(0, 1)[slots.long()], expected)
