"""Queues of the hot loop: linked lists of requests, heaps of running sequences, the tournament of event sources."""

from __future__ import annotations

from splitplan.planner.simulate.layout import (
    E_HEAP,
    E_RUNNING,
    G_LEAVES,
    G_TREE,
    G_WAKE,
    R_FINISH_STEP,
    R_HEAP_SLOT,
    R_NEXT,
    World,
)


def set_wake(world: World, source: int, time_s: float) -> None:
    """The next event of `source` is at `time_s`."""
    floats = world.floats
    ints = world.ints
    wake = ints[G_WAKE]
    tree = ints[G_TREE]
    floats[wake + source] = time_s
    node = (ints[G_LEAVES] + source) // 2
    while node >= 1:
        left = ints[tree + 2 * node]
        right = ints[tree + 2 * node + 1]
        ints[tree + node] = left if floats[wake + left] <= floats[wake + right] else right
        node //= 2


def push_back(world: World, engine: int, head: int, request: int) -> None:
    """Append to the queue whose head field is `head`; the tail field follows it."""
    ints = world.ints
    world.ints[request + R_NEXT] = -1
    if ints[engine + head] < 0:
        ints[engine + head] = request
    else:
        world.ints[ints[engine + head + 1] + R_NEXT] = request
    ints[engine + head + 1] = request


def push_front(world: World, engine: int, head: int, request: int) -> None:
    """Put in front of the queue whose head field is `head`."""
    ints = world.ints
    world.ints[request + R_NEXT] = ints[engine + head]
    if ints[engine + head] < 0:
        ints[engine + head + 1] = request
    ints[engine + head] = request


def pop_front(world: World, engine: int, head: int) -> int:
    """Take the first request of a queue that is not empty."""
    ints = world.ints
    request = ints[engine + head]
    ints[engine + head] = world.ints[request + R_NEXT]
    return request


def heap_push(world: World, engine: int, request: int) -> None:
    """Add a running sequence to the heap by finishing step. Its size is E_RUNNING, counted by the caller afterwards."""
    _sift_up(world, engine, world.ints[engine + E_RUNNING], request)


def heap_remove(world: World, engine: int, request: int) -> None:
    """Take a running sequence out of the heap. The caller has not yet lowered E_RUNNING."""
    last = world.ints[engine + E_RUNNING] - 1
    slot = world.ints[request + R_HEAP_SLOT]
    moved = world.ints[world.ints[engine + E_HEAP] + last]
    if moved == request:
        return
    if world.ints[moved + R_FINISH_STEP] < world.ints[request + R_FINISH_STEP]:
        _sift_up(world, engine, slot, moved)
    else:
        _sift_down(world, engine, slot, moved, last)


def _sift_up(world: World, engine: int, slot: int, request: int) -> None:
    ints = world.ints
    heap = world.ints[engine + E_HEAP]
    key = ints[request + R_FINISH_STEP]
    while slot > 0:
        parent = (slot - 1) // 2
        above = ints[heap + parent]
        if ints[above + R_FINISH_STEP] <= key:
            break
        ints[heap + slot] = above
        ints[above + R_HEAP_SLOT] = slot
        slot = parent
    ints[heap + slot] = request
    ints[request + R_HEAP_SLOT] = slot


def _sift_down(world: World, engine: int, slot: int, request: int, size: int) -> None:
    ints = world.ints
    heap = world.ints[engine + E_HEAP]
    key = ints[request + R_FINISH_STEP]
    while 2 * slot + 1 < size:
        child = 2 * slot + 1
        if child + 1 < size:
            left_key = ints[ints[heap + child] + R_FINISH_STEP]
            if ints[ints[heap + child + 1] + R_FINISH_STEP] < left_key:
                child += 1
        below = ints[heap + child]
        if ints[below + R_FINISH_STEP] >= key:
            break
        ints[heap + slot] = below
        ints[below + R_HEAP_SLOT] = slot
        slot = child
    ints[heap + slot] = request
    ints[request + R_HEAP_SLOT] = slot
