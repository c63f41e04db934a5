"""Runs of steps: how long nothing changes, and when it does. Part of the hot loop: runs as is and compiled."""

from __future__ import annotations

import math

from splitplan.planner.simulate.layout import (
    E_BATCH_S,
    E_BLOCK_TOKENS,
    E_BUSY_S,
    E_CONTEXT,
    E_CONTEXT_COUNT,
    E_CONTEXT_KNOTS,
    E_DECODING,
    E_GAP_S,
    E_HEAP,
    E_HOST_TABLE,
    E_INDEX,
    E_JOINED_COUNT,
    E_KV_BLOCK_S,
    E_KV_BLOCKS,
    E_KV_FREE,
    E_MAX_SEQS,
    E_OVERHEAD_DECODE_S,
    E_OVERHEAD_PREFILL_S,
    E_PARTIAL,
    E_PAUSED_COUNT,
    E_PAUSED_S,
    E_PHASES,
    E_PREEMPTED,
    E_RUN_DONE,
    E_RUN_FIRST_S,
    E_RUN_FREE,
    E_RUN_SLOPE_S,
    E_RUN_START_S,
    E_RUN_STEPS,
    E_RUNNING,
    E_SEQUENCE_TABLE,
    E_STEP_ATTENTION_S,
    E_STEP_COUNT,
    E_STEP_PROMPTS,
    E_STEP_TOKENS,
    E_STEPS,
    E_TOKEN_TABLE,
    E_WAIT_HEAD,
    FIRST_ENGINE_SOURCE,
    G_STEPPING,
    INFINITE_S,
    R_FINISH_STEP,
    World,
)
from splitplan.planner.simulate.queues import set_wake
from splitplan.planner.simulate.running import growth
from splitplan.planner.simulate.steptime import decode_attention_s, run_end_s, segment_below, steps_until


def start_run(world: World, engine: int, now_s: float) -> None:
    """Start the step that was built, or the run of decode steps it begins, or fall idle."""
    engine_i = world.engine_i
    engine_f = world.engine_f
    source = FIRST_ENGINE_SOURCE + engine_i[engine + E_INDEX]
    prompt_tokens = engine_i[engine + E_STEP_TOKENS]
    batch = engine_i[engine + E_DECODING]
    engine_i[engine + E_RUN_DONE] = 0
    if batch + prompt_tokens == 0:
        engine_i[engine + E_RUN_STEPS] = 0
        set_wake(world, source, INFINITE_S)
        return
    engine_f[engine + E_RUN_START_S] = now_s
    engine_i[engine + E_RUN_FREE] = engine_i[engine + E_KV_FREE]
    device_s = _device_s(world, engine, batch, prompt_tokens)
    sequences = batch + engine_i[engine + E_STEP_PROMPTS]
    if engine_i[engine + E_PARTIAL] >= 0:
        sequences += 1
    host_s = world.tables[engine_i[engine + E_HOST_TABLE] + sequences]
    engine_f[engine + E_RUN_FIRST_S] = max(device_s, host_s) + engine_f[engine + E_GAP_S]
    engine_f[engine + E_RUN_SLOPE_S] = 0.0
    engine_i[engine + E_RUN_STEPS] = 1
    if prompt_tokens == 0:
        _extend_run(world, engine, device_s, host_s)
    _wake_for_run(world, engine)


def _device_s(world: World, engine: int, batch: int, prompt_tokens: int) -> float:
    engine_i = world.engine_i
    engine_f = world.engine_f
    overhead = E_OVERHEAD_PREFILL_S if prompt_tokens > 0 else E_OVERHEAD_DECODE_S
    device_s = engine_f[engine + overhead]
    device_s += world.tables[engine_i[engine + E_TOKEN_TABLE] + batch + prompt_tokens]
    device_s += world.tables[engine_i[engine + E_SEQUENCE_TABLE] + batch + engine_i[engine + E_STEP_PROMPTS]]
    device_s += engine_f[engine + E_STEP_ATTENTION_S]
    if batch > 0:
        device_s += decode_attention_s(world, engine, batch, engine_i[engine + E_CONTEXT] / batch + 1.0)
    return device_s


def _extend_run(world: World, engine: int, device_s: float, host_s: float) -> None:
    """A step of decodes only: go on until a sequence ends, a knot is passed, the host hides, or KV runs out."""
    engine_i = world.engine_i
    if engine_i[engine + E_PREEMPTED] == 1 and engine_i[engine + E_WAIT_HEAD] >= 0:
        return  # what was preempted is looked at again at the next boundary
    tables = world.tables
    batch = engine_i[engine + E_RUNNING]
    first = world.memory[engine_i[engine + E_HEAP]]
    steps = world.request_i[first + R_FINISH_STEP] - engine_i[engine + E_STEPS]
    mean = engine_i[engine + E_CONTEXT] / batch + 1.0
    knots = engine_i[engine + E_CONTEXT_KNOTS]
    count = engine_i[engine + E_CONTEXT_COUNT]
    k = segment_below(tables, knots, count, mean)
    if k < count - 2:
        steps = min(steps, max(1, math.ceil(tables[knots + k + 1] - mean)))
    slope_s = decode_attention_s(world, engine, batch, mean + 1.0) - decode_attention_s(world, engine, batch, mean)
    if device_s < host_s:
        if slope_s > 0.0:
            hidden = (host_s - device_s) / slope_s
            if hidden < steps:
                steps = max(1, int(hidden))
    else:
        world.engine_f[engine + E_RUN_SLOPE_S] = slope_s
        if slope_s < 0.0:
            visible = (host_s - device_s) / slope_s
            if visible < steps:
                steps = max(1, int(visible))
    engine_i[engine + E_RUN_STEPS] = _steps_with_kv(world, engine, steps)


def _steps_with_kv(world: World, engine: int, most: int) -> int:
    """Steps, at most `most`, whose blocks are free; those of the first step are already taken."""
    engine_i = world.engine_i
    free = engine_i[engine + E_KV_FREE]
    block = engine_i[engine + E_BLOCK_TOKENS]
    if engine_i[engine + E_RUNNING] * ((most + block - 2) // block) <= free:
        return most
    phases = engine_i[engine + E_PHASES]
    phase = engine_i[engine + E_STEPS] % block
    steps = 1
    while steps < most:
        phase += 1
        if phase == block:
            phase = 0
        free -= world.memory[phases + phase]
        if free < 0:
            break
        steps += 1
    return steps


def _wake_for_run(world: World, engine: int) -> None:
    steps = world.engine_i[engine + E_RUN_STEPS]
    if world.global_i[G_STEPPING] == 1:
        steps = min(steps, world.engine_i[engine + E_RUN_DONE] + 1)
    source = FIRST_ENGINE_SOURCE + world.engine_i[engine + E_INDEX]
    set_wake(world, source, run_end_s(world, engine, steps))


def notify(world: World, engine: int, now_s: float, blocks: int) -> None:
    """Something that needs a slot and `blocks` arrived: wake an idle engine, or end a run it can join early."""
    engine_i = world.engine_i
    steps = engine_i[engine + E_RUN_STEPS]
    if steps == 0:
        set_wake(world, FIRST_ENGINE_SOURCE + engine_i[engine + E_INDEX], now_s)
        return
    if steps == 1 or engine_i[engine + E_RUNNING] >= engine_i[engine + E_MAX_SEQS]:
        return
    if blocks > engine_i[engine + E_RUN_FREE]:
        return  # a run only takes blocks: what does not fit at its start does not fit within it
    sooner = steps_until(world, engine, now_s, steps)
    if sooner < steps:
        engine_i[engine + E_RUN_STEPS] = sooner
        _wake_for_run(world, engine)


def advance(world: World, engine: int, steps: int) -> None:
    """Account for the next `steps` steps of the current run."""
    if steps == 0:
        return
    engine_i = world.engine_i
    done = engine_i[engine + E_RUN_DONE]
    batch = engine_i[engine + E_DECODING]
    engine_i[engine + E_RUN_DONE] = done + steps
    engine_i[engine + E_STEP_COUNT] += steps
    if batch > 0:
        if done == 0:  # the first step's blocks were taken when it was scheduled
            engine_i[engine + E_KV_FREE] -= growth(world, engine, 1, steps - 1)
        else:
            engine_i[engine + E_KV_FREE] -= growth(world, engine, 0, steps)
        engine_i[engine + E_CONTEXT] += steps * batch
        engine_i[engine + E_STEPS] += steps
        _record_gaps(world, engine, done, done + steps)


def end_run(world: World, engine: int) -> None:
    """Add a run that is over to the engine's time integrals."""
    engine_i = world.engine_i
    engine_f = world.engine_f
    seconds = run_end_s(world, engine, engine_i[engine + E_RUN_STEPS]) - engine_f[engine + E_RUN_START_S]
    engine_f[engine + E_BUSY_S] += seconds
    if engine_i[engine + E_DECODING] == 0 and engine_i[engine + E_RUNNING] > 0:
        if engine_f[engine + E_PAUSED_S] == 0.0:
            engine_i[engine + E_PAUSED_COUNT] = engine_i[engine + E_RUNNING]
        engine_f[engine + E_PAUSED_S] += seconds
    engine_f[engine + E_KV_BLOCK_S] += seconds * (engine_i[engine + E_KV_BLOCKS] - engine_i[engine + E_KV_FREE])
    engine_f[engine + E_BATCH_S] += seconds * engine_i[engine + E_RUNNING]


def _step_s(world: World, engine: int, step: int) -> float:
    return world.engine_f[engine + E_RUN_FIRST_S] + world.engine_f[engine + E_RUN_SLOPE_S] * (step - 1)


def gap_bin(world: World, seconds: float) -> int:
    """The bin of the inter-token histogram that holds `seconds`."""
    return segment_below(world.gap_edges_s, 0, len(world.gap_edges_s), seconds)


def _record_gaps(world: World, engine: int, done: int, last: int) -> None:
    """Count the time between tokens of steps done + 1 … last: each decoding sequence waited one step's duration."""
    batch = world.engine_i[engine + E_RUNNING]
    step = done + 1
    if step == 1:
        gaps = batch - world.engine_i[engine + E_JOINED_COUNT]
        if world.engine_f[engine + E_PAUSED_S] > 0.0:
            waited = min(world.engine_i[engine + E_PAUSED_COUNT], gaps)
            world.gap_counts[gap_bin(world, world.engine_f[engine + E_PAUSED_S] + _step_s(world, engine, 1))] += waited
            gaps -= waited
            world.engine_f[engine + E_PAUSED_S] = 0.0
        world.gap_counts[gap_bin(world, _step_s(world, engine, 1))] += gaps
        step = 2
    while step <= last:
        here = gap_bin(world, _step_s(world, engine, step))
        if gap_bin(world, _step_s(world, engine, last)) == here:
            world.gap_counts[here] += (last - step + 1) * batch
            return
        low = step
        high = last
        while high - low > 1:
            middle = (low + high) // 2
            if gap_bin(world, _step_s(world, engine, middle)) == here:
                low = middle
            else:
                high = middle
        world.gap_counts[here] += (low - step + 1) * batch
        step = low + 1
