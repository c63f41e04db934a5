"""Seconds of one engine step, from the flat tables of a StepModel. Part of the hot loop: runs as is and compiled.

    step_s = max(device_s, host_s) + gap_s

While only decodes run, a step's device time is linear in the mean context between two knots, so that the end of the
j-th step of such a run is a closed form (an arithmetical series): `run_end_s`.
"""

from __future__ import annotations

from splitplan.planner.simulate.layout import (
    E_CONTEXT_COUNT,
    E_CONTEXT_KNOTS,
    E_DECODE_TABLE,
    E_NEW_COUNT,
    E_NEW_KNOTS,
    E_PAST_COUNT,
    E_PAST_KNOTS,
    E_PREFILL_TABLE,
    E_RUN_FIRST_S,
    E_RUN_SLOPE_S,
    E_RUN_START_S,
    Floats,
    World,
)


def segment_below(knots: Floats, start: int, count: int, value: float) -> int:
    """Index of the knot at or below `value`, at most `count` − 2, so that a segment follows it."""
    low = 0
    high = count - 1
    while high - low > 1:
        middle = (low + high) // 2
        if knots[start + middle] <= value:
            low = middle
        else:
            high = middle
    return low


def prefill_attention_s(world: World, engine: int, new_tokens: int, past_tokens: int) -> float:
    """Seconds of attention of one prompt chunk: bilinear between knots, linear beyond the last."""
    floats = world.floats
    rows = world.ints[engine + E_NEW_KNOTS]
    columns = world.ints[engine + E_PAST_KNOTS]
    width = world.ints[engine + E_PAST_COUNT]
    i = segment_below(floats, rows, world.ints[engine + E_NEW_COUNT], float(new_tokens))
    j = segment_below(floats, columns, width, float(past_tokens))
    u = (new_tokens - floats[rows + i]) / (floats[rows + i + 1] - floats[rows + i])
    v = (past_tokens - floats[columns + j]) / (floats[columns + j + 1] - floats[columns + j])
    corner = world.ints[engine + E_PREFILL_TABLE] + i * width + j
    low = floats[corner] + u * (floats[corner + width] - floats[corner])
    high = floats[corner + 1] + u * (floats[corner + width + 1] - floats[corner + 1])
    return low + v * (high - low)


def decode_attention_s(world: World, engine: int, batch: int, mean_context: float) -> float:
    """Seconds of attention of `batch` decoding sequences with this mean context."""
    floats = world.floats
    knots = world.ints[engine + E_CONTEXT_KNOTS]
    count = world.ints[engine + E_CONTEXT_COUNT]
    k = segment_below(floats, knots, count, mean_context)
    row = world.ints[engine + E_DECODE_TABLE] + batch * count + k
    slope = (floats[row + 1] - floats[row]) / (floats[knots + k + 1] - floats[knots + k])
    return floats[row] + slope * (mean_context - floats[knots + k])


def run_end_s(world: World, engine: int, steps: int) -> float:
    """When step number `steps` of the current run ends."""
    first_s = world.floats[engine + E_RUN_FIRST_S]
    slope_s = world.floats[engine + E_RUN_SLOPE_S]
    return world.floats[engine + E_RUN_START_S] + (steps * first_s + slope_s * (steps * (steps - 1) * 0.5))


def steps_until(world: World, engine: int, time_s: float, most: int) -> int:
    """The first step of the current run that ends at or after `time_s`, at most `most`."""
    low = 0
    high = most
    while high - low > 1:
        middle = (low + high) // 2
        if run_end_s(world, engine, middle) >= time_s:
            high = middle
        else:
            low = middle
    return high
