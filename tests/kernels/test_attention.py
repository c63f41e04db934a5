"""Attention kernels against float64, on sizes that are no multiple of any block."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="needs torch (extra gpu)")
pytest.importorskip("triton", reason="needs triton (extra gpu)")

from splitplan.kernels import reference  # noqa: E402
from splitplan.kernels.configs import Config  # noqa: E402
from splitplan.kernels.decode import choose_splits, decode_attention  # noqa: E402
from splitplan.kernels.e4m3 import quantize_kv  # noqa: E402
from splitplan.kernels.mla import mla_decode  # noqa: E402
from splitplan.kernels.prefill import prefill_attention  # noqa: E402

SMALL = Config(32, 32, 4, 2)
PAGE = 16


def cumulative(lengths: list[int]) -> torch.Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(
    ("new", "past", "heads", "kv_heads", "head_dim", "window"),
    [
        ([33], [0], 4, 2, 64, 0),
        ([70], [33], 2, 1, 32, 0),
        ([1], [100], 4, 4, 32, 0),  # one token, as at the end of a chunked prompt
        ([32], [32], 2, 2, 48, 0),  # whole blocks, and a head that is no power of two
        ([33, 5, 64], [0, 70, 1], 2, 1, 32, 0),  # ragged: three sequences at different places
        ([70], [33], 2, 1, 32, 40),
        ([33, 5], [0, 70], 2, 2, 32, 1),  # a window of one: each token sees itself
    ],
)
def test_prefill_attention_is_within_its_bound(
    new: list[int], past: list[int], heads: int, kv_heads: int, head_dim: int, window: int, dtype: torch.dtype
) -> None:
    total = [n + p for n, p in zip(new, past, strict=True)]
    query = torch.randn(sum(new), heads, head_dim).to(dtype)
    key, value = (torch.randn(sum(total), kv_heads, head_dim).to(dtype) for _ in range(2))
    out = torch.full_like(query, float("nan"))
    prefill_attention(
        query, key, value, cumulative(new), cumulative(total), max(new), window=window, out=out, config=SMALL
    )
    row = key_row = 0
    for n, p in zip(new, past, strict=True):
        mine, keys = slice(row, row + n), slice(key_row, key_row + n + p)
        expected = reference.attention(query[mine], key[keys], value[keys], p, window)
        error = (out[mine].double() - expected).abs().max()
        assert error <= reference.attention_bound(query[mine], key[keys], value[keys])
        row, key_row = row + n, key_row + n + p


def paged_cache(lengths: list[int], kv_heads: int, head_dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A cache of random pages and a table that gives every sequence its own, in random order."""
    pages = [-(-length // PAGE) for length in lengths]
    order = torch.randperm(sum(pages) + 3).to(torch.int32)
    table = torch.zeros(len(lengths), max(pages), dtype=torch.int32)
    taken = 0
    for sequence, count in enumerate(pages):
        table[sequence, :count] = order[taken : taken + count]
        taken += count
    return torch.randn(sum(pages) + 3, PAGE, kv_heads, head_dim), table


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("splits", [1, 2, 8])
@pytest.mark.parametrize(
    ("lengths", "heads", "kv_heads", "head_dim", "window"),
    [
        ([33, 1, 100], 4, 2, 64, 0),
        ([17], 20, 1, 32, 0),  # a group larger than a tensor core's 16 rows
        ([100, 50], 2, 2, 48, 40),
    ],
)
def test_decode_attention_is_within_its_bound(
    lengths: list[int], heads: int, kv_heads: int, head_dim: int, window: int, splits: int, dtype: torch.dtype
) -> None:
    """However the context is split: splits that get no token at all must not count."""
    keys, table = paged_cache(lengths, kv_heads, head_dim)
    keys, values = keys.to(dtype), torch.randn_like(keys).to(dtype)
    query = torch.randn(len(lengths), heads, head_dim).to(dtype)
    out = torch.full_like(query, float("nan"))
    context = torch.tensor(lengths, dtype=torch.int32)
    decode_attention(
        query, keys, values, table, context, max(lengths), window=window, out=out, config=Config(16, 32, 4, 2),
        num_splits=splits,
    )  # fmt: skip
    for sequence, length in enumerate(lengths):
        key, value = (reference.paged(cache, table[sequence], length) for cache in (keys, values))
        expected = reference.attention(query[sequence : sequence + 1], key, value, length - 1, window)
        error = (out[sequence : sequence + 1].double() - expected).abs().max()
        assert error <= reference.attention_bound(query[sequence : sequence + 1], key, value)


def test_decode_attention_over_an_e4m3_cache_is_that_of_its_values() -> None:
    """Quantising is the cache's loss, not the kernel's: against float64 on the dequantised cache it is exact to u."""
    lengths, scale = [33, 70], 0.5
    keys, table = paged_cache(lengths, 2, 32)
    values = torch.randn_like(keys)
    codes = [quantize_kv(cache.flatten(0, 1), torch.full((2,), scale)).view(cache.shape) for cache in (keys, values)]
    exact = [reference.e4m3_values()[code.long()] * scale for code in codes]
    query = torch.randn(2, 4, 32).half()
    context = torch.tensor(lengths, dtype=torch.int32)
    small = Config(16, 32, 4, 2)
    out = decode_attention(query, *codes, table, context, 70, kv_scale=scale, num_splits=2, config=small)
    for sequence, length in enumerate(lengths):
        key, value = (reference.paged(cache, table[sequence], length) for cache in exact)
        mine = query[sequence : sequence + 1]
        expected = reference.attention(mine, key, value, length - 1)
        assert (out[sequence : sequence + 1].double() - expected).abs().max() <= reference.attention_bound(
            mine, key, value
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("splits", [1, 4])
@pytest.mark.parametrize("heads", [3, 17])
def test_mla_decode_is_within_its_bound(heads: int, splits: int, dtype: torch.dtype) -> None:
    lengths, latent, rope = [33, 70], 48, 16
    cache, table = paged_cache(lengths, 1, latent + rope)
    cache = cache[:, :, 0].to(dtype)
    query = torch.randn(2, heads, latent + rope).to(dtype)
    context = torch.tensor(lengths, dtype=torch.int32)
    out = mla_decode(
        query, cache, table, context, 70, latent_dim=latent, scale_dim=40, config=Config(16, 32, 4, 2),
        num_splits=splits,
    )  # fmt: skip
    for sequence, length in enumerate(lengths):
        rows = reference.paged(cache, table[sequence], length)[:, None]
        mine = query[sequence : sequence + 1]
        expected = reference.attention(mine, rows, rows[..., :latent], length - 1, scale_dim=40)
        assert (out[sequence : sequence + 1].double() - expected).abs().max() <= reference.attention_bound(
            mine, rows, rows[..., :latent]
        )


def test_splits_fill_the_chip_and_no_more() -> None:
    assert choose_splits(1, 65536, 132) == 128
    assert choose_splits(256, 65536, 132) == 1
    assert choose_splits(16, 65536, 132) == 16
    assert choose_splits(1, 300, 132) == 1  # too little context to be worth a second pass
