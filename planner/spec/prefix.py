"""How much of the prompts a prefix cache would have held: block hits under an infinite cache and under LRU."""

from __future__ import annotations

import math
from collections import OrderedDict
from itertools import pairwise

import numpy as np

from splitplan.planner.spec.workload import FloatArray, IntArray, PrefixBlocks


def prefix_hit_blocks(prefix: PrefixBlocks, cache_blocks: float = math.inf) -> IntArray:
    """Leading blocks of each request that one shared LRU cache of `cache_blocks` holds when it arrives; shape [n].

    The cache starts empty; every block of a request is then (re)inserted in order. A hit is a block whose whole
    prefix is held too, as in an engine's prefix cache.
    """
    cache: OrderedDict[int, None] = OrderedDict()
    bounds = prefix.offsets.tolist()
    hashes = prefix.hashes.tolist()
    hits = np.zeros(len(bounds) - 1, dtype=np.int64)
    for request, (first, last) in enumerate(pairwise(bounds)):
        leading = True
        for block in hashes[first:last]:
            if block in cache:
                cache.move_to_end(block)
                hits[request] += leading
            else:
                leading = False
                cache[block] = None
                if len(cache) > cache_blocks:
                    cache.popitem(last=False)
    return hits


def hit_share(prefix: PrefixBlocks, cache_blocks: float = math.inf) -> float:
    """Share of all blocks that `prefix_hit_blocks` finds; 0 for a trace without blocks."""
    total = int(prefix.offsets[-1])
    return float(prefix_hit_blocks(prefix, cache_blocks).sum()) / total if total else 0.0


def cached_tokens(prefix: PrefixBlocks, input_tokens: IntArray, cache_blocks: float) -> IntArray:
    """Prompt tokens of each request that such a cache holds; at least one token is always left to compute."""
    return np.minimum(prefix_hit_blocks(prefix, cache_blocks) * prefix.block_tokens, input_tokens - 1)


def token_hit_ratio(cached: IntArray, input_tokens: IntArray, weight: FloatArray | None = None) -> float:
    """Share of prompt tokens found in the cache."""
    return float(np.average(cached, weights=weight) / np.average(input_tokens, weights=weight))
