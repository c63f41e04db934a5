"""What a workload asks for, in numbers: rates, burstiness, quantiles of lengths, and how much prefixes repeat."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from splitplan.planner.spec.arrivals import burstiness, busiest_req_per_s
from splitplan.planner.spec.prefix import cached_tokens, hit_share, token_hit_ratio
from splitplan.planner.spec.slo import format_slo
from splitplan.planner.spec.workload import FloatArray, IntArray, PrefixBlocks, Requests, Workload

CACHE_BLOCKS = (2_000, 10_000, 30_000, 50_000)
BUSY_WINDOWS_S = (1.0, 10.0, 60.0)


@dataclass(frozen=True, slots=True)
class LengthSummary:
    """Mean and quantiles of one length, in tokens."""

    mean: float
    p50: int
    p90: int
    p95: int
    p99: int
    max: int


@dataclass(frozen=True, slots=True)
class ClassSummary:
    """One class of requests."""

    name: str
    share: float
    input_tokens: LengthSummary
    output_tokens: LengthSummary
    slo: str | None


@dataclass(frozen=True, slots=True)
class PrefixHits:
    """What one shared LRU cache of a size would have held of a trace's prompts; None tokens is without a limit."""

    cache_tokens: int | None
    block_share: float  # of prompt blocks
    token_share: float  # of prompt tokens


@dataclass(frozen=True, slots=True)
class WorkloadSummary:
    """All of it; of a description what it describes, of a trace what was counted."""

    name: str
    source: str
    num_requests: int | None  # of a trace
    span_s: float | None  # of a trace, first to last arrival
    rate_req_per_s: float
    input_tokens_per_s: float
    output_tokens_per_s: float
    arrival_scv: float
    stamp_s: float | None  # the coarse clock that a trace's arrivals were rounded to
    busiest_req_per_s: dict[str, float]  # highest rate over 1, 10 and 60 s of a trace
    correlation: float  # of input and output tokens
    classes: tuple[ClassSummary, ...]
    prefix_hit_ratio: float
    prefix_hits: tuple[PrefixHits, ...]
    hourly_req_per_s: tuple[float, ...]
    notes: tuple[str, ...]


def summarise(workload: Workload) -> WorkloadSummary:
    """Summarise a workload: a trace from every one of its requests, a description from its joint sample."""
    trace = workload.trace
    if trace is None:
        prompts, outputs, index, weight = (
            workload.input_tokens,
            workload.output_tokens,
            workload.class_index,
            workload.weight,
        )
    else:
        prompts, outputs, index = trace.input_tokens, trace.output_tokens, trace.class_index
        weight = np.full(len(trace), 1.0 / len(trace))
    classes = []
    for number, request_class in enumerate(workload.classes):
        rows = index == number
        if rows.any():
            lengths = (_lengths(prompts[rows], weight[rows]), _lengths(outputs[rows], weight[rows]))
            slo = None if request_class.slo is None else format_slo(request_class.slo)
            classes.append(ClassSummary(request_class.name, float(weight[rows].sum()), *lengths, slo))
    rate = workload.rate_req_per_s
    return WorkloadSummary(
        name=workload.name,
        source=workload.source,
        num_requests=None if trace is None else len(trace),
        span_s=None if trace is None else float(trace.arrival_s[-1] - trace.arrival_s[0]),
        rate_req_per_s=rate,
        input_tokens_per_s=rate * float(prompts @ weight),
        output_tokens_per_s=rate * float(outputs @ weight),
        arrival_scv=workload.arrival_scv,
        stamp_s=None if trace is None else burstiness(trace.arrival_s).stamp_s,
        busiest_req_per_s=_busiest(trace),
        correlation=_correlation(prompts, outputs, weight),
        classes=tuple(classes),
        prefix_hit_ratio=workload.prefix_hit_ratio,
        prefix_hits=() if trace is None or trace.prefix is None else prefix_hits(trace.prefix, trace.input_tokens),
        hourly_req_per_s=workload.hourly_req_per_s,
        notes=workload.notes,
    )


def prefix_hits(prefix: PrefixBlocks, input_tokens: IntArray) -> tuple[PrefixHits, ...]:
    """Hits under LRU caches of growing size and under one without limit: the ceiling of prefix reuse."""
    found = []
    for blocks in (*CACHE_BLOCKS, math.inf):
        cached = cached_tokens(prefix, input_tokens, blocks)
        size = None if math.isinf(blocks) else int(blocks) * prefix.block_tokens
        found.append(PrefixHits(size, hit_share(prefix, blocks), token_hit_ratio(cached, input_tokens)))
    return tuple(found)


def weighted_quantiles(values: IntArray, weight: FloatArray, quantiles: tuple[float, ...]) -> list[int]:
    """The smallest values below or at which at least these shares of the weight lie."""
    order = np.argsort(values, kind="stable")
    cumulative = np.cumsum(weight[order])
    places = np.searchsorted(cumulative, np.array(quantiles) * cumulative[-1] * (1 - 1e-12))
    return [int(value) for value in values[order][np.minimum(places, len(values) - 1)]]


def _lengths(values: IntArray, weight: FloatArray) -> LengthSummary:
    p50, p90, p95, p99 = weighted_quantiles(values, weight, (0.5, 0.9, 0.95, 0.99))
    return LengthSummary(float(np.average(values, weights=weight)), p50, p90, p95, p99, int(values.max()))


def _correlation(prompts: IntArray, outputs: IntArray, weight: FloatArray) -> float:
    """Pearson's; 0 where one of the two does not vary."""
    inputs = prompts - np.average(prompts, weights=weight)
    answers = outputs - np.average(outputs, weights=weight)
    spread = math.sqrt(float((inputs**2) @ weight) * float((answers**2) @ weight))
    return float((inputs * answers) @ weight) / spread if spread > 1e-9 else 0.0


def _busiest(trace: Requests | None) -> dict[str, float]:
    if trace is None:
        return {}
    return {f"{window_s:g} s": busiest_req_per_s(trace, window_s) for window_s in BUSY_WINDOWS_S}
