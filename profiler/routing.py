"""Which experts tokens choose while experts are timed: skewed as real traffic is.

"power_law_a": each expert's share is drawn from a density ∝ x^-a on [1, 0.8 · tokens], after the published tables of
the same name. At 1.2 and 64 experts the busiest gets about eight times the mean. The rank timed is the busiest one: the
others wait for it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]

LARGEST_SHARE = 0.8  # of the tokens, the end of the power law's support


def expert_loads(tokens: int, num_experts: int, topk: int, exponent: float, seed: int = 0) -> IntArray:
    """Tokens per expert: tokens · topk in all, at most `tokens` each."""
    draw = np.random.default_rng(seed).random(num_experts)
    high = max(LARGEST_SHARE * tokens, 1.0 + 1e-9)
    power = 1.0 - exponent
    shares = ((high**power - 1.0) * draw + 1.0) ** (1.0 / power)  # the inverse of the density's cumulative
    return _rounded(shares / shares.sum() * tokens * topk, tokens, tokens * topk)


def _rounded(wanted: NDArray[np.float64], ceiling: int, total: int) -> IntArray:
    """Whole numbers near `wanted`, none above `ceiling`, that add up to `total`; the most wanted are filled first."""
    loads = np.minimum(np.floor(wanted), ceiling).astype(np.int64)
    order = np.argsort(-wanted, kind="stable")
    while (missing := total - int(loads.sum())) > 0:
        open_experts = order[loads[order] < ceiling][:missing]
        loads[open_experts] += 1
    return loads


def chosen_experts(tokens: int, num_experts: int, topk: int, ep: int, exponent: float, seed: int = 0) -> IntArray:
    """[tokens, topk]: the local index of each chosen expert on the busiest of `ep` ranks, -1 where it is elsewhere.

    Copies of an expert are dealt out one after another, so no token chooses one twice.
    """
    loads = expert_loads(tokens, num_experts, topk, exponent, seed)
    per_rank = num_experts // ep
    busiest = int(np.argmax(loads.reshape(ep, per_rank).sum(1)))
    order = np.argsort(-loads, kind="stable")
    dealt = np.repeat(order, loads[order])
    chosen = np.empty((topk, tokens), dtype=np.int64)
    chosen.flat[:] = dealt  # pair p goes to token p mod tokens: `loads` ≤ tokens keeps an expert's copies apart
    local = chosen.T - busiest * per_rank
    return np.where((local >= 0) & (local < per_rank), local, -1)
