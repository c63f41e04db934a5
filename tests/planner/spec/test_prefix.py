"""Prefix hits against a cache written the slow way."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitplan.planner.spec.prefix import cached_tokens, hit_share, prefix_hit_blocks
from splitplan.planner.spec.workload import PrefixBlocks, load_workload
from tests.conftest import SHARED, needs_shared

rows = st.lists(st.lists(st.integers(0, 9), max_size=6, unique=True), min_size=1, max_size=25)


def blocks_of(requests: list[list[int]]) -> PrefixBlocks:
    offsets = np.concatenate([[0], np.cumsum([len(each) for each in requests])]).astype(np.int64)
    return PrefixBlocks(16, offsets, np.array([block for each in requests for block in each], dtype=np.int64))


def slow_hits(requests: list[list[int]], size: int) -> list[int]:
    """A list with the least recently used block first."""
    cache: list[int] = []
    hits = []
    for request in requests:
        count, leading = 0, True
        for block in request:
            leading = leading and block in cache
            count += leading
            if block in cache:
                cache.remove(block)
            cache.append(block)
            del cache[: max(0, len(cache) - size)]
        hits.append(count)
    return hits


@given(rows, st.integers(1, 12))
def test_hits_are_those_of_a_plain_lru_list(requests: list[list[int]], size: int) -> None:
    assert prefix_hit_blocks(blocks_of(requests), size).tolist() == slow_hits(requests, size)


@given(rows)
def test_a_cache_without_limit_is_the_ceiling(requests: list[list[int]]) -> None:
    """LRU keeps the inclusion property: a larger cache never hits less."""
    shares = [hit_share(blocks_of(requests), size) for size in (1, 3, 6, 10, float("inf"))]
    assert shares == sorted(shares)
    assert shares[-2] == shares[-1]


def test_one_token_is_always_left_to_compute() -> None:
    prefix = blocks_of([[1, 2], [1, 2]])
    assert cached_tokens(prefix, np.array([32, 32]), float("inf")).tolist() == [0, 31]


@needs_shared
@pytest.mark.parametrize(
    ("trace", "percent"),
    [("mooncake_conversation", (36.6, 21.1, 32.6, 35.5)), ("mooncake_synthetic", (64.0, 42.4, 62.4, 64.0))],
)
def test_block_hits_of_mooncakes_traces(trace: str, percent: tuple[float, ...]) -> None:
    """Mooncake (FAST 2025): infinite cache, then LRU of 10,000, 30,000 and 50,000 blocks (5, 15, 26 M tokens)."""
    workload = load_workload(str(SHARED / "data" / "traces" / f"{trace}.jsonl"))
    assert workload.trace is not None
    assert workload.trace.prefix is not None
    assert workload.trace.prefix.block_tokens == 512
    found = [100 * hit_share(workload.trace.prefix, size) for size in (math.inf, 10_000, 30_000, 50_000)]
    assert found == pytest.approx(percent, abs=0.06)
