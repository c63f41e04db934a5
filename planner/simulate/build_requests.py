"""Requests, their limits and their prefix caches → the simulator's flat arrays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from splitplan.catalogs.errors import InputError, Problem
from splitplan.planner.simulate import layout as at
from splitplan.planner.simulate.deployment import Deployment
from splitplan.planner.simulate.rows import Rows, lane_rows
from splitplan.planner.spec.workload import FloatArray, Requests


def fill_requests(rows: Rows, requests: Requests, seed: int) -> None:
    """A row for every request, with its draws for routing."""
    ints, floats = rows.ints_of("requests"), rows.floats_of("requests")
    ints[:] = -1
    floats[:] = -1.0
    ints[:, at.R_INPUT] = np.maximum(requests.input_tokens, 1)
    ints[:, at.R_OUTPUT] = np.maximum(requests.output_tokens, 1)
    ints[:, at.R_CACHED] = np.clip(requests.cached_tokens, 0, ints[:, at.R_INPUT] - 1)
    ints[:, [at.R_GENERATED, at.R_PREEMPTIONS, at.R_STATE]] = 0
    floats[:, at.R_ARRIVAL_S] = requests.arrival_s
    floats[:, [at.R_DRAW_ENTRY, at.R_DRAW_DECODE]] = np.random.default_rng(seed).random((len(requests), 2))


def gap_limits(requests: Requests, itl_limit_s: float | FloatArray | None) -> FloatArray:
    """The distinct limits on inter-token times, ascending."""
    if itl_limit_s is None:
        return np.empty(0)
    limits = np.asarray(itl_limit_s, dtype=np.float64)
    if limits.shape not in ((), (len(requests),)) or np.isnan(limits).any() or (limits <= 0).any():
        raise InputError(Problem("itl_limit_s", expected="seconds above 0, one for all requests or one for each"))
    return np.unique(limits[np.isfinite(limits)])


def fill_limits(rows: Rows, limits: FloatArray, itl_limit_s: float | FloatArray | None) -> None:
    """The distinct limits, and which one is each request's."""
    ints = rows.ints_of("requests")
    ints[:, at.R_SLOW_GAPS] = 0
    rows.ints[at.G_LIMIT_COUNT] = len(limits)
    rows.ints[at.G_LIMITS] = rows.add_floats(limits)
    if len(limits) and itl_limit_s is not None:
        own = np.broadcast_to(np.asarray(itl_limit_s, dtype=np.float64), len(ints))
        ints[:, at.R_LIMIT] = np.where(np.isfinite(own), np.searchsorted(limits, own), -1)


def check_requests(requests: Requests) -> None:
    """Raise InputError unless there are requests, in order."""
    if len(requests) == 0:
        raise InputError(Problem("no requests to simulate", expected="at least one; missing traffic is not zero load"))
    times = np.asarray(requests.arrival_s, dtype=np.float64)
    if not (np.isfinite(times).all() and (np.diff(times) >= 0).all() and times[0] >= 0):
        raise InputError(Problem("arrival times are not in order", expected="seconds from 0 on, ascending"))


def add_caches(rows: Rows, deployment: Deployment, requests: Requests, roles: Sequence[set[str]]) -> None:
    """Prompt blocks numbered from 0, and a cache for every instance, host and store that keeps them."""
    ints = rows.ints
    ints[at.G_STORE] = -1
    rows.ints_of("requests")[:, at.R_PREFIX_COUNT] = 0
    prefix = requests.prefix
    if prefix is None or not len(prefix.hashes):
        return
    known, numbers = np.unique(prefix.hashes, return_inverse=True)
    offset = rows.add_ints(numbers.astype(np.int64).ravel())
    table = rows.ints_of("requests")
    whole = table[:, at.R_INPUT] // prefix.block_tokens
    table[:, at.R_PREFIX] = offset + prefix.offsets[:-1]
    table[:, at.R_PREFIX_COUNT] = np.minimum(np.diff(prefix.offsets), whole)
    ints[at.G_HASH_TOKENS] = prefix.block_tokens
    for row, instance, own_roles in zip(lane_rows(deployment), deployment.instances, roles, strict=True):
        if own_roles == {"decode"} or not instance.prefix_cache:
            continue
        if prefix.block_tokens % instance.block_tokens:
            raise InputError(
                Problem(
                    f"prompt blocks of {prefix.block_tokens} tokens on instance '{instance.name}'",
                    expected=f"a multiple of its block_tokens {instance.block_tokens}",
                )
            )
        engine = rows.ints_of("engines")[row]
        if not engine[at.E_FULL_PAGES]:
            continue  # nothing of a prompt outlives its window
        engine[at.E_HASH_PAGES] = prefix.block_tokens // instance.block_tokens * engine[at.E_FULL_PAGES]
        engine[at.E_CACHE] = _add_cache(rows, len(known), 0)
        if instance.host_cache_tokens:
            engine[at.E_HOST_CACHE] = _add_cache(rows, len(known), instance.host_cache_tokens // prefix.block_tokens)
    if deployment.store_tokens:
        ints[at.G_STORE] = _add_cache(rows, len(known), deployment.store_tokens // prefix.block_tokens)


def _add_cache(rows: Rows, num_blocks: int, capacity: int) -> int:
    cache = np.full(at.C_SLOTS + num_blocks * at.C_SLOT_WIDTH, -1, dtype=np.int64)
    cache[at.C_COUNT], cache[at.C_CAPACITY], cache[at.C_SIZE] = 0, capacity, num_blocks
    return rows.add_ints(cache)
