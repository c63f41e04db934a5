"""How requests come to an engine, and how their tokens are noted. Part of the hot loop: runs as is and compiled."""

from __future__ import annotations

from splitplan.planner.simulate.layout import (
    DECODE,
    E_INCOMING_HEAD,
    E_LANES,
    E_ROLE,
    E_RUN_STEPS,
    E_WAIT_HEAD,
    G_DECODE_EMITS_FIRST,
    G_LIMBO_HEAD,
    G_LIMITS,
    NOWHERE_NOW,
    PENDING,
    R_AT,
    R_DECODER,
    R_ENTRY,
    R_FIRST_S,
    R_GENERATED,
    R_INPUT,
    R_LAST_S,
    R_LIMIT,
    R_OUTPUT,
    R_SLOW_GAPS,
    R_STATE,
    R_TARGET,
    TRANSFERRING,
    WAITING,
    World,
)
from splitplan.planner.simulate.lifecycle import assign, complete, reject, settle_drain
from splitplan.planner.simulate.prefix import free_kv, pages_to_take
from splitplan.planner.simulate.queues import push_back
from splitplan.planner.simulate.routing import choose_decoder, choose_entry
from splitplan.planner.simulate.running import held_pages, prompt_pages
from splitplan.planner.simulate.runs import gap_bin, notify
from splitplan.planner.simulate.transfer import delivered_tokens


def enqueue_prompt(world: World, home: int, request: int, now_s: float) -> None:
    """A request that needs prefill joins the engine's queue."""
    alone = world.ints[home + E_WAIT_HEAD] < 0
    world.ints[request + R_STATE] = WAITING
    world.ints[request + R_AT] = home
    push_back(world, home, E_WAIT_HEAD, request)
    if alone or world.ints[home + E_LANES] > 1 or world.ints[home + E_RUN_STEPS] == 0:
        notify(world, home, now_s, pages_to_take(world, home, request, world.ints[request + R_TARGET]))


def enqueue_incoming(world: World, home: int, request: int, now_s: float) -> None:
    """A request whose KV is elsewhere asks a decode instance for blocks."""
    alone = world.ints[home + E_INCOMING_HEAD] < 0
    push_back(world, home, E_INCOMING_HEAD, request)
    if alone or world.ints[home + E_LANES] > 1 or world.ints[home + E_RUN_STEPS] == 0:
        notify(world, home, now_s, held_pages(world, home, delivered_tokens(world, request)))


def arrive_with_kv(world: World, home: int, request: int, now_s: float) -> None:
    """A request that comes prefilled from outside (decode instances alone), maybe with its first token."""
    world.ints[request + R_STATE] = TRANSFERRING
    if world.ints[G_DECODE_EMITS_FIRST] == 0 and world.floats[request + R_FIRST_S] < 0.0:
        world.floats[request + R_FIRST_S] = now_s
        world.floats[request + R_LAST_S] = now_s
        world.ints[request + R_GENERATED] = 1
        if world.ints[request + R_OUTPUT] == 1:
            complete(world, home, request, now_s)
            return
    enqueue_incoming(world, home, request, now_s)


def dispatch(world: World, request: int, now_s: float) -> None:
    """Send a request that is new, or starts again, to an instance; to limbo when none is up; away when none fits."""
    ints = world.ints
    engine = choose_entry(world, request)
    if engine == NOWHERE_NOW:
        push_back(world, 0, G_LIMBO_HEAD, request)
        return
    if engine < 0:
        reject(world, request, now_s)
        return
    ints[request + R_ENTRY] = engine
    assign(world, engine, request)
    if ints[engine + E_ROLE] == DECODE:
        ints[request + R_DECODER] = engine
        arrive_with_kv(world, engine, request, now_s)
    else:
        enqueue_prompt(world, engine, request, now_s)


def ask_decoder(world: World, request: int, now_s: float) -> None:
    """Send a request that is, or is about to be, prefilled to a decode instance; back to limbo when none is up."""
    decoder = choose_decoder(world, request)
    if decoder < 0:
        sender = world.ints[request + R_ENTRY]
        free_kv(world, sender, request, prompt_pages(world, sender, world.ints[request + R_TARGET]))
        settle_drain(world, sender, now_s)
        world.ints[request + R_STATE] = PENDING
        world.ints[request + R_TARGET] = world.ints[request + R_INPUT] + world.ints[request + R_GENERATED]
        push_back(world, 0, G_LIMBO_HEAD, request)
        return
    world.ints[request + R_DECODER] = decoder
    assign(world, decoder, request)
    enqueue_incoming(world, decoder, request, now_s)


def record_token(world: World, request: int, now_s: float) -> None:
    """A token that did not follow the one before by one step: the first, or one after a preemption or a transfer."""
    floats = world.floats
    if floats[request + R_FIRST_S] < 0.0:
        floats[request + R_FIRST_S] = now_s
    else:
        gap_s = now_s - floats[request + R_LAST_S]
        world.ints[gap_bin(world, gap_s)] += 1
        limit = world.ints[request + R_LIMIT]
        if limit >= 0 and gap_s > floats[world.ints[G_LIMITS] + limit]:
            world.ints[request + R_SLOW_GAPS] += 1


def has_decode_left(world: World, request: int) -> bool:
    """Whether a prefilled request has anything left to do."""
    return world.ints[G_DECODE_EMITS_FIRST] == 1 or world.ints[request + R_OUTPUT] > 1
