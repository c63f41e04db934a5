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
    tables = world.tables
    rows = world.engine_i[engine + E_NEW_KNOTS]
    columns = world.engine_i[engine + E_PAST_KNOTS]
    width = world.engine_i[engine + E_PAST_COUNT]
    i = segment_below(tables, rows, world.engine_i[engine + E_NEW_COUNT], float(new_tokens))
    j = segment_below(tables, columns, width, float(past_tokens))
    u = (new_tokens - tables[rows + i]) / (tables[rows + i + 1] - tables[rows + i])
    v = (past_tokens - tables[columns + j]) / (tables[columns + j + 1] - tables[columns + j])
    corner = world.engine_i[engine + E_PREFILL_TABLE] + i * width + j
    low = tables[corner] + u * (tables[corner + width] - tables[corner])
    high = tables[corner + 1] + u * (tables[corner + width + 1] - tables[corner + 1])
    return low + v * (high - low)


def decode_attention_s(world: World, engine: int, batch: int, mean_context: float) -> float:
    """Seconds of attention of `batch` decoding sequences with this mean context."""
    tables = world.tables
    knots = world.engine_i[engine + E_CONTEXT_KNOTS]
    count = world.engine_i[engine + E_CONTEXT_COUNT]
    k = segment_below(tables, knots, count, mean_context)
    row = world.engine_i[engine + E_DECODE_TABLE] + batch * count + k
    slope = (tables[row + 1] - tables[row]) / (tables[knots + k + 1] - tables[knots + k])
    return tables[row] + slope * (mean_context - tables[knots + k])


def run_end_s(world: World, engine: int, steps: int) -> float:
    """When step number `steps` of the current run ends."""
    first_s = world.engine_f[engine + E_RUN_FIRST_S]
    slope_s = world.engine_f[engine + E_RUN_SLOPE_S]
    return world.engine_f[engine + E_RUN_START_S] + (steps * first_s + slope_s * (steps * (steps - 1) * 0.5))


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
