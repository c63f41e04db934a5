"""Seconds of steps from a StepModel: one step, or arrays of them. The simulator's loop computes the same sum."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from splitplan.planner.latency.step import StepModel

FloatArray = NDArray[np.float64]


def step_seconds(
    model: StepModel,
    *,
    decode_batch: Any = 0,
    decode_context: Any = 0.0,
    prefill_new: Any = 0,
    prefill_past: Any = 0,
    prefill_sequences: Any = 1,
    running: Any = None,
) -> FloatArray:
    """Seconds of steps that hold `decode_batch` sequences at a mean context and one chunk (or equal chunks).

    All arguments broadcast. `prefill_new` tokens after `prefill_past` cached ones belong to each of
    `prefill_sequences` sequences; the chunk is taken to finish its prompt, so each samples a token. `running` is the
    number of sequences the scheduler handles (default: all in the step). The latency of all pipeline stages is counted.
    """
    if model.stages:
        parts = [
            step_seconds(
                stage,
                decode_batch=decode_batch,
                decode_context=decode_context,
                prefill_new=prefill_new,
                prefill_past=prefill_past,
                prefill_sequences=prefill_sequences,
                running=running,
            )
            for stage in model.stages
        ]
        total = np.sum(parts, axis=0)
        return np.where(total > 0, total + (len(parts) - 1) * model.handoff_s, 0.0)
    batch, context, new, past, chunks = np.broadcast_arrays(
        *(
            np.asarray(value, dtype=np.float64)
            for value in (decode_batch, decode_context, prefill_new, prefill_past, prefill_sequences)
        )
    )
    chunks = np.where(new > 0, chunks, 0.0)
    tokens = batch + chunks * new
    sequences = batch + chunks
    device = np.where(new > 0, model.overhead_s[1], model.overhead_s[0])
    device = device + _at(model.token_s, tokens) + _at(model.sequence_s, sequences)
    prefill = bilinear(model.prefill_new_knots, model.prefill_past_knots, model.prefill_attention_s, new, past)
    decode = bilinear(model.decode_batch_knots, model.decode_context_knots, model.decode_attention_s, batch, context)
    device = device + chunks * prefill + decode
    host = _at(model.host_s, sequences if running is None else np.asarray(running, dtype=np.float64))
    stage = np.maximum(device, host) + model.gap_s
    latency = model.num_stages * stage + (model.num_stages - 1) * model.handoff_s
    return np.where(tokens > 0, latency, 0.0)


def _at(table: FloatArray, counts: Any) -> FloatArray:
    """Dense table at counts; beyond its end it grows by its mean slope."""
    last = len(table) - 1
    index = np.minimum(np.asarray(counts), last).astype(np.int64)
    beyond = np.maximum(np.asarray(counts) - last, 0.0)
    slope = table[last] / last if last else 0.0
    values: FloatArray = table[index] + beyond * slope
    return values


def bilinear(x_knots: FloatArray, y_knots: FloatArray, table: FloatArray, x: Any, y: Any) -> FloatArray:
    """Bilinear interpolation on ascending knots; linear beyond the last ones."""
    x, y = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    i = np.clip(np.searchsorted(x_knots, x, side="right") - 1, 0, len(x_knots) - 2)
    j = np.clip(np.searchsorted(y_knots, y, side="right") - 1, 0, len(y_knots) - 2)
    u = (x - x_knots[i]) / (x_knots[i + 1] - x_knots[i])
    v = (y - y_knots[j]) / (y_knots[j + 1] - y_knots[j])
    low = table[i, j] * (1 - v) + table[i, j + 1] * v
    high = table[i + 1, j] * (1 - v) + table[i + 1, j + 1] * v
    values: FloatArray = low * (1 - u) + high * u
    return values
