"""Failures, restarts and role switches at given times. Part of the hot loop: runs as is and compiled.

An instance that fails loses its KV, its queues and its prefix cache. Its requests start again elsewhere: tokens that
are out stay out and become part of the prompt. A role switch takes nothing new in, lets what it has finish, and comes
back in the new role after its reload time. While no instance can take a request, it waits in limbo.
"""

from __future__ import annotations

from splitplan.planner.simulate.intake import dispatch
from splitplan.planner.simulate.layout import (
    C_COUNT,
    C_NEWEST,
    C_OLDEST,
    C_REFERENCES,
    C_SIZE,
    C_SLOT_WIDTH,
    C_SLOTS,
    CHANGE_FAIL,
    CHANGE_RESTART,
    DECODING,
    DRAINING,
    E_ARRIVING,
    E_BACK_S,
    E_BLOCK_TOKENS,
    E_BUSY_S,
    E_CACHE,
    E_CONTEXT,
    E_CROSSING,
    E_CROSSING_SIZE,
    E_DECODING,
    E_INCOMING_HEAD,
    E_INDEX,
    E_JOINED_COUNT,
    E_KV_FREE,
    E_KV_PAGES,
    E_LANES,
    E_LATEST,
    E_LEAVING,
    E_LOAD,
    E_LOAD_TOKENS,
    E_NEXT_ROLE,
    E_PARTIAL,
    E_PAUSED_S,
    E_PHASES,
    E_PROMPTS,
    E_READY_HEAD,
    E_RELOAD_S,
    E_ROLE,
    E_RUN_DONE,
    E_RUN_START_S,
    E_RUN_STEPS,
    E_RUNNING,
    E_STAGE_FREE_S,
    E_STEPS,
    E_UP,
    E_WAIT_HEAD,
    E_WIDTH,
    FIRST_ENGINE_SOURCE,
    G_END_CHANGE,
    G_END_ENGINE,
    G_FIRST_ENGINE,
    G_FIRST_REQUEST,
    G_LIMBO_HEAD,
    G_NEXT,
    G_NEXT_CHANGE,
    G_RESTARTS,
    INFINITE_S,
    K_ENGINE,
    K_KIND,
    K_RELOAD_S,
    K_ROLE,
    K_TIME_S,
    K_WIDTH,
    PENDING,
    R_AT,
    R_DECODER,
    R_DELIVERED_S,
    R_EARLIER,
    R_ENTRY,
    R_FINISH_STEP,
    R_FIRST_S,
    R_GENERATED,
    R_INPUT,
    R_LAST_S,
    R_NEXT,
    R_OUTPUT,
    R_PREFILLED_S,
    R_SHARED,
    R_STATE,
    R_TARGET,
    R_WIDTH,
    SOURCE_CONTROL,
    TRANSFERRING,
    UP,
    WAITING,
    World,
)
from splitplan.planner.simulate.lifecycle import release, settle_drain
from splitplan.planner.simulate.prefix import free_kv
from splitplan.planner.simulate.queues import push_back, set_wake
from splitplan.planner.simulate.reads import cancel_reads
from splitplan.planner.simulate.running import add_slow_steps, held_pages, prompt_pages
from splitplan.planner.simulate.runs import advance, wake_idle_lanes
from splitplan.planner.simulate.steptime import run_end_s, steps_until
from splitplan.planner.simulate.transfer import cancel_transfer, delivered_tokens


def changes_due(world: World, now_s: float) -> None:
    """Apply the changes of this moment and bring back the instances whose reload is over."""
    ints = world.ints
    floats = world.floats
    while ints[G_NEXT_CHANGE] < ints[G_END_CHANGE] and floats[ints[G_NEXT_CHANGE] + K_TIME_S] <= now_s:
        change = ints[G_NEXT_CHANGE]
        ints[G_NEXT_CHANGE] = change + K_WIDTH
        _apply(world, change, now_s)
    back = False
    soonest_s = INFINITE_S
    for home in range(ints[G_FIRST_ENGINE], ints[G_END_ENGINE], E_WIDTH):
        if floats[home + E_BACK_S] <= now_s:
            floats[home + E_BACK_S] = INFINITE_S
            ints[home + E_UP] = UP
            _take_role(world, home)
            back = True
        soonest_s = min(soonest_s, floats[home + E_BACK_S])
    if ints[G_NEXT_CHANGE] < ints[G_END_CHANGE]:
        soonest_s = min(soonest_s, floats[ints[G_NEXT_CHANGE] + K_TIME_S])
    set_wake(world, SOURCE_CONTROL, soonest_s)
    if back:
        _leave_limbo(world, now_s)


def _take_role(world: World, home: int) -> None:
    for lane in range(home, home + world.ints[home + E_LANES] * E_WIDTH, E_WIDTH):
        world.ints[lane + E_ROLE] = world.ints[home + E_NEXT_ROLE]


def _leave_limbo(world: World, now_s: float) -> None:
    ints = world.ints
    request = ints[G_LIMBO_HEAD]
    ints[G_LIMBO_HEAD] = -1
    while request >= 0:
        following = ints[request + R_NEXT]
        dispatch(world, request, now_s)
        request = following


def _apply(world: World, change: int, now_s: float) -> None:
    ints = world.ints
    home = ints[change + K_ENGINE]
    if ints[change + K_KIND] == CHANGE_FAIL:
        ints[home + E_UP] = 0
        world.floats[home + E_BACK_S] = INFINITE_S
        _fail(world, home, now_s)
    elif ints[change + K_KIND] == CHANGE_RESTART:
        if ints[home + E_UP] == 0:
            world.floats[home + E_BACK_S] = now_s + world.floats[change + K_RELOAD_S]
    elif ints[home + E_UP] != 0:
        ints[home + E_UP] = DRAINING
        ints[home + E_NEXT_ROLE] = ints[change + K_ROLE]
        world.floats[home + E_RELOAD_S] = world.floats[change + K_RELOAD_S]
        settle_drain(world, home, now_s)


def _fail(world: World, home: int, now_s: float) -> None:
    ints = world.ints
    for lane in range(home, home + ints[home + E_LANES] * E_WIDTH, E_WIDTH):
        _stop_lane(world, lane, now_s)
    ints[home + E_KV_FREE] = ints[home + E_KV_PAGES]
    ints[home + E_LOAD] = 0
    ints[home + E_LOAD_TOKENS] = 0
    ints[home + E_ARRIVING] = 0
    ints[home + E_WAIT_HEAD] = -1
    ints[home + E_INCOMING_HEAD] = -1
    ints[home + E_READY_HEAD] = -1
    _forget_all(world, ints[home + E_CACHE])
    lost = -1
    for request in range(ints[G_NEXT] - R_WIDTH, ints[G_FIRST_REQUEST] - R_WIDTH, -R_WIDTH):
        if _loses(world, request, home, now_s):
            ints[request + R_EARLIER] = lost  # nobody restarts before all have left
            lost = request
    while lost >= 0:
        following = ints[lost + R_EARLIER]
        _restart(world, lost, now_s)
        lost = following


def _stop_lane(world: World, lane: int, now_s: float) -> None:
    """Tokens that are out by now count; the step that was under way is lost."""
    ints = world.ints
    floats = world.floats
    if ints[lane + E_RUN_STEPS] > 0:
        steps = steps_until(world, lane, now_s, ints[lane + E_RUN_STEPS])
        if run_end_s(world, lane, steps) > now_s:
            steps -= 1
        advance(world, lane, max(0, steps - ints[lane + E_RUN_DONE]))
        floats[lane + E_BUSY_S] += max(0.0, now_s - floats[lane + E_RUN_START_S])
    cancel_reads(world, lane, now_s)
    request = ints[lane + E_LATEST]
    while request >= 0:
        left = ints[request + R_FINISH_STEP] - ints[lane + E_STEPS]
        ints[request + R_GENERATED] = ints[request + R_OUTPUT] - max(left, 1)
        add_slow_steps(world, lane, request)
        request = ints[request + R_EARLIER]
    for field in (E_RUNNING, E_CONTEXT, E_DECODING, E_RUN_STEPS, E_RUN_DONE, E_JOINED_COUNT):
        ints[lane + field] = 0
    for field in (E_LATEST, E_PARTIAL, E_PROMPTS):
        ints[lane + field] = -1
    for phase in range(ints[lane + E_BLOCK_TOKENS]):
        ints[ints[lane + E_PHASES] + phase] = 0
        ints[ints[lane + E_LEAVING] + phase] = 0
    for slot in range(ints[lane + E_CROSSING_SIZE]):
        ints[ints[lane + E_CROSSING] + slot] = 0
    floats[lane + E_PAUSED_S] = 0.0
    floats[lane + E_STAGE_FREE_S] = 0.0
    set_wake(world, FIRST_ENGINE_SOURCE + ints[lane + E_INDEX], INFINITE_S)


def _forget_all(world: World, cache: int) -> None:
    ints = world.ints
    if cache >= 0:
        ints[cache + C_OLDEST] = -1
        ints[cache + C_NEWEST] = -1
        ints[cache + C_COUNT] = 0
        first = cache + C_SLOTS
        for slot in range(first, first + ints[cache + C_SIZE] * C_SLOT_WIDTH, C_SLOT_WIDTH):
            ints[slot + C_REFERENCES] = -1


def _loses(world: World, request: int, home: int, now_s: float) -> bool:
    """Whether the request was on the failed instance, or on its way to or from it; the other side lets go of it."""
    ints = world.ints
    state = ints[request + R_STATE]
    if state == TRANSFERRING:
        sender = ints[request + R_ENTRY]
        receiver = ints[request + R_DECODER]
        if sender != home and receiver != home:
            return False
        reserved = cancel_transfer(world, request, now_s)
        if receiver != home:
            if reserved:
                ints[receiver + E_ARRIVING] -= 1
                ints[receiver + E_KV_FREE] += held_pages(world, receiver, delivered_tokens(world, request))
            else:
                _leave_incoming(world, receiver, request)
            release(world, receiver, request)
            wake_idle_lanes(world, receiver, now_s)
            settle_drain(world, receiver, now_s)
        elif sender != home:
            free_kv(world, sender, request, prompt_pages(world, sender, ints[request + R_TARGET]))
            wake_idle_lanes(world, sender, now_s)
            settle_drain(world, sender, now_s)
        return True
    return WAITING <= state <= DECODING and ints[request + R_AT] == home


def _leave_incoming(world: World, home: int, request: int) -> None:
    ints = world.ints
    waiting = ints[home + E_INCOMING_HEAD]
    ints[home + E_INCOMING_HEAD] = -1
    while waiting >= 0:
        following = ints[waiting + R_NEXT]
        if waiting != request:
            push_back(world, home, E_INCOMING_HEAD, waiting)
        waiting = following


def _restart(world: World, request: int, now_s: float) -> None:
    """From the beginning: prompt and what is out already are computed again, somewhere."""
    ints = world.ints
    floats = world.floats
    ints[G_RESTARTS] += 1
    ints[request + R_STATE] = PENDING
    ints[request + R_TARGET] = ints[request + R_INPUT] + ints[request + R_GENERATED]
    ints[request + R_DECODER] = -1
    ints[request + R_SHARED] = 0
    floats[request + R_PREFILLED_S] = -1.0
    floats[request + R_DELIVERED_S] = -1.0
    if floats[request + R_FIRST_S] >= 0.0:
        floats[request + R_LAST_S] = now_s
    dispatch(world, request, now_s)
