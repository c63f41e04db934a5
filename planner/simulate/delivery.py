"""When a flow's bytes are through, or its latency is over. Part of the hot loop: runs as is and compiled."""

from __future__ import annotations

from splitplan.planner.simulate.flows import free_flow, heap_without_top, next_through, share_around, wake_for_flows
from splitplan.planner.simulate.layout import (
    F_IS_READ,
    F_KEY,
    F_OWNER,
    F_RIGHT,
    G_TRAILING,
    G_WAY_COUNT,
    G_WAYS,
    W_END_S,
    World,
)
from splitplan.planner.simulate.reads import go_on_reading, leave_read_way
from splitplan.planner.simulate.schedule import start_after_reads
from splitplan.planner.simulate.transfer import bytes_through, deliver, leave_way


def flows_due(world: World, now_s: float) -> None:
    """Serve the flows whose bytes are through, or whose latency is over, now."""
    ints = world.ints
    slot = ints[G_WAYS]
    while slot < ints[G_WAYS] + ints[G_WAY_COUNT]:
        way = ints[slot]
        if world.floats[way + W_END_S] <= now_s:
            _ways_end(world, way, now_s)
        if slot < ints[G_WAYS] + ints[G_WAY_COUNT] and ints[slot] == way:
            slot += 1
    while ints[G_TRAILING] >= 0 and world.floats[ints[G_TRAILING] + F_KEY] <= now_s:
        flow = ints[G_TRAILING]
        ints[G_TRAILING] = heap_without_top(world, flow)
        deliver(world, flow, now_s)
    wake_for_flows(world)


def _ways_end(world: World, way: int, now_s: float) -> None:
    """All flows of a way that are through leave it together; then the links are shared anew."""
    ints = world.ints
    first = -1
    last = -1
    shared = False
    flow = next_through(world, way, now_s)
    while flow >= 0:
        ints[flow + F_RIGHT] = -1
        if last >= 0:
            ints[last + F_RIGHT] = flow
        else:
            first = flow
        last = flow
        following = next_through(world, way, now_s)
        shared = leave_read_way(world, way) if ints[flow + F_IS_READ] == 1 else leave_way(world, way)
        flow = following
    if shared:
        share_around(world, way, now_s)
    while first >= 0:
        flow = first
        first = ints[flow + F_RIGHT]
        if ints[flow + F_IS_READ] == 1:
            engine = ints[flow + F_OWNER]
            free_flow(world, flow)
            if go_on_reading(world, engine, now_s):
                start_after_reads(world, engine, now_s)
        else:
            bytes_through(world, flow, now_s)
