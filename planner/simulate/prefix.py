"""Prefix caches: which prompt blocks an instance, its host or a shared store holds. Part of the hot loop.

A cache has a header (oldest, newest, unreferenced entries, capacity) and three integers per known block: how many
requests use it (−1: not held), and its neighbours in the queue of unreferenced ones, oldest first (LRU).

Layers with a window have no part in sharing: every request is charged for its own window.
In an instance's HBM, blocks in use are counted like any KV; unreferenced ones are part of E_KV_FREE and give way when
it shrinks. Host and store hold copies of every prompt block computed (write-through) up to their capacity; the step
that admits a prompt waits for what it reads from them (reads.py).
"""

from __future__ import annotations

from splitplan.planner.simulate.layout import (
    C_CAPACITY,
    C_COUNT,
    C_NEWEST,
    C_NEXT,
    C_OLDEST,
    C_PREVIOUS,
    C_REFERENCES,
    C_SLOT_WIDTH,
    C_SLOTS,
    E_CACHE,
    E_HASH_PAGES,
    E_HOME,
    E_HOST_CACHE,
    E_HOST_READ_BYTES,
    E_KV_FREE,
    E_STORE_READ_BYTES,
    E_WINDOW_PAGES,
    G_HASH_TOKENS,
    G_KV_BYTES_PER_TOKEN,
    G_STORE,
    G_WINDOW,
    G_WINDOWED_BYTES_PER_TOKEN,
    R_CACHED,
    R_PREFIX,
    R_PREFIX_COUNT,
    R_SHARED,
    World,
)
from splitplan.planner.simulate.running import prompt_pages


def held_blocks(world: World, cache: int, request: int, start: int) -> int:
    """How many blocks of the prompt, from block `start` on without a gap, the cache holds, plus `start`."""
    ints = world.ints
    count = start
    while count < ints[request + R_PREFIX_COUNT]:
        if ints[_slot(world, cache, request, count) + C_REFERENCES] < 0:
            break
        count += 1
    return count


def pages_to_take(world: World, home: int, request: int, tokens: int) -> int:
    """KV pages an admission takes from E_KV_FREE: its own, and cached ones that nobody else is using."""
    ints = world.ints
    pages = prompt_pages(world, home, tokens)
    cache = ints[home + E_CACHE]
    if cache < 0:
        return pages
    held = held_blocks(world, cache, request, 0)
    for k in range(held):
        if ints[_slot(world, cache, request, k) + C_REFERENCES] > 0:
            pages -= ints[home + E_HASH_PAGES]
    return pages


def claim_prefix(world: World, engine: int, request: int) -> None:
    """On admission (its blocks are taken): use what is held, read what host or store hold; sets R_CACHED."""
    ints = world.ints
    home = ints[engine + E_HOME]
    cache = ints[home + E_CACHE]
    if cache < 0:
        return
    held = held_blocks(world, cache, request, 0)
    for k in range(held):
        slot = _slot(world, cache, request, k)
        if ints[slot + C_REFERENCES] == 0:
            _unqueue(world, cache, slot)
        ints[slot + C_REFERENCES] += 1
    ints[request + R_SHARED] = held
    known = _read_tiers(world, engine, request, held)
    ints[request + R_CACHED] = known * ints[G_HASH_TOKENS]


def publish_prefix(world: World, engine: int, request: int) -> None:
    """At the end of its prefill a prompt's blocks become known to others; copies of what is known already are freed."""
    ints = world.ints
    home = ints[engine + E_HOME]
    cache = ints[home + E_CACHE]
    if cache < 0:
        return
    for k in range(ints[request + R_SHARED], ints[request + R_PREFIX_COUNT]):
        slot = _slot(world, cache, request, k)
        if ints[slot + C_REFERENCES] < 0:
            ints[slot + C_REFERENCES] = 0
        else:
            ints[home + E_KV_FREE] += ints[home + E_HASH_PAGES]
            if ints[slot + C_REFERENCES] == 0:
                _unqueue(world, cache, slot)
                ints[home + E_KV_FREE] -= ints[home + E_HASH_PAGES]
        ints[slot + C_REFERENCES] += 1
    ints[request + R_SHARED] = ints[request + R_PREFIX_COUNT]
    _store(world, ints[home + E_HOST_CACHE], request)
    _store(world, ints[G_STORE], request)


def free_kv(world: World, engine: int, request: int, pages: int) -> None:
    """A request gives back its pages: its own at once, shared ones when their last user is gone."""
    ints = world.ints
    home = ints[engine + E_HOME]
    shared = ints[request + R_SHARED]
    ints[home + E_KV_FREE] += pages
    if shared <= 0:
        return
    cache = ints[home + E_CACHE]
    for k in range(shared - 1, -1, -1):  # the end of a prompt is of least use to others: it goes first
        slot = _slot(world, cache, request, k)
        ints[slot + C_REFERENCES] -= 1
        if ints[slot + C_REFERENCES] == 0:
            _enqueue(world, cache, slot)
        else:
            ints[home + E_KV_FREE] -= ints[home + E_HASH_PAGES]
    ints[request + R_SHARED] = 0


def trim_cache(world: World, engine: int) -> None:
    """Unreferenced blocks give way to KV in use, oldest first."""
    ints = world.ints
    home = ints[engine + E_HOME]
    cache = ints[home + E_CACHE]
    if cache < 0:
        return
    while ints[cache + C_COUNT] * ints[home + E_HASH_PAGES] > ints[home + E_KV_FREE]:
        _forget_oldest(world, cache)


def _read_tiers(world: World, engine: int, request: int, held: int) -> int:
    """Blocks known in all, when host and store are asked for those that HBM does not hold."""
    ints = world.ints
    host = ints[ints[engine + E_HOME] + E_HOST_CACHE]
    store = ints[G_STORE]
    known = held
    while known < ints[request + R_PREFIX_COUNT]:
        if not _holds(world, host, request, known) and not _holds(world, store, request, known):
            break
        known += 1
    block = ints[G_HASH_TOKENS]
    for k in range(held, known):
        num_bytes = block * world.floats[G_KV_BYTES_PER_TOKEN]
        if ints[engine + E_WINDOW_PAGES] > 0:  # layers with a window need its tokens only, the last ones
            unseen = block - min(block, max(0, ints[G_WINDOW] - (known - k - 1) * block))
            num_bytes -= unseen * world.floats[G_WINDOWED_BYTES_PER_TOKEN]
        if _holds(world, host, request, k):
            world.floats[engine + E_HOST_READ_BYTES] += num_bytes
        else:
            world.floats[engine + E_STORE_READ_BYTES] += num_bytes
    return known


def _holds(world: World, cache: int, request: int, k: int) -> bool:
    return cache >= 0 and world.ints[_slot(world, cache, request, k) + C_REFERENCES] >= 0


def _store(world: World, cache: int, request: int) -> None:
    """Copies of all the prompt's blocks, as the newest."""
    if cache < 0:
        return
    ints = world.ints
    for k in range(ints[request + R_PREFIX_COUNT] - 1, -1, -1):
        slot = _slot(world, cache, request, k)
        if ints[slot + C_REFERENCES] == 0:
            _unqueue(world, cache, slot)
        ints[slot + C_REFERENCES] = 0
        _enqueue(world, cache, slot)
    while ints[cache + C_COUNT] > ints[cache + C_CAPACITY]:
        _forget_oldest(world, cache)


def _slot(world: World, cache: int, request: int, k: int) -> int:
    return cache + C_SLOTS + world.ints[world.ints[request + R_PREFIX] + k] * C_SLOT_WIDTH


def _enqueue(world: World, cache: int, slot: int) -> None:
    ints = world.ints
    newest = ints[cache + C_NEWEST]
    ints[slot + C_PREVIOUS] = newest
    ints[slot + C_NEXT] = -1
    if newest >= 0:
        ints[newest + C_NEXT] = slot
    else:
        ints[cache + C_OLDEST] = slot
    ints[cache + C_NEWEST] = slot
    ints[cache + C_COUNT] += 1


def _unqueue(world: World, cache: int, slot: int) -> None:
    ints = world.ints
    previous = ints[slot + C_PREVIOUS]
    following = ints[slot + C_NEXT]
    if previous >= 0:
        ints[previous + C_NEXT] = following
    else:
        ints[cache + C_OLDEST] = following
    if following >= 0:
        ints[following + C_PREVIOUS] = previous
    else:
        ints[cache + C_NEWEST] = previous
    ints[cache + C_COUNT] -= 1


def _forget_oldest(world: World, cache: int) -> None:
    slot = world.ints[cache + C_OLDEST]
    _unqueue(world, cache, slot)
    world.ints[slot + C_REFERENCES] = -1
