"""Seconds of service from a step model, over whole arrays of requests."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from splitplan.planner.columns.mix import RequestMix
from splitplan.planner.latency.step import StepModel

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ChunkService:
    """Prefill of each request, chunk after chunk."""

    latency_s: FloatArray  # [n] first chunk in to last chunk out
    occupancy_s: FloatArray  # [n] until the instance can take the next request
    num_chunks: FloatArray  # [n]


def bilinear(rows: FloatArray, columns: FloatArray, table: FloatArray, x: FloatArray, y: FloatArray) -> FloatArray:
    """`table[i, j]` at knots `rows[i]`, `columns[j]`, interpolated at (x, y); past the last knot the slope goes on."""
    i = _segment(rows, x)
    j = _segment(columns, y)
    u = (x - rows[i]) / (rows[i + 1] - rows[i])
    v = (y - columns[j]) / (columns[j + 1] - columns[j])
    low = table[i, j] * (1 - v) + table[i, j + 1] * v
    high = table[i + 1, j] * (1 - v) + table[i + 1, j + 1] * v
    return np.asarray(low * (1 - u) + high * u, dtype=np.float64)


def _segment(knots: FloatArray, x: FloatArray) -> NDArray[np.int64]:
    return np.minimum(np.maximum(np.searchsorted(knots, x, "right") - 1, 0), len(knots) - 2)


def decode_attention_s(step: StepModel, batch: float, context_tokens: float) -> float:
    """Attention of one decode step of `batch` sequences with a mean context, one stage."""
    position, context = np.array([batch]), np.array([context_tokens])
    knots = step.decode_batch_knots, step.decode_context_knots
    return float(bilinear(*knots, step.decode_attention_s, position, context)[0])


def decode_step_s(step: StepModel, batch: float, context_tokens: float) -> float:
    """Seconds from one token to the next of `batch` sequences with a mean context.

    With pipeline stages the batch runs as that many micro-batches, and a token passes through all stages; where they
    are not alike, the micro-batches follow each other at the pace of the slowest.
    """
    if step.stages:
        each = [decode_step_s(stage, batch / len(step.stages), context_tokens) for stage in step.stages]
        return max(sum(each), len(each) * max(each)) + (len(each) - 1) * step.handoff_s
    stages = step.num_stages
    part = max(batch / stages, 1.0)
    device_s = step.overhead_s[0] + at(step.token_s, part) + at(step.sequence_s, part)
    device_s += decode_attention_s(step, part, context_tokens)
    stage_s = max(device_s, at(step.host_s, part)) + step.gap_s
    return stages * stage_s + (stages - 1) * step.handoff_s


@dataclass(frozen=True, slots=True)
class Prompts:
    """Prompts cut into chunks of `chunk_tokens`, with the attention of all chunks of each summed once."""

    step: StepModel
    chunk_tokens: int
    new: FloatArray  # [n] tokens to compute
    attention_s: FloatArray  # [n]
    stages: tuple[Prompts, ...] = ()  # the same prompts on each stage, where stages are not alike

    def service(self, *, decode_batch: float = 0.0, context_tokens: float = 0.0) -> ChunkService:
        """Prefill service of each prompt, with `decode_batch` sequences decoding in the same steps.

        The chunk's budget is less by the decoding sequences; its attention is taken as that of the full budget.
        """
        if self.stages:
            return _through_stages(
                [p.service(decode_batch=decode_batch, context_tokens=context_tokens) for p in self.stages],
                self.step.handoff_s,
            )
        step = self.step
        budget = max(1.0, self.chunk_tokens - decode_batch)
        num_chunks = np.ceil(self.new / budget)
        shared_s = step.overhead_s[1] + step.gap_s
        if decode_batch > 0:
            shared_s += decode_attention_s(step, decode_batch, context_tokens) + at(step.sequence_s, decode_batch)
        full, rest = num_chunks - 1, self.new - (num_chunks - 1) * budget
        total_s = num_chunks * shared_s + step.sequence_s[1] + self.attention_s
        total_s += full * at(step.token_s, budget + decode_batch)
        total_s += _lookup(step.token_s, rest + decode_batch)
        total_s = np.maximum(total_s, num_chunks * (step.host_s[1] + step.gap_s))
        more_stages = step.num_stages - 1
        latency_s = total_s + more_stages * (total_s / num_chunks + step.handoff_s)
        return ChunkService(latency_s, total_s, num_chunks)


def prompts(step: StepModel, chunk_tokens: int, new: FloatArray, past: FloatArray) -> Prompts:
    """Prompts with `new` [n] tokens after `past` [n] cached ones."""
    models = {id(stage): stage for stage in step.stages}
    known = {key: prompts(stage, chunk_tokens, new, past) for key, stage in models.items()}
    stages = tuple(known[id(stage)] for stage in step.stages)
    attention_s = np.zeros_like(new) if stages else _chunked_attention_s(step, new, past, float(chunk_tokens))
    return Prompts(step, chunk_tokens, new, attention_s, stages)


def _through_stages(each: list[ChunkService], handoff_s: float) -> ChunkService:
    """A prompt's chunks follow each other through unlike stages, a chunk behind the one before at the slowest."""
    num_chunks = each[0].num_chunks
    slowest_s = np.maximum.reduce([stage.occupancy_s for stage in each])
    one_chunk_s = np.sum([stage.occupancy_s for stage in each], axis=0) / num_chunks
    latency_s = one_chunk_s + (num_chunks - 1) * slowest_s / num_chunks + (len(each) - 1) * handoff_s
    return ChunkService(latency_s, slowest_s, num_chunks)


def mix_prompts(step: StepModel, chunk_tokens: int, mix: RequestMix) -> Prompts:
    """The prompts of a request mix."""
    return prompts(step, chunk_tokens, mix.new_tokens, mix.input_tokens - mix.new_tokens)


def _chunked_attention_s(step: StepModel, new: FloatArray, past: FloatArray, budget: float) -> FloatArray:
    """Prefill attention of all chunks of each prompt: chunk c attends to `past + c·budget` tokens before it."""
    total_s = np.zeros_like(new)
    knots = step.prefill_new_knots, step.prefill_past_knots
    live = np.arange(len(new))
    start = 0.0
    while len(live):
        size = np.minimum(new[live] - start, budget)
        total_s[live] += bilinear(*knots, step.prefill_attention_s, size, past[live] + start)
        start += budget
        live = live[new[live] > start]
    return total_s


def at(table: FloatArray, position: float) -> float:
    """Linear look-up in a table dense in whole numbers, clipped to its ends."""
    last = len(table) - 1
    if position >= last:
        return float(table[last])
    below = int(max(position, 0.0))
    share = max(position, 0.0) - below
    return float(table[below] * (1 - share) + table[below + 1] * share)


def _lookup(table: FloatArray, position: FloatArray) -> FloatArray:
    """`at` over an array."""
    inside = np.minimum(np.maximum(position, 0.0), len(table) - 1.0)
    below = np.minimum(inside.astype(np.int64), max(len(table) - 2, 0))
    share = inside - below
    return np.asarray(table[below] * (1 - share) + table[below + 1] * share, dtype=np.float64)
