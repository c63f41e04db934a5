"""KV transfers over shared links. Part of the hot loop: runs as is and compiled.

Bytes flow at max-min fair rates: the link whose capacity per flow is smallest is filled first, its flows are fixed, the
rest share what is left. A flow that shares no link gets its slowest link whole without a look at the others. After the
bytes come latency and the per-block (descriptor) cost, which load no link.
"""

from __future__ import annotations

from splitplan.planner.simulate.layout import (
    E_EGRESS,
    E_INGRESS,
    E_LOCAL_LINK,
    E_NODE,
    E_RACK,
    E_READY_HEAD,
    E_WAIT_HEAD,
    F_END_S,
    F_LEFT_BYTES,
    F_LINK,
    F_LINKS,
    F_RATE,
    F_REQUEST,
    F_SINCE_S,
    F_WIDTH,
    G_BLOCK_COST_S,
    G_CACHED_ON_DECODE,
    G_DECODE_EMITS_FIRST,
    G_END_FLOW,
    G_FIRST_FLOW,
    G_KV_BYTES_PER_TOKEN,
    G_LAST_LAYER_SHARE,
    G_LAYERWISE,
    G_SPINE,
    G_TRANSFER_LATENCY_S,
    INFINITE_S,
    L_CAPACITY,
    L_FLOWS,
    L_LEFT,
    L_UNFIXED,
    R_AT,
    R_CACHED,
    R_DECODER,
    R_DELIVERED_S,
    R_ENTRY,
    R_FLOWN_S,
    R_PREFILLED_S,
    R_STATE,
    R_TARGET,
    READY,
    SOURCE_FLOW,
    World,
)
from splitplan.planner.simulate.lifecycle import settle_drain
from splitplan.planner.simulate.prefix import free_kv
from splitplan.planner.simulate.queues import push_back, set_wake
from splitplan.planner.simulate.running import blocks_for
from splitplan.planner.simulate.runs import notify, wake_idle_lanes


def start_transfer(world: World, request: int, now_s: float) -> None:
    """The decode instance has blocks for the request: its KV starts to move."""
    flow = _new_row(world)
    world.ints[flow + F_REQUEST] = request
    _lay_path(world, flow, request)
    num_bytes = _kv_bytes(world, request)
    if world.ints[flow + F_LINKS] == 0 or num_bytes <= 0.0:
        world.ints[flow + F_LINKS] = 0
        _bytes_through(world, flow, now_s)
    else:
        world.floats[flow + F_LEFT_BYTES] = num_bytes
        world.floats[flow + F_RATE] = 0.0
        world.floats[flow + F_SINCE_S] = now_s
        _load_links(world, flow, now_s)
    _wake_for_flows(world)


def resume_transfer(world: World, request: int, now_s: float) -> None:
    """Layer-wise, and the bytes were through before prefill ended: what is left is the last layer's share."""
    flow = _new_row(world)
    world.ints[flow + F_REQUEST] = request
    world.ints[flow + F_LINKS] = 0
    world.floats[flow + F_END_S] = now_s + _tail_s(world, request) + _fixed_s(world, request)
    _wake_for_flows(world)


def flows_due(world: World, now_s: float) -> None:
    """Serve the transfers whose bytes are through, or whose latency is over, now."""
    flow = world.ints[G_FIRST_FLOW]
    while flow < world.ints[G_END_FLOW]:
        if world.floats[flow + F_END_S] > now_s:
            flow += F_WIDTH
        elif world.ints[flow + F_LINKS] > 0:
            _unload_links(world, flow, now_s)
            if _bytes_through(world, flow, now_s):
                flow += F_WIDTH
        else:
            request = world.ints[flow + F_REQUEST]
            _drop(world, flow)
            _deliver(world, request, now_s)
    _wake_for_flows(world)


def cancel_transfer(world: World, request: int, now_s: float) -> bool:
    """One side is gone: take the request's flow away. False when none had begun."""
    ints = world.ints
    for flow in range(ints[G_FIRST_FLOW], ints[G_END_FLOW], F_WIDTH):
        if ints[flow + F_REQUEST] == request:
            if ints[flow + F_LINKS] > 0:
                _unload_links(world, flow, now_s)
            _drop(world, flow)
            _wake_for_flows(world)
            return True
    return False


def delivered_tokens(world: World, request: int) -> int:
    """KV tokens a decode instance starts with: it computes the last prompt token again where it emits the first one."""
    tokens = world.ints[request + R_TARGET]
    if world.ints[G_DECODE_EMITS_FIRST] == 1:
        tokens -= 1
    return tokens


def _new_row(world: World) -> int:
    flow = world.ints[G_END_FLOW]
    world.ints[G_END_FLOW] = flow + F_WIDTH
    return flow


def _kv_bytes(world: World, request: int) -> float:
    tokens = world.ints[request + R_TARGET]
    if world.ints[G_CACHED_ON_DECODE] == 1:
        tokens -= world.ints[request + R_CACHED]
    return tokens * world.floats[G_KV_BYTES_PER_TOKEN]


def _fixed_s(world: World, request: int) -> float:
    blocks = blocks_for(world, world.ints[request + R_DECODER], world.ints[request + R_TARGET])
    return world.floats[G_TRANSFER_LATENCY_S] + blocks * world.floats[G_BLOCK_COST_S]


def _tail_s(world: World, request: int) -> float:
    """Seconds the last layer's KV takes on an empty path."""
    flow = world.ints[G_END_FLOW]  # the first free row serves as scratch
    _lay_path(world, flow, request)
    slowest = INFINITE_S
    for k in range(world.ints[flow + F_LINKS]):
        slowest = min(slowest, world.floats[world.ints[flow + F_LINK + k] + L_CAPACITY])
    return _kv_bytes(world, request) * world.floats[G_LAST_LAYER_SHARE] / slowest


def _lay_path(world: World, flow: int, request: int) -> None:
    ints = world.ints
    sender = world.ints[request + R_ENTRY]
    receiver = world.ints[request + R_DECODER]
    world.ints[flow + F_LINKS] = 0
    if ints[sender + E_NODE] == ints[receiver + E_NODE]:
        _append_link(world, flow, ints[sender + E_LOCAL_LINK])
    else:
        _append_link(world, flow, ints[sender + E_EGRESS])
        if ints[sender + E_RACK] != ints[receiver + E_RACK]:
            _append_link(world, flow, ints[sender + E_EGRESS + 1])
            _append_link(world, flow, world.ints[G_SPINE])
            _append_link(world, flow, ints[receiver + E_INGRESS + 1])
        _append_link(world, flow, ints[receiver + E_INGRESS])


def _append_link(world: World, flow: int, link: int) -> None:
    if link >= 0:
        count = world.ints[flow + F_LINKS]
        world.ints[flow + F_LINK + count] = link
        world.ints[flow + F_LINKS] = count + 1


def _bytes_through(world: World, flow: int, now_s: float) -> bool:
    """Links are free again; False when a layer-wise transfer now waits for its prefill and left the flows."""
    request = world.ints[flow + F_REQUEST]
    world.ints[flow + F_LINKS] = 0
    end_s = now_s
    if world.ints[G_LAYERWISE] == 1:
        prefilled_s = world.floats[request + R_PREFILLED_S]
        if prefilled_s < 0.0:
            world.floats[request + R_FLOWN_S] = now_s
            _drop(world, flow)
            return False
        end_s = max(now_s, prefilled_s + _tail_s(world, request))
    world.floats[flow + F_END_S] = end_s + _fixed_s(world, request)
    return True


def _drop(world: World, flow: int) -> None:
    """Remove a row by moving the last one into its place."""
    last = world.ints[G_END_FLOW] - F_WIDTH
    world.ints[G_END_FLOW] = last
    if last != flow:
        for k in range(F_WIDTH):
            world.ints[flow + k] = world.ints[last + k]
            world.floats[flow + k] = world.floats[last + k]


def _wake_for_flows(world: World) -> None:
    soonest_s = INFINITE_S
    for flow in range(world.ints[G_FIRST_FLOW], world.ints[G_END_FLOW], F_WIDTH):
        soonest_s = min(soonest_s, world.floats[flow + F_END_S])
    set_wake(world, SOURCE_FLOW, soonest_s)


def _load_links(world: World, flow: int, now_s: float) -> None:
    shared = False
    slowest = INFINITE_S
    for k in range(world.ints[flow + F_LINKS]):
        link = world.ints[flow + F_LINK + k]
        world.ints[link + L_FLOWS] += 1
        shared = shared or world.ints[link + L_FLOWS] > 1
        slowest = min(slowest, world.floats[link + L_CAPACITY])
    if shared:
        _share_links(world, now_s)
    else:
        _set_rate(world, flow, slowest, now_s)


def _unload_links(world: World, flow: int, now_s: float) -> None:
    shared = False
    for k in range(world.ints[flow + F_LINKS]):
        link = world.ints[flow + F_LINK + k]
        world.ints[link + L_FLOWS] -= 1
        shared = shared or world.ints[link + L_FLOWS] > 0
    world.ints[flow + F_LINKS] = 0
    if shared:
        _share_links(world, now_s)


def _set_rate(world: World, flow: int, rate: float, now_s: float) -> None:
    floats = world.floats
    if rate != floats[flow + F_RATE]:
        left = floats[flow + F_LEFT_BYTES] - floats[flow + F_RATE] * (now_s - floats[flow + F_SINCE_S])
        left = max(left, 0.0)
        floats[flow + F_LEFT_BYTES] = left
        floats[flow + F_SINCE_S] = now_s
        floats[flow + F_RATE] = rate
        floats[flow + F_END_S] = now_s + left / rate


def _share_links(world: World, now_s: float) -> None:
    """Max-min fair rates of all flows: fill the tightest link, fix its flows, go on with what is left."""
    ints = world.ints
    floats = world.floats
    first = ints[G_FIRST_FLOW]
    end = ints[G_END_FLOW]
    for flow in range(first, end, F_WIDTH):
        for k in range(ints[flow + F_LINKS]):
            link = ints[flow + F_LINK + k]
            ints[link + L_UNFIXED] = ints[link + L_FLOWS]
            floats[link + L_LEFT] = floats[link + L_CAPACITY]
    while True:
        tightest = _tightest_link(world)
        if tightest < 0:
            break
        rate = floats[tightest + L_LEFT] / ints[tightest + L_UNFIXED]
        for flow in range(first, end, F_WIDTH):
            if _uses(world, flow, tightest):
                _fix(world, flow, rate, now_s)
        ints[tightest + L_UNFIXED] = 0


def _tightest_link(world: World) -> int:
    tightest = -1
    least = INFINITE_S
    for flow in range(world.ints[G_FIRST_FLOW], world.ints[G_END_FLOW], F_WIDTH):
        for k in range(world.ints[flow + F_LINKS]):
            link = world.ints[flow + F_LINK + k]
            if world.ints[link + L_UNFIXED] > 0:
                share = world.floats[link + L_LEFT] / world.ints[link + L_UNFIXED]
                if share < least:
                    least = share
                    tightest = link
    return tightest


def _uses(world: World, flow: int, link: int) -> bool:
    """Whether a flow whose rate is still open crosses the link."""
    found = False
    for k in range(world.ints[flow + F_LINKS]):
        crossed = world.ints[flow + F_LINK + k]
        found = found or crossed == link
        if world.ints[crossed + L_UNFIXED] == 0:
            return False  # fixed together with an earlier link
    return found


def _fix(world: World, flow: int, rate: float, now_s: float) -> None:
    _set_rate(world, flow, rate, now_s)
    for k in range(world.ints[flow + F_LINKS]):
        link = world.ints[flow + F_LINK + k]
        world.floats[link + L_LEFT] = max(0.0, world.floats[link + L_LEFT] - rate)
        world.ints[link + L_UNFIXED] -= 1


def _deliver(world: World, request: int, now_s: float) -> None:
    sender = world.ints[request + R_ENTRY]
    receiver = world.ints[request + R_DECODER]
    ints = world.ints
    if sender != receiver:
        free_kv(world, sender, request, ints[request + R_TARGET])
        settle_drain(world, sender, now_s)
    if ints[sender + E_WAIT_HEAD] >= 0:
        wake_idle_lanes(world, sender, now_s)
    world.floats[request + R_DELIVERED_S] = now_s
    world.ints[request + R_STATE] = READY
    world.ints[request + R_AT] = receiver
    push_back(world, receiver, E_READY_HEAD, request)
    notify(world, receiver, now_s, 0)
