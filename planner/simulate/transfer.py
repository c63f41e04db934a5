"""KV transfers over shared links. Part of the hot loop: runs as is and compiled.

Bytes flow at max-min fair rates: the link whose capacity per flow is smallest is filled first, its flows are fixed, the
rest share what is left. A flow that shares no link gets its slowest link whole without a look at the others. After the
bytes come latency and the per-block (descriptor) cost, which load no link.
"""

from __future__ import annotations

from splitplan.planner.simulate.layout import (
    E_EGRESS,
    E_INDEX,
    E_INGRESS,
    E_KV_FREE,
    E_LOCAL_LINK,
    E_NODE,
    E_RACK,
    E_READY_HEAD,
    E_RUN_STEPS,
    E_WAIT_HEAD,
    F_END_S,
    F_LEFT_BYTES,
    F_LINK,
    F_LINKS,
    F_RATE,
    F_REQUEST,
    F_SINCE_S,
    F_WIDTH,
    FIRST_ENGINE_SOURCE,
    G_BLOCK_COST_S,
    G_CACHED_ON_DECODE,
    G_FLOWS,
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
    R_CACHED,
    R_DECODER,
    R_DELIVERED_S,
    R_ENTRY,
    R_FLOWN_S,
    R_INPUT,
    R_PREFILLED_S,
    R_STATE,
    READY,
    SOURCE_FLOW,
    World,
)
from splitplan.planner.simulate.queues import push_back, set_wake
from splitplan.planner.simulate.running import blocks_for
from splitplan.planner.simulate.runs import notify


def start_transfer(world: World, request: int, now_s: float) -> None:
    """The decode instance has blocks for the request: its KV starts to move."""
    flow = world.global_i[G_FLOWS] * F_WIDTH
    world.global_i[G_FLOWS] += 1
    world.flow_i[flow + F_REQUEST] = request
    _lay_path(world, flow, request)
    num_bytes = _kv_bytes(world, request)
    if world.flow_i[flow + F_LINKS] == 0 or num_bytes <= 0.0:
        world.flow_i[flow + F_LINKS] = 0
        _bytes_through(world, flow, now_s)
    else:
        world.flow_f[flow + F_LEFT_BYTES] = num_bytes
        world.flow_f[flow + F_RATE] = 0.0
        world.flow_f[flow + F_SINCE_S] = now_s
        _load_links(world, flow, now_s)
    _wake_for_flows(world)


def resume_transfer(world: World, request: int, now_s: float) -> None:
    """Layer-wise, and the bytes were through before prefill ended: what is left is the last layer's share."""
    flow = world.global_i[G_FLOWS] * F_WIDTH
    world.global_i[G_FLOWS] += 1
    world.flow_i[flow + F_REQUEST] = request
    world.flow_i[flow + F_LINKS] = 0
    world.flow_f[flow + F_END_S] = now_s + _tail_s(world, request) + _fixed_s(world, request)
    _wake_for_flows(world)


def flows_due(world: World, now_s: float) -> None:
    """Serve the transfers whose bytes are through, or whose latency is over, now."""
    flow = 0
    while flow < world.global_i[G_FLOWS] * F_WIDTH:
        if world.flow_f[flow + F_END_S] > now_s:
            flow += F_WIDTH
        elif world.flow_i[flow + F_LINKS] > 0:
            _unload_links(world, flow, now_s)
            if _bytes_through(world, flow, now_s):
                flow += F_WIDTH
        else:
            request = world.flow_i[flow + F_REQUEST]
            _drop(world, flow)
            _deliver(world, request, now_s)
    _wake_for_flows(world)


def _kv_bytes(world: World, request: int) -> float:
    tokens = world.request_i[request + R_INPUT]
    if world.global_i[G_CACHED_ON_DECODE] == 1:
        tokens -= world.request_i[request + R_CACHED]
    return tokens * world.global_f[G_KV_BYTES_PER_TOKEN]


def _fixed_s(world: World, request: int) -> float:
    blocks = blocks_for(world, world.request_i[request + R_DECODER], world.request_i[request + R_INPUT])
    return world.global_f[G_TRANSFER_LATENCY_S] + blocks * world.global_f[G_BLOCK_COST_S]


def _tail_s(world: World, request: int) -> float:
    """Seconds the last layer's KV takes on an empty path."""
    flow = world.global_i[G_FLOWS] * F_WIDTH  # the first free row serves as scratch
    _lay_path(world, flow, request)
    slowest = INFINITE_S
    for k in range(world.flow_i[flow + F_LINKS]):
        slowest = min(slowest, world.link_f[world.flow_i[flow + F_LINK + k] + L_CAPACITY])
    return _kv_bytes(world, request) * world.global_f[G_LAST_LAYER_SHARE] / slowest


def _lay_path(world: World, flow: int, request: int) -> None:
    engine_i = world.engine_i
    sender = world.request_i[request + R_ENTRY]
    receiver = world.request_i[request + R_DECODER]
    world.flow_i[flow + F_LINKS] = 0
    if engine_i[sender + E_NODE] == engine_i[receiver + E_NODE]:
        _append_link(world, flow, engine_i[sender + E_LOCAL_LINK])
    else:
        _append_link(world, flow, engine_i[sender + E_EGRESS])
        if engine_i[sender + E_RACK] != engine_i[receiver + E_RACK]:
            _append_link(world, flow, engine_i[sender + E_EGRESS + 1])
            _append_link(world, flow, world.global_i[G_SPINE])
            _append_link(world, flow, engine_i[receiver + E_INGRESS + 1])
        _append_link(world, flow, engine_i[receiver + E_INGRESS])


def _append_link(world: World, flow: int, link: int) -> None:
    if link >= 0:
        count = world.flow_i[flow + F_LINKS]
        world.flow_i[flow + F_LINK + count] = link
        world.flow_i[flow + F_LINKS] = count + 1


def _bytes_through(world: World, flow: int, now_s: float) -> bool:
    """Links are free again; False when a layer-wise transfer now waits for its prefill and left the flows."""
    request = world.flow_i[flow + F_REQUEST]
    world.flow_i[flow + F_LINKS] = 0
    end_s = now_s
    if world.global_i[G_LAYERWISE] == 1:
        prefilled_s = world.request_f[request + R_PREFILLED_S]
        if prefilled_s < 0.0:
            world.request_f[request + R_FLOWN_S] = now_s
            _drop(world, flow)
            return False
        end_s = max(now_s, prefilled_s + _tail_s(world, request))
    world.flow_f[flow + F_END_S] = end_s + _fixed_s(world, request)
    return True


def _drop(world: World, flow: int) -> None:
    """Remove a row by moving the last one into its place."""
    world.global_i[G_FLOWS] -= 1
    last = world.global_i[G_FLOWS] * F_WIDTH
    if last != flow:
        for k in range(F_WIDTH):
            world.flow_i[flow + k] = world.flow_i[last + k]
            world.flow_f[flow + k] = world.flow_f[last + k]


def _wake_for_flows(world: World) -> None:
    soonest_s = INFINITE_S
    for row in range(world.global_i[G_FLOWS]):
        soonest_s = min(soonest_s, world.flow_f[row * F_WIDTH + F_END_S])
    set_wake(world, SOURCE_FLOW, soonest_s)


def _load_links(world: World, flow: int, now_s: float) -> None:
    shared = False
    slowest = INFINITE_S
    for k in range(world.flow_i[flow + F_LINKS]):
        link = world.flow_i[flow + F_LINK + k]
        world.link_i[link + L_FLOWS] += 1
        shared = shared or world.link_i[link + L_FLOWS] > 1
        slowest = min(slowest, world.link_f[link + L_CAPACITY])
    if shared:
        _share_links(world, now_s)
    else:
        _set_rate(world, flow, slowest, now_s)


def _unload_links(world: World, flow: int, now_s: float) -> None:
    shared = False
    for k in range(world.flow_i[flow + F_LINKS]):
        link = world.flow_i[flow + F_LINK + k]
        world.link_i[link + L_FLOWS] -= 1
        shared = shared or world.link_i[link + L_FLOWS] > 0
    world.flow_i[flow + F_LINKS] = 0
    if shared:
        _share_links(world, now_s)


def _set_rate(world: World, flow: int, rate: float, now_s: float) -> None:
    flow_f = world.flow_f
    if rate != flow_f[flow + F_RATE]:
        left = flow_f[flow + F_LEFT_BYTES] - flow_f[flow + F_RATE] * (now_s - flow_f[flow + F_SINCE_S])
        left = max(left, 0.0)
        flow_f[flow + F_LEFT_BYTES] = left
        flow_f[flow + F_SINCE_S] = now_s
        flow_f[flow + F_RATE] = rate
        flow_f[flow + F_END_S] = now_s + left / rate


def _share_links(world: World, now_s: float) -> None:
    """Max-min fair rates of all flows: fill the tightest link, fix its flows, go on with what is left."""
    flow_i = world.flow_i
    link_i = world.link_i
    link_f = world.link_f
    rows = world.global_i[G_FLOWS]
    for row in range(rows):
        flow = row * F_WIDTH
        for k in range(flow_i[flow + F_LINKS]):
            link = flow_i[flow + F_LINK + k]
            link_i[link + L_UNFIXED] = link_i[link + L_FLOWS]
            link_f[link + L_LEFT] = link_f[link + L_CAPACITY]
    while True:
        tightest = _tightest_link(world, rows)
        if tightest < 0:
            break
        rate = link_f[tightest + L_LEFT] / link_i[tightest + L_UNFIXED]
        for row in range(rows):
            if _uses(world, row * F_WIDTH, tightest):
                _fix(world, row * F_WIDTH, rate, now_s)
        link_i[tightest + L_UNFIXED] = 0


def _tightest_link(world: World, rows: int) -> int:
    tightest = -1
    least = INFINITE_S
    for row in range(rows):
        flow = row * F_WIDTH
        for k in range(world.flow_i[flow + F_LINKS]):
            link = world.flow_i[flow + F_LINK + k]
            if world.link_i[link + L_UNFIXED] > 0:
                share = world.link_f[link + L_LEFT] / world.link_i[link + L_UNFIXED]
                if share < least:
                    least = share
                    tightest = link
    return tightest


def _uses(world: World, flow: int, link: int) -> bool:
    """Whether a flow whose rate is still open crosses the link."""
    found = False
    for k in range(world.flow_i[flow + F_LINKS]):
        crossed = world.flow_i[flow + F_LINK + k]
        found = found or crossed == link
        if world.link_i[crossed + L_UNFIXED] == 0:
            return False  # fixed together with an earlier link
    return found


def _fix(world: World, flow: int, rate: float, now_s: float) -> None:
    _set_rate(world, flow, rate, now_s)
    for k in range(world.flow_i[flow + F_LINKS]):
        link = world.flow_i[flow + F_LINK + k]
        world.link_f[link + L_LEFT] = max(0.0, world.link_f[link + L_LEFT] - rate)
        world.link_i[link + L_UNFIXED] -= 1


def _deliver(world: World, request: int, now_s: float) -> None:
    sender = world.request_i[request + R_ENTRY]
    receiver = world.request_i[request + R_DECODER]
    engine_i = world.engine_i
    if sender != receiver:
        engine_i[sender + E_KV_FREE] += blocks_for(world, sender, world.request_i[request + R_INPUT])
    if engine_i[sender + E_RUN_STEPS] == 0 and engine_i[sender + E_WAIT_HEAD] >= 0:
        set_wake(world, FIRST_ENGINE_SOURCE + engine_i[sender + E_INDEX], now_s)
    world.request_f[request + R_DELIVERED_S] = now_s
    world.request_i[request + R_STATE] = READY
    push_back(world, receiver, E_READY_HEAD, request)
    notify(world, receiver, now_s, 0)
