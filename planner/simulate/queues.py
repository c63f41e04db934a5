"""Queues of the hot loop: linked lists of requests, heaps of running sequences, the tournament of event sources."""

from __future__ import annotations

from splitplan.planner.simulate.layout import (
    E_HEAP,
    E_RUNNING,
    G_LEAVES,
    R_FINISH_STEP,
    R_HEAP_SLOT,
    R_NEXT,
    World,
)


def set_wake(world: World, source: int, time_s: float) -> None:
    """The next event of `source` is at `time_s`."""
    wake_s = world.wake_s
    tree = world.tree
    wake_s[source] = time_s
    leaves = world.global_i[G_LEAVES]
    node = (leaves + source) // 2
    while node >= 1:
        left = tree[2 * node]
        right = tree[2 * node + 1]
        tree[node] = left if wake_s[left] <= wake_s[right] else right
        node //= 2


def push_back(world: World, engine: int, head: int, request: int) -> None:
    """Append to the queue whose head field is `head`; the tail field follows it."""
    engine_i = world.engine_i
    world.request_i[request + R_NEXT] = -1
    if engine_i[engine + head] < 0:
        engine_i[engine + head] = request
    else:
        world.request_i[engine_i[engine + head + 1] + R_NEXT] = request
    engine_i[engine + head + 1] = request


def push_front(world: World, engine: int, head: int, request: int) -> None:
    """Put in front of the queue whose head field is `head`."""
    engine_i = world.engine_i
    world.request_i[request + R_NEXT] = engine_i[engine + head]
    if engine_i[engine + head] < 0:
        engine_i[engine + head + 1] = request
    engine_i[engine + head] = request


def pop_front(world: World, engine: int, head: int) -> int:
    """Take the first request of a queue that is not empty."""
    engine_i = world.engine_i
    request = engine_i[engine + head]
    engine_i[engine + head] = world.request_i[request + R_NEXT]
    return request


def heap_push(world: World, engine: int, request: int) -> None:
    """Add a running sequence to the heap by finishing step. Its size is E_RUNNING, counted by the caller afterwards."""
    _sift_up(world, engine, world.engine_i[engine + E_RUNNING], request)


def heap_remove(world: World, engine: int, request: int) -> None:
    """Take a running sequence out of the heap. The caller has not yet lowered E_RUNNING."""
    last = world.engine_i[engine + E_RUNNING] - 1
    slot = world.request_i[request + R_HEAP_SLOT]
    moved = world.memory[world.engine_i[engine + E_HEAP] + last]
    if moved == request:
        return
    if world.request_i[moved + R_FINISH_STEP] < world.request_i[request + R_FINISH_STEP]:
        _sift_up(world, engine, slot, moved)
    else:
        _sift_down(world, engine, slot, moved, last)


def _sift_up(world: World, engine: int, slot: int, request: int) -> None:
    memory = world.memory
    request_i = world.request_i
    heap = world.engine_i[engine + E_HEAP]
    key = request_i[request + R_FINISH_STEP]
    while slot > 0:
        parent = (slot - 1) // 2
        above = memory[heap + parent]
        if request_i[above + R_FINISH_STEP] <= key:
            break
        memory[heap + slot] = above
        request_i[above + R_HEAP_SLOT] = slot
        slot = parent
    memory[heap + slot] = request
    request_i[request + R_HEAP_SLOT] = slot


def _sift_down(world: World, engine: int, slot: int, request: int, size: int) -> None:
    memory = world.memory
    request_i = world.request_i
    heap = world.engine_i[engine + E_HEAP]
    key = request_i[request + R_FINISH_STEP]
    while 2 * slot + 1 < size:
        child = 2 * slot + 1
        if child + 1 < size:
            left_key = request_i[memory[heap + child] + R_FINISH_STEP]
            if request_i[memory[heap + child + 1] + R_FINISH_STEP] < left_key:
                child += 1
        below = memory[heap + child]
        if request_i[below + R_FINISH_STEP] >= key:
            break
        memory[heap + slot] = below
        request_i[below + R_HEAP_SLOT] = slot
        slot = child
    memory[heap + slot] = request
    request_i[request + R_HEAP_SLOT] = slot
