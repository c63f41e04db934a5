"""From a model and a GPU's op times to the tables of a StepModel.

Tables are sampled once per (profile, model, parallelism, dtypes) up to a generous size and cut to each engine setting:
a solve builds hundreds of step models that differ in nothing but their limits. Token counts are sampled where the GEMM
staircase steps (graph sizes up to 512, then tiles) and expanded by rounding up to the next sample.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from splitplan.catalogs.engines import Engine
from splitplan.catalogs.links import Link
from splitplan.catalogs.models import Model
from splitplan.planner.latency.operations import (
    ACTIVATION_BYTES,
    Operation,
    OpSource,
    Position,
    Stage,
    decode_attention_operations,
    prefill_attention_operations,
    sequence_operations,
    token_operations,
)
from splitplan.planner.latency.overhead import EngineOverhead
from splitplan.planner.latency.step import StepModel

FloatArray = NDArray[np.float64]

SIXTEEN_BIT_TWINS = {"fp16": "bf16"}
"""Same width and same tensor rate: op tables measured one of the two."""

SMALLEST_TOKEN_TABLE = 16384
SMALLEST_SEQUENCE_TABLE = 1024
GRAPH_SIZES = np.array([1, 2, 4, *range(8, 513, 8)], dtype=np.float64)
"""Batches that engines capture as CUDA graphs; a step in between is padded to the next."""

PREFILL_NEW_KNOTS = np.array(
    [
        *(0, 16, 64, 128, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 5120, 6144, 8192),
        *(10240, 12288, 16384, 32768, 65536, 131072),
    ],
    dtype=np.float64,
)
PREFILL_PAST_KNOTS = np.array([0, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072], dtype=np.float64)
DECODE_BATCH_KNOTS = np.array(
    [0, 1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048], dtype=np.float64
)
DECODE_CONTEXT_KNOTS = np.array(
    [0, 16, 128, 256, 512, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 16384, 32768, 65536, 131072], dtype=np.float64
)
BANDWIDTH_BOUND_TOKENS = 128.0
RIDGE_DOUBLINGS = 2.0
"""GEMMs of up to 128 tokens wait for weights, those of 512 and more for the tensor cores."""

TYPICAL_STEP = (32, 2048)
"""Batch and context (and prompt length) whose step the basis shares are stated for."""


class ByIdentity:
    """Op times as a cache key: equal only to a wrapper of the very same object."""

    def __init__(self, ops: OpSource) -> None:
        self.ops = ops

    def __hash__(self) -> int:
        return id(self.ops)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ByIdentity) and other.ops is self.ops


@dataclass(frozen=True, slots=True)
class StageTables:
    """Sampled times of one stage, engine overhead not included."""

    token_s: FloatArray
    sequence_s: FloatArray
    prefill_attention_s: FloatArray
    decode_attention_s: FloatArray
    handoff_s: float
    basis_shares: tuple[float, float, float, float]


def step_model(
    model: Model,
    ops: OpSource,
    engine: Engine,
    gpu_link: Link,
    *,
    tp: int,
    pp: int,
    ep: int,
    weight_dtype: str,
    kv_dtype: str,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    overhead: EngineOverhead | None = None,
    layers: int = 0,
    position: Position = "",
) -> StepModel:
    """The step tables of one instance. `gpu_link` joins its tensor ranks (and its stages, unless slower).

    `overhead` defaults to the calibration of this engine and GPU. With `layers` and `position` it is the model of that
    one stage, for `unlike_stages` to join.
    """
    weights, kv = (SIXTEEN_BIT_TWINS.get(dtype, dtype) for dtype in (weight_dtype, kv_dtype))
    stage = Stage(model, tp, pp, ep, weights, kv, layers, position)
    size = _power_of_two(max_num_batched_tokens, SMALLEST_TOKEN_TABLE)
    tables = stage_tables(stage, ByIdentity(ops), gpu_link, size, _power_of_two(max_num_seqs, SMALLEST_SEQUENCE_TABLE))
    if overhead is None:
        overhead = default_overhead(ops, engine)
    return StepModel(
        overhead_s=(0.0, 0.0),
        host_s=overhead.host_s(stage.num_layers, tp, max_num_seqs),
        gap_s=overhead.step_gap_s(tp),
        token_s=_sustained(tables, overhead)[: max_num_batched_tokens + 1],
        sequence_s=overhead.sequence_s(tables.sequence_s[: max_num_seqs + 1] * overhead.stream_scale),
        prefill_new_knots=PREFILL_NEW_KNOTS,
        prefill_past_knots=PREFILL_PAST_KNOTS,
        prefill_attention_s=tables.prefill_attention_s * overhead.compute_scale,
        decode_batch_knots=DECODE_BATCH_KNOTS,
        decode_context_knots=DECODE_CONTEXT_KNOTS,
        decode_attention_s=tables.decode_attention_s * overhead.stream_scale,
        num_stages=1 if layers else pp,
        handoff_s=tables.handoff_s,
        basis_shares=tables.basis_shares,
    )


def unlike_stages(stages: tuple[StepModel, ...], handoff_s: float) -> StepModel:
    """A pipeline of stages that are not alike; its own tables hold the slowest stage's time of every entry."""
    first = stages[0]
    alike = {id(stage): stage for stage in stages}.values()

    def slowest(name: str) -> FloatArray:
        table: FloatArray = np.maximum.reduce([getattr(stage, name) for stage in alike])
        return table

    shares = np.mean([stage.basis_shares for stage in stages], axis=0)
    return replace(
        first,
        overhead_s=(max(stage.overhead_s[0] for stage in alike), max(stage.overhead_s[1] for stage in alike)),
        host_s=slowest("host_s"),
        gap_s=max(stage.gap_s for stage in alike),
        token_s=slowest("token_s"),
        sequence_s=slowest("sequence_s"),
        prefill_attention_s=slowest("prefill_attention_s"),
        decode_attention_s=slowest("decode_attention_s"),
        num_stages=len(stages),
        handoff_s=handoff_s,
        basis_shares=(float(shares[0]), float(shares[1]), float(shares[2]), float(shares[3])),
        stages=stages,
    )


def _sustained(tables: StageTables, overhead: EngineOverhead) -> FloatArray:
    """Token table as served: one scale passes into the other as GEMMs turn from bandwidth- to compute-bound."""
    stream, compute = overhead.stream_scale, overhead.compute_scale
    if compute == stream == 1.0:
        return tables.token_s
    tokens = np.arange(len(tables.token_s), dtype=np.float64)
    bound = np.clip(np.log2(np.maximum(tokens, 1.0) / BANDWIDTH_BOUND_TOKENS) / RIDGE_DOUBLINGS, 0.0, 1.0)
    return tables.token_s * (stream + (compute - stream) * bound)


def default_overhead(ops: OpSource, engine: Engine) -> EngineOverhead:
    """The shipped calibration for this engine on this GPU."""
    from splitplan.planner.latency.calibration import find_overhead

    gpu = getattr(ops, "gpu", None)
    return find_overhead(engine.name, engine.version, gpu.architecture if gpu is not None else "")


@lru_cache(maxsize=512)
def stage_tables(stage: Stage, source: ByIdentity, link: Link, max_tokens: int, max_sequences: int) -> StageTables:
    """Sample every table of a stage. Cached, by the identity of the op times."""
    ops = source.ops
    tokens = token_knots(max_tokens)
    sequences = token_knots(max_sequences)
    new, past = PREFILL_NEW_KNOTS[1:, None], PREFILL_PAST_KNOTS[None, :]
    batch, context = DECODE_BATCH_KNOTS[1:, None], np.maximum(DECODE_CONTEXT_KNOTS, 1.0)[None, :]
    prefill = _total(prefill_attention_operations(stage, ops, new, past))
    decode = _total(decode_attention_operations(stage, ops, batch, context))
    handoff = 0.0
    if stage.pp > 1:
        num_bytes = np.array([float(TYPICAL_STEP[1])]) * stage.model.hidden_size * ACTIVATION_BYTES
        handoff = float(ops.send(num_bytes, 2, link).seconds[0])
    return StageTables(
        token_s=_expand(tokens, _total(token_operations(stage, ops, link, tokens)), max_tokens),
        sequence_s=_expand(sequences, _total(sequence_operations(stage, ops, link, sequences)), max_sequences),
        prefill_attention_s=_with_zero_row(prefill, PREFILL_PAST_KNOTS),
        decode_attention_s=_with_zero_row(decode, DECODE_CONTEXT_KNOTS),
        handoff_s=handoff,
        basis_shares=_basis_shares(stage, ops, link),
    )


def token_knots(limit: int) -> FloatArray:
    """Token counts to sample: graph sizes to 512, then every 64 to 2,048, every 128 to 16,384, every 1,024 beyond."""
    parts = [GRAPH_SIZES, np.arange(576, 2049, 64), np.arange(2176, 16385, 128), np.arange(17408, limit + 1, 1024)]
    knots = np.concatenate([part.astype(np.float64) for part in parts])
    return knots[knots <= limit]


def _expand(knots: FloatArray, seconds: FloatArray, limit: int) -> FloatArray:
    """Dense table [limit + 1] from samples at ascending knots: each count costs what the next sample does."""
    index = np.searchsorted(knots, np.arange(1, limit + 1), side="left").clip(0, len(knots) - 1)
    seconds = np.broadcast_to(seconds, knots.shape)  # a stage without such operations has a zero
    dense = np.concatenate([[0.0], seconds[index]])
    dense.setflags(write=False)
    return dense


def _with_zero_row(seconds: FloatArray, columns: FloatArray) -> FloatArray:
    table = np.zeros((seconds.shape[0] + 1 if seconds.ndim else 1, len(columns)))
    table[1:] = seconds
    table.setflags(write=False)
    return table


def _total(operations: Iterable[Operation]) -> FloatArray:
    total: FloatArray | None = None
    for operation in operations:
        total = operation.seconds if total is None else total + operation.seconds
    return np.asarray(0.0) if total is None else total


def _basis_shares(stage: Stage, ops: OpSource, link: Link) -> tuple[float, float, float, float]:
    """Shares of seconds by basis, over a typical decode step and a typical prefill step together."""
    batch, length = (np.array([float(value)]) for value in TYPICAL_STEP)
    seconds = np.zeros(4)
    for operation in (
        *token_operations(stage, ops, link, np.concatenate([batch, length])),
        *sequence_operations(stage, ops, link, batch),
        *prefill_attention_operations(stage, ops, length, np.zeros(1)),
        *decode_attention_operations(stage, ops, batch, length),
    ):
        basis = np.broadcast_to(operation.timed.basis, operation.seconds.shape)
        np.add.at(seconds, basis.astype(np.int64).ravel(), operation.seconds.ravel())
    shares = seconds / seconds.sum() if seconds.sum() > 0 else np.array([0.0, 0.0, 0.0, 1.0])
    return (float(shares[0]), float(shares[1]), float(shares[2]), float(shares[3]))


def _power_of_two(value: int, smallest: int) -> int:
    size = smallest
    while size < value:
        size *= 2
    return size
