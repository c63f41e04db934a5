"""One engine: what happens at a step boundary. Part of the hot loop: runs as is and compiled."""

from __future__ import annotations

from splitplan.planner.simulate.intake import ask_decoder, record_token
from splitplan.planner.simulate.layout import (
    E_HEAP,
    E_HOME,
    E_INCOMING_HEAD,
    E_INDEX,
    E_KV_FREE,
    E_LANES,
    E_PARTIAL,
    E_PROMPTS,
    E_READY_HEAD,
    E_READY_S,
    E_ROLE,
    E_RUN_DONE,
    E_RUN_STEPS,
    E_RUNNING,
    E_STAGE_FREE_S,
    E_STEPS,
    E_WAIT_HEAD,
    FIRST_ENGINE_SOURCE,
    G_DECODE_COUNT,
    G_DECODE_EMITS_FIRST,
    G_LAYERWISE,
    PREFILL,
    R_FINISH_STEP,
    R_FLOWN_S,
    R_GENERATED,
    R_LAST_S,
    R_LATER,
    R_OUTPUT,
    R_PREFILLED_S,
    R_STATE,
    R_TARGET,
    TRANSFERRING,
    World,
)
from splitplan.planner.simulate.lifecycle import complete, release
from splitplan.planner.simulate.prefix import free_kv, publish_prefix, trim_cache
from splitplan.planner.simulate.queues import set_wake
from splitplan.planner.simulate.running import held_pages, join_running, leave_running, prompt_pages
from splitplan.planner.simulate.runs import advance, end_run, wake_idle_lanes
from splitplan.planner.simulate.schedule import schedule
from splitplan.planner.simulate.steptime import run_end_s
from splitplan.planner.simulate.transfer import resume_transfer


def boundary(world: World, engine: int, now_s: float) -> None:
    """A run of steps has ended, or an idle engine was woken."""
    steps = world.ints[engine + E_RUN_STEPS]
    if steps > 0:
        advance(world, engine, steps - world.ints[engine + E_RUN_DONE])
        end_run(world, engine)
        _finish_sequences(world, engine, now_s)
        _finish_prompts(world, engine, now_s)
        trim_cache(world, engine)
    if world.ints[engine + E_LANES] > 1:
        _lane_boundary(world, engine, now_s)
    else:
        schedule(world, engine, now_s)


def _lane_boundary(world: World, engine: int, now_s: float) -> None:
    """A lane schedules when the first stage is free for it; what it leaves is for the lanes that idle.

    The next chunk of a prompt follows the one before through the pipeline, a stage behind it.
    """
    ints = world.ints
    home = ints[engine + E_HOME]
    if ints[engine + E_RUN_STEPS] > 0:
        world.floats[engine + E_READY_S] = now_s
        ints[engine + E_RUN_STEPS] = 0
    if world.floats[home + E_STAGE_FREE_S] > now_s:
        set_wake(world, FIRST_ENGINE_SOURCE + ints[engine + E_INDEX], world.floats[home + E_STAGE_FREE_S])
        return
    schedule(world, engine, now_s)
    waiting = max(ints[home + E_WAIT_HEAD], ints[home + E_INCOMING_HEAD], ints[home + E_READY_HEAD])
    waiting = max(waiting, ints[home + E_PARTIAL])
    if ints[engine + E_RUN_STEPS] > 0 and waiting >= 0:
        wake_idle_lanes(world, home, world.floats[home + E_STAGE_FREE_S])


def one_step(world: World, engine: int, now_s: float) -> None:
    """Visit a boundary inside a run (for tests): the same arithmetic, step by step."""
    ints = world.ints
    left = ints[engine + E_RUN_STEPS] - ints[engine + E_RUN_DONE]
    if left <= 1:
        boundary(world, engine, now_s)
        return
    advance(world, engine, 1)
    source = FIRST_ENGINE_SOURCE + ints[engine + E_INDEX]
    set_wake(world, source, run_end_s(world, engine, ints[engine + E_RUN_DONE] + 1))


def _finish_sequences(world: World, engine: int, now_s: float) -> None:
    ints = world.ints
    heap = ints[engine + E_HEAP]
    home = world.ints[engine + E_HOME]
    while ints[engine + E_RUNNING] > 0:
        request = world.ints[heap]
        if world.ints[request + R_FINISH_STEP] > ints[engine + E_STEPS]:
            break
        free_kv(world, engine, request, held_pages(world, engine, leave_running(world, engine, request)))
        complete(world, home, request, now_s)


def _finish_prompts(world: World, engine: int, now_s: float) -> None:
    request = world.ints[engine + E_PROMPTS]
    world.ints[engine + E_PROMPTS] = -1
    while request >= 0:
        following = world.ints[request + R_LATER]
        world.floats[request + R_PREFILLED_S] = now_s
        publish_prefix(world, engine, request)
        if world.ints[engine + E_ROLE] == PREFILL:
            _hand_over(world, engine, request, now_s)
        else:
            _start_decoding(world, engine, request, now_s)
        request = following


def _start_decoding(world: World, engine: int, request: int, now_s: float) -> None:
    """The step that ended a prompt here has also given a token."""
    ints = world.ints
    home = world.ints[engine + E_HOME]
    context = ints[request + R_TARGET]
    record_token(world, request, now_s)
    ints[request + R_GENERATED] += 1
    if ints[request + R_GENERATED] == ints[request + R_OUTPUT]:
        free_kv(world, engine, request, prompt_pages(world, engine, context))
        complete(world, home, request, now_s)
    else:
        ints[home + E_KV_FREE] += prompt_pages(world, engine, context) - held_pages(world, engine, context)
        join_running(world, engine, request, context)


def _hand_over(world: World, engine: int, request: int, now_s: float) -> None:
    """A prefill instance is done with a prompt: on to a decode instance, or out."""
    ints = world.ints
    home = world.ints[engine + E_HOME]
    context = ints[request + R_TARGET]
    alone = world.ints[G_DECODE_COUNT] == 0
    if alone or world.ints[G_DECODE_EMITS_FIRST] == 0:
        record_token(world, request, now_s)
        world.floats[request + R_LAST_S] = now_s
        ints[request + R_GENERATED] += 1
    if alone or ints[request + R_GENERATED] == ints[request + R_OUTPUT]:
        free_kv(world, engine, request, prompt_pages(world, engine, context))
        complete(world, home, request, now_s)
        return
    release(world, home, request)
    ints[request + R_STATE] = TRANSFERRING
    if world.ints[G_LAYERWISE] == 0:
        ask_decoder(world, request, now_s)
    elif world.floats[request + R_FLOWN_S] >= 0.0:
        resume_transfer(world, request, now_s)
