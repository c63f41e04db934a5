"""One engine: what happens at a step boundary. Part of the hot loop: runs as is and compiled.

A boundary settles the run of steps that ended, then schedules the next one as vLLM V1 does: running decodes first (each
one token, preempting the latest admitted when KV blocks are short), then the prompt that is half done, then waiting
requests in order while slots, the token budget and KV blocks last. A prompt's blocks are taken whole on admission.
Where prompts go first, a step holds prompts alone as long as one is half done or can be admitted; decodes wait.
A static batch, once it decodes, takes nobody in until all of it is done.
"""

from __future__ import annotations

from splitplan.planner.simulate.layout import (
    E_BLOCK_TOKENS,
    E_BUDGET_TOKENS,
    E_DECODING,
    E_HEAP,
    E_HOME,
    E_INCOMING_HEAD,
    E_INDEX,
    E_JOINED_COUNT,
    E_KV_FREE,
    E_LANES,
    E_LATEST,
    E_MAX_SEQS,
    E_OPEN,
    E_PARTIAL,
    E_PHASES,
    E_PREEMPTED,
    E_PREEMPTIONS,
    E_PREFILL_FIRST,
    E_PROMPTS,
    E_PROMPTS_TAIL,
    E_READY_HEAD,
    E_READY_S,
    E_ROLE,
    E_RUN_DONE,
    E_RUN_STEPS,
    E_RUNNING,
    E_STAGE_FREE_S,
    E_STATIC,
    E_STEP_ATTENTION_S,
    E_STEP_PROMPTS,
    E_STEP_TOKENS,
    E_STEPS,
    E_WAIT_HEAD,
    FIRST_ENGINE_SOURCE,
    G_DECODE_COUNT,
    G_DECODE_EMITS_FIRST,
    G_LAYERWISE,
    G_PREEMPTIONS,
    PREFILL,
    PREFILLING,
    R_CACHED,
    R_COMPUTED,
    R_DECODER,
    R_EARLIER,
    R_FINISH_STEP,
    R_FIRST_S,
    R_FLOWN_S,
    R_GENERATED,
    R_INPUT,
    R_LAST_S,
    R_LATER,
    R_OUTPUT,
    R_PREEMPTIONS,
    R_PREFILLED_S,
    R_STARTED_S,
    R_STATE,
    R_TARGET,
    TRANSFERRING,
    WAITING,
    World,
)
from splitplan.planner.simulate.lifecycle import assign, complete, release
from splitplan.planner.simulate.prefix import blocks_to_take, claim_prefix, free_kv, publish_prefix, trim_cache
from splitplan.planner.simulate.queues import pop_front, push_back, push_front, set_wake
from splitplan.planner.simulate.routing import choose_decoder
from splitplan.planner.simulate.running import blocks_for, join_running, leave_running, may_take
from splitplan.planner.simulate.runs import advance, end_run, gap_bin, notify, start_run, wake_idle_lanes
from splitplan.planner.simulate.steptime import prefill_attention_s, run_end_s
from splitplan.planner.simulate.transfer import resume_transfer, start_transfer


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
        _schedule(world, engine, now_s)


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
    _schedule(world, engine, now_s)
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


def enqueue_prompt(world: World, home: int, request: int, now_s: float) -> None:
    """A request that needs prefill joins the engine's queue."""
    alone = world.ints[home + E_WAIT_HEAD] < 0
    world.ints[request + R_STATE] = WAITING
    push_back(world, home, E_WAIT_HEAD, request)
    if alone or world.ints[home + E_LANES] > 1 or world.ints[home + E_RUN_STEPS] == 0:
        notify(world, home, now_s, blocks_to_take(world, home, request, world.ints[request + R_TARGET]))


def enqueue_incoming(world: World, home: int, request: int, now_s: float) -> None:
    """A request whose KV is elsewhere asks a decode instance for blocks."""
    alone = world.ints[home + E_INCOMING_HEAD] < 0
    push_back(world, home, E_INCOMING_HEAD, request)
    if alone or world.ints[home + E_LANES] > 1 or world.ints[home + E_RUN_STEPS] == 0:
        notify(world, home, now_s, blocks_for(world, home, delivered_tokens(world, request)))


def arrive_with_kv(world: World, home: int, request: int, now_s: float) -> None:
    """A request that comes prefilled from outside (decode instances alone), maybe with its first token."""
    if world.ints[G_DECODE_EMITS_FIRST] == 0:
        world.floats[request + R_FIRST_S] = now_s
        world.floats[request + R_LAST_S] = now_s
        world.ints[request + R_GENERATED] = 1
        if world.ints[request + R_OUTPUT] == 1:
            complete(world, home, request, now_s)
            return
    enqueue_incoming(world, home, request, now_s)


def delivered_tokens(world: World, request: int) -> int:
    """KV tokens a decode instance starts with: it computes the last prompt token again where it emits the first one."""
    tokens = world.ints[request + R_INPUT]
    if world.ints[G_DECODE_EMITS_FIRST] == 1:
        tokens -= 1
    return tokens


def _finish_sequences(world: World, engine: int, now_s: float) -> None:
    ints = world.ints
    heap = ints[engine + E_HEAP]
    home = world.ints[engine + E_HOME]
    while ints[engine + E_RUNNING] > 0:
        request = world.ints[heap]
        if world.ints[request + R_FINISH_STEP] > ints[engine + E_STEPS]:
            break
        free_kv(world, engine, request, leave_running(world, engine, request))
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
    _record_token(world, request, now_s)
    ints[request + R_GENERATED] += 1
    if ints[request + R_GENERATED] == ints[request + R_OUTPUT]:
        free_kv(world, engine, request, context)
        complete(world, home, request, now_s)
    else:
        join_running(world, engine, request, context)


def _record_token(world: World, request: int, now_s: float) -> None:
    """A token that did not follow the one before by one step: the first, or one after a preemption or a transfer."""
    floats = world.floats
    if floats[request + R_FIRST_S] < 0.0:
        floats[request + R_FIRST_S] = now_s
    else:
        world.ints[gap_bin(world, now_s - floats[request + R_LAST_S])] += 1


def _hand_over(world: World, engine: int, request: int, now_s: float) -> None:
    """A prefill instance is done with a prompt: on to a decode instance, or out."""
    ints = world.ints
    home = world.ints[engine + E_HOME]
    alone = world.ints[G_DECODE_COUNT] == 0
    if alone or world.ints[G_DECODE_EMITS_FIRST] == 0:
        world.floats[request + R_FIRST_S] = now_s
        world.floats[request + R_LAST_S] = now_s
        ints[request + R_GENERATED] = 1
    if alone or ints[request + R_GENERATED] == ints[request + R_OUTPUT]:
        free_kv(world, engine, request, ints[request + R_INPUT])
        complete(world, home, request, now_s)
        return
    release(world, home, request)
    ints[request + R_STATE] = TRANSFERRING
    if world.ints[G_LAYERWISE] == 0:
        _ask_decoder(world, request, now_s)
    elif world.floats[request + R_FLOWN_S] >= 0.0:
        resume_transfer(world, request, now_s)


def _ask_decoder(world: World, request: int, now_s: float) -> None:
    decoder = choose_decoder(world, request)
    world.ints[request + R_DECODER] = decoder
    assign(world, decoder, request)
    enqueue_incoming(world, decoder, request, now_s)


def _schedule(world: World, engine: int, now_s: float) -> None:
    ints = world.ints
    _build_step(world, engine, now_s)
    while ints[engine + E_PREEMPTED] == 1 and ints[engine + E_DECODING] + ints[engine + E_STEP_TOKENS] == 0:
        _build_step(world, engine, now_s)  # all were preempted: their room goes to those that wait
    trim_cache(world, engine)
    start_run(world, engine, now_s)
    _record_joined(world, engine)


def _build_step(world: World, engine: int, now_s: float) -> None:
    ints = world.ints
    home = ints[engine + E_HOME]
    ints[engine + E_STEP_TOKENS] = 0
    ints[engine + E_STEP_PROMPTS] = 0
    ints[engine + E_PREEMPTED] = 0
    world.floats[engine + E_STEP_ATTENTION_S] = 0.0
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
    return may_take(world, engine, blocks_to_take(world, home, request, ints[request + R_TARGET]))


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
        join_running(world, engine, request, delivered_tokens(world, request))
        ints[engine + E_JOINED_COUNT] += 1


def _make_room(world: World, engine: int, now_s: float) -> None:
    """Take the blocks the decodes need in their next step; while they are short, preempt the latest admitted."""
    ints = world.ints
    home = world.ints[engine + E_HOME]
    phases = ints[engine + E_PHASES]
    block = ints[engine + E_BLOCK_TOKENS]
    while ints[engine + E_RUNNING] > 0:
        needed = world.ints[phases + ints[engine + E_STEPS] % block]
        if needed <= ints[home + E_KV_FREE]:
            ints[home + E_KV_FREE] -= needed
            return
        if ints[home + E_PARTIAL] >= 0:
            _preempt_partial(world, engine)
        else:
            _preempt_latest(world, engine, now_s)


def _preempt_partial(world: World, engine: int) -> None:
    home = world.ints[engine + E_HOME]
    request = world.ints[home + E_PARTIAL]
    world.ints[home + E_PARTIAL] = -1
    free_kv(world, engine, request, world.ints[request + R_TARGET])
    _wait_again(world, engine, request)


def _preempt_latest(world: World, engine: int, now_s: float) -> None:
    ints = world.ints
    request = world.ints[engine + E_LATEST]
    left = ints[request + R_FINISH_STEP] - world.ints[engine + E_STEPS]
    ints[request + R_GENERATED] = ints[request + R_OUTPUT] - left
    free_kv(world, engine, request, leave_running(world, engine, request))
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
        blocks = blocks_to_take(world, home, request, ints[request + R_TARGET])
        if slots >= ints[engine + E_MAX_SEQS] or tokens >= ints[engine + E_BUDGET_TOKENS]:
            break
        if not may_take(world, engine, blocks):
            break
        pop_front(world, home, E_WAIT_HEAD)
        ints[home + E_KV_FREE] -= blocks
        claim_prefix(world, engine, request)
        ints[request + R_STATE] = PREFILLING
        ints[request + R_COMPUTED] = min(ints[request + R_CACHED], ints[request + R_TARGET] - 1)
        if world.floats[request + R_STARTED_S] < 0.0:
            world.floats[request + R_STARTED_S] = now_s
        _add_chunk(world, engine, request)
        if world.ints[G_LAYERWISE] == 1 and ints[engine + E_ROLE] == PREFILL and _decodes(world, request):
            _ask_decoder(world, request, now_s)


def _decodes(world: World, request: int) -> bool:
    """Whether a prefilled request has anything left to do."""
    return world.ints[G_DECODE_EMITS_FIRST] == 1 or world.ints[request + R_OUTPUT] > 1


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
        blocks = blocks_for(world, engine, delivered_tokens(world, request))
        if not may_take(world, engine, blocks):
            break
        pop_front(world, home, E_INCOMING_HEAD)
        ints[home + E_KV_FREE] -= blocks
        start_transfer(world, request, now_s)


def _record_joined(world: World, engine: int) -> None:
    """Sequences that came with their KV get their token with the first step of the run that has just begun."""
    request = world.ints[engine + E_LATEST]
    for _ in range(world.ints[engine + E_JOINED_COUNT]):
        _record_token(world, request, run_end_s(world, engine, 1))
        request = world.ints[request + R_EARLIER]
