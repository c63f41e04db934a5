"""Prefix caches in HBM, host memory and a shared store, and the router that honours them."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest

from splitplan.catalogs.errors import InputError
from splitplan.planner.simulate import Deployment, simulate
from splitplan.planner.spec.workload import PrefixBlocks, Requests
from tests.planner.simulate.cases import fixed_requests, instance, linear_step, mixed_requests, pair, with_prefixes


def prompts(*blocks: list[int], gap_s: float = 10.0, block_tokens: int = 64) -> Requests:
    """One request per list of block numbers, far enough apart that none meets another; one output token each."""
    count = len(blocks)
    requests = fixed_requests(count, 1, 1, np.arange(count) * gap_s)
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in blocks])]).astype(np.int64)
    prefix = PrefixBlocks(block_tokens, offsets, np.array([number for row in blocks for number in row], dtype=np.int64))
    lengths = np.array([len(row) * block_tokens for row in blocks])
    return Requests(requests.arrival_s, lengths, requests.output_tokens, *[np.zeros(count, dtype=np.int64)] * 2, prefix)


def cached(requests: Requests, **changes: object) -> list[int]:
    """Cached prompt tokens of each request on one instance."""
    deployment = Deployment((instance(linear_step(token_s=1e-4), **changes),))
    return simulate(deployment, requests).runs[0].cached_tokens.tolist()


def test_a_prompt_reuses_what_an_earlier_one_began_with() -> None:
    assert cached(prompts([1, 2, 3], [1, 2, 4], [5, 2, 3], [1, 2, 4, 6])) == [0, 128, 0, 192]


def test_cached_tokens_are_not_prefilled() -> None:
    """TTFT is that of the tokens that are left; of a prompt that is cached whole, one token is computed again."""
    deployment = Deployment((instance(linear_step(token_s=1e-4)),))
    run = simulate(deployment, prompts([1, 2, 3], [1, 2, 4], [1, 2, 4])).runs[0]
    assert run.ttft_s == pytest.approx([192e-4, 64e-4, 1e-4])


def test_least_recently_used_blocks_give_way() -> None:
    """Room for four blocks: the third prompt takes the place of the one not used longest, from its end."""
    sequence = prompts([1, 2], [3, 4], [1, 2], [5, 6], [1, 2], [3, 4])
    assert cached(sequence, kv_capacity_tokens=4 * 64) == [0, 0, 128, 0, 128, 0]


@pytest.mark.parametrize("capacity", [6, 12, 30])
def test_hits_are_those_of_an_lru_written_down_plainly(capacity: int) -> None:
    """One prompt at a time: the simulator against an ordered dictionary."""
    draw = np.random.default_rng(capacity)
    rows = [[100 * family + k for k in range(int(draw.integers(1, 5)))] for family in draw.integers(0, 6, 200)]
    held: OrderedDict[int, None] = OrderedDict()
    expected = []
    for row in rows:
        hits = 0
        while hits < len(row) and row[hits] in held:
            hits += 1
        expected.append(hits * 64)
        for number in reversed(row):
            held.pop(number, None)
        while len(held) > capacity - len(row):
            held.popitem(last=False)
        held.update((number, None) for number in reversed(row))
    assert cached(prompts(*rows), kv_capacity_tokens=capacity * 64) == expected


def test_running_requests_share_their_prefix() -> None:
    """Four prompts of eight common blocks fit together where their blocks would not four times over."""
    step = linear_step(overhead_s=0.01)
    together = fixed_requests(4, 512, 50, [0.0, 1e-3, 1e-3, 1e-3])
    deployment = Deployment((instance(step, kv_capacity_tokens=1024),))
    shared = simulate(deployment, with_prefixes(together, 1)).runs[0]
    alone = simulate(deployment, together).runs[0]
    assert shared.ttft_s.max() < 0.05
    assert alone.ttft_s.max() > 0.4
    assert shared.cached_tokens.tolist() == [0, 512, 512, 512]


def test_host_memory_gives_back_what_hbm_dropped_at_its_speed() -> None:
    sequence = prompts([1, 2], [3, 4], [1, 2])
    step = linear_step(token_s=1e-4)
    host = instance(step, kv_capacity_tokens=128, host_cache_tokens=1000, host_cache_bytes_per_s=1e9)
    run = simulate(Deployment((host,), kv_bytes_per_token=1e5), sequence).runs[0]
    assert run.cached_tokens.tolist() == [0, 0, 128]
    assert run.ttft_s[2] == pytest.approx(128 * 1e5 / 1e9 + 1e-4)


def test_shared_store_serves_the_other_instance() -> None:
    sequence = prompts([1, 2], [1, 2])
    step = linear_step(token_s=1e-4)
    twins = (instance(step, name="a"), instance(step, name="b"))

    def hits(**store: float) -> list[int]:
        deployment = Deployment(twins, kv_bytes_per_token=1e5, **store)  # type: ignore[arg-type]
        return simulate(deployment, sequence, routing="round_robin").runs[0].cached_tokens.tolist()

    assert hits() == [0, 0]
    assert hits(store_tokens=1000, store_bytes_per_s=1e9) == [0, 128]


def test_prefix_aware_routing_hits_more_than_round_robin() -> None:
    requests = with_prefixes(mixed_requests(600, 8.0), 151)
    deployment = Deployment(tuple(instance(linear_step(token_s=1e-4), name=f"c{k}") for k in range(4)))
    hits = {
        routing: simulate(deployment, requests, routing=routing).runs[0].cached_tokens.sum()  # type: ignore[arg-type]
        for routing in ("round_robin", "prefix_aware")
    }
    assert hits["prefix_aware"] > 1.2 * hits["round_robin"]


def test_prefix_aware_routing_does_not_pile_everything_on_one_instance() -> None:
    """All prompts alike, far beyond what one instance serves: load counts too."""
    requests = with_prefixes(fixed_requests(400, 640, 100, np.arange(400) * 0.002), 1)
    deployment = Deployment(tuple(instance(linear_step(overhead_s=0.01), name=f"c{k}") for k in range(4)))
    run = simulate(deployment, requests, routing="prefix_aware").runs[0]
    assert np.bincount(run.entry, minlength=4).min() > 40


def test_blocks_that_do_not_divide_are_refused() -> None:
    with pytest.raises(InputError, match="prompt blocks of 64"):
        cached(prompts([1, 2]), block_tokens=48)


def test_decode_that_keeps_prefixes_is_sent_the_rest_only() -> None:
    step = linear_step(token_s=1e-4)
    sequence = prompts([1, 2, 3], [1, 2, 4])
    assert simulate(pair(step), sequence).runs[0].transfer_s == pytest.approx([192e-4, 192e-4])
    kept = simulate(pair(step, decode_keeps_prefix=True), sequence).runs[0]
    assert kept.transfer_s == pytest.approx([192e-4, 64e-4])
