"""Correctness before timing: the attention kernels against float64 on the very GPU that is about to be measured."""

from __future__ import annotations

from typing import Any

from splitplan.catalogs.errors import ProfileError
from splitplan.kernels import reference
from splitplan.kernels.decode import decode_attention
from splitplan.kernels.prefill import prefill_attention


def check_attention(torch: Any, device: str, dtype: Any) -> None:
    """Prefill and decode attention on this very device against float64; ProfileError where wrong."""
    generator = torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn(rows, heads, 128, generator=generator).to(dtype) for rows, heads in ((70, 4), (103, 2), (103, 2))
    )
    new, total = (torch.tensor([0, rows], dtype=torch.int32, device=device) for rows in (70, 103))
    got = prefill_attention(query.to(device), key.to(device), value.to(device), new, total, 70)
    error = float((got.cpu().double() - reference.attention(query, key, value, 33)).abs().max())
    if error > reference.attention_bound(query, key, value):
        raise ProfileError(f"prefill attention is off by {error:.2g} on this device: nothing is timed")
    keys, values = (rows[:96].view(6, 16, 2, 128).to(device) for rows in (key, value))
    table = torch.tensor([[3, 0, 5, 1]], dtype=torch.int32, device=device)
    length = torch.tensor([61], dtype=torch.int32, device=device)
    got = decode_attention(query[:1].to(device), keys, values, table, length, 61)
    seen_keys, seen_values = (reference.paged(cache.cpu(), table[0].cpu(), 61) for cache in (keys, values))
    error = float((got.cpu().double() - reference.attention(query[:1], seen_keys, seen_values, 60)).abs().max())
    if error > reference.attention_bound(query[:1], seen_keys, seen_values):
        raise ProfileError(f"decode attention is off by {error:.2g} on this device: nothing is timed")
