"""KV transfers from a prefill to a decode instance. Part of the hot loop: runs as is and compiled.

Bytes flow at max-min fair rates over the links of the path (flows.py). After the bytes come latency and the cost of the
blocks' descriptors, which load no link; both are those of the kind of way that this sender and this receiver use.
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
    trail,
    unload,
    wake_for_flows,
)
from splitplan.planner.simulate.layout import (
    COST_WIDTH,
    E_EGRESS,
    E_INGRESS,
    E_KIND,
    E_LOCAL_LINK,
    E_NODE,
    E_RACK,
    E_READY_HEAD,
    E_WAIT_HEAD,
    E_WAYS,
    E_WINDOW_PAGES,
    F_OWNER,
    F_WAY,
    G_CACHED_ON_DECODE,
    G_COSTS,
    G_DECODE_EMITS_FIRST,
    G_KINDS,
    G_KV_BYTES_PER_SEQUENCE,
    G_KV_BYTES_PER_TOKEN,
    G_LAST_LAYER_SHARE,
    G_LAYERWISE,
    G_SPINE,
    G_TRAILING,
    G_WINDOW,
    G_WINDOWED_BYTES_PER_TOKEN,
    INFINITE_S,
    L_CAPACITY,
    MAX_PATH,
    R_AT,
    R_CACHED,
    R_DECODER,
    R_DELIVERED_S,
    R_ENTRY,
    R_FLOW,
    R_FLOWN_S,
    R_PREFILLED_S,
    R_STATE,
    R_TARGET,
    READY,
    W_FLOWS,
    W_HEAP,
    W_NEXT,
    W_RECEIVER,
    W_SENDER,
    World,
)
from splitplan.planner.simulate.lifecycle import settle_drain
from splitplan.planner.simulate.prefix import free_kv
from splitplan.planner.simulate.queues import push_back
from splitplan.planner.simulate.running import blocks_for, prompt_pages
from splitplan.planner.simulate.runs import notify, wake_idle_lanes


def start_transfer(world: World, request: int, now_s: float) -> None:
    """The decode instance has blocks for the request: its KV starts to move."""
    flow = new_flow(world, request, 0)
    world.ints[request + R_FLOW] = flow
    num_bytes = _kv_bytes(world, request)
    sender = world.ints[request + R_ENTRY]
    receiver = world.ints[request + R_DECODER]
    if num_bytes <= 0.0 or slowest_link(world, sender, receiver) >= INFINITE_S:
        bytes_through(world, flow, now_s)
    else:
        start_bytes(world, flow, _way_between(world, sender, receiver), num_bytes, now_s)
    wake_for_flows(world)


def resume_transfer(world: World, request: int, now_s: float) -> None:
    """Layer-wise, and the bytes were through before prefill ended: what is left is the last layer's share."""
    flow = new_flow(world, request, 0)
    world.ints[request + R_FLOW] = flow
    trail(world, flow, now_s + _tail_s(world, request) + _fixed_s(world, request))
    wake_for_flows(world)


def bytes_through(world: World, flow: int, now_s: float) -> None:
    """All bytes are there: latency and descriptors are left, or, layer by layer, the end of the prefill."""
    request = world.ints[flow + F_OWNER]
    end_s = now_s
    if world.ints[G_LAYERWISE] == 1:
        prefilled_s = world.floats[request + R_PREFILLED_S]
        if prefilled_s < 0.0:
            world.floats[request + R_FLOWN_S] = now_s
            _end_flow(world, flow)
            return
        end_s = max(now_s, prefilled_s + _tail_s(world, request))
    trail(world, flow, end_s + _fixed_s(world, request))


def leave_way(world: World, way: int) -> bool:
    """One flow less on a way between instances, which is given back with its last; whether others must share anew."""
    shared = unload(world, way)
    if world.ints[way + W_FLOWS] == 0:
        ints = world.ints
        sender = ints[way + W_SENDER]
        if ints[sender + E_WAYS] == way:
            ints[sender + E_WAYS] = ints[way + W_NEXT]
        else:
            before = ints[sender + E_WAYS]
            while ints[before + W_NEXT] != way:
                before = ints[before + W_NEXT]
            ints[before + W_NEXT] = ints[way + W_NEXT]
        free_way(world, way)
    return shared


def cancel_transfer(world: World, request: int, now_s: float) -> bool:
    """One side is gone: take the request's flow away. False when none had begun."""
    ints = world.ints
    flow = ints[request + R_FLOW]
    if flow < 0:
        return False
    way = ints[flow + F_WAY]
    if way >= 0:
        ints[way + W_HEAP] = heap_without(world, ints[way + W_HEAP], flow)
        if leave_way(world, way):
            share_around(world, way, now_s)
    else:
        ints[G_TRAILING] = heap_without(world, ints[G_TRAILING], flow)
    _end_flow(world, flow)
    wake_for_flows(world)
    return True


def delivered_tokens(world: World, request: int) -> int:
    """KV tokens a decode instance starts with: it computes the last prompt token again where it emits the first one."""
    tokens = world.ints[request + R_TARGET]
    if world.ints[G_DECODE_EMITS_FIRST] == 1:
        tokens -= 1
    return tokens


def _end_flow(world: World, flow: int) -> None:
    world.ints[world.ints[flow + F_OWNER] + R_FLOW] = -1
    free_flow(world, flow)


def _kv_bytes(world: World, request: int) -> float:
    tokens = world.ints[request + R_TARGET]
    if world.ints[G_CACHED_ON_DECODE] == 1:
        tokens -= world.ints[request + R_CACHED]
    num_bytes = world.floats[G_KV_BYTES_PER_SEQUENCE] + tokens * world.floats[G_KV_BYTES_PER_TOKEN]
    if _windowed(world, request):
        num_bytes -= max(0, tokens - world.ints[G_WINDOW]) * world.floats[G_WINDOWED_BYTES_PER_TOKEN]
    return num_bytes * world.floats[_cost(world, request) + 3]


def _cost(world: World, request: int) -> int:
    """The row of costs of the kind of path that the request's KV takes."""
    sender = world.ints[request + R_ENTRY]
    receiver = world.ints[request + R_DECODER]
    inside = 1 if world.ints[sender + E_NODE] == world.ints[receiver + E_NODE] else 0
    row = world.ints[sender + E_KIND] * world.ints[G_KINDS] + world.ints[receiver + E_KIND]
    return world.ints[G_COSTS] + (row * 2 + inside) * COST_WIDTH


def _windowed(world: World, request: int) -> bool:
    """Whether both sides keep only the window in layers that have one: then nothing else is sent."""
    ints = world.ints
    sends = ints[ints[request + R_ENTRY] + E_WINDOW_PAGES] > 0
    return sends and ints[ints[request + R_DECODER] + E_WINDOW_PAGES] > 0


def _fixed_s(world: World, request: int) -> float:
    """Latency and the descriptors' cost, per block of the receiver."""
    receiver = world.ints[request + R_DECODER]
    cost = _cost(world, request)
    blocks = blocks_for(world, receiver, world.ints[request + R_TARGET])
    fixed_s = world.floats[cost] + blocks * world.floats[cost + 1]
    if _windowed(world, request):
        seen = blocks_for(world, receiver, world.ints[G_WINDOW])
        fixed_s -= max(0, blocks - seen) * world.floats[cost + 2]
    return fixed_s


def _tail_s(world: World, request: int) -> float:
    """Seconds the last layer's KV takes on an empty path."""
    slowest = slowest_link(world, world.ints[request + R_ENTRY], world.ints[request + R_DECODER])
    return _kv_bytes(world, request) * world.floats[G_LAST_LAYER_SHARE] / slowest


def slowest_link(world: World, sender: int, receiver: int) -> float:
    """Bytes per second of the slowest link between two instances; INFINITE_S when there is none."""
    slowest = INFINITE_S
    for place in range(MAX_PATH):
        link = _link_at(world, sender, receiver, place)
        if link >= 0:
            slowest = min(slowest, world.floats[link + L_CAPACITY])
    return slowest


def _link_at(world: World, sender: int, receiver: int, place: int) -> int:
    """The links between two instances by their place on the path: NIC out, leaf up, spine, leaf down, NIC in; -1: none.

    Inside a node the sender's own link alone, inside a rack the NICs.
    """
    ints = world.ints
    if ints[sender + E_NODE] == ints[receiver + E_NODE]:
        return ints[sender + E_LOCAL_LINK] if place == 0 else -1
    if place == 0:
        return ints[sender + E_EGRESS]
    if place == MAX_PATH - 1:
        return ints[receiver + E_INGRESS]
    if ints[sender + E_RACK] == ints[receiver + E_RACK]:
        return -1
    if place == 1:
        return ints[sender + E_EGRESS + 1]
    return ints[G_SPINE] if place == 2 else ints[receiver + E_INGRESS + 1]


def _way_between(world: World, sender: int, receiver: int) -> int:
    """The way from one instance to another, made where no flow is on it yet."""
    ints = world.ints
    way = ints[sender + E_WAYS]
    while way >= 0 and ints[way + W_RECEIVER] != receiver:
        way = ints[way + W_NEXT]
    if way < 0:
        way = new_way(world, sender, receiver)
        ints[way + W_NEXT] = ints[sender + E_WAYS]
        ints[sender + E_WAYS] = way
        for place in range(MAX_PATH):
            lay_link(world, way, _link_at(world, sender, receiver, place))
    return way


def deliver(world: World, flow: int, now_s: float) -> None:
    """The KV is there: the sender's blocks are free, the request waits for a slot."""
    request = world.ints[flow + F_OWNER]
    _end_flow(world, flow)
    sender = world.ints[request + R_ENTRY]
    receiver = world.ints[request + R_DECODER]
    ints = world.ints
    if sender != receiver:
        free_kv(world, sender, request, prompt_pages(world, sender, ints[request + R_TARGET]))
        settle_drain(world, sender, now_s)
    if ints[sender + E_WAIT_HEAD] >= 0:
        wake_idle_lanes(world, sender, now_s)
    world.floats[request + R_DELIVERED_S] = now_s
    world.ints[request + R_STATE] = READY
    world.ints[request + R_AT] = receiver
    push_back(world, receiver, E_READY_HEAD, request)
    notify(world, receiver, now_s, 0)
