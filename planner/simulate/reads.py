"""Reads from host memory and the shared store that a step waits for. Part of the hot loop: runs as is and compiled.

A step that admits prompts whose prefix lies in a slower tier begins with reading it, first from host memory, then from
the store. Reads are flows: those of one tier at a time share its bandwidth. The step computes when its KV is there.
"""

from __future__ import annotations

from splitplan.planner.simulate.flows import (
    free_flow,
    free_way,
    heap_without,
    lay_link,
    new_flow,
    new_way,
    share_around,
    start_bytes,
    unload,
    wake_for_flows,
)
from splitplan.planner.simulate.layout import (
    E_HOME,
    E_HOST_LINK,
    E_HOST_READ_BYTES,
    E_INDEX,
    E_LANES,
    E_READ_FLOW,
    E_RUN_DONE,
    E_RUN_FIRST_S,
    E_RUN_SLOPE_S,
    E_RUN_START_S,
    E_RUN_STEPS,
    E_STAGE_FREE_S,
    E_STORE_READ_BYTES,
    F_WAY,
    FIRST_ENGINE_SOURCE,
    G_STORE_LINK,
    INFINITE_S,
    L_WAY,
    W_FLOWS,
    W_HEAP,
    W_LINK,
    World,
)
from splitplan.planner.simulate.queues import set_wake


def must_read(world: World, engine: int) -> bool:
    """Whether the step that was built has KV to read first."""
    return world.floats[engine + E_HOST_READ_BYTES] + world.floats[engine + E_STORE_READ_BYTES] > 0.0


def begin_reads(world: World, engine: int, now_s: float) -> None:
    """The engine is busy from now on, until `go_on_reading` says that all is there; a pipeline's first stage waits."""
    ints = world.ints
    floats = world.floats
    ints[engine + E_RUN_STEPS] = 1
    ints[engine + E_RUN_DONE] = 0
    floats[engine + E_RUN_START_S] = now_s
    floats[engine + E_RUN_FIRST_S] = INFINITE_S
    floats[engine + E_RUN_SLOPE_S] = 0.0
    set_wake(world, FIRST_ENGINE_SOURCE + ints[engine + E_INDEX], INFINITE_S)
    if ints[engine + E_LANES] > 1:
        floats[ints[engine + E_HOME] + E_STAGE_FREE_S] = INFINITE_S
    go_on_reading(world, engine, now_s)


def go_on_reading(world: World, engine: int, now_s: float) -> bool:
    """Start the next read of the engine's step; True when nothing is left to read."""
    ints = world.ints
    floats = world.floats
    ints[engine + E_READ_FLOW] = -1
    link = ints[ints[engine + E_HOME] + E_HOST_LINK]
    num_bytes = floats[engine + E_HOST_READ_BYTES]
    floats[engine + E_HOST_READ_BYTES] = 0.0
    if num_bytes <= 0.0:
        link = ints[G_STORE_LINK]
        num_bytes = floats[engine + E_STORE_READ_BYTES]
        floats[engine + E_STORE_READ_BYTES] = 0.0
    if num_bytes <= 0.0:
        return True
    way = ints[link + L_WAY]
    if way < 0:
        way = new_way(world, -1, -1)
        lay_link(world, way, link)
        ints[link + L_WAY] = way
    flow = new_flow(world, engine, 1)
    ints[engine + E_READ_FLOW] = flow
    start_bytes(world, flow, way, num_bytes, now_s)
    wake_for_flows(world)
    return False


def leave_read_way(world: World, way: int) -> bool:
    """One read less on a tier's way, which is given back with its last; whether others must share anew."""
    shared = unload(world, way)
    if world.ints[way + W_FLOWS] == 0:
        world.ints[world.ints[way + W_LINK] + L_WAY] = -1
        free_way(world, way)
    return shared


def cancel_reads(world: World, engine: int, now_s: float) -> None:
    """The engine is gone, and what it was reading with it."""
    ints = world.ints
    flow = ints[engine + E_READ_FLOW]
    if flow < 0:
        return
    way = ints[flow + F_WAY]
    ints[way + W_HEAP] = heap_without(world, ints[way + W_HEAP], flow)
    if leave_read_way(world, way):
        share_around(world, way, now_s)
    free_flow(world, flow)
    ints[engine + E_READ_FLOW] = -1
    world.floats[engine + E_HOST_READ_BYTES] = 0.0
    world.floats[engine + E_STORE_READ_BYTES] = 0.0
    wake_for_flows(world)
