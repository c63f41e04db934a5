"""Bytes on shared links, at max-min fair rates. Part of the hot loop: runs as is and compiled.

Flows that cross the same links get the same rate, so they are kept together as one *way*. A way counts the bytes that a
flow on it has got since it was empty (W_SERVED, linear between changes of rate). A flow is through when that count has
grown by the flow's own bytes. So a change of rates touches ways, not flows, and the next flow to end on a way is on top
of a heap. This is processor sharing's virtual time, one clock per way.

Rates are found by filling: the link whose capacity per flow is smallest is filled first, its flows are fixed, the rest
share what is left. Only the links and ways are looked at that hang together with those that changed.
"""

from __future__ import annotations

from splitplan.planner.simulate.layout import (
    F_IS_READ,
    F_KEY,
    F_LEFT,
    F_ORDER,
    F_OWNER,
    F_RIGHT,
    F_WAY,
    F_WIDTH,
    G_END_FLOW,
    G_END_WAY,
    G_FIRST_WAY,
    G_FREE_FLOW,
    G_FREE_WAY,
    G_ORDER,
    G_STAMP,
    G_TRAILING,
    G_WAY_COUNT,
    G_WAYS,
    INFINITE_S,
    L_CAPACITY,
    L_FIRST,
    L_FLOWS,
    L_LEFT,
    L_NEXT,
    L_STAMP,
    L_UNFIXED,
    SOURCE_FLOW,
    W_EARLIER,
    W_END_S,
    W_FLOWS,
    W_HEAP,
    W_LATER,
    W_LINK,
    W_LINKS,
    W_NEXT,
    W_RATE,
    W_RECEIVER,
    W_SENDER,
    W_SERVED,
    W_SINCE_S,
    W_SLOT,
    W_STAMP,
    W_WIDTH,
    World,
)
from splitplan.planner.simulate.queues import set_wake


def new_flow(world: World, owner: int, is_read: int) -> int:
    """A row for a flow of a request or of an engine's read."""
    ints = world.ints
    flow = ints[G_FREE_FLOW]
    if flow >= 0:
        ints[G_FREE_FLOW] = ints[flow + F_LEFT]
    else:
        flow = ints[G_END_FLOW]
        ints[G_END_FLOW] = flow + F_WIDTH
    ints[flow + F_OWNER] = owner
    ints[flow + F_IS_READ] = is_read
    ints[flow + F_WAY] = -1
    ints[G_ORDER] += 1
    ints[flow + F_ORDER] = ints[G_ORDER]
    return flow


def free_flow(world: World, flow: int) -> None:
    """Give a flow's row back."""
    world.ints[flow + F_LEFT] = world.ints[G_FREE_FLOW]
    world.ints[G_FREE_FLOW] = flow


def new_way(world: World, sender: int, receiver: int) -> int:
    """A way without links or flows; the caller lays its links."""
    ints = world.ints
    way = ints[G_FREE_WAY]
    if way >= 0:
        ints[G_FREE_WAY] = ints[way + W_NEXT]
    else:
        way = ints[G_END_WAY]
        ints[G_END_WAY] = way + W_WIDTH
    ints[way + W_SENDER] = sender
    ints[way + W_RECEIVER] = receiver
    ints[way + W_FLOWS] = 0
    ints[way + W_HEAP] = -1
    ints[way + W_LINKS] = 0
    ints[way + W_STAMP] = 0
    slot = ints[G_WAYS] + ints[G_WAY_COUNT]
    ints[slot] = way
    ints[way + W_SLOT] = slot
    ints[G_WAY_COUNT] += 1
    world.floats[way + W_RATE] = 0.0
    world.floats[way + W_SERVED] = 0.0
    world.floats[way + W_END_S] = INFINITE_S
    return way


def lay_link(world: World, way: int, link: int) -> None:
    """Add a link to a new way."""
    ints = world.ints
    if link < 0:
        return
    k = ints[way + W_LINKS]
    ints[way + W_LINKS] = k + 1
    ints[way + W_LINK + k] = link
    first = ints[link + L_FIRST]
    ints[way + k + W_LATER] = first
    ints[way + k + W_EARLIER] = -1
    if first >= 0:
        ints[first + W_EARLIER] = way + k
    ints[link + L_FIRST] = way + k


def free_way(world: World, way: int) -> None:
    """Give a way without flows back. The caller has taken it out of its sender's list."""
    ints = world.ints
    for k in range(ints[way + W_LINKS]):
        later = ints[way + k + W_LATER]
        earlier = ints[way + k + W_EARLIER]
        if later >= 0:
            ints[later + W_EARLIER] = earlier
        if earlier >= 0:
            ints[earlier + W_LATER] = later
        else:
            ints[ints[way + W_LINK + k] + L_FIRST] = later
    last = ints[ints[G_WAYS] + ints[G_WAY_COUNT] - 1]
    ints[ints[way + W_SLOT]] = last
    ints[last + W_SLOT] = ints[way + W_SLOT]
    ints[G_WAY_COUNT] -= 1
    ints[way + W_NEXT] = ints[G_FREE_WAY]
    ints[G_FREE_WAY] = way


def start_bytes(world: World, flow: int, way: int, num_bytes: float, now_s: float) -> None:
    """A flow's bytes start to move; rates are shared anew where the way's links are not its own."""
    ints = world.ints
    floats = world.floats
    _serve(world, way, now_s)
    floats[flow + F_KEY] = floats[way + W_SERVED] + num_bytes
    ints[flow + F_WAY] = way
    ints[way + W_HEAP] = heap_with(world, ints[way + W_HEAP], flow)
    ints[way + W_FLOWS] += 1
    shared = False
    slowest = INFINITE_S
    for k in range(ints[way + W_LINKS]):
        link = ints[way + W_LINK + k]
        ints[link + L_FLOWS] += 1
        shared = shared or ints[link + L_FLOWS] > 1
        slowest = min(slowest, floats[link + L_CAPACITY])
    if shared:
        share_around(world, way, now_s)
    else:
        floats[way + W_RATE] = slowest
        _time_way(world, way)


def unload(world: World, way: int) -> bool:
    """One of the way's flows is off it; whether others are left whose rates that may change."""
    ints = world.ints
    ints[way + W_FLOWS] -= 1
    shared = False
    for k in range(ints[way + W_LINKS]):
        link = ints[way + W_LINK + k]
        ints[link + L_FLOWS] -= 1
        shared = shared or ints[link + L_FLOWS] > 0
    return shared


def trail(world: World, flow: int, end_s: float) -> None:
    """The bytes are through; the flow is over at `end_s`."""
    world.ints[flow + F_WAY] = -1
    world.floats[flow + F_KEY] = end_s
    world.ints[G_TRAILING] = heap_with(world, world.ints[G_TRAILING], flow)


def wake_for_flows(world: World) -> None:
    """The next event of flows is the first end on any way, or of any latency."""
    ints = world.ints
    floats = world.floats
    soonest_s = INFINITE_S
    if ints[G_TRAILING] >= 0:
        soonest_s = floats[ints[G_TRAILING] + F_KEY]
    first = ints[G_WAYS]
    for slot in range(first, first + ints[G_WAY_COUNT]):
        soonest_s = min(soonest_s, floats[ints[slot] + W_END_S])
    set_wake(world, SOURCE_FLOW, soonest_s)


def share_around(world: World, way: int, now_s: float) -> None:
    """Flows came to or left this way (its row may be free by now): share anew all links that hang together with it."""
    ints = world.ints
    before = ints[G_STAMP]
    for k in range(ints[way + W_LINKS]):
        link = ints[way + W_LINK + k]
        if ints[link + L_FLOWS] > 0 and ints[link + L_STAMP] <= before:
            _share_links(world, _neighbourhood(world, link), now_s)


def _share_links(world: World, first: int, now_s: float) -> None:
    """Max-min fair rates on the links of a list: fill the tightest, fix its flows, go on with what is left."""
    ints = world.ints
    floats = world.floats
    while True:
        before = -1
        tightest = -1
        least = INFINITE_S
        link = first
        while link >= 0:
            following = ints[link + L_NEXT]
            if ints[link + L_UNFIXED] == 0:  # all its flows are fixed: out of the list
                if before >= 0:
                    ints[before + L_NEXT] = following
                else:
                    first = following
            else:
                share = floats[link + L_LEFT] / ints[link + L_UNFIXED]
                if share < least:
                    least = share
                    tightest = link
                before = link
            link = following
        if tightest < 0:
            return
        _fill(world, tightest, least, now_s)


def _fill(world: World, link: int, rate: float, now_s: float) -> None:
    """The ways that cross the link and are still open get `rate`."""
    ints = world.ints
    floats = world.floats
    stamp = ints[G_STAMP]
    crossing = ints[link + L_FIRST]
    while crossing >= 0:
        way = _way_of(world, crossing)
        crossing = ints[crossing + W_LATER]
        if ints[way + W_STAMP] != stamp:
            continue
        ints[way + W_STAMP] = 0
        count = ints[way + W_FLOWS]
        for k in range(ints[way + W_LINKS]):
            crossed = ints[way + W_LINK + k]
            floats[crossed + L_LEFT] = max(0.0, floats[crossed + L_LEFT] - count * rate)
            ints[crossed + L_UNFIXED] -= count
        if rate != floats[way + W_RATE]:
            _serve(world, way, now_s)
            floats[way + W_RATE] = rate
        _time_way(world, way)


def _neighbourhood(world: World, link: int) -> int:
    """A list of all links that hang together with this one through ways in use, ready to be filled; its first."""
    ints = world.ints
    ints[G_STAMP] += 1
    _open_link(world, link)
    first = link
    last = link
    while link >= 0:
        crossing = ints[link + L_FIRST]
        while crossing >= 0:
            way = _way_of(world, crossing)
            crossing = ints[crossing + W_LATER]
            if ints[way + W_STAMP] == ints[G_STAMP]:
                continue
            ints[way + W_STAMP] = ints[G_STAMP]
            for k in range(ints[way + W_LINKS]):
                crossed = ints[way + W_LINK + k]
                if ints[crossed + L_STAMP] != ints[G_STAMP]:
                    _open_link(world, crossed)
                    ints[last + L_NEXT] = crossed
                    last = crossed
        link = ints[link + L_NEXT]
    return first


def _open_link(world: World, link: int) -> None:
    world.ints[link + L_STAMP] = world.ints[G_STAMP]
    world.ints[link + L_UNFIXED] = world.ints[link + L_FLOWS]
    world.floats[link + L_LEFT] = world.floats[link + L_CAPACITY]
    world.ints[link + L_NEXT] = -1


def _way_of(world: World, crossing: int) -> int:
    return crossing - (crossing - world.ints[G_FIRST_WAY]) % W_WIDTH


def _serve(world: World, way: int, now_s: float) -> None:
    """Bring the bytes served up to now."""
    floats = world.floats
    if floats[way + W_RATE] > 0.0:
        floats[way + W_SERVED] += floats[way + W_RATE] * (now_s - floats[way + W_SINCE_S])
    floats[way + W_SINCE_S] = now_s


def _time_way(world: World, way: int) -> None:
    """When the next flow of the way is through."""
    floats = world.floats
    top = world.ints[way + W_HEAP]
    floats[way + W_END_S] = INFINITE_S
    if top >= 0:
        left = max(0.0, floats[top + F_KEY] - floats[way + W_SERVED])
        floats[way + W_END_S] = floats[way + W_SINCE_S] + left / floats[way + W_RATE]


def next_through(world: World, way: int, now_s: float) -> int:
    """Take the way's next flow whose bytes are through by now; -1: none."""
    ints = world.ints
    flow = ints[way + W_HEAP]
    if flow < 0 or world.floats[way + W_END_S] > now_s:
        return -1
    ints[way + W_HEAP] = heap_without_top(world, flow)
    _time_way(world, way)
    return flow


def _goes_before(world: World, flow: int, other: int) -> bool:
    if world.floats[flow + F_KEY] != world.floats[other + F_KEY]:
        return world.floats[flow + F_KEY] < world.floats[other + F_KEY]
    return world.ints[flow + F_ORDER] < world.ints[other + F_ORDER]


def heap_with(world: World, top: int, flow: int) -> int:
    """A heap and one more flow; its top."""
    world.ints[flow + F_LEFT] = -1
    world.ints[flow + F_RIGHT] = -1
    return _merged(world, top, flow)


def heap_without_top(world: World, top: int) -> int:
    """What is left of a heap without its top."""
    return _merged(world, world.ints[top + F_LEFT], world.ints[top + F_RIGHT])


def heap_without(world: World, top: int, flow: int) -> int:
    """A heap without one of its flows, wherever it is (rare: it is built anew)."""
    rest = -1
    while top >= 0:
        below = heap_without_top(world, top)
        if top != flow:
            rest = heap_with(world, rest, top)
        top = below
    return rest


def _merged(world: World, one: int, other: int) -> int:
    """Two skew heaps as one (Sleator and Tarjan, 1986), from the top down."""
    ints = world.ints
    if one < 0:
        return other
    if other < 0:
        return one
    if _goes_before(world, other, one):
        one, other = other, one
    top = one
    while True:
        below = ints[one + F_RIGHT]
        ints[one + F_RIGHT] = ints[one + F_LEFT]
        if below < 0:
            ints[one + F_LEFT] = other
            return top
        if _goes_before(world, other, below):
            below, other = other, below
        ints[one + F_LEFT] = below
        one = below
