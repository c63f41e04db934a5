"""The end of a request, and what it sets off when users wait for answers. Part of the hot loop."""

from __future__ import annotations

from splitplan.planner.simulate.layout import (
    ARRIVALS_CLOSED,
    ARRIVALS_OPEN,
    E_LOAD,
    E_LOAD_TOKENS,
    E_SERVED,
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
    R_ARRIVAL_S,
    R_FINISH_S,
    R_INPUT,
    R_STATE,
    R_WIDTH,
    REJECTED,
    SOURCE_ARRIVAL,
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
    _leave(world, now_s)


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
