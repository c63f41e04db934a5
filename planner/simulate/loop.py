"""The event loop. Part of the hot loop: runs as is and compiled; `run_events` is its only way in."""

from __future__ import annotations

from splitplan.planner.simulate.changes import changes_due
from splitplan.planner.simulate.delivery import flows_due
from splitplan.planner.simulate.engine import boundary, one_step
from splitplan.planner.simulate.intake import dispatch
from splitplan.planner.simulate.layout import (
    E_WIDTH,
    FIRST_ENGINE_SOURCE,
    G_ARRIVED,
    G_END_REQUEST,
    G_EVENTS,
    G_FIRST_ENGINE,
    G_IN_FLIGHT,
    G_NEXT,
    G_NOW,
    G_STEPPING,
    G_TREE,
    G_WAKE,
    INFINITE_S,
    R_ARRIVAL_S,
    R_INPUT,
    R_TARGET,
    R_WIDTH,
    SOURCE_ARRIVAL,
    SOURCE_FLOW,
    World,
)
from splitplan.planner.simulate.queues import set_wake


def run_events(world: World, until_s: float) -> None:
    """Serve events in order of time until none is left or the next one lies after `until_s`."""
    ints = world.ints
    floats = world.floats
    tree = ints[G_TREE]
    wake = ints[G_WAKE]
    first_engine = ints[G_FIRST_ENGINE]
    stepping = world.ints[G_STEPPING] == 1
    events = 0
    while True:
        source = ints[tree + 1]
        now_s = floats[wake + source]
        if now_s >= INFINITE_S or now_s > until_s:
            break
        events += 1
        if source >= FIRST_ENGINE_SOURCE:
            engine = first_engine + (source - FIRST_ENGINE_SOURCE) * E_WIDTH
            if stepping:
                one_step(world, engine, now_s)
            else:
                boundary(world, engine, now_s)
        elif source == SOURCE_ARRIVAL:
            _arrive(world, now_s)
        elif source == SOURCE_FLOW:
            flows_due(world, now_s)
        else:
            changes_due(world, now_s)
        world.floats[G_NOW] = now_s
    world.ints[G_EVENTS] += events


def _arrive(world: World, now_s: float) -> None:
    ints = world.ints
    request = ints[G_NEXT]
    following = request + R_WIDTH
    ints[G_NEXT] = following
    ints[G_ARRIVED] += 1
    ints[G_IN_FLIGHT] += 1
    if following < ints[G_END_REQUEST]:
        set_wake(world, SOURCE_ARRIVAL, world.floats[following + R_ARRIVAL_S])
    else:
        set_wake(world, SOURCE_ARRIVAL, INFINITE_S)
    ints[request + R_TARGET] = ints[request + R_INPUT]
    dispatch(world, request, now_s)
