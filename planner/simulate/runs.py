"""Runs of steps: how long nothing changes, and when it does. Part of the hot loop: runs as is and compiled."""

from __future__ import annotations

import math

from splitplan.planner.simulate.layout import (
    E_BATCH_S,
    E_BLOCK_TOKENS,
    E_BUSY_S,
    E_CHUNKS_S,
    E_CONTEXT,
    E_CONTEXT_COUNT,
    E_CONTEXT_KNOTS,
    E_DECODING,
    E_FULL_PAGES,
    E_GAP_S,
    E_HANDOFF_S,
    E_HEAP,
    E_HOME,
    E_HOST_TABLE,
    E_INCOMING_HEAD,
    E_INDEX,
    E_JOINED_COUNT,
    E_KV_FREE,
    E_KV_PAGE_S,
    E_KV_PAGES,
    E_LANES,
    E_LATEST,
    E_MAX_SEQS,
    E_OVERHEAD_DECODE_S,
    E_OVERHEAD_PREFILL_S,
    E_PARTIAL,
    E_PAUSED_COUNT,
    E_PAUSED_S,
    E_PREEMPTED,
    E_READY_S,
    E_RUN_DONE,
    E_RUN_FIRST_S,
    E_RUN_FREE,
    E_RUN_SLOPE_S,
    E_RUN_START_S,
    E_RUN_STEPS,
    E_RUNNING,
    E_SEQUENCE_TABLE,
    E_SLOW,
    E_STAGE_FREE_S,
    E_STAGE_S,
    E_STEP_ATTENTION_S,
    E_STEP_COUNT,
    E_STEP_PROMPTS,
    E_STEP_TOKENS,
    E_STEPS,
    E_TOKEN_TABLE,
    E_UNLIKE,
    E_WAIT_HEAD,
    E_WIDTH,
    E_WINDOW_PAGES,
    FIRST_ENGINE_SOURCE,
    G_EDGE_COUNT,
    G_EDGES,
    G_GAPS,
    G_LIMIT_COUNT,
    G_LIMITS,
    G_STEPPING,
    INFINITE_S,
    R_EARLIER,
    R_FINISH_STEP,
    R_LIMIT,
    R_SLOW_GAPS,
    World,
)
from splitplan.planner.simulate.queues import set_wake
from splitplan.planner.simulate.running import step_pages, take_steps
from splitplan.planner.simulate.steptime import decode_attention_s, run_end_s, segment_below, steps_until


def start_run(world: World, engine: int, now_s: float) -> None:
    """Start the step that was built, or the run of decode steps it begins, or fall idle."""
    ints = world.ints
    floats = world.floats
    source = FIRST_ENGINE_SOURCE + ints[engine + E_INDEX]
    prompt_tokens = ints[engine + E_STEP_TOKENS]
    batch = ints[engine + E_DECODING]
    ints[engine + E_RUN_DONE] = 0
    if batch + prompt_tokens == 0:
        ints[engine + E_RUN_STEPS] = 0
        set_wake(world, source, INFINITE_S)
        return
    floats[engine + E_RUN_START_S] = now_s
    ints[engine + E_RUN_FREE] = ints[ints[engine + E_HOME] + E_KV_FREE]
    sequences = batch + ints[engine + E_STEP_PROMPTS]
    if ints[ints[engine + E_HOME] + E_PARTIAL] >= 0:
        sequences += 1
    device_s = _device_s(world, engine, engine, batch, prompt_tokens)
    host_s = world.floats[ints[engine + E_HOST_TABLE] + min(sequences, ints[engine + E_MAX_SEQS])]
    step_s = max(device_s, host_s) + floats[engine + E_GAP_S]
    floats[engine + E_RUN_FIRST_S] = step_s
    floats[engine + E_RUN_SLOPE_S] = 0.0
    ints[engine + E_RUN_STEPS] = 1
    if ints[engine + E_LANES] > 1:
        _pass_stages(world, engine, step_s, now_s, batch, prompt_tokens, sequences)
    elif prompt_tokens == 0:
        _extend_run(world, engine, device_s, host_s)
    _wake_for_run(world, engine)


def _pass_stages(
    world: World, engine: int, step_s: float, now_s: float, batch: int, prompt_tokens: int, sequences: int
) -> None:
    """A pipeline's step goes from stage to stage, each taking one lane at a time; what it waits for are the bubbles."""
    ints = world.ints
    floats = world.floats
    home = ints[engine + E_HOME]
    end_s = now_s
    stage_s = step_s
    slowest_s = 0.0
    for stage in range(home, home + ints[engine + E_LANES] * E_WIDTH, E_WIDTH):
        if stage > home:
            end_s += floats[engine + E_HANDOFF_S]
        if ints[engine + E_UNLIKE] == 1:
            device_s = _device_s(world, engine, stage, batch, prompt_tokens)
            host_s = floats[ints[stage + E_HOST_TABLE] + min(sequences, ints[engine + E_MAX_SEQS])]
            stage_s = max(device_s, host_s) + floats[stage + E_GAP_S]
        slowest_s = max(slowest_s, stage_s)
        end_s = max(end_s, floats[stage + E_STAGE_FREE_S]) + stage_s
        floats[stage + E_STAGE_FREE_S] = end_s
    if ints[engine + E_DECODING] > ints[engine + E_JOINED_COUNT]:
        floats[engine + E_RUN_START_S] = floats[engine + E_READY_S]  # its last tokens came then
    floats[engine + E_STAGE_S] = slowest_s
    floats[engine + E_RUN_FIRST_S] = end_s - floats[engine + E_RUN_START_S]


def _device_s(world: World, engine: int, stage: int, batch: int, prompt_tokens: int) -> float:
    """Device time of the engine's step by the tables of a stage (its own row's, unless stages are unlike)."""
    ints = world.ints
    floats = world.floats
    overhead = E_OVERHEAD_PREFILL_S if prompt_tokens > 0 else E_OVERHEAD_DECODE_S
    device_s = floats[stage + overhead]
    device_s += world.floats[ints[stage + E_TOKEN_TABLE] + batch + prompt_tokens]
    device_s += world.floats[ints[stage + E_SEQUENCE_TABLE] + batch + ints[engine + E_STEP_PROMPTS]]
    device_s += floats[engine + E_STEP_ATTENTION_S] + floats[stage + E_CHUNKS_S]
    if batch > 0:
        device_s += decode_attention_s(world, stage, batch, ints[engine + E_CONTEXT] / batch + 1.0)
    return device_s


def _extend_run(world: World, engine: int, device_s: float, host_s: float) -> None:
    """A step of decodes only: go on until a sequence ends, a knot is passed, the host hides, or KV runs out."""
    ints = world.ints
    if ints[engine + E_PREEMPTED] == 1 and ints[engine + E_WAIT_HEAD] >= 0:
        return  # what was preempted is looked at again at the next boundary
    floats = world.floats
    batch = ints[engine + E_RUNNING]
    first = world.ints[ints[engine + E_HEAP]]
    steps = world.ints[first + R_FINISH_STEP] - ints[engine + E_STEPS]
    mean = ints[engine + E_CONTEXT] / batch + 1.0
    knots = ints[engine + E_CONTEXT_KNOTS]
    count = ints[engine + E_CONTEXT_COUNT]
    k = segment_below(floats, knots, count, mean)
    if k < count - 2:
        steps = min(steps, max(1, math.ceil(floats[knots + k + 1] - mean)))
    slope_s = decode_attention_s(world, engine, batch, mean + 1.0) - decode_attention_s(world, engine, batch, mean)
    if device_s < host_s:
        if slope_s > 0.0:
            hidden = (host_s - device_s) / slope_s
            if hidden < steps:
                steps = max(1, int(hidden))
    else:
        world.floats[engine + E_RUN_SLOPE_S] = slope_s
        if slope_s < 0.0:
            visible = (host_s - device_s) / slope_s
            if visible < steps:
                steps = max(1, int(visible))
    ints[engine + E_RUN_STEPS] = _steps_with_kv(world, engine, steps)


def _steps_with_kv(world: World, engine: int, most: int) -> int:
    """Steps, at most `most`, whose pages are free; those of the first step are already taken.

    Where windows give pages back, a run also ends before a step that leaves more free than there were, since somebody
    who waits might fit then.
    """
    ints = world.ints
    home = ints[engine + E_HOME]
    free = ints[home + E_KV_FREE]
    block = ints[engine + E_BLOCK_TOKENS]
    windows = ints[engine + E_WINDOW_PAGES]
    waiting = windows > 0 and max(ints[home + E_WAIT_HEAD], ints[home + E_INCOMING_HEAD]) >= 0
    pages = ints[engine + E_RUNNING] * (ints[engine + E_FULL_PAGES] + windows)
    if pages * ((most + block - 2) // block) <= free and not waiting:
        return most
    if windows > 0:
        most = min(most, block)  # within a block no sequence crosses the edge of its window twice
    at_first = free
    steps = 1
    while steps < most:
        free -= step_pages(world, engine, ints[engine + E_STEPS] + steps)
        if free < 0 or (waiting and free > at_first):
            break
        steps += 1
    return steps


def _wake_for_run(world: World, engine: int) -> None:
    steps = world.ints[engine + E_RUN_STEPS]
    if world.ints[G_STEPPING] == 1:
        steps = min(steps, world.ints[engine + E_RUN_DONE] + 1)
    source = FIRST_ENGINE_SOURCE + world.ints[engine + E_INDEX]
    set_wake(world, source, run_end_s(world, engine, steps))


def notify(world: World, engine: int, now_s: float, pages: int) -> None:
    """Something that needs a slot and `pages` arrived: wake an idle engine, or end a run it can join early."""
    ints = world.ints
    if ints[engine + E_LANES] > 1:
        wake_idle_lanes(world, engine, now_s)
        return
    steps = ints[engine + E_RUN_STEPS]
    if steps == 0:
        set_wake(world, FIRST_ENGINE_SOURCE + ints[engine + E_INDEX], now_s)
        return
    if steps == 1 or ints[engine + E_RUNNING] >= ints[engine + E_MAX_SEQS]:
        return
    if pages > ints[engine + E_RUN_FREE] and ints[engine + E_WINDOW_PAGES] == 0:
        return  # a run only takes blocks: what does not fit at its start does not fit within it
    sooner = steps_until(world, engine, now_s, steps)
    if sooner < steps:
        ints[engine + E_RUN_STEPS] = sooner
        _wake_for_run(world, engine)


def wake_idle_lanes(world: World, home: int, time_s: float) -> None:
    """Lanes without a step look for work at `time_s`."""
    ints = world.ints
    for lane in range(home, home + ints[home + E_LANES] * E_WIDTH, E_WIDTH):
        if ints[lane + E_RUN_STEPS] == 0:
            set_wake(world, FIRST_ENGINE_SOURCE + ints[lane + E_INDEX], time_s)


def advance(world: World, engine: int, steps: int) -> None:
    """Account for the next `steps` steps of the current run."""
    if steps == 0:
        return
    ints = world.ints
    done = ints[engine + E_RUN_DONE]
    batch = ints[engine + E_DECODING]
    ints[engine + E_RUN_DONE] = done + steps
    ints[engine + E_STEP_COUNT] += steps
    if batch > 0:
        home = ints[engine + E_HOME]
        if done == 0:  # the first step's blocks were taken when it was scheduled
            ints[home + E_KV_FREE] -= take_steps(world, engine, 1, steps - 1)
        else:
            ints[home + E_KV_FREE] -= take_steps(world, engine, 0, steps)
        ints[engine + E_CONTEXT] += steps * batch
        ints[engine + E_STEPS] += steps
        if ints[G_LIMIT_COUNT] > 0:
            _count_slow_steps(world, engine, done, done + steps)
        _record_gaps(world, engine, done, done + steps)


def end_run(world: World, engine: int) -> None:
    """Add a run that is over to the engine's time integrals."""
    ints = world.ints
    floats = world.floats
    run_s = run_end_s(world, engine, ints[engine + E_RUN_STEPS]) - floats[engine + E_RUN_START_S]
    seconds = floats[engine + E_STAGE_S] if ints[engine + E_LANES] > 1 else run_s
    if ints[engine + E_DECODING] == 0 and ints[engine + E_RUNNING] > 0:
        if floats[engine + E_PAUSED_S] == 0.0:
            ints[engine + E_PAUSED_COUNT] = ints[engine + E_RUNNING]
        floats[engine + E_PAUSED_S] += run_s
    held = ints[engine + E_KV_PAGES] - ints[ints[engine + E_HOME] + E_KV_FREE]
    floats[engine + E_BUSY_S] += seconds
    floats[engine + E_KV_PAGE_S] += seconds * held
    floats[engine + E_BATCH_S] += seconds * ints[engine + E_RUNNING]


def _step_s(world: World, engine: int, step: int) -> float:
    return world.floats[engine + E_RUN_FIRST_S] + world.floats[engine + E_RUN_SLOPE_S] * (step - 1)


def gap_bin(world: World, seconds: float) -> int:
    """Where the inter-token histogram counts `seconds`."""
    edges = world.ints[G_EDGES]
    return world.ints[G_GAPS] + segment_below(world.floats, edges, world.ints[G_EDGE_COUNT], seconds)


def _record_gaps(world: World, engine: int, done: int, last: int) -> None:
    """Count the time between tokens of steps done + 1 … last: each decoding sequence waited one step's duration."""
    batch = world.ints[engine + E_RUNNING]
    step = done + 1
    if step == 1:
        gaps = batch - world.ints[engine + E_JOINED_COUNT]
        paused_s = world.floats[engine + E_PAUSED_S]
        if paused_s > 0.0:
            waited = min(world.ints[engine + E_PAUSED_COUNT], gaps)
            world.ints[gap_bin(world, paused_s + _step_s(world, engine, 1))] += waited
            gaps -= waited
            world.floats[engine + E_PAUSED_S] = 0.0
        world.ints[gap_bin(world, _step_s(world, engine, 1))] += gaps
        step = 2
    while step <= last:
        here = gap_bin(world, _step_s(world, engine, step))
        if gap_bin(world, _step_s(world, engine, last)) == here:
            world.ints[here] += (last - step + 1) * batch
            return
        low = step
        high = last
        while high - low > 1:
            middle = (low + high) // 2
            if gap_bin(world, _step_s(world, engine, middle)) == here:
                low = middle
            else:
                high = middle
        world.ints[here] += (low - step + 1) * batch
        step = low + 1


def _count_slow_steps(world: World, engine: int, done: int, last: int) -> None:
    """Count the steps done + 1 … last that were longer than each limit on inter-token times.

    All sequences that decode share the count. The first step of a run is no gap for those that came with their KV, and
    ends a longer one for those that were paused: they are set right one by one.
    """
    ints = world.ints
    floats = world.floats
    for k in range(ints[G_LIMIT_COUNT]):
        limit_s = floats[ints[G_LIMITS] + k]
        ints[ints[engine + E_SLOW] + k] += _slow_steps(world, engine, done, last, limit_s)
    if done > 0:
        return
    first_s = _step_s(world, engine, 1)
    request = ints[engine + E_LATEST]
    joined = ints[engine + E_JOINED_COUNT]
    for _ in range(joined):
        k = ints[request + R_LIMIT]
        if k >= 0 and first_s > floats[ints[G_LIMITS] + k]:
            ints[request + R_SLOW_GAPS] -= 1
        request = ints[request + R_EARLIER]
    paused_s = floats[engine + E_PAUSED_S]
    if paused_s > 0.0:
        others = ints[engine + E_RUNNING] - joined
        waited = min(ints[engine + E_PAUSED_COUNT], others)
        for place in range(others):
            k = ints[request + R_LIMIT]
            if place >= others - waited and k >= 0 and first_s <= floats[ints[G_LIMITS] + k] < paused_s + first_s:
                ints[request + R_SLOW_GAPS] += 1
            request = ints[request + R_EARLIER]


def _slow_steps(world: World, engine: int, done: int, last: int, limit_s: float) -> int:
    """How many of steps done + 1 … last were longer than the limit: their times only grow, or only shrink."""
    first_is_slow = _step_s(world, engine, done + 1) > limit_s
    if (_step_s(world, engine, last) > limit_s) == first_is_slow:
        return last - done if first_is_slow else 0
    low = done + 1
    high = last
    while high - low > 1:
        middle = (low + high) // 2
        if (_step_s(world, engine, middle) > limit_s) == first_is_slow:
            low = middle
        else:
            high = middle
    return low - done if first_is_slow else last - low
