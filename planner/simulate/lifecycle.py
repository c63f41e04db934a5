"""The end of a request, and what it sets off when users wait for answers. Part of the hot loop."""

from __future__ import annotations

from splitplan.planner.simulate.layout import (
    ARRIVALS_CLOSED,
    ARRIVALS_OPEN,
    DRAINING,
    E_BACK_S,
    E_KV_FREE,
    E_KV_PAGES,
    E_LOAD,
    E_LOAD_TOKENS,
    E_RELOAD_S,
    E_SERVED,
    E_UP,
    FINISHED,
    G_ARRIVALS,
    G_CONCURRENCY,
    G_DUE,
    G_END_REQUEST,
    G_FINISHED,
    G_IN_FLIGHT,
    G_NEXT,
    G_REJECTED,
    G_THINK_S,
    G_WAKE,
    R_ARRIVAL_S,
    R_FINISH_S,
    R_INPUT,
    R_STATE,
    R_WIDTH,
    REJECTED,
    SOURCE_ARRIVAL,
    SOURCE_CONTROL,
    World,
)
from splitplan.planner.simulate.queues import set_wake


def assign(world: World, engine: int, request: int) -> None:
    """Count a request as the engine's load."""
    world.ints[engine + E_LOAD] += 1
    world.ints[engine + E_LOAD_TOKENS] += world.ints[request + R_INPUT]


def release(world: World, engine: int, request: int) -> None:
    """The request no longer loads the engine."""
    world.ints[engine + E_LOAD] -= 1
    world.ints[engine + E_LOAD_TOKENS] -= world.ints[request + R_INPUT]


def complete(world: World, engine: int, request: int, now_s: float) -> None:
    """The request's last token is out, at this engine."""
    world.floats[request + R_FINISH_S] = now_s
    world.ints[request + R_STATE] = FINISHED
    release(world, engine, request)
    world.ints[engine + E_SERVED] += 1
    world.ints[G_FINISHED] += 1
    settle_drain(world, engine, now_s)
    _leave(world, now_s)


def settle_drain(world: World, home: int, now_s: float) -> None:
    """An instance that drains and has nothing left goes down to come back in its next role."""
    ints = world.ints
    if ints[home + E_UP] != DRAINING or ints[home + E_LOAD] > 0:
        return
    if ints[home + E_KV_FREE] == ints[home + E_KV_PAGES]:
        ints[home + E_UP] = 0
        back_s = now_s + world.floats[home + E_RELOAD_S]
        world.floats[home + E_BACK_S] = back_s
        if back_s < world.floats[ints[G_WAKE] + SOURCE_CONTROL]:
            set_wake(world, SOURCE_CONTROL, back_s)


def reject(world: World, request: int, now_s: float) -> None:
    """The request fits nowhere, ever."""
    world.ints[request + R_STATE] = REJECTED
    world.ints[G_REJECTED] += 1
    _leave(world, now_s)


def _leave(world: World, now_s: float) -> None:
    ints = world.ints
    ints[G_IN_FLIGHT] -= 1
    if ints[G_ARRIVALS] == ARRIVALS_OPEN:
        return
    due_s = now_s + world.floats[G_THINK_S]
    if ints[G_ARRIVALS] == ARRIVALS_CLOSED:
        _make_due(world, 1, due_s)
    elif ints[G_IN_FLIGHT] == 0:
        _make_due(world, ints[G_CONCURRENCY], due_s)


def _make_due(world: World, most: int, due_s: float) -> None:
    """The next `most` requests arrive at `due_s`."""
    ints = world.ints
    end = ints[G_END_REQUEST]
    for _ in range(most):
        request = ints[G_DUE]
        if request < end:
            world.floats[request + R_ARRIVAL_S] = due_s
            if request == ints[G_NEXT]:
                set_wake(world, SOURCE_ARRIVAL, due_s)
            ints[G_DUE] = request + R_WIDTH
