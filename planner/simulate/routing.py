"""Which instance takes a request. Part of the hot loop: runs as is and compiled."""

from __future__ import annotations

from splitplan.planner.simulate.layout import (
    DECODE,
    E_ABOVE_TOKENS,
    E_CACHE,
    E_CREDIT,
    E_KV_PAGES,
    E_LOAD,
    E_LOAD_TOKENS,
    E_ROLE,
    E_SHARE,
    E_SHARE_ROW,
    E_UP,
    E_UP_TO_TOKENS,
    G_DECODE_ALONE,
    G_DECODE_COUNT,
    G_DECODE_LIST,
    G_ENTRY_COUNT,
    G_ENTRY_LIST,
    G_ENTRY_SHARES,
    G_HASH_TOKENS,
    G_ROUTING,
    INFINITE_S,
    NOWHERE_NOW,
    PREFILL,
    R_DRAW_DECODE,
    R_DRAW_ENTRY,
    R_ENTRY,
    R_INPUT,
    R_OUTPUT,
    ROUTE_LEAST_LOADED,
    ROUTE_PREFIX_AWARE,
    ROUTE_ROUND_ROBIN,
    ROUTE_WEIGHTED,
    UP,
    World,
)
from splitplan.planner.simulate.prefix import held_blocks
from splitplan.planner.simulate.running import prompt_pages


def choose_entry(world: World, request: int) -> int:
    """The instance that prefills a request (or serves it whole); NOWHERE_NOW when none is up; -1 when none fits."""
    start = world.ints[G_ENTRY_LIST]
    count = world.ints[G_ENTRY_COUNT]
    draw = world.floats[request + R_DRAW_ENTRY]
    engine = _choose(world, start, count, world.ints[G_ENTRY_SHARES], draw, request)
    if engine < 0 or not _takes(world, engine, start, request):
        engine = _least_loaded(world, start, count, False, request)
    if engine < 0:
        return NOWHERE_NOW if _ever_fits(world, start, count, request) else -1
    if world.ints[engine + E_ROLE] == PREFILL and world.ints[G_DECODE_COUNT] > 0:
        decodes = world.ints[G_DECODE_LIST]
        if not _ever_fits(world, decodes, world.ints[G_DECODE_COUNT], request):
            return -1
    return engine


def choose_decoder(world: World, request: int) -> int:
    """The decode instance for a request that is, or is about to be, prefilled; NOWHERE_NOW when none is up."""
    start = world.ints[G_DECODE_LIST]
    count = world.ints[G_DECODE_COUNT]
    row = world.ints[world.ints[request + R_ENTRY] + E_SHARE_ROW]
    engine = _choose(world, start, count, row, world.floats[request + R_DRAW_DECODE], request)
    if engine < 0 or not _takes(world, engine, start, request):
        engine = _least_loaded(world, start, count, False, request)
    return engine if engine >= 0 else NOWHERE_NOW


def _choose(world: World, start: int, count: int, row: int, draw: float, request: int) -> int:
    if count == 1:
        return world.ints[start]
    policy = world.ints[G_ROUTING]
    if policy == ROUTE_WEIGHTED:
        return _by_draw(world, start, count, row, draw)
    if policy == ROUTE_ROUND_ROBIN:
        return _in_turn(world, start, count, request)
    if policy == ROUTE_PREFIX_AWARE:
        return _least_work(world, start, count, request)
    return _least_loaded(world, start, count, policy != ROUTE_LEAST_LOADED, request)


def _by_draw(world: World, start: int, count: int, row: int, draw: float) -> int:
    """The first instance whose cumulative share exceeds the draw."""
    low = 0
    high = count - 1
    while low < high:
        middle = (low + high) // 2
        if world.floats[row + middle] > draw:
            high = middle
        else:
            low = middle + 1
    return world.ints[start + low]


def _in_turn(world: World, start: int, count: int, request: int) -> int:
    """Smooth weighted round robin: everyone earns its share, the richest pays for all."""
    chosen = -1
    total = 0.0
    richest = -INFINITE_S
    for k in range(count):
        engine = world.ints[start + k]
        if not _takes(world, engine, start, request):
            continue
        share = world.floats[engine + E_SHARE]
        total += share
        world.floats[engine + E_CREDIT] += share
        if world.floats[engine + E_CREDIT] > richest:
            richest = world.floats[engine + E_CREDIT]
            chosen = engine
    if chosen >= 0:
        world.floats[chosen + E_CREDIT] -= total
    return chosen


def _least_loaded(world: World, start: int, count: int, by_tokens: bool, request: int) -> int:
    """Least load per share, of requests or prompt tokens assigned and not done, where the request can go; or -1."""
    chosen = -1
    least = INFINITE_S
    for k in range(count):
        engine = world.ints[start + k]
        share = world.floats[engine + E_SHARE]
        if share <= 0.0 or not _takes(world, engine, start, request):
            continue
        load = world.ints[engine + E_LOAD_TOKENS] if by_tokens else world.ints[engine + E_LOAD]
        if load / share < least:
            least = load / share
            chosen = engine
    return chosen


def _least_work(world: World, start: int, count: int, request: int) -> int:
    """Prefix affinity against load: the fewest prompt tokens per share, queued and the request's own that it lacks."""
    ints = world.ints
    chosen = -1
    least = INFINITE_S
    for k in range(count):
        engine = ints[start + k]
        share = world.floats[engine + E_SHARE]
        if share <= 0.0 or not _takes(world, engine, start, request):
            continue
        tokens = ints[engine + E_LOAD_TOKENS] + ints[request + R_INPUT]
        if ints[engine + E_CACHE] >= 0:
            tokens -= held_blocks(world, ints[engine + E_CACHE], request, 0) * ints[G_HASH_TOKENS]
        if tokens / share < least:
            least = tokens / share
            chosen = engine
    return chosen


def _takes(world: World, engine: int, start: int, request: int) -> bool:
    """Whether an instance of the list at `start` is up, in a role of that list, and can hold the request."""
    ints = world.ints
    decodes = ints[engine + E_ROLE] == DECODE
    wanted = start == ints[G_DECODE_LIST] or ints[G_DECODE_ALONE] == 1
    return ints[engine + E_UP] == UP and decodes == wanted and _fits(world, engine, request)


def _ever_fits(world: World, start: int, count: int, request: int) -> bool:
    fits = False
    for k in range(count):
        fits = fits or _fits(world, world.ints[start + k], request)
    return fits


def _fits(world: World, engine: int, request: int) -> bool:
    """Whether an instance takes prompts of this length, and holds the request to its end when it is empty."""
    tokens = world.ints[request + R_INPUT]
    if tokens <= world.ints[engine + E_ABOVE_TOKENS] or tokens > world.ints[engine + E_UP_TO_TOKENS] > 0:
        return False
    if world.ints[engine + E_ROLE] != PREFILL:
        tokens += world.ints[request + R_OUTPUT] - 1
    return prompt_pages(world, engine, tokens) <= world.ints[engine + E_KV_PAGES]
