"""What an engine does in its next step. Part of the hot loop: runs as is and compiled.

As vLLM V1: running decodes first (each one token, preempting the latest admitted when KV blocks are short), then the
prompt that is half done, then waiting requests in order while slots, the token budget and KV blocks last. A prompt's
blocks are taken whole on admission; in layers with a window, as many as it holds at a time.
Where prompts go first, a step holds prompts alone as long as one is half done or can be admitted; decodes wait.
A static batch, once it decodes, takes nobody in until all of it is done.
"""

from __future__ import annotations

from splitplan.planner.simulate.intake import ask_decoder, has_decode_left, record_token
from splitplan.planner.simulate.layout import (
    E_ARRIVING,
    E_BUDGET_TOKENS,
    E_BUSY_S,
    E_CHUNKS_S,
    E_DECODING,
    E_HOME,
    E_HOST_READ_BYTES,
    E_INCOMING_HEAD,
    E_JOINED_COUNT,
    E_KV_FREE,
    E_LANES,
    E_LATEST,
    E_MAX_SEQS,
    E_OPEN,
    E_PARTIAL,
    E_PREEMPTED,
    E_PREEMPTIONS,
    E_PREFILL_FIRST,
    E_PROMPTS,
    E_PROMPTS_TAIL,
    E_READY_HEAD,
    E_ROLE,
    E_RUN_START_S,
    E_RUNNING,
    E_STAGE_FREE_S,
    E_STATIC,
    E_STEP_ATTENTION_S,
    E_STEP_PROMPTS,
    E_STEP_TOKENS,
    E_STEPS,
    E_STORE_READ_BYTES,
    E_UNLIKE,
    E_WAIT_HEAD,
    E_WIDTH,
    G_LAYERWISE,
    G_PREEMPTIONS,
    PREFILL,
    PREFILLING,
    R_CACHED,
    R_COMPUTED,
    R_EARLIER,
    R_FINISH_STEP,
    R_GENERATED,
    R_INPUT,
    R_LAST_S,
    R_LATER,
    R_OUTPUT,
    R_PREEMPTIONS,
    R_STARTED_S,
    R_STATE,
    R_TARGET,
    WAITING,
    World,
)
from splitplan.planner.simulate.prefix import claim_prefix, free_kv, pages_to_take, trim_cache
from splitplan.planner.simulate.queues import pop_front, push_front
from splitplan.planner.simulate.reads import begin_reads, must_read
from splitplan.planner.simulate.running import (
    cross_windows,
    held_pages,
    join_running,
    leave_running,
    may_take,
    prompt_pages,
    step_pages,
)
from splitplan.planner.simulate.runs import start_run, wake_idle_lanes
from splitplan.planner.simulate.steptime import prefill_attention_s, run_end_s
from splitplan.planner.simulate.transfer import delivered_tokens, start_transfer


def schedule(world: World, engine: int, now_s: float) -> None:
    """Build the engine's next step and start it, or fall idle."""
    ints = world.ints
    _build_step(world, engine, now_s)
    while ints[engine + E_PREEMPTED] == 1 and ints[engine + E_DECODING] + ints[engine + E_STEP_TOKENS] == 0:
        _build_step(world, engine, now_s)  # all were preempted: their room goes to those that wait
    trim_cache(world, engine)
    if must_read(world, engine):
        begin_reads(world, engine, now_s)
    else:
        start_run(world, engine, now_s)
        _record_joined(world, engine)


def start_after_reads(world: World, engine: int, now_s: float) -> None:
    """All that the step waited for is read: it computes. The wait is part of it; on a pipeline, only of the lane's."""
    ints = world.ints
    begun_s = world.floats[engine + E_RUN_START_S]
    if ints[engine + E_LANES] > 1:
        home = ints[engine + E_HOME]
        world.floats[home + E_STAGE_FREE_S] = now_s
        start_run(world, engine, now_s)
        world.floats[engine + E_BUSY_S] += now_s - begun_s
        wake_idle_lanes(world, home, world.floats[home + E_STAGE_FREE_S])
    else:
        world.floats[engine + E_STEP_ATTENTION_S] += now_s - begun_s
        start_run(world, engine, begun_s)
    _record_joined(world, engine)


def _build_step(world: World, engine: int, now_s: float) -> None:
    ints = world.ints
    home = ints[engine + E_HOME]
    ints[engine + E_STEP_TOKENS] = 0
    ints[engine + E_STEP_PROMPTS] = 0
    ints[engine + E_PREEMPTED] = 0
    world.floats[engine + E_STEP_ATTENTION_S] = 0.0
    world.floats[engine + E_HOST_READ_BYTES] = 0.0
    world.floats[engine + E_STORE_READ_BYTES] = 0.0
    if ints[engine + E_UNLIKE] == 1:
        for stage in range(home, home + ints[engine + E_LANES] * E_WIDTH, E_WIDTH):
            world.floats[stage + E_CHUNKS_S] = 0.0
    ints[engine + E_JOINED_COUNT] = 0
    ints[engine + E_DECODING] = 0
    if ints[engine + E_RUNNING] == 0 and ints[home + E_PARTIAL] < 0:
        ints[engine + E_OPEN] = 1
    if ints[engine + E_PREFILL_FIRST] == 0 or not _prompt_goes_first(world, engine):
        _join_delivered(world, engine)
        _make_room(world, engine, now_s)
        ints[engine + E_DECODING] = ints[engine + E_RUNNING]
        if ints[engine + E_STATIC] == 1 and ints[engine + E_DECODING] > 0:
            ints[engine + E_OPEN] = 0
    if ints[home + E_PARTIAL] >= 0 and ints[engine + E_RUNNING] < ints[engine + E_MAX_SEQS]:
        _add_chunk(world, engine, ints[home + E_PARTIAL])
    if ints[engine + E_PREEMPTED] == 0 and ints[engine + E_OPEN] == 1:
        _admit_waiting(world, engine, now_s)
        _reserve_incoming(world, engine, now_s)


def _prompt_goes_first(world: World, engine: int) -> bool:
    """Whether a prompt is half done, or the first that waits can be admitted."""
    ints = world.ints
    home = ints[engine + E_HOME]
    if ints[home + E_PARTIAL] >= 0:
        return ints[engine + E_RUNNING] < ints[engine + E_MAX_SEQS]
    request = ints[home + E_WAIT_HEAD]
    if request < 0 or ints[engine + E_OPEN] == 0 or ints[engine + E_RUNNING] >= ints[engine + E_MAX_SEQS]:
        return False
    return may_take(world, engine, pages_to_take(world, home, request, ints[request + R_TARGET]))


def _join_delivered(world: World, engine: int) -> None:
    ints = world.ints
    home = world.ints[engine + E_HOME]
    slots = ints[engine + E_MAX_SEQS]
    if ints[home + E_PARTIAL] >= 0:
        slots -= 1
    if ints[engine + E_OPEN] == 0:
        return
    while ints[home + E_READY_HEAD] >= 0 and ints[engine + E_RUNNING] < slots:
        request = pop_front(world, home, E_READY_HEAD)
        ints[home + E_ARRIVING] -= 1
        join_running(world, engine, request, delivered_tokens(world, request))
        ints[engine + E_JOINED_COUNT] += 1


def _make_room(world: World, engine: int, now_s: float) -> None:
    """Take the blocks the decodes need in their next step; while they are short, preempt the latest admitted."""
    ints = world.ints
    home = world.ints[engine + E_HOME]
    while ints[engine + E_RUNNING] > 0:
        needed = step_pages(world, engine, ints[engine + E_STEPS])
        if needed <= ints[home + E_KV_FREE]:
            ints[home + E_KV_FREE] -= needed
            cross_windows(world, engine, ints[engine + E_STEPS])
            return
        if ints[home + E_PARTIAL] >= 0:
            _preempt_partial(world, engine)
        else:
            _preempt_latest(world, engine, now_s)


def _preempt_partial(world: World, engine: int) -> None:
    home = world.ints[engine + E_HOME]
    request = world.ints[home + E_PARTIAL]
    world.ints[home + E_PARTIAL] = -1
    free_kv(world, engine, request, prompt_pages(world, engine, world.ints[request + R_TARGET]))
    _wait_again(world, engine, request)


def _preempt_latest(world: World, engine: int, now_s: float) -> None:
    ints = world.ints
    request = world.ints[engine + E_LATEST]
    left = ints[request + R_FINISH_STEP] - world.ints[engine + E_STEPS]
    ints[request + R_GENERATED] = ints[request + R_OUTPUT] - left
    free_kv(world, engine, request, held_pages(world, engine, leave_running(world, engine, request)))
    if world.ints[engine + E_JOINED_COUNT] > 0:  # it had joined at this very boundary: no token since
        world.ints[engine + E_JOINED_COUNT] -= 1
    else:
        world.floats[request + R_LAST_S] = now_s
    _wait_again(world, engine, request)


def _wait_again(world: World, engine: int, request: int) -> None:
    """Preempted by recompute: all its tokens so far become a prompt, first in the queue."""
    ints = world.ints
    home = world.ints[engine + E_HOME]
    ints[request + R_TARGET] = ints[request + R_INPUT] + ints[request + R_GENERATED]
    ints[request + R_STATE] = WAITING
    ints[request + R_PREEMPTIONS] += 1
    push_front(world, home, E_WAIT_HEAD, request)
    world.ints[engine + E_PREEMPTED] = 1
    world.ints[engine + E_PREEMPTIONS] += 1
    world.ints[G_PREEMPTIONS] += 1


def _admit_waiting(world: World, engine: int, now_s: float) -> None:
    ints = world.ints
    home = world.ints[engine + E_HOME]
    while ints[home + E_WAIT_HEAD] >= 0 and ints[home + E_PARTIAL] < 0:
        slots = ints[engine + E_RUNNING] + ints[engine + E_STEP_PROMPTS]
        tokens = ints[engine + E_DECODING] + ints[engine + E_STEP_TOKENS]
        request = ints[home + E_WAIT_HEAD]
        pages = pages_to_take(world, home, request, ints[request + R_TARGET])
        if slots >= ints[engine + E_MAX_SEQS] or tokens >= ints[engine + E_BUDGET_TOKENS]:
            break
        if not may_take(world, engine, pages):
            break
        pop_front(world, home, E_WAIT_HEAD)
        ints[home + E_KV_FREE] -= pages
        claim_prefix(world, engine, request)
        ints[request + R_STATE] = PREFILLING
        ints[request + R_COMPUTED] = min(ints[request + R_CACHED], ints[request + R_TARGET] - 1)
        if world.floats[request + R_STARTED_S] < 0.0:
            world.floats[request + R_STARTED_S] = now_s
        _add_chunk(world, engine, request)
        if world.ints[G_LAYERWISE] == 1 and ints[engine + E_ROLE] == PREFILL and has_decode_left(world, request):
            ask_decoder(world, request, now_s)


def _add_chunk(world: World, engine: int, request: int) -> None:
    """As much of a prompt as the step's budget takes."""
    ints = world.ints
    home = ints[engine + E_HOME]
    computed = ints[request + R_COMPUTED]
    budget = ints[engine + E_BUDGET_TOKENS] - ints[engine + E_DECODING] - ints[engine + E_STEP_TOKENS]
    tokens = min(ints[request + R_TARGET] - computed, budget)
    ints[home + E_PARTIAL] = request
    if tokens <= 0:
        return
    if ints[engine + E_UNLIKE] == 1:
        for stage in range(home, home + ints[engine + E_LANES] * E_WIDTH, E_WIDTH):
            world.floats[stage + E_CHUNKS_S] += prefill_attention_s(world, stage, tokens, computed)
    else:
        world.floats[engine + E_STEP_ATTENTION_S] += prefill_attention_s(world, engine, tokens, computed)
    ints[engine + E_STEP_TOKENS] += tokens
    ints[request + R_COMPUTED] = computed + tokens
    if computed + tokens == ints[request + R_TARGET]:
        ints[home + E_PARTIAL] = -1
        ints[engine + E_STEP_PROMPTS] += 1
        _append_prompt(world, engine, request)


def _append_prompt(world: World, engine: int, request: int) -> None:
    world.ints[request + R_LATER] = -1
    if world.ints[engine + E_PROMPTS] < 0:
        world.ints[engine + E_PROMPTS] = request
    else:
        world.ints[world.ints[engine + E_PROMPTS_TAIL] + R_LATER] = request
    world.ints[engine + E_PROMPTS_TAIL] = request


def _reserve_incoming(world: World, engine: int, now_s: float) -> None:
    """Blocks for requests whose KV is elsewhere, in order; their transfer starts now."""
    ints = world.ints
    home = world.ints[engine + E_HOME]
    while ints[home + E_INCOMING_HEAD] >= 0 and ints[engine + E_RUNNING] < ints[engine + E_MAX_SEQS]:
        request = ints[home + E_INCOMING_HEAD]
        pages = held_pages(world, engine, delivered_tokens(world, request))
        if not may_take(world, engine, pages):
            break
        pop_front(world, home, E_INCOMING_HEAD)
        ints[home + E_KV_FREE] -= pages
        ints[home + E_ARRIVING] += 1
        start_transfer(world, request, now_s)


def _record_joined(world: World, engine: int) -> None:
    """Sequences that came with their KV get their token with the first step of the run that has just begun."""
    request = world.ints[engine + E_LATEST]
    for _ in range(world.ints[engine + E_JOINED_COUNT]):
        record_token(world, request, run_end_s(world, engine, 1))
        request = world.ints[request + R_EARLIER]
